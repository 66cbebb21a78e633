#include "roformer/report/table2.h"

#include <fmt/format.h>

#include <cmath>

namespace roformer {
namespace {

// Values in the order of Table2Column.
Table2Row published_row(std::string label, std::string split, std::string source,
                        const std::array<double, 7>& values) {
  Table2Row row{std::move(label), std::move(split), std::move(source), {}};
  std::size_t i = 0;
  for (const auto& [column, name] : enum_names(Table2Column{})) row.scores[column].mean = values[i++];
  return row;
}

// A source gives one decimal or two.
int published_digits(const Table2Row& row) {
  for (const auto& [column, score] : row.scores)
    if (std::abs(score.mean * 10 - std::round(score.mean * 10)) > 1e-6) return 2;
  return 1;
}

std::string score_cell(const Table2Row& row, Table2Column column, bool published) {
  const auto found = row.scores.find(column);
  if (found == row.scores.end()) return "–";
  const Table2Score& score = found->second;
  if (published) return fmt::format("{:.{}f}", score.mean, published_digits(row));
  std::string cell = fmt::format("{:.2f}", score.mean);
  if (score.sd) cell += fmt::format(" ± {:.2f}", *score.sd);
  cell += fmt::format(" ({})", score.seeds);
  if (score.interval) cell += fmt::format(" [{:.2f}, {:.2f}]", score.interval->first, score.interval->second);
  return cell;
}

void add_table2_row(Table& table, const Table2Row& row, bool published) {
  std::vector<std::string> cells = {row.label, row.split};
  for (const auto& [column, name] : enum_names(Table2Column{}))
    cells.push_back(score_cell(row, column, published));
  cells.push_back(row.source);
  table.rows.push_back(std::move(cells));
}

}  // namespace

const std::vector<Table2Row>& published_table2() {
  // The paper's BERT row is that of Devlin et al. (2019), Table 1, which the GLUE server scored.
  static const std::vector<Table2Row> rows = {
      published_row("BERT, in the paper", "GLUE test server",
                    "RoFormer paper, Table 2; from Devlin et al. 2019",
                    {88.9, 93.5, 90.5, 85.8, 71.2, 84.6, 83.4}),
      published_row("RoFormer, in the paper", "dev", "RoFormer paper, Table 2",
                    {89.5, 90.7, 88.0, 87.0, 86.4, 80.2, 79.8}),
      published_row("BERT-base uncased", "dev", "naver/claf#15",
                    {91.28, 92.55, 88.52, 87.88, 87.17, 83.92, 84.31}),
      published_row("BERT-base cased", "dev", "huggingface/transformers, text-classification README",
                    {88.85, 92.32, 90.66, 88.48, 87.49, 83.91, 84.10})};
  return rows;
}

Table table2(const std::vector<Table2Row>& ours) {
  Table table;
  table.title = "Table 2: fine-tuning on GLUE";
  table.columns = {"model", "split"};
  for (const auto& [column, name] : enum_names(Table2Column{})) table.columns.emplace_back(name);
  table.columns.push_back("source");
  for (const Table2Row& row : published_table2()) add_table2_row(table, row, true);
  for (const Table2Row& row : ours) add_table2_row(table, row, false);
  table.notes.push_back(
      "The paper's own comparison is not like for like: it sets RoFormer on the dev sets against BERT on the "
      "hidden "
      "GLUE test server, while on the dev sets BERT-base uncased is above that RoFormer in every column.");
  if (!ours.empty())
    table.notes.push_back(
        "Percent. Own rows: mean ± sample standard deviation (number of seeds) [95 % bootstrap interval].");
  return table;
}

nlohmann::ordered_json table2_numbers(const std::vector<Table2Row>& ours) {
  nlohmann::ordered_json numbers = nlohmann::ordered_json::array();
  for (const auto* rows : {&published_table2(), &ours}) {
    for (const Table2Row& row : *rows) {
      nlohmann::ordered_json scores = nlohmann::ordered_json::object();
      for (const auto& [column, name] : enum_names(Table2Column{})) {
        const auto found = row.scores.find(column);
        if (found == row.scores.end()) continue;
        const Table2Score& score = found->second;
        nlohmann::ordered_json& entry = scores[std::string(name)];
        entry["mean"] = score.mean;
        if (rows != &ours) continue;
        if (score.sd) entry["sd"] = *score.sd;
        entry["seeds"] = score.seeds;
        if (score.interval) entry["interval"] = {score.interval->first, score.interval->second};
      }
      numbers.push_back(
          {{"model", row.label}, {"split", row.split}, {"source", row.source}, {"scores", scores}});
    }
  }
  return numbers;
}

}  // namespace roformer
