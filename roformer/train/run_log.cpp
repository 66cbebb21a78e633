#include "roformer/train/run_log.h"

namespace roformer {
namespace {

/// Drops the records of updates that will be made again, before the file is opened.
const std::filesystem::path& rewound(const std::filesystem::path& path, int64_t step) {
  MetricsLog::rewind(path, step);
  return path;
}

}  // namespace

RunLog::RunLog(const std::filesystem::path& folder, int64_t step, double seconds)
    : metrics_(rewound(folder / "metrics.jsonl", step)),
      events_(folder, step > 0 ? std::optional<int64_t>(step) : std::nullopt),
      seconds_before_(seconds) {}

void RunLog::record(int64_t step, const std::string& split, const Metrics& metrics, int64_t tokens) {
  nlohmann::ordered_json record = {{"step", step}, {"split", split}};
  const double now = std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
  for (const auto& [name, value] : metrics) {
    record[name] = value;
    events_.scalar(split + "/" + name, value, step, now);
  }
  record["tokens"] = tokens;
  record["seconds"] = seconds();
  metrics_.append(record);
  events_.flush();
}

double RunLog::seconds() const {
  return seconds_before_ + std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count();
}

}  // namespace roformer
