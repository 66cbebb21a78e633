#pragma once

#include <iosfwd>

#include "roformer/run.h"

namespace roformer {

/// One run of an ablation.
struct AblationRun {
  std::string arm;
  std::string point;  ///< combination of the grid's values; empty without a grid
  int64_t seed = 0;
  RunOptions options;
  std::filesystem::path folder;
  bool failed = false;

  /// Arm and point: a row of the table.
  std::string label() const { return point.empty() ? arm : arm + "-" + point; }
};

/// results.{md,json} in the folder, and the table to `out`. Pretraining: losses along the way, and
/// curves.{png,svg}. GLUE: dev metrics with seeds, deviations and bootstrap intervals.
void write_ablation(const std::vector<AblationRun>& runs, const std::string& name,
                    const std::filesystem::path& folder, std::ostream& out);

}  // namespace roformer
