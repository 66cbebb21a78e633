#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>

#include "roformer/ablation_tables.h"
#include "roformer/run_folder.h"

// Ablations of runs with a loss (mlm, byte_lm): rows over seeds, against the first row.

namespace roformer {
namespace {

using BySeed = std::map<int64_t, double>;

std::vector<double> values_of(const BySeed& by_seed) {
  std::vector<double> values;
  for (const auto& [seed, value] : by_seed) values.push_back(value);
  return values;
}

/// The updates before the last one that the table shows: the ends of stages; without stages about a third and
/// two thirds.
std::vector<int64_t> shown_steps(const TrainerOptions& options) {
  std::vector<int64_t> steps;
  if (!options.stages.empty()) {
    for (const StageOptions& stage : options.stages)
      steps.push_back((steps.empty() ? 0 : steps.back()) + stage.steps);
    steps.pop_back();
    return steps;
  }
  if (options.evaluate_every == 0) return steps;  // evaluated once, at the end
  for (const int64_t share : {1, 2}) {
    const int64_t wanted = options.steps * share / 3;
    const int64_t step = wanted / options.evaluate_every * options.evaluate_every;
    if (step > 0 && step < options.steps && (steps.empty() || steps.back() != step)) steps.push_back(step);
  }
  return steps;
}

std::optional<double> value_at(const Curve& curve, double step) {
  for (size_t i = 0; i < curve.x.size(); ++i) {
    if (curve.x[i] == step) return curve.y[i];
  }
  return std::nullopt;
}

/// The update at which the curve is first at or below `loss`, linear between evaluations.
std::optional<double> update_to_reach(const Curve& curve, double loss) {
  for (size_t i = 0; i < curve.x.size(); ++i) {
    if (curve.y[i] > loss) continue;
    if (i == 0) return curve.x[0];
    const double share = (curve.y[i - 1] - loss) / (curve.y[i - 1] - curve.y[i]);
    return curve.x[i - 1] + share * (curve.x[i] - curve.x[i - 1]);
  }
  return std::nullopt;
}

/// The mean over the row's seeds where all of them have a value; around it the 95 % t interval, for two seeds
/// the lower and the higher one.
Curve mean_curve(const std::string& label, const std::map<int64_t, Curve>& curves) {
  Curve mean_of{label, {}, {}, {}, {}};
  for (const double step : curves.begin()->second.x) {
    std::vector<double> values;
    for (const auto& [seed, curve] : curves) {
      if (const auto value = value_at(curve, step)) values.push_back(*value);
    }
    if (values.size() < curves.size()) continue;
    const double center = mean(values);
    mean_of.x.push_back(step);
    mean_of.y.push_back(center);
    if (values.size() < 2) continue;
    const bool interval = values.size() > 2;
    mean_of.low.push_back(interval ? center - t_interval(values)
                                   : *std::min_element(values.begin(), values.end()));
    mean_of.high.push_back(interval ? center + t_interval(values)
                                    : *std::max_element(values.begin(), values.end()));
  }
  return mean_of;
}

struct LossRow {
  AblationRow row;
  std::map<int64_t, Curve> curves;  ///< by seed, of the finished runs
  BySeed loss, accuracy, bits_per_byte, speed, seconds, parameters;

