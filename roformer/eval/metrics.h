#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace roformer {

/// The metrics of GLUE (Wang et al. 2019) and their companions, as fractions, not percent. Equal to
/// scikit-learn (the first six) and scipy (the correlations).
enum class Metric { accuracy, f1, precision, recall, matthews, macro_f1, pearson, spearman };
inline auto enum_names(Metric) {
  return std::array<std::pair<Metric, std::string_view>, 8>{{{Metric::accuracy, "accuracy"},
                                                             {Metric::f1, "f1"},
                                                             {Metric::precision, "precision"},
                                                             {Metric::recall, "recall"},
                                                             {Metric::matthews, "matthews"},
                                                             {Metric::macro_f1, "macro_f1"},
                                                             {Metric::pearson, "pearson"},
                                                             {Metric::spearman, "spearman"}}};
}
/// True for pearson and spearman, which compare scores; the others compare classes.
constexpr bool compares_scores(Metric metric) {
  return metric == Metric::pearson || metric == Metric::spearman;
}

/// A metric, or why there is none. Never NaN.
struct MetricValue {
  std::optional<double> value;
  /// Without a value: the reason. With one: empty, or that the value is scikit-learn's convention for a
  /// degenerate case ("no positive label and no positive prediction: 0 by convention").
  std::string note;

  bool degenerate() const { return value && !note.empty(); }
};

/// Any class metric but the correlations; f1, precision and recall are of class 1, macro_f1 is the mean over
/// the classes that occur. Conventions: a ratio whose denominator is 0 (f1, precision, recall without
/// positives; matthews of constant labels or predictions) is 0. Undefined: no examples.
MetricValue evaluate(Metric metric, std::span<const int64_t> labels, std::span<const int64_t> predictions);

/// pearson or spearman (average ranks for ties). Undefined: fewer than two examples, a constant side, a NaN;
/// infinities for pearson. Large values neither overflow nor vanish.
MetricValue evaluate(Metric metric, std::span<const double> scores, std::span<const double> predictions);

/// Either kind, from numbers as a model gives them; classes are whole ones.
MetricValue evaluate_numbers(Metric metric, std::span<const double> labels,
                             std::span<const double> predictions);

/// Ranks from 1; equal values share the mean of their ranks. `values` without NaN.
std::vector<double> average_ranks(std::span<const double> values);

/// The metric of a resample, given as indices of examples (with repeats); nothing where it is undefined.
using ResampleMetric = std::function<std::optional<double>(std::span<const int64_t> indices)>;

struct BootstrapOptions {
  int64_t resamples = 2000;
  double level = 0.95;
  uint64_t seed = 0;
};

/// A percentile bootstrap interval (Efron 1979) over examples, ends by linear interpolation.
struct BootstrapInterval {
  std::optional<double> low,
      high;               ///< nothing if the metric was undefined on every resample, or without examples
  int64_t used = 0;       ///< resamples behind it
  int64_t undefined = 0;  ///< resamples left out because the metric was undefined on them
};

/// Resample r draws `examples` indices by Random(mix(seed, r)), so the same seed gives the same interval
/// whatever the metric. Needs resamples > 0 and a level in (0, 1).
BootstrapInterval bootstrap_interval(int64_t examples, const ResampleMetric& metric,
                                     const BootstrapOptions& options = {});

/// Two systems on the same examples.
struct BootstrapDifference {
  std::optional<double> difference;  ///< first - second on all examples
  BootstrapInterval interval;        ///< of the difference
  /// Two-sided: twice the smaller share of resamples with a difference <= 0 or >= 0, at most 1, and never
  /// below 1 / used. Nothing without resamples.
  std::optional<double> p_value;
};

/// Both metrics see the same resamples.
BootstrapDifference paired_bootstrap(int64_t examples, const ResampleMetric& first,
                                     const ResampleMetric& second, const BootstrapOptions& options = {});

/// One number a seed, some perhaps undefined.
struct SeedSummary {
  std::optional<double> mean;  ///< of the defined ones
  std::optional<double> sd;    ///< sample standard deviation (divisor n - 1); nothing below two
  int64_t count = 0;           ///< defined ones
  int64_t undefined = 0;
};
SeedSummary summarize_seeds(std::span<const std::optional<double>> values);

}  // namespace roformer
