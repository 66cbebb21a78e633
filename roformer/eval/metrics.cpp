#include "roformer/eval/metrics.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <stdexcept>

#include "roformer/core/random.h"

namespace roformer {
namespace {

MetricValue undefined_metric(std::string reason) { return {std::nullopt, std::move(reason)}; }

void check_pairs(std::size_t labels, std::size_t predictions) {
  if (labels != predictions)
    throw std::logic_error(fmt::format("{} predictions for {} labels", predictions, labels));
}

// How often a class is right, predicted and meant.
struct ClassCounts {
  double hits = 0, predicted = 0, actual = 0;

  double f1() const { return predicted + actual > 0 ? 2 * hits / (predicted + actual) : 0; }
};

std::map<int64_t, ClassCounts> count_classes(std::span<const int64_t> labels,
                                             std::span<const int64_t> predictions) {
  std::map<int64_t, ClassCounts> counts;
  for (std::size_t i = 0; i < labels.size(); ++i) {
    ++counts[labels[i]].actual;
    ++counts[predictions[i]].predicted;
    if (labels[i] == predictions[i]) ++counts[labels[i]].hits;
  }
  return counts;
}

// Gorodkin's R_K, which is Matthews' coefficient for two classes.
MetricValue matthews(const std::map<int64_t, ClassCounts>& counts, double total) {
  double hits = 0, cross = 0, predicted_squares = 0, actual_squares = 0;
  for (const auto& [label, c] : counts) {
    hits += c.hits;
    cross += c.predicted * c.actual;
    predicted_squares += c.predicted * c.predicted;
    actual_squares += c.actual * c.actual;
  }
  const double predicted_spread = total * total - predicted_squares;
  const double actual_spread = total * total - actual_squares;
  if (actual_spread == 0) return {0.0, "all labels are one class: 0 by convention"};
  if (predicted_spread == 0) return {0.0, "all predictions are one class: 0 by convention"};
  const double value = (hits * total - cross) / (std::sqrt(predicted_spread) * std::sqrt(actual_spread));
  return {std::clamp(value, -1.0, 1.0), ""};
}

bool is_constant(std::span<const double> values) {
  return std::all_of(values.begin(), values.end(), [&](double v) { return v == values.front(); });
}

void divide_by_largest(std::vector<double>& values) {
  double largest = 0;
  for (const double v : values) largest = std::max(largest, std::abs(v));
  for (double& v : values) v /= largest;
}

// Deviations from the mean, of length 1. `values` is finite and not constant. Dividing by the largest, before
// and after, keeps sums and squares in range.
std::vector<double> unit_deviations(std::span<const double> values) {
  std::vector<double> out(values.begin(), values.end());
  divide_by_largest(out);
  const double center = std::accumulate(out.begin(), out.end(), 0.0) / static_cast<double>(out.size());
  for (double& v : out) v -= center;
  divide_by_largest(out);
  const double length = std::sqrt(std::inner_product(out.begin(), out.end(), out.begin(), 0.0));
  for (double& v : out) v /= length;
  return out;
}

// On finite values.
MetricValue correlation(std::span<const double> scores, std::span<const double> predictions) {
  if (scores.size() < 2) return undefined_metric("a correlation needs two examples or more");
  if (is_constant(scores)) return undefined_metric("all scores are equal");
  if (is_constant(predictions)) return undefined_metric("all predictions are equal");
  const std::vector<double> x = unit_deviations(scores), y = unit_deviations(predictions);
  return {std::clamp(std::inner_product(x.begin(), x.end(), y.begin(), 0.0), -1.0, 1.0), ""};
}

// Linear interpolation between order statistics (Hyndman and Fan's type 7).
double sorted_quantile(std::span<const double> sorted, double p) {
  const double place = p * static_cast<double>(sorted.size() - 1);
  const auto below = std::min(static_cast<std::size_t>(place), sorted.size() - 1);
  const std::size_t above = std::min(below + 1, sorted.size() - 1);
  return std::lerp(sorted[below], sorted[above], place - static_cast<double>(below));
}

// The defined values of all resamples, sorted.
std::vector<double> resampled_values(int64_t examples, const ResampleMetric& metric,
                                     const BootstrapOptions& options) {
  if (options.resamples < 1 || !(options.level > 0 && options.level < 1))
    throw std::logic_error("a bootstrap needs resamples and a level between 0 and 1");
  std::vector<double> values;
  if (examples < 1) return values;
  std::vector<int64_t> indices(static_cast<std::size_t>(examples));
  for (int64_t r = 0; r < options.resamples; ++r) {
    Random random(mix(options.seed, static_cast<uint64_t>(r)));
    for (int64_t& index : indices)
      index = static_cast<int64_t>(random.below(static_cast<uint64_t>(examples)));
    const std::optional<double> value = metric(indices);
    if (value && !std::isnan(*value)) values.push_back(*value);
  }
  std::sort(values.begin(), values.end());
  return values;
}

BootstrapInterval percentile_interval(const std::vector<double>& sorted, const BootstrapOptions& options) {
  BootstrapInterval interval;
  interval.used = static_cast<int64_t>(sorted.size());
  interval.undefined = options.resamples - interval.used;
  if (sorted.empty()) return interval;
  interval.low = sorted_quantile(sorted, (1 - options.level) / 2);
  interval.high = sorted_quantile(sorted, (1 + options.level) / 2);
  return interval;
}

}  // namespace

MetricValue evaluate(Metric metric, std::span<const int64_t> labels, std::span<const int64_t> predictions) {
  check_pairs(labels.size(), predictions.size());
  if (compares_scores(metric)) throw std::logic_error("a correlation compares scores, not classes");
  if (labels.empty()) return undefined_metric("there are no examples");
  const auto counts = count_classes(labels, predictions);
  const auto total = static_cast<double>(labels.size());
  if (metric == Metric::matthews) return matthews(counts, total);
  if (metric == Metric::accuracy || metric == Metric::macro_f1) {
    double hits = 0, f1_sum = 0;
    for (const auto& [label, c] : counts) {
      hits += c.hits;
      f1_sum += c.f1();
    }
    return {metric == Metric::accuracy ? hits / total : f1_sum / static_cast<double>(counts.size()), ""};
  }

  const auto found = counts.find(1);
  const ClassCounts positive = found == counts.end() ? ClassCounts{} : found->second;
  if (positive.actual == 0 && positive.predicted == 0)
    return {0.0, "no positive label and no positive prediction: 0 by convention"};
  // F1 of one side without positives is an honest 0, but says little.
  if (positive.actual == 0 && metric != Metric::precision) return {0.0, "no positive label: 0 by convention"};
  if (positive.predicted == 0 && metric != Metric::recall)
    return {0.0, "no positive prediction: 0 by convention"};
  if (metric == Metric::precision) return {positive.hits / positive.predicted, ""};
  if (metric == Metric::recall) return {positive.hits / positive.actual, ""};
  return {positive.f1(), ""};
}

MetricValue evaluate(Metric metric, std::span<const double> scores, std::span<const double> predictions) {
  check_pairs(scores.size(), predictions.size());
  if (!compares_scores(metric)) throw std::logic_error("this metric compares classes, not scores");
  for (const auto& [values, name] : {std::pair{scores, "scores"}, std::pair{predictions, "predictions"}}) {
    for (const double v : values) {
      if (std::isnan(v)) return undefined_metric(fmt::format("NaN among the {}", name));
      if (std::isinf(v) && metric == Metric::pearson)
        return undefined_metric(fmt::format("an infinity among the {}", name));
    }
  }
  if (metric == Metric::spearman) return correlation(average_ranks(scores), average_ranks(predictions));
  return correlation(scores, predictions);
}

MetricValue evaluate_numbers(Metric metric, std::span<const double> labels,
                             std::span<const double> predictions) {
  if (compares_scores(metric)) return evaluate(metric, labels, predictions);
  const auto classes = [](std::span<const double> numbers) {
    return std::vector<int64_t>(numbers.begin(), numbers.end());
  };
  return evaluate(metric, std::span<const int64_t>(classes(labels)),
                  std::span<const int64_t>(classes(predictions)));
}

std::vector<double> average_ranks(std::span<const double> values) {
  std::vector<std::size_t> order(values.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) { return values[a] < values[b]; });
  std::vector<double> ranks(values.size());
  for (std::size_t begin = 0, end = 0; begin < order.size(); begin = end) {
    while (end < order.size() && values[order[end]] == values[order[begin]]) ++end;
    const double rank = (static_cast<double>(begin + 1) + static_cast<double>(end)) / 2;
    for (std::size_t i = begin; i < end; ++i) ranks[order[i]] = rank;
  }
  return ranks;
}

