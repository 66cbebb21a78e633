#pragma once

#include <iosfwd>
#include <map>
#include <optional>

#include "roformer/report/html.h"
#include "roformer/report/plots.h"
#include "roformer/run.h"

// What an ablation leaves behind. ablation_losses.cpp and ablation_scores.cpp make the numbers,
// ablation_tables.cpp writes them, ablation_report.cpp makes the page of it all.

namespace roformer {

/// One run of an ablation.
struct AblationRun {
  std::string arm;
  std::string point;  ///< combination of the grid's values; empty without a grid
  int64_t seed = 0;
  RunOptions options;
  std::filesystem::path folder;
  bool failed = false;
  std::string error;  ///< of a failed one: its last words

  /// Arm and point: a row of the table.
  std::string label() const { return point.empty() ? arm : arm + "-" + point; }
};

struct Ablation {
  std::string name;                  ///< of the configuration
  std::vector<std::string> command;  ///< repeats all of it
  std::filesystem::path folder;
  RunOptions base;            ///< the options before the arms change them
  std::vector<double> reach;  ///< losses whose first update is looked for
  std::vector<AblationRun> runs;
};

/// results.{md,csv,json} and runs.csv in the folder, for losses curves.{png,svg} too, and the table to `out`.
/// The same runs give the same bytes. Returns the part of the report that shows them. Pretraining: losses
/// over seeds, paired differences to the first row, speed. GLUE: dev metrics with deviations and bootstrap
/// intervals.
std::vector<HtmlSection> write_results(const Ablation& ablation, std::ostream& out);

/// report.html: what was run, `results`, every row's options and how to train it again, and where the runs
/// were made.
void write_report(const Ablation& ablation, const std::vector<HtmlSection>& results);

// ---- shared by the files above ----

/// Runs that differ in nothing but the seed.
struct AblationRow {
  std::string label;
  std::vector<const AblationRun*> runs;
  std::vector<std::optional<nlohmann::json>> results;  ///< result.json of each; nothing if it did not finish

  /// "1 / 2 (failed) / 3 (missing)".
  std::string seeds() const;
  /// A metric of the last evaluation, by seed, of the finished runs that have it.
  std::map<int64_t, double> metric(const std::string& name) const;
  /// Runs that ended well.
  size_t finished() const;
};
/// In the order of the file.
std::vector<AblationRow> ablation_rows(const Ablation& ablation);

/// Failed or not there: "2 failed: loss is not finite at update 3".
std::vector<std::string> failures_of(const AblationRow& row);

struct AblationResults {
  Table table;                     ///< for people
  Table exact;                     ///< one line a row, numbers unrounded
  nlohmann::ordered_json numbers;  ///< all there is
  Figure curves;                   ///< without a curve: no picture
};
AblationResults loss_results(const Ablation& ablation);
AblationResults score_results(const Ablation& ablation);

}  // namespace roformer
