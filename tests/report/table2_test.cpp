#include "roformer/report/table2.h"

#include <string>
#include <vector>

#include "tests/catch.h"

using roformer::published_table2;
using roformer::Table2Column;
using roformer::Table2Row;

TEST_CASE("Table 2 without own rows holds the published ones with their splits") {
  const roformer::Table table = roformer::table2({});
  REQUIRE(table.columns.size() == 10);
  REQUIRE(table.rows.size() == 4);
  CHECK(table.rows[0] == std::vector<std::string>{"BERT, in the paper", "GLUE test server", "88.9", "93.5",
                                                  "90.5", "85.8", "71.2", "84.6", "83.4",
                                                  "RoFormer paper, Table 2; from Devlin et al. 2019"});
  CHECK(table.rows[1] == std::vector<std::string>{"RoFormer, in the paper", "dev", "89.5", "90.7", "88.0",
                                                  "87.0", "86.4", "80.2", "79.8", "RoFormer paper, Table 2"});
  CHECK(table.rows[2][2] == "91.28");
  CHECK(table.rows[3][8] == "84.10");
  for (std::size_t i = 1; i < 4; ++i) CHECK(table.rows[i][1] == "dev");
  for (const auto& row : table.rows) CHECK_FALSE(row.back().empty());
  REQUIRE(table.notes.size() == 1);
  CHECK(table.notes[0].find("not like for like") != std::string::npos);
  CHECK(table.notes[0].find("dev") < table.notes[0].find("test server"));
  CHECK(table.notes[0].find(". ") == std::string::npos);  // one sentence
}

TEST_CASE("what the note of Table 2 says is true of the published rows") {
  const auto& rows = published_table2();
  for (const auto& [column, name] : roformer::enum_names(Table2Column{})) {
    INFO(name);
    CHECK(rows[2].scores.at(column).mean > rows[1].scores.at(column).mean);
  }
}

TEST_CASE("own rows of Table 2 show spread, seeds and interval") {
  Table2Row row;
  row.label = "RoFormer, small";
  row.split = "dev";
  row.source = "this repository";
  row.scores[Table2Column::mrpc] = {84.875, 0.3749, 3, std::pair{81.201, 87.9}};
  row.scores[Table2Column::sst2] = {75, std::nullopt, 1, std::nullopt};
  const roformer::Table table = roformer::table2({row});
  REQUIRE(table.rows.size() == 5);
  CHECK(table.rows[4] == std::vector<std::string>{"RoFormer, small", "dev", "84.88 ± 0.37 (3) [81.20, 87.90]",
                                                  "75.00 (1)", "–", "–", "–", "–", "–", "this repository"});
  CHECK(table.notes.size() == 2);
  CHECK(roformer::to_markdown(table).find("| RoFormer, small") != std::string::npos);

  const auto numbers = roformer::table2_numbers({row});
  REQUIRE(numbers.size() == 5);
  CHECK(numbers[0]["scores"]["QQP F1"].dump() == R"({"mean":71.2})");
  CHECK(
      numbers[4]["scores"].dump() ==
      R"({"MRPC F1":{"mean":84.875,"sd":0.3749,"seeds":3,"interval":[81.201,87.9]},"SST-2":{"mean":75.0,"seeds":1}})");
}
