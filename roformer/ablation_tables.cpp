#include "roformer/ablation_tables.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <sstream>

#include "roformer/core/files.h"
#include "roformer/eval/metrics.h"
#include "roformer/report/plots.h"
#include "roformer/report/tables.h"
#include "roformer/run_folder.h"

namespace roformer {
namespace {

/// In the order of the file.
std::vector<std::string> labels_of(const std::vector<AblationRun>& runs) {
  std::vector<std::string> labels;
  for (const AblationRun& run : runs) {
    if (std::find(labels.begin(), labels.end(), run.label()) == labels.end()) labels.push_back(run.label());
  }
  return labels;
}

/// The updates that the table shows: the ends of stages; without stages about a third, two thirds, and the
/// last.
std::vector<int64_t> shown_steps(const TrainerOptions& options) {
  std::vector<int64_t> steps;
  if (!options.stages.empty()) {
    for (const StageOptions& stage : options.stages)
      steps.push_back((steps.empty() ? 0 : steps.back()) + stage.steps);
    return steps;
  }
  for (const int64_t share : {1, 2}) {
    if (options.evaluate_every == 0) break;  // once, at the end
    const int64_t wanted = options.steps * share / 3;
    const int64_t step = wanted / options.evaluate_every * options.evaluate_every;
    if (step > 0 && step < options.steps && (steps.empty() || steps.back() != step)) steps.push_back(step);
  }
  steps.push_back(options.steps);
  return steps;
}

double value_at(const Curve& curve, int64_t step) {
  for (size_t i = 0; i < curve.x.size(); ++i) {
    if (static_cast<int64_t>(curve.x[i]) == step) return curve.y[i];
  }
  return std::numeric_limits<double>::quiet_NaN();
}

/// One curve for each arm: the mean over its seeds, between the lowest and the highest.
Curve mean_curve(const std::string& arm, const std::vector<Curve>& curves) {
  Curve mean_of{arm, {}, {}, {}, {}};
  for (const double step : curves.front().x) {
    std::vector<double> values;
    for (const Curve& curve : curves) values.push_back(value_at(curve, static_cast<int64_t>(step)));
    if (std::any_of(values.begin(), values.end(), [](double v) { return std::isnan(v); })) continue;
    mean_of.x.push_back(step);
    mean_of.y.push_back(mean(values));
    if (curves.size() > 1) {
      mean_of.low.push_back(*std::min_element(values.begin(), values.end()));
      mean_of.high.push_back(*std::max_element(values.begin(), values.end()));
    }
  }
  return mean_of;
}

void write_losses(const std::vector<AblationRun>& runs, const std::string& name,
                  const std::filesystem::path& folder, std::ostream& out) {
  const std::vector<std::string> arms = labels_of(runs);
  const std::vector<int64_t> steps = shown_steps(runs.front().options.trainer);
  Table table{"Validation loss of " + name, {"arm", "seeds"}, {}, {}};
  for (const int64_t step : steps) table.columns.push_back(fmt::format("update {}", step));
  for (const char* column : {"accuracy", "parameters", "tokens/s", "seconds"})
    table.columns.emplace_back(column);

  nlohmann::ordered_json numbers = nlohmann::ordered_json::object();
  Figure figure{"", "update", "validation loss (nats per target)", {}, {}, {}};
  for (const std::string& arm : arms) {
    std::vector<std::string> seeds, accuracy, speed, seconds;
    std::vector<std::vector<std::string>> losses(steps.size());
    std::vector<Curve> curves;
    std::string parameters;
    for (const AblationRun& run : runs) {
      if (run.label() != arm) continue;
      const auto result = finished_result(run.folder, run.options.trainer.steps);
      seeds.push_back(run.failed ? fmt::format("{} (failed)", run.seed) : std::to_string(run.seed));
      if (!result) continue;
      const Curve curve = read_curve(run.folder, "valid", "loss");
      for (size_t i = 0; i < steps.size(); ++i) {
        const double value = value_at(curve, steps[i]);
        losses[i].push_back(std::isnan(value) ? "–" : fmt::format("{:.3f}", value));
      }
      if (!curve.x.empty()) curves.push_back(curve);
      const double tokens = result->value("tokens", 0.0), time = result->value("seconds", 0.0);
      accuracy.push_back(result->at("metrics").contains("accuracy")
                             ? fmt::format("{:.3f}", result->at("metrics")["accuracy"].get<double>())
                             : "–");
      speed.push_back(time > 0 ? fmt::format("{:.0f}", tokens / time) : "–");
      seconds.push_back(fmt::format("{:.0f}", time));
      parameters = std::to_string(result->value("parameters", int64_t{0}));
      nlohmann::ordered_json entry = *result;
      entry["steps"] = curve.x;
      entry["loss"] = curve.y;
      numbers[arm][std::to_string(run.seed)] = entry;
    }
    auto join = [](const std::vector<std::string>& texts) {
      return texts.empty() ? std::string("–") : fmt::format("{}", fmt::join(texts, " / "));
    };
    std::vector<std::string> row = {arm, join(seeds)};
    for (const auto& loss : losses) row.push_back(join(loss));
    row.insert(row.end(),
               {join(accuracy), parameters.empty() ? "–" : parameters, join(speed), join(seconds)});
    table.rows.push_back(std::move(row));
    if (!curves.empty()) figure.curves.push_back(mean_curve(arm, curves));
  }
  table.notes.push_back(
      "Nats per target; one number for each seed. Speed and seconds with other runs side by side.");
  write_table(table, numbers, folder / "results");
  out << to_markdown(table) << "\n";
  if (!figure.curves.empty()) {
    plot(figure, folder / "curves");
    out << "table   " << (folder / "results.md").string() << "\npicture " << (folder / "curves.png").string()
        << "\n";
  }
}

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

/// Arms and their grids on a validation set: every metric with its seeds, an interval for the headline, and
/// for each arm the best point by the mean over seeds; then the best points against each other, on the same
/// examples.
void write_scores(const std::vector<AblationRun>& runs, const std::string& name,
                  const std::filesystem::path& folder, std::ostream& out) {
  const auto& task = std::get<GlueOptions>(runs.front().options.task);
  const GlueInfo& info = glue_info(task.name);
  const std::vector<Metric> metrics = glue_metrics(task.name);
  const Metric headline = metrics.front();
  Table table{
      fmt::format("{}: {} dev set, last evaluation, percent", name, info.name), {"arm", "seeds"}, {}, {}};
  for (const Metric metric : metrics) {
    table.columns.emplace_back(enum_name(metric));
    table.columns.push_back(fmt::format("mean ± sd"));
  }
  table.columns.push_back(fmt::format("95 % interval of the mean {}", enum_name(headline)));
  table.columns.emplace_back("seconds");

  struct Best {
    size_t row = 0;
    double mean = 0;
    std::string label;
    RowPredictions predictions;
  };
  std::vector<std::pair<std::string, Best>> best;
  nlohmann::ordered_json numbers = nlohmann::ordered_json::object();
  for (const std::string& label : labels_of(runs)) {
    std::vector<std::string> seeds, seconds;
    std::vector<std::vector<std::optional<double>>> values(metrics.size());
    RowPredictions predictions;
    bool comparable = true;
    std::string arm;
    for (const AblationRun& run : runs) {
      if (run.label() != label) continue;
      arm = run.arm;
      const auto result = finished_result(run.folder, run.options.trainer.steps);
      seeds.push_back(run.failed ? fmt::format("{} (failed)", run.seed) : std::to_string(run.seed));
      if (!result) continue;
      for (size_t i = 0; i < values.size(); ++i) {
        const auto& measured = result->at("metrics");
        const std::string key(enum_name(metrics[i]));
        values[i].push_back(measured.contains(key) ? std::optional<double>(measured[key].get<double>())
                                                   : std::nullopt);
      }
      seconds.push_back(fmt::format("{:.0f}", result->value("seconds", 0.0)));
      comparable = add_predictions(run.folder, predictions) && comparable;
      numbers[label]["seeds"][std::to_string(run.seed)] = *result;
    }
    numbers[label]["arm"] = arm;
    std::vector<std::string> row = {label, fmt::format("{}", fmt::join(seeds, " / "))};
    for (const auto& of_metric : values) {
      std::vector<std::string> texts;
      for (const auto& value : of_metric) texts.push_back(value ? percent(*value) : "undefined");
      const SeedSummary summary = summarize_seeds(of_metric);
      row.push_back(texts.empty() ? "–" : fmt::format("{}", fmt::join(texts, " / ")));
      row.push_back(!summary.mean ? "–"
                    : summary.sd  ? percent(*summary.mean) + " ± " + percent(*summary.sd)
                                  : percent(*summary.mean));
    }
    std::string interval = "–";
    if (comparable && !predictions.values.empty()) {
      const auto ends = bootstrap_interval(static_cast<int64_t>(predictions.labels.size()),
                                           mean_metric(headline, predictions));
      if (ends.low && ends.high) {
        interval = fmt::format("{} to {}", percent(*ends.low), percent(*ends.high));
        numbers[label]["interval"] = {*ends.low, *ends.high};
      }
    }
    row.push_back(interval);
    row.push_back(seconds.empty() ? "–" : fmt::format("{}", fmt::join(seconds, " / ")));
    table.rows.push_back(std::move(row));

    const SeedSummary summary = summarize_seeds(values.front());
    if (!summary.mean || !comparable || summary.undefined > 0) continue;
    const auto found =
        std::find_if(best.begin(), best.end(), [&](const auto& each) { return each.first == arm; });
    const Best here{table.rows.size() - 1, *summary.mean, label, std::move(predictions)};
    if (found == best.end()) {
      best.emplace_back(arm, here);
    } else if (here.mean > found->second.mean) {
      found->second = here;
    }
  }
  for (const auto& [arm, chosen] : best) {
    numbers[chosen.label]["best"] = true;
    if (chosen.label != arm) table.rows[chosen.row].front() += " (best)";
  }
  table.notes.push_back(
      "Interval: percentile bootstrap over the examples of the dev set, of the mean over seeds. Best: "
      "highest mean over "
      "seeds; chosen and reported on the same dev set, so it is a little too good.");
  for (size_t i = 1; i < best.size(); ++i) {
    const Best &first = best[0].second, &other = best[i].second;
    if (first.predictions.labels != other.predictions.labels) continue;
    const BootstrapDifference difference =
        paired_bootstrap(static_cast<int64_t>(first.predictions.labels.size()),
                         mean_metric(headline, first.predictions), mean_metric(headline, other.predictions));
    if (!difference.difference || !difference.interval.low || !difference.p_value) continue;
    table.notes.push_back(fmt::format(
        "{} - {}: {} points of {}, 95 % interval {} to {} (paired bootstrap, p = {:.3f}).", first.label,
        other.label, percent(*difference.difference), enum_name(headline), percent(*difference.interval.low),
        percent(*difference.interval.high), *difference.p_value));
  }
  const nlohmann::ordered_json all = {
      {"task", enum_name(task.name)}, {"headline", enum_name(headline)}, {"rows", numbers}};
  write_table(table, all, folder / "results");
  out << to_markdown(table) << "\ntable " << (folder / "results.md").string() << "\n";
}

}  // namespace

void write_ablation(const std::vector<AblationRun>& runs, const std::string& name,
                    const std::filesystem::path& folder, std::ostream& out) {
  const bool scores = std::all_of(runs.begin(), runs.end(), [](const AblationRun& run) {
    return std::holds_alternative<GlueOptions>(run.options.task);
  });
  scores ? write_scores(runs, name, folder, out) : write_losses(runs, name, folder, out);
}

}  // namespace roformer
