#include "roformer/eval/metrics.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <numeric>
#include <stdexcept>
#include <string>
#include <vector>

#include "roformer/core/files.h"
#include "roformer/core/random.h"
#include "tests/catch.h"
#include "tests/support.h"

using roformer::average_ranks;
using roformer::BootstrapOptions;
using roformer::evaluate;
using roformer::Metric;
using roformer::MetricValue;

namespace {

using Classes = std::vector<int64_t>;
using Scores = std::vector<double>;

double metric_number(const nlohmann::json& json) {
  if (json.is_number()) return json.get<double>();
  const std::string text = json.get<std::string>();
  if (text == "inf") return std::numeric_limits<double>::infinity();
  if (text == "-inf") return -std::numeric_limits<double>::infinity();
  return std::numeric_limits<double>::quiet_NaN();
}

Scores metric_numbers(const nlohmann::json& json) {
  Scores out;
  for (const auto& each : json) out.push_back(metric_number(each));
  return out;
}

nlohmann::json read_metric_cases(const std::filesystem::path& file) {
  return nlohmann::json::parse(roformer::read_file(file, std::size_t{1} << 24)).at("cases");
}

Metric metric_named(const std::string& name) {
  for (const auto& [value, text] : roformer::enum_names(Metric{}))
    if (text == name) return value;
  throw std::logic_error("unknown metric " + name);
}

// What is wrong with ours; empty if nothing.
std::string difference_to(const MetricValue& ours, double theirs, double tolerance) {
  if (std::isnan(theirs)) return ours.value ? "defined" : ours.note.empty() ? "no reason given" : "";
  if (!ours.value) return "undefined: " + ours.note;
  return std::abs(*ours.value - theirs) <= tolerance
             ? ""
             : std::to_string(*ours.value) + " is not " + std::to_string(theirs);
}

}  // namespace

TEST_CASE("class metrics equal scikit-learn's") {
  const auto oracles = roformer::test::require_oracles();
  if (!oracles) return;
  int checked = 0;
  for (const auto& example : read_metric_cases(*oracles / "metrics" / "classification.json")) {
    const auto labels = example.at("labels").get<Classes>(),
               predictions = example.at("predictions").get<Classes>();
    for (const auto& [name, expected] : example.at("expected").items()) {
      INFO(example.at("name") << ": " << name);
      MetricValue value;
      if (name == "accuracy_and_f1") {
        value.value = (*evaluate(Metric::accuracy, labels, predictions).value +
                       *evaluate(Metric::f1, labels, predictions).value) /
                      2;
      } else {
        value = evaluate(metric_named(name), labels, predictions);
      }
      CHECK(difference_to(value, metric_number(expected), 1e-9) == "");
      ++checked;
    }
  }
  CHECK(checked > 150);
}

TEST_CASE("correlations equal scipy's") {
  const auto oracles = roformer::test::require_oracles();
  if (!oracles) return;
  int checked = 0, undefined = 0;
  for (const auto& example : read_metric_cases(*oracles / "metrics" / "correlation.json")) {
    const Scores x = metric_numbers(example.at("x")), y = metric_numbers(example.at("y"));
    const double tolerance = example.at("note") == "large mean, small spread" ? 1e-6 : 1e-9;
    for (const char* name : {"pearson", "spearman"}) {
      INFO(example.at("name") << ": " << name);
      const double expected = metric_number(example.at("expected").at(name));
      const MetricValue forward = evaluate(metric_named(name), x, y),
                        backward = evaluate(metric_named(name), y, x);
      CHECK(difference_to(forward, expected, tolerance) == "");
      CHECK(difference_to(backward, expected, tolerance) == "");
      ++checked;
      undefined += std::isnan(expected);
    }
  }
  CHECK(checked > 60);
  CHECK(undefined > 10);
}

TEST_CASE("class metrics by hand") {
  const Classes labels = {1, 1, 1, 0, 0, 0, 0, 1}, predictions = {1, 1, 0, 1, 0, 0, 0, 0};
  // 2 hits of 3 predicted and 4 actual; 3 true negatives.
  CHECK(*evaluate(Metric::accuracy, labels, predictions).value == Approx(5.0 / 8).epsilon(1e-15));
  CHECK(*evaluate(Metric::precision, labels, predictions).value == Approx(2.0 / 3).epsilon(1e-15));
  CHECK(*evaluate(Metric::recall, labels, predictions).value == Approx(0.5).epsilon(1e-15));
  CHECK(*evaluate(Metric::f1, labels, predictions).value == Approx(4.0 / 7).epsilon(1e-15));
  CHECK(*evaluate(Metric::macro_f1, labels, predictions).value ==
        Approx((4.0 / 7 + 6.0 / 9) / 2).epsilon(1e-15));
  CHECK(*evaluate(Metric::matthews, labels, predictions).value ==
        Approx((2 * 3 - 1 * 2) / std::sqrt(3.0 * 4 * 4 * 5)).epsilon(1e-14));
  for (const auto& [metric, name] : roformer::enum_names(Metric{})) {
    if (roformer::compares_scores(metric)) continue;
    CHECK_FALSE(evaluate(metric, labels, predictions).degenerate());
  }
}

