#pragma once

#include <filesystem>
#include <optional>
#include <string>

#include "roformer/report/plots.h"
#include "roformer/run.h"

// A run folder explains itself: what was run, where, and what came out. Shared by train and ablate.

namespace roformer {

/// The options of the run that lives in `folder`; Error when there is none.
RunOptions load_run_folder(const std::filesystem::path& folder, const std::vector<std::string>& sets = {});

/// Writes config.yaml; if the folder already holds checkpoints or a result made with other options, an Error
/// that names the first one which differs, and one if nothing says what they were made with. Options that
/// leave the updates made so far alone (steps, how often to log, threads, …) may differ. Without such
/// results, losses at other lengths that an earlier run left are removed.
void claim_run_folder(const std::filesystem::path& folder, const RunOptions& run);

/// result.json of a finished run that was asked for `steps` updates; empty otherwise, also when it is
/// damaged.
std::optional<nlohmann::json> finished_result(const std::filesystem::path& folder, int64_t steps);

/// The curve of `metric` in metrics.jsonl over the updates; split is "train" or "valid".
Curve read_curve(const std::filesystem::path& folder, const std::string& split, const std::string& metric);

}  // namespace roformer
