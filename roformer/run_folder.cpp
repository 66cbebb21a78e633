#include "roformer/run_folder.h"

#include <algorithm>
#include <set>

#include "roformer/core/files.h"
#include "roformer/core/metrics_log.h"

namespace roformer {
namespace {

/// These may change when a run goes on: they leave the updates made so far as they were.
const std::set<std::string>& changeable_options() {
  static const std::set<std::string> names = {"data.cache",
                                              "trainer.steps",
                                              "trainer.log_every",
                                              "trainer.evaluate_every",
                                              "trainer.checkpoint_every",
                                              "trainer.keep",
                                              "trainer.patience",
                                              "trainer.device",
                                              "trainer.threads",
                                              "arms",
                                              "grid",
                                              "seeds",
                                              "lengths",
                                              "reach"};
  return names;
}

/// The first path at which two trees differ, as "name was A, now B"; empty when they do not.
std::string first_difference(const ConfigNode& before, const ConfigNode& now, const std::string& path) {
  if (changeable_options().contains(path) || before == now) return "";
  if (before.kind != ConfigNode::Kind::map || now.kind != ConfigNode::Kind::map) {
    auto text = [](const ConfigNode& node) {
      std::string dumped = dump(node);
      while (!dumped.empty() && dumped.back() == '\n') dumped.pop_back();
      return dumped.find('\n') == std::string::npos ? dumped : std::string("something else");
    };
    return fmt::format("{} was {}, now {}", path, text(before), text(now));
  }
  for (const auto& [key, value] : now.entries) {
    const std::string inner = path.empty() ? key : path + "." + key;
    const ConfigNode* other = before.find(key);
    const std::string difference = first_difference(other ? *other : ConfigNode{}, value, inner);
    if (!difference.empty()) return difference;
  }
  for (const auto& [key, value] : before.entries) {
    if (!now.find(key)) return fmt::format("{} was set, now absent", path.empty() ? key : path + "." + key);
  }
  return "";
}

/// Everything is spelt out in it, so a Hugging Face folder that it names need not be there any more.
RunOptions read_folder_config(const std::filesystem::path& config, const std::vector<std::string>& sets) {
  RunOptions run;
  read(load_config(config, sets), run);
  return run;
}

}  // namespace

RunOptions load_run_folder(const std::filesystem::path& folder, const std::vector<std::string>& sets) {
  const std::filesystem::path config = folder / "config.yaml";
  std::error_code ignored;
  if (!std::filesystem::exists(config, ignored))
    fail("{}: no run folder (it has no config.yaml)", folder.empty() ? "." : folder.string());
  return read_folder_config(config, sets);
}

void claim_run_folder(const std::filesystem::path& folder, const RunOptions& run) {
  const std::filesystem::path config = folder / "config.yaml";
  std::error_code ignored;
  const bool holds_results =
      !CheckpointFolder(folder).steps().empty() || std::filesystem::exists(folder / "result.json", ignored);
  if (holds_results) {
    if (!std::filesystem::exists(config, ignored))
      fail("{}: holds results, but no config.yaml that says of what; remove it, or choose another folder",
           folder.string());
    const std::string difference = first_difference(write(read_folder_config(config, {})), write(run), "");
    if (!difference.empty()) {
      fail("{}: holds a run with other options ({}); remove it, or choose another folder with --run",
           folder.string(), difference);
    }
  } else {
    std::filesystem::remove(folder / "lengths.json", ignored);  // of weights that are gone
  }
  std::filesystem::create_directories(folder, ignored);
  if (ignored) fail("{}: cannot be created: {}", folder.string(), ignored.message());
  write_file_atomically(config, dump(write(run)));
}

std::optional<nlohmann::json> finished_result(const std::filesystem::path& folder, int64_t steps) {
  const std::filesystem::path path = folder / "result.json";
  std::error_code ignored;
  if (!std::filesystem::exists(path, ignored)) return std::nullopt;
  const nlohmann::json result =
      nlohmann::json::parse(read_file(path, 1 << 20), nullptr, /*allow_exceptions=*/false);
  if (!result.is_object()) return std::nullopt;
  auto is = [&](const char* key, auto value) { return result.contains(key) && result[key] == value; };
  auto is_number = [&](const char* key) { return !result.contains(key) || result[key].is_number(); };
  const bool usable =
      is("finished", true) && is("asked_steps", steps) && is_number("step") && is_number("parameters") &&
      is_number("tokens") && is_number("seconds") && result.contains("metrics") &&
      result["metrics"].is_object() &&
      std::all_of(result["metrics"].begin(), result["metrics"].end(),
                  [](const nlohmann::json& value) { return value.is_number() || value.is_null(); });
  return usable ? std::optional(result) : std::nullopt;
}

Curve read_curve(const std::filesystem::path& folder, const std::string& split, const std::string& metric) {
  Curve curve;
  curve.label = split;
  for (const nlohmann::json& record : MetricsLog::read(folder / "metrics.jsonl")) {
    if (record.value("split", "") != split || !record.contains(metric) || !record[metric].is_number())
      continue;
    curve.x.push_back(record.value("step", 0.0));
    curve.y.push_back(record[metric]);
  }
  return curve;
}

}  // namespace roformer