TEST_CASE("degenerate class metrics follow scikit-learn and say so") {
  const Classes mixed = {0, 1, 1, 0}, zeros = {0, 0, 0, 0}, ones = {1, 1, 1, 1};
  const auto conventional = [](const MetricValue& v) { return v.value == 0.0 && v.degenerate(); };
  CHECK(conventional(evaluate(Metric::f1, zeros, zeros)));
  CHECK(conventional(evaluate(Metric::f1, mixed, zeros)));
  CHECK(conventional(evaluate(Metric::f1, zeros, mixed)));
  CHECK(conventional(evaluate(Metric::precision, mixed, zeros)));
  CHECK(conventional(evaluate(Metric::recall, zeros, mixed)));
  CHECK(conventional(evaluate(Metric::matthews, mixed, zeros)));
  CHECK(conventional(evaluate(Metric::matthews, ones, mixed)));
  CHECK(evaluate(Metric::precision, zeros, mixed).note == "");  // 0 of 2: no convention needed
  CHECK(evaluate(Metric::f1, ones, ones).value == 1.0);
  CHECK_FALSE(evaluate(Metric::accuracy, Classes{}, Classes{}).value);
  CHECK(evaluate(Metric::accuracy, Classes{}, Classes{}).note == "there are no examples");
  CHECK_THROWS_AS(evaluate(Metric::accuracy, mixed, Classes{1}), std::logic_error);
  CHECK_THROWS_AS(evaluate(Metric::pearson, mixed, mixed), std::logic_error);
}

TEST_CASE("correlations of odd input") {
  const Scores x = {1, 2, 3, 4};
  CHECK(evaluate(Metric::pearson, x, Scores{2, 2, 2, 2}).note == "all predictions are equal");
  CHECK(evaluate(Metric::spearman, Scores{0.1, 0.1, 0.1, 0.1}, x).note == "all scores are equal");
  CHECK(evaluate(Metric::spearman, x, Scores{1, NAN, 2, 3}).note == "NaN among the predictions");
  CHECK(evaluate(Metric::pearson, Scores{1, INFINITY, 2, 3}, x).note == "an infinity among the scores");
  CHECK_FALSE(evaluate(Metric::pearson, Scores{}, Scores{}).value);
  CHECK_THROWS_AS(evaluate(Metric::pearson, x, Scores{1}), std::logic_error);
  CHECK_THROWS_AS(evaluate(Metric::accuracy, x, x), std::logic_error);
  CHECK(evaluate_numbers(Metric::pearson, x, Scores{1, 3, 2, 9}).value ==
        evaluate(Metric::pearson, x, Scores{1, 3, 2, 9}).value);
  CHECK(evaluate_numbers(Metric::f1, Scores{1, 0, 1}, Scores{1, 1, 0}).value == 0.5);
  // Neither overflow nor underflow.
  const double expected = *evaluate(Metric::pearson, x, Scores{1, 3, 2, 9}).value;
  for (const double scale : {1.9e307, 1e-300, -1e200}) {
    const Scores scaled = {1 * scale, 3 * scale, 2 * scale, 9 * scale};
    CHECK(*evaluate(Metric::pearson, x, scaled).value ==
          Approx(std::copysign(expected, scale)).epsilon(1e-12));
  }
  CHECK(average_ranks(Scores{30, 10, 20, 10, -0.0, 0.0}) == Scores{6, 3.5, 5, 3.5, 1.5, 1.5});
  CHECK(average_ranks(Scores{}).empty());
}

TEST_CASE("the bootstrap interval of a mean is near the normal one") {
  // 400 draws with known spread; the mean's standard error is sd / 20.
  roformer::Random random(5);
  Scores values(400);
  for (double& v : values) v = random.uniform();
  const double mean = std::accumulate(values.begin(), values.end(), 0.0) / 400;
  double squares = 0;
  for (const double v : values) squares += (v - mean) * (v - mean);
  const double error = std::sqrt(squares / 400) / 20;
  const auto metric = [&](std::span<const int64_t> indices) -> std::optional<double> {
    double sum = 0;
    for (const int64_t i : indices) sum += values.at(static_cast<std::size_t>(i));
    return sum / static_cast<double>(indices.size());
  };
  BootstrapOptions options;
  options.resamples = 4000;
  const auto interval = roformer::bootstrap_interval(400, metric, options);
  CHECK(interval.used == 4000);
  CHECK(interval.undefined == 0);
  // The standard error of an end is about 0.04 of `error` at 4,000 resamples: four of those.
  CHECK(*interval.low == Approx(mean - 1.96 * error).margin(0.17 * error));
  CHECK(*interval.high == Approx(mean + 1.96 * error).margin(0.17 * error));

  const auto again = roformer::bootstrap_interval(400, metric, options);
  CHECK(again.low == interval.low);
  options.seed = 1;
  CHECK(roformer::bootstrap_interval(400, metric, options).low != interval.low);
  options.level = 0.5;
  const auto narrow = roformer::bootstrap_interval(400, metric, options);
  CHECK(*narrow.high - *narrow.low < 0.5 * (*interval.high - *interval.low));
}