BootstrapInterval bootstrap_interval(int64_t examples, const ResampleMetric& metric,
                                     const BootstrapOptions& options) {
  return percentile_interval(resampled_values(examples, metric, options), options);
}

BootstrapDifference paired_bootstrap(int64_t examples, const ResampleMetric& first,
                                     const ResampleMetric& second, const BootstrapOptions& options) {
  const ResampleMetric difference = [&](std::span<const int64_t> indices) -> std::optional<double> {
    const std::optional<double> a = first(indices), b = second(indices);
    if (!a || !b) return std::nullopt;
    return *a - *b;
  };
  const std::vector<double> sorted = resampled_values(examples, difference, options);
  BootstrapDifference result;
  result.interval = percentile_interval(sorted, options);
  if (examples > 0) {
    std::vector<int64_t> all(static_cast<std::size_t>(examples));
    std::iota(all.begin(), all.end(), int64_t{0});
    result.difference = difference(all);
  }
  if (!sorted.empty()) {
    const auto not_above =
        static_cast<double>(std::upper_bound(sorted.begin(), sorted.end(), 0.0) - sorted.begin());
    const auto not_below =
        static_cast<double>(sorted.end() - std::lower_bound(sorted.begin(), sorted.end(), 0.0));
    const auto count = static_cast<double>(sorted.size());
    result.p_value = std::clamp(2 * std::min(not_above, not_below) / count, 1 / count, 1.0);
  }
  return result;
}

SeedSummary summarize_seeds(std::span<const std::optional<double>> values) {
  SeedSummary summary;
  double sum = 0;
  for (const std::optional<double>& v : values) {
    ++(v ? summary.count : summary.undefined);
    sum += v.value_or(0);
  }
  if (summary.count == 0) return summary;
  summary.mean = sum / static_cast<double>(summary.count);
  if (summary.count < 2) return summary;
  double squares = 0;
  for (const std::optional<double>& v : values)
    if (v) squares += (*v - *summary.mean) * (*v - *summary.mean);
  summary.sd = std::sqrt(squares / static_cast<double>(summary.count - 1));
  return summary;
}

}  // namespace roformer
