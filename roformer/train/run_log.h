#pragma once

#include <chrono>
#include <filesystem>
#include <optional>
#include <string>

#include "roformer/core/metrics_log.h"
#include "roformer/core/tensorboard.h"
#include "roformer/tasks/task.h"

namespace roformer {

/// Where a run's numbers go: metrics.jsonl and TensorBoard events, both in the run folder. Keeps the clock of the run
/// over restarts.
class RunLog {
 public:
  /// step: where the run goes on (what was written of later updates is dropped); seconds: its training time so far.
  RunLog(const std::filesystem::path& folder, int64_t step, double seconds);

  /// One record: step, split, the metrics, then tokens read so far and seconds.
  void record(int64_t step, const std::string& split, const Metrics& metrics, int64_t tokens);
  /// Training time so far, restarts not counted.
  double seconds() const;

 private:
  MetricsLog metrics_;
  EventWriter events_;
  double seconds_before_;
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
};

}  // namespace roformer