TEST_CASE("resamples on which a metric is undefined are left out and counted") {
  // Three examples, one of class 1: a resample without it has probability (2/3)^3 = 0.296.
  const auto metric = [](std::span<const int64_t> indices) -> std::optional<double> {
    for (const int64_t i : indices)
      if (i == 0) return 0.25;
    return std::nullopt;
  };
  BootstrapOptions options;
  options.resamples = 2000;
  const auto interval = roformer::bootstrap_interval(3, metric, options);
  CHECK(interval.used + interval.undefined == 2000);
  CHECK(interval.undefined == Approx(592).margin(82));  // four standard deviations
  CHECK(interval.low == 0.25);
  CHECK(interval.high == 0.25);

  const auto nan = [](std::span<const int64_t>) -> std::optional<double> { return NAN; };
  CHECK(roformer::bootstrap_interval(3, nan, options).undefined == 2000);
  CHECK_FALSE(roformer::bootstrap_interval(3, nan, options).low);
  CHECK_FALSE(roformer::bootstrap_interval(0, metric, options).low);
  options.resamples = 0;
  CHECK_THROWS_AS(roformer::bootstrap_interval(3, metric, options), std::logic_error);
}

TEST_CASE("paired bootstrap") {
  // Both systems err on other examples; the first on fewer.
  const int64_t n = 300;
  const auto right = [](int64_t every, int64_t offset) {
    return [=](std::span<const int64_t> indices) -> std::optional<double> {
      double hits = 0;
      for (const int64_t i : indices) hits += i % every != offset;
      return hits / static_cast<double>(indices.size());
    };
  };
  const auto better = roformer::paired_bootstrap(n, right(20, 0), right(5, 1));
  CHECK(*better.difference == Approx(0.15).epsilon(1e-12));
  CHECK(*better.interval.low > 0.05);
  CHECK(*better.interval.high < 0.25);
  CHECK(*better.p_value <= 0.005);
  CHECK(*better.p_value >= 1.0 / 2000);
  const auto worse = roformer::paired_bootstrap(n, right(5, 1), right(20, 0));
  CHECK(*worse.difference == Approx(-0.15).epsilon(1e-12));
  CHECK(*worse.interval.low == Approx(-*better.interval.high).epsilon(1e-9));
  // The same resamples for both, so equal systems differ by exactly nothing.
  const auto same = roformer::paired_bootstrap(n, right(5, 1), right(5, 1));
  CHECK(same.interval.low == 0.0);
  CHECK(same.interval.high == 0.0);
  CHECK(same.p_value == 1.0);
  const auto even = roformer::paired_bootstrap(n, right(5, 1), right(5, 2));
  CHECK(*even.p_value > 0.5);
  // By its definition, from the same resamples.
  Scores differences;
  const auto a = right(20, 0), b = right(16, 1);
  const auto recorded = [&](std::span<const int64_t> indices) {
    differences.push_back(*a(indices) - *b(indices));
    return std::optional<double>(differences.back());
  };
  BootstrapOptions options;
  options.resamples = 1000;
  (void)roformer::bootstrap_interval(n, recorded, options);
  const auto share = [&](auto&& holds) {
    return static_cast<double>(std::count_if(differences.begin(), differences.end(), holds)) / 1000;
  };
  const double expected =
      2 * std::min(share([](double d) { return d <= 0; }), share([](double d) { return d >= 0; }));
  CHECK(expected < 1);
  CHECK(*roformer::paired_bootstrap(n, a, b, options).p_value == Approx(expected).epsilon(1e-12));
}

TEST_CASE("mean and spread over seeds") {
  using Values = std::vector<std::optional<double>>;
  const auto two = roformer::summarize_seeds(Values{84.64, 85.38});
  CHECK(*two.mean == Approx(85.01).epsilon(1e-14));
  CHECK(*two.sd == Approx(0.74 / std::sqrt(2.0)).epsilon(1e-10));
  const auto holes = roformer::summarize_seeds(Values{std::nullopt, 3.0});
  CHECK(holes.mean == 3.0);
  CHECK_FALSE(holes.sd);
  CHECK(holes.count == 1);
  CHECK(holes.undefined == 1);
  CHECK_FALSE(roformer::summarize_seeds({}).mean);
}
