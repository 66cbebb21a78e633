#include <fmt/ranges.h>

#include <algorithm>
#include <sstream>

#include "roformer/ablation_tables.h"
#include "roformer/core/files.h"
#include "roformer/eval/metrics.h"

// Ablations of fine-tuned runs (GLUE): dev metrics over seeds and, with intervals, over examples.

namespace roformer {
namespace {

/// What the runs of one row said of the first validation set: the same labels for every seed.
struct RowPredictions {
  std::vector<double> labels;
  std::vector<std::vector<double>> values;  ///< [seed][example]
};

/// predictions.tsv of a run; adds nothing and returns false if it does not fit the others.
bool add_predictions(const std::filesystem::path& folder, RowPredictions& row) {
  std::istringstream text(read_file(folder / "predictions.tsv", int64_t{1} << 30));
  std::string line;
  std::getline(text, line);  // header
  std::vector<double> labels, values;
  int64_t set = 0, example = 0;
  double label = 0, value = 0;
  while (text >> set >> example >> label >> value) {
    if (set != 0) break;
    labels.push_back(label);
    values.push_back(value);
  }
  if (labels.empty() || (!row.labels.empty() && row.labels != labels)) return false;
  row.labels = labels;
  row.values.push_back(values);
  return true;
}

/// The mean over seeds of a metric on a resample of the examples.
ResampleMetric mean_metric(Metric metric, const RowPredictions& row) {
  return [metric, &row](std::span<const int64_t> indices) -> std::optional<double> {
    double sum = 0;
    for (const std::vector<double>& values : row.values) {
      std::vector<double> labels, chosen;
      for (const int64_t i : indices) {
        labels.push_back(row.labels[static_cast<size_t>(i)]);
        chosen.push_back(values[static_cast<size_t>(i)]);
      }
      const MetricValue result = evaluate_numbers(metric, labels, chosen);
      if (!result.value) return std::nullopt;
      sum += *result.value;
    }
    return sum / static_cast<double>(row.values.size());
  };
}

std::string percent(double value) { return fmt::format("{:.2f}", 100 * value); }

std::string undefined_or_percent(const std::map<int64_t, double>& values, int64_t seed) {
  const auto found = values.find(seed);
  return found == values.end() ? "undefined" : percent(found->second);
}

/// A row's numbers on the validation set.
struct ScoreRow {
  AblationRow row;
  std::string arm;
  std::vector<std::map<int64_t, double>> values;  ///< [metric] by seed
  std::vector<SeedSummary> summaries;             ///< [metric]
  RowPredictions predictions;
  bool comparable = true;  ///< every seed saw the same examples
  BootstrapInterval interval;
  std::vector<double> seconds;
};

ScoreRow read_scores(AblationRow row, const std::vector<Metric>& metrics) {
  ScoreRow read;
  read.arm = row.runs.front()->arm;
  for (size_t i = 0; i < row.runs.size(); ++i) {
    if (!row.results[i]) continue;
    read.seconds.push_back(row.results[i]->value("seconds", 0.0));
    read.comparable = add_predictions(row.runs[i]->folder, read.predictions) && read.comparable;
  }
  for (const Metric metric : metrics) {
    read.values.push_back(row.metric(std::string(enum_name(metric))));
    std::vector<std::optional<double>> of_seeds;
    for (size_t i = 0; i < row.runs.size(); ++i) {
      if (!row.results[i]) continue;
      const auto found = read.values.back().find(row.runs[i]->seed);
      of_seeds.push_back(found == read.values.back().end() ? std::nullopt : std::optional(found->second));
    }
    read.summaries.push_back(summarize_seeds(of_seeds));
  }
  if (read.comparable && !read.predictions.values.empty()) {
    read.interval = bootstrap_interval(static_cast<int64_t>(read.predictions.labels.size()),
                                       mean_metric(metrics.front(), read.predictions));
  }
  read.row = std::move(row);
  return read;
}

/// For each arm, in the order of the file, the row with the highest mean of the headline metric.
std::vector<const ScoreRow*> best_rows(const std::vector<ScoreRow>& rows) {
  std::vector<const ScoreRow*> best;
  for (const ScoreRow& row : rows) {
    const SeedSummary& summary = row.summaries.front();
    if (!summary.mean || !row.comparable || summary.undefined > 0) continue;
    const auto found =
        std::find_if(best.begin(), best.end(), [&](const ScoreRow* each) { return each->arm == row.arm; });
    if (found == best.end())
      best.push_back(&row);
    else if (*summary.mean > *(*found)->summaries.front().mean)
      *found = &row;
  }
  return best;
}

std::vector<std::string> score_cells(const ScoreRow& row, const std::string& label) {
  auto join = [](const std::vector<std::string>& texts) {
    return texts.empty() ? std::string("–") : fmt::format("{}", fmt::join(texts, " / "));
  };
  std::vector<std::string> cells = {label, row.row.seeds()};
  for (size_t m = 0; m < row.values.size(); ++m) {
    std::vector<std::string> texts;
    for (size_t i = 0; i < row.row.runs.size(); ++i) {
      if (row.row.results[i]) texts.push_back(undefined_or_percent(row.values[m], row.row.runs[i]->seed));
    }
    const SeedSummary& summary = row.summaries[m];
    cells.push_back(join(texts));
    cells.push_back(!summary.mean ? "–"
                    : summary.sd  ? percent(*summary.mean) + " ± " + percent(*summary.sd)
                                  : percent(*summary.mean));
  }
  cells.push_back(row.interval.low && row.interval.high
                      ? fmt::format("{} to {}", percent(*row.interval.low), percent(*row.interval.high))
                      : "–");
  std::vector<std::string> seconds;
  for (const double each : row.seconds) seconds.push_back(fmt::format("{:.0f}", each));
  cells.push_back(join(seconds));
  return cells;
}

std::vector<std::string> exact_score_cells(const ScoreRow& row, bool best) {
  auto number = [](const std::optional<double>& value) { return value ? unrounded(*value) : ""; };
  std::vector<std::string> cells = {row.row.label, row.arm, std::to_string(row.row.finished()),
                                    best ? "1" : "0"};
  for (const SeedSummary& summary : row.summaries) {
    cells.push_back(number(summary.mean));
    cells.push_back(number(summary.sd));
  }
  cells.push_back(number(row.interval.low));
  cells.push_back(number(row.interval.high));
  cells.push_back(unrounded(median(row.seconds)));
  cells.push_back(fmt::format("{}", fmt::join(failures_of(row.row), "; ")));
  return cells;
}

nlohmann::ordered_json score_numbers(const ScoreRow& row, bool best) {
  nlohmann::ordered_json numbers = {{"arm", row.arm}};
  for (size_t i = 0; i < row.row.runs.size(); ++i) {
    if (row.row.results[i]) numbers["seeds"][std::to_string(row.row.runs[i]->seed)] = *row.row.results[i];
  }
  if (row.interval.low && row.interval.high) numbers["interval"] = {*row.interval.low, *row.interval.high};
  if (best) numbers["best"] = true;
  return numbers;
}

}  // namespace

/// Arms and their grids on a validation set: every metric with its seeds, an interval for the headline, and
/// for each arm the best point by the mean over seeds; then the best points against each other, on the same
/// examples.
AblationResults score_results(const Ablation& ablation) {
  const auto& task = std::get<GlueOptions>(ablation.runs.front().options.task);
  const std::vector<Metric> metrics = glue_metrics(task.name);
  const Metric headline = metrics.front();
  AblationResults results;
  Table &table = results.table, &exact = results.exact;
  table.title =
      fmt::format("{}: {} dev set, last evaluation, percent", ablation.name, glue_info(task.name).name);
  table.columns = {"arm", "seeds"};
  exact.columns = {"row", "arm", "finished", "best"};
  for (const Metric metric : metrics) {
    const std::string name(enum_name(metric));
    table.columns.insert(table.columns.end(), {name, "mean ± sd"});
    exact.columns.insert(exact.columns.end(), {name, name + "_sd"});
  }
  table.columns.push_back(fmt::format("95 % interval of the mean {}", enum_name(headline)));
  table.columns.emplace_back("seconds");
  exact.columns.insert(exact.columns.end(),
                       {fmt::format("{}_low", enum_name(headline)),
                        fmt::format("{}_high", enum_name(headline)), "seconds", "error"});

  std::vector<ScoreRow> rows;
  for (AblationRow& row : ablation_rows(ablation)) rows.push_back(read_scores(std::move(row), metrics));
  const std::vector<const ScoreRow*> best = best_rows(rows);
  nlohmann::ordered_json numbers = nlohmann::ordered_json::object();
  for (const ScoreRow& row : rows) {
    const bool is_best = std::find(best.begin(), best.end(), &row) != best.end();
    table.rows.push_back(
        score_cells(row, row.row.label + (is_best && row.row.label != row.arm ? " (best)" : "")));
    exact.rows.push_back(exact_score_cells(row, is_best));
    numbers[row.row.label] = score_numbers(row, is_best);
  }
  results.numbers = {
      {"task", enum_name(task.name)}, {"headline", enum_name(headline)}, {"rows", std::move(numbers)}};

  table.notes.push_back(
      "Interval: percentile bootstrap over the examples of the dev set, of the mean over seeds. Best: "
      "highest "
      "mean over seeds; chosen and reported on the same dev set, so it is a little too good.");
  for (size_t i = 1; i < best.size(); ++i) {
    const ScoreRow &first = *best[0], &other = *best[i];
    if (first.predictions.labels != other.predictions.labels) continue;
    const BootstrapDifference difference =
        paired_bootstrap(static_cast<int64_t>(first.predictions.labels.size()),
                         mean_metric(headline, first.predictions), mean_metric(headline, other.predictions));
    if (!difference.difference || !difference.interval.low || !difference.p_value) continue;
    table.notes.push_back(fmt::format(
        "{} - {}: {} points of {}, 95 % interval {} to {} (paired bootstrap, p = {:.3f}).", first.row.label,
        other.row.label, percent(*difference.difference), enum_name(headline),
        percent(*difference.interval.low), percent(*difference.interval.high), *difference.p_value));
  }
  return results;
}

}  // namespace roformer
