#pragma once

#include <iosfwd>

#include "roformer/ablation_tables.h"
#include "roformer/report/tables.h"

namespace roformer {

/// Train short, test long: the last checkpoint of every finished run at each of `lengths`, on as many tokens
/// at each (the evaluation's sequences, at the longest). Arms with plain rotary positions are evaluated also
/// with linear, NTK-aware, dynamic NTK and YaRN scaling to that length. An arm whose positions end before a
/// length is shown as not able to read it.
struct LengthStudy {
  Table table;                                  ///< mean loss ± 95 % interval over seeds
  std::vector<std::filesystem::path> pictures;  ///< stems: arms as trained; scalings of rotary arms, if any
  int64_t failed = 0;                           ///< evaluations
};

/// Leaves lengths.{md,json,csv} and pictures in the folder and prints the table. What was measured before
/// (file lengths.json of each run) is not measured again. Interrupted when asked to end: what was measured is
/// kept.
LengthStudy study_lengths(const Ablation& ablation, const std::vector<int64_t>& lengths, std::ostream& out);

}  // namespace roformer
