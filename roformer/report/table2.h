#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "roformer/report/tables.h"

namespace roformer {

/// The columns of Table 2 of the RoFormer paper (arXiv 2104.09864), fine-tuning on GLUE: F1 of MRPC and QQP,
/// Spearman's rho of STS-B, else accuracy.
enum class Table2Column { mrpc, sst2, qnli, stsb, qqp, mnli_matched, mnli_mismatched };
inline auto enum_names(Table2Column) {
  return std::array<std::pair<Table2Column, std::string_view>, 7>{
      {{Table2Column::mrpc, "MRPC F1"},
       {Table2Column::sst2, "SST-2"},
       {Table2Column::qnli, "QNLI"},
       {Table2Column::stsb, "STS-B rho"},
       {Table2Column::qqp, "QQP F1"},
       {Table2Column::mnli_matched, "MNLI-m"},
       {Table2Column::mnli_mismatched, "MNLI-mm"}}};
}

/// Percent, over seeds.
struct Table2Score {
  double mean = 0;
  std::optional<double> sd;  ///< sample standard deviation
  int64_t seeds = 1;
  std::optional<std::pair<double, double>> interval;  ///< 95 % bootstrap interval over examples
};

struct Table2Row {
  std::string label;   ///< "RoFormer, 100k steps"
  std::string split;   ///< "dev", "GLUE test server"
  std::string source;  ///< who measured it
  std::map<Table2Column, Table2Score> scores;
};

/// The rows of the paper and of BERT-base on dev by others, each with its split and source, in this order:
/// BERT in the paper, RoFormer in the paper, BERT-base uncased, BERT-base cased.
const std::vector<Table2Row>& published_table2();

/// Published rows, then `ours` ("84.63 ± 0.42 (3) [81.20, 87.90]"), and in a note why the paper's own
/// comparison is not like for like.
Table table2(const std::vector<Table2Row>& ours);

/// The unrounded values behind the rows, for write_table.
nlohmann::ordered_json table2_numbers(const std::vector<Table2Row>& ours);

}  // namespace roformer
