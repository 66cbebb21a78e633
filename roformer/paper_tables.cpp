#include <algorithm>
#include <nlohmann/json.hpp>
#include <ostream>

#include "roformer/core/files.h"
#include "roformer/eval/metrics.h"
#include "roformer/report/table2.h"
#include "roformer/run.h"

// Tables of the paper, with our rows beside the published ones.

namespace roformer {
namespace {

struct ColumnSource {
  std::string_view task, metric;
  Table2Column column;
};
constexpr std::array<ColumnSource, 7> column_sources{
    {{"mrpc", "f1", Table2Column::mrpc},
     {"sst2", "accuracy", Table2Column::sst2},
     {"qnli", "accuracy", Table2Column::qnli},
     {"stsb", "spearman", Table2Column::stsb},
     {"qqp", "f1", Table2Column::qqp},
     {"mnli", "accuracy", Table2Column::mnli_matched},
     {"mnli", "accuracy_mm", Table2Column::mnli_mismatched}}};

/// Adds the best row of every arm in a folder of `ablate`.
void add_folder(const std::filesystem::path& folder, std::vector<Table2Row>& rows) {
  const std::filesystem::path file = folder / "results.json";
  std::error_code ignored;
  if (!std::filesystem::exists(file, ignored)) {
    fail("{}: no results.json in it; name the folder of a finished `ablate` on a GLUE task", folder.string());
  }
  const auto json = nlohmann::json::parse(read_file(file, 64 << 20), nullptr, /*allow_exceptions=*/false);
  try {
    const nlohmann::json& numbers = json.at("numbers");
    const auto task = numbers.at("task").get<std::string>(),
               headline = numbers.at("headline").get<std::string>();
    for (const auto& [label, entry] : numbers.at("rows").items()) {
      if (!entry.value("best", false)) continue;
      const auto arm = entry.at("arm").get<std::string>();
      auto row =
          std::find_if(rows.begin(), rows.end(), [&](const Table2Row& each) { return each.label == arm; });
      if (row == rows.end()) row = rows.insert(rows.end(), {arm, "dev", "this program", {}});
      for (const ColumnSource& source : column_sources) {
        if (source.task != task) continue;
        std::vector<std::optional<double>> values;
        for (const auto& [seed, result] : entry.at("seeds").items()) {
          const nlohmann::json& metrics = result.at("metrics");
          const std::string name(source.metric);
          values.push_back(metrics.contains(name) ? std::optional(100 * metrics[name].get<double>())
                                                  : std::nullopt);
        }
        const SeedSummary summary = summarize_seeds(values);
        if (!summary.mean) continue;
        Table2Score score{*summary.mean, summary.sd, summary.count, {}};
        if (entry.contains("interval") && headline == source.metric) {
          score.interval = {100 * entry["interval"].at(0).get<double>(),
                            100 * entry["interval"].at(1).get<double>()};
        }
        row->scores[source.column] = score;
      }
    }
  } catch (const nlohmann::json::exception&) {
    fail("{}: holds no results of `ablate` on a GLUE task", file.string());
  }
}

}  // namespace

int report_table2(const std::vector<std::filesystem::path>& folders, const std::filesystem::path& stem,
                  std::ostream& out) {
  std::vector<Table2Row> rows;
  for (const std::filesystem::path& folder : folders) add_folder(folder, rows);
  const Table table = table2(rows);
  out << to_markdown(table);
  if (!stem.empty()) write_table(table, table2_numbers(rows), stem);
  return 0;
}

}  // namespace roformer