  BySeed at(int64_t step) const {
    BySeed values;
    for (const auto& [seed, curve] : curves) {
      if (const auto value = value_at(curve, static_cast<double>(step))) values[seed] = *value;
    }
    return values;
  }
  BySeed reach(double target) const {
    BySeed updates;
    for (const auto& [seed, curve] : curves) {
      if (const auto update = update_to_reach(curve, target)) updates[seed] = *update;
    }
    return updates;
  }
};

LossRow read_losses(AblationRow row) {
  LossRow read{std::move(row), {}, {}, {}, {}, {}, {}, {}};
  read.loss = read.row.metric("loss");
  read.accuracy = read.row.metric("accuracy");
  read.bits_per_byte = read.row.metric("bits_per_byte");
  for (size_t i = 0; i < read.row.runs.size(); ++i) {
    if (!read.row.results[i]) continue;
    const nlohmann::json& result = *read.row.results[i];
    const int64_t seed = read.row.runs[i]->seed;
    Curve curve = read_curve(read.row.runs[i]->folder, "valid", "loss");
    if (!curve.x.empty()) read.curves[seed] = std::move(curve);
    const double tokens = result.value("tokens", 0.0), seconds = result.value("seconds", 0.0);
    read.seconds[seed] = seconds;
    if (seconds > 0) read.speed[seed] = tokens / seconds;
    read.parameters[seed] = static_cast<double>(result.value("parameters", int64_t{0}));
  }
  return read;
}

/// Of the seeds that both rows have.
struct LossDifference {
  PairedDifference test;
  int64_t pairs = 0;
};
LossDifference difference_of(const LossRow& first, const LossRow& other) {
  std::vector<double> a, b;
  for (const auto& [seed, loss] : first.loss) {
    if (!other.loss.contains(seed)) continue;
    a.push_back(loss);
    b.push_back(other.loss.at(seed));
  }
  return {paired_difference(a, b), static_cast<int64_t>(a.size())};
}

/// One column for people, and the columns of results.csv that it is made of.
struct LossColumn {
  std::string title;  ///< empty: not for people
  std::vector<std::string> exact_titles;
  std::function<std::string(const LossRow&)> text;
  std::function<std::vector<std::string>(const LossRow&)> exact;
};

/// "name" and "name_interval": mean over seeds and half its 95 % t interval.
LossColumn mean_column(const std::string& title, const std::string& name, int digits,
                       std::function<BySeed(const LossRow&)> read) {
  return {title,
          {name, name + "_interval"},
          [=](const LossRow& row) { return mean_and_interval(values_of(read(row)), digits); },
          [=](const LossRow& row) {
            const std::vector<double> values = values_of(read(row));
            return std::vector<std::string>{unrounded(mean(values)), unrounded(t_interval(values))};
          }};
}

LossColumn median_column(const std::string& title, const std::string& name, BySeed LossRow::*values) {
  return {title,
          {name},
          [=](const LossRow& row) {
            return (row.*values).empty() ? "–" : fmt::format("{:.0f}", median(values_of(row.*values)));
          },
          [=](const LossRow& row) {
            return std::vector<std::string>{unrounded(median(values_of(row.*values)))};
          }};
}

LossColumn reach_column(double target) {
  return {
      fmt::format("updates to loss {}", target),
      {fmt::format("reach_{}", target), fmt::format("reach_{}_seeds", target)},
      [=](const LossRow& row) -> std::string {
        const BySeed updates = row.reach(target);
        if (row.curves.empty()) return "–";
        if (updates.empty()) return "not reached";
        const std::string text = fmt::format("{:.0f}", mean(values_of(updates)));
        return updates.size() == row.curves.size()
                   ? text
                   : fmt::format("{} ({} of {} seeds)", text, updates.size(), row.curves.size());
      },
      [=](const LossRow& row) {
        const BySeed updates = row.reach(target);
        return std::vector<std::string>{unrounded(mean(values_of(updates))), std::to_string(updates.size())};
      }};
}

std::vector<LossColumn> difference_columns(const LossRow& first, bool several_seeds) {
  std::vector<LossColumn> columns(1);
  columns[0] = {
      "minus " + first.row.label,
      {"difference", "difference_interval", "difference_p", "pairs"},
      [&first](const LossRow& row) -> std::string {
        const LossDifference difference = difference_of(first, row);
        if (&row == &first || difference.pairs == 0) return "–";
        const std::string text = fmt::format("{:+.4f}", difference.test.mean);
        return difference.pairs < 2 ? text : fmt::format("{} ± {:.4f}", text, difference.test.interval);
      },
      [&first](const LossRow& row) {
        if (&row == &first) return std::vector<std::string>(4);
        const LossDifference difference = difference_of(first, row);
        return std::vector<std::string>{unrounded(difference.test.mean), unrounded(difference.test.interval),
                                        unrounded(difference.test.p_value), std::to_string(difference.pairs)};
      }};
  if (!several_seeds) return columns;
  columns.push_back({"p",
                     {},
                     [&first](const LossRow& row) -> std::string {
                       const double p = difference_of(first, row).test.p_value;
                       if (&row == &first || std::isnan(p)) return "–";
                       return p < 0.001 ? fmt::format("{:.0e}", p) : fmt::format("{:.3f}", p);
                     },
                     {}});
  return columns;
}

nlohmann::ordered_json summary_of(const BySeed& by_seed) {
  const std::vector<double> values = values_of(by_seed);
  nlohmann::ordered_json seeds = nlohmann::ordered_json::object();
  for (const auto& [seed, value] : by_seed) seeds[std::to_string(seed)] = value;
  return {{"mean", mean(values)}, {"interval", t_interval(values)}, {"seeds", std::move(seeds)}};
}

nlohmann::ordered_json numbers_of(const LossRow& row, const LossRow& first, const std::vector<int64_t>& steps,
                                  const std::vector<double>& reach) {
  nlohmann::ordered_json numbers = {{"loss", summary_of(row.loss)}};
  for (const int64_t step : steps) numbers["loss_at"][std::to_string(step)] = summary_of(row.at(step));
  if (&row != &first) {
    const LossDifference difference = difference_of(first, row);
    numbers["difference"] = {{"to", first.row.label},
                             {"mean", difference.test.mean},
                             {"interval", difference.test.interval},
                             {"p_value", difference.test.p_value},
                             {"pairs", difference.pairs}};
  }
  for (const double target : reach)
    numbers["reach"][fmt::format("{}", target)] = summary_of(row.reach(target));
  if (!row.accuracy.empty()) numbers["accuracy"] = summary_of(row.accuracy);
  if (!row.bits_per_byte.empty()) numbers["bits_per_byte"] = summary_of(row.bits_per_byte);
  numbers["tokens_per_second"] = median(values_of(row.speed));
  numbers["seconds"] = median(values_of(row.seconds));
  for (size_t i = 0; i < row.row.runs.size(); ++i) {
    const AblationRun& run = *row.row.runs[i];
    nlohmann::ordered_json& entry = numbers["seeds"][std::to_string(run.seed)];
    if (!row.row.results[i]) {
      entry = run.failed ? nlohmann::ordered_json{{"failed", run.error}}
                         : nlohmann::ordered_json{{"missing", true}};
      continue;
    }
    entry = *row.row.results[i];
    const auto curve = row.curves.find(run.seed);
    entry["steps"] = curve == row.curves.end() ? std::vector<double>{} : curve->second.x;
    entry["loss"] = curve == row.curves.end() ? std::vector<double>{} : curve->second.y;
  }
  return numbers;
}

/// "update 600"; "last update" where the rows' runs ended at different ones.
std::string last_title(const std::vector<LossRow>& rows) {
  std::optional<int64_t> last;
  for (const LossRow& row : rows) {
    for (const auto& result : row.row.results) {
      if (!result) continue;
      const int64_t step = result->value("step", int64_t{0});
      if (last && *last != step) return "last update";
      last = step;
    }
  }
  return last ? fmt::format("update {}", *last) : "last update";
}

/// What the bands of the picture are.
std::string bands_text(const std::vector<LossRow>& rows) {
  size_t fewest = std::numeric_limits<size_t>::max(), most = 0;
  for (const LossRow& row : rows) {
    if (row.curves.empty()) continue;
    fewest = std::min(fewest, row.curves.size());
    most = std::max(most, row.curves.size());
  }
  if (most < 2) return "";
  if (most == 2) return "Mean of 2 seeds; band: from the lower to the higher";
  return fmt::format("Mean of {} seeds; band: 95 % t interval{}",
                     fewest == most ? std::to_string(most) : fmt::format("{} to {}", fewest, most),
                     fewest <= 2 ? " (of 2 seeds: from the lower to the higher)" : "");
}

}  // namespace

AblationResults loss_results(const Ablation& ablation) {
  std::vector<LossRow> rows;
  for (AblationRow& row : ablation_rows(ablation)) rows.push_back(read_losses(std::move(row)));
  const LossRow& first = rows.front();
  const std::vector<int64_t> steps = shown_steps(ablation.runs.front().options.trainer);
  const bool several_seeds = first.row.runs.size() > 1;
  auto any = [&](BySeed LossRow::*values) {
    return std::any_of(rows.begin(), rows.end(), [=](const LossRow& row) { return !(row.*values).empty(); });
  };

  std::vector<LossColumn> columns;
  columns.push_back({"arm",
                     {"arm"},
                     [](const LossRow& row) { return row.row.label; },
                     [](const LossRow& row) { return std::vector<std::string>{row.row.label}; }});
  columns.push_back(
      {"seeds",
       {"finished", "failed", "missing"},
       [](const LossRow& row) { return row.row.seeds(); },
       [](const LossRow& row) {
         const size_t finished = row.row.finished();
         const auto failed = static_cast<size_t>(std::count_if(
             row.row.runs.begin(), row.row.runs.end(), [](const AblationRun* run) { return run->failed; }));
         return std::vector<std::string>{std::to_string(finished), std::to_string(failed),
                                         std::to_string(row.row.runs.size() - finished - failed)};
       }});
  for (const int64_t step : steps) {
    columns.push_back(mean_column(fmt::format("update {}", step), fmt::format("loss_{}", step), 3,
                                  [=](const LossRow& row) { return row.at(step); }));
  }
  columns.push_back(mean_column(last_title(rows), "loss", 3, [](const LossRow& row) { return row.loss; }));
  if (several_seeds) {
    columns.push_back({"each seed",
                       {},
                       [](const LossRow& row) {
                         std::vector<std::string> texts;
                         for (const AblationRun* run : row.row.runs)
                           texts.push_back(row.loss.contains(run->seed)
                                               ? fmt::format("{:.3f}", row.loss.at(run->seed))
                                               : "–");
                         return fmt::format("{}", fmt::join(texts, " / "));
                       },
                       {}});
  }
  if (rows.size() > 1) {
    for (LossColumn& column : difference_columns(first, several_seeds)) columns.push_back(std::move(column));
  }
  for (const double target : ablation.reach) columns.push_back(reach_column(target));
  if (any(&LossRow::accuracy))
    columns.push_back(
        mean_column("accuracy", "accuracy", 3, [](const LossRow& row) { return row.accuracy; }));
  if (any(&LossRow::bits_per_byte))
    columns.push_back(mean_column("bits per byte", "bits_per_byte", 3,
                                  [](const LossRow& row) { return row.bits_per_byte; }));
  columns.push_back(median_column("tokens/s", "tokens_per_second", &LossRow::speed));
  columns.push_back(median_column("parameters", "parameters", &LossRow::parameters));
  columns.push_back(median_column("seconds", "seconds", &LossRow::seconds));
  columns.push_back({"", {"error"}, {}, [](const LossRow& row) {
                       return std::vector<std::string>{
                           fmt::format("{}", fmt::join(failures_of(row.row), "; "))};
                     }});

  AblationResults results;
  results.table.title = "Validation loss of " + ablation.name;
  results.table.rows.resize(rows.size());
  results.exact.rows.resize(rows.size());
  for (const LossColumn& column : columns) {
    if (!column.title.empty()) results.table.columns.push_back(column.title);
    results.exact.columns.insert(results.exact.columns.end(), column.exact_titles.begin(),
                                 column.exact_titles.end());
    for (size_t r = 0; r < rows.size(); ++r) {
      if (!column.title.empty()) results.table.rows[r].push_back(column.text(rows[r]));
      if (!column.exact) continue;
      for (std::string& cell : column.exact(rows[r])) results.exact.rows[r].push_back(std::move(cell));
    }
  }
  auto& notes = results.table.notes;
  notes.push_back(several_seeds ? "Nats per target; mean over seeds ± half the 95 % t interval of the mean."
                                : "Nats per target; one seed, so no interval and no test.");
  if (rows.size() > 1 && several_seeds) {
    notes.push_back(
        fmt::format("minus {}: the difference at the last update, paired by seed, ± half its 95 % t "
                    "interval; p: two-sided "
                    "paired t test, not corrected for the number of comparisons.",
                    first.row.label));
  }
  if (!ablation.reach.empty()) {
    notes.push_back(
        "updates to loss: when the validation loss is first at or below it, linear between evaluations; mean "
        "over the seeds that get there.");
  }
  notes.push_back("tokens/s and seconds: median over seeds, with other runs side by side.");

  results.numbers["first"] = first.row.label;
  results.curves = {bands_text(rows), "update", "validation loss (nats per target)", {}, {}, {}};
  for (const LossRow& row : rows) {
    results.numbers["rows"][row.row.label] = numbers_of(row, first, steps, ablation.reach);
    if (!row.curves.empty()) results.curves.curves.push_back(mean_curve(row.row.label, row.curves));
  }
  return results;
}

}  // namespace roformer
