#include "roformer/ablation_tables.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <ostream>
#include <set>

#include "roformer/core/display.h"
#include "roformer/core/files.h"
#include "roformer/core/metrics_log.h"
#include "roformer/run_folder.h"

namespace roformer {
namespace {

/// Every evaluation of every run, the failed ones' too: one line each.
Table evaluations_of(const std::vector<AblationRow>& rows) {
  struct Line {
    std::string arm;
    int64_t seed;
    nlohmann::json record;
  };
  std::vector<Line> lines;
  std::set<std::string> names;
  for (const AblationRow& row : rows) {
    for (const AblationRun* run : row.runs) {
      std::error_code absent;
      const std::filesystem::path path = run->folder / "metrics.jsonl";
      if (!std::filesystem::exists(path, absent)) continue;
      for (const nlohmann::json& record : MetricsLog::read(path)) {
        if (record.value("split", "") != "valid") continue;
        for (const auto& [name, value] : record.items()) names.insert(name);
        lines.push_back({row.label, run->seed, record});
      }
    }
  }
  for (const char* name : {"step", "split", "loss"}) names.erase(name);
  Table table{"", {"arm", "seed", "update", "loss"}, {}, {}};
  table.columns.insert(table.columns.end(), names.begin(), names.end());
  for (const Line& line : lines) {
    std::vector<std::string> cells = {line.arm, std::to_string(line.seed),
                                      std::to_string(line.record.value("step", int64_t{0}))};
    for (size_t c = 3; c < table.columns.size(); ++c) {
      const auto found = line.record.find(table.columns[c]);
      cells.push_back(found == line.record.end() || !found->is_number() ? ""
                      : found->is_number_integer() ? std::to_string(found->get<int64_t>())
                                                   : unrounded(found->get<double>()));
    }
    table.rows.push_back(std::move(cells));
  }
  return table;
}

}  // namespace

std::string AblationRow::seeds() const {
  std::vector<std::string> texts;
  for (size_t i = 0; i < runs.size(); ++i) {
    texts.push_back(std::to_string(runs[i]->seed) + (results[i]        ? ""
                                                     : runs[i]->failed ? " (failed)"
                                                                       : " (missing)"));
  }
  return fmt::format("{}", fmt::join(texts, " / "));
}

std::map<int64_t, double> AblationRow::metric(const std::string& name) const {
  std::map<int64_t, double> values;
  for (size_t i = 0; i < runs.size(); ++i) {
    if (!results[i]) continue;
    const nlohmann::json metrics = results[i]->value("metrics", nlohmann::json::object());
    if (metrics.contains(name) && metrics[name].is_number()) values[runs[i]->seed] = metrics[name];
  }
  return values;
}

size_t AblationRow::finished() const {
  return static_cast<size_t>(
      std::count_if(results.begin(), results.end(), [](const auto& result) { return result.has_value(); }));
}

std::vector<AblationRow> ablation_rows(const Ablation& ablation) {
  std::vector<AblationRow> rows;
  for (const AblationRun& run : ablation.runs) {
    auto row = std::find_if(rows.begin(), rows.end(),
                            [&](const AblationRow& each) { return each.label == run.label(); });
    if (row == rows.end()) row = rows.insert(rows.end(), {run.label(), {}, {}});
    row->runs.push_back(&run);
    row->results.push_back(run.failed ? std::nullopt
                                      : finished_result(run.folder, run.options.trainer.steps));
  }
  return rows;
}

std::vector<std::string> failures_of(const AblationRow& row) {
  std::vector<std::string> texts;
  for (size_t i = 0; i < row.runs.size(); ++i) {
    const AblationRun& run = *row.runs[i];
    if (run.failed)
      texts.push_back(fmt::format("seed {} failed: {}", run.seed, printable(run.error)));
    else if (!row.results[i])
      texts.push_back(fmt::format("seed {} is missing", run.seed));
  }
  return texts;
}

std::vector<HtmlSection> write_results(const Ablation& ablation, std::ostream& out) {
  const std::vector<AblationRow> rows = ablation_rows(ablation);
  const bool scores = std::all_of(ablation.runs.begin(), ablation.runs.end(), [](const AblationRun& run) {
    return std::holds_alternative<GlueOptions>(run.options.task);
  });
  AblationResults results = scores ? score_results(ablation) : loss_results(ablation);
  for (const AblationRow& row : rows) {
    for (const std::string& failure : failures_of(row))
      results.table.notes.push_back(fmt::format("{}: {}.", row.label, failure));
  }
  write_table(results.table, results.numbers, ablation.folder / "results");
  write_file_atomically(ablation.folder / "results.csv", to_csv(results.exact));
  write_file_atomically(ablation.folder / "runs.csv", to_csv(evaluations_of(rows)));
  out << to_markdown(results.table) << "\ntable   " << (ablation.folder / "results.md").string() << "\n";

  HtmlSection section;
  section.title = "Results";
  section.table = results.table;
  if (!results.curves.curves.empty()) {
    plot(results.curves, ablation.folder / "curves");
    section.pictures.push_back(read_file(ablation.folder / "curves.svg", 64 << 20));
    out << "picture " << (ablation.folder / "curves.png").string() << "\n";
  }
  return {std::move(section)};
}

}  // namespace roformer
