#include "roformer/train/checkpoint.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <map>

#include "roformer/hf/safetensors.h"

namespace roformer {
namespace {

constexpr const char* checkpoint_format = "roformer-1";

nlohmann::json parse_state(const SafetensorsFile& file, const std::filesystem::path& path) {
  const auto& metadata = file.metadata();
  const auto format = metadata.find("format"), state = metadata.find("state");
  if (format == metadata.end() || format->second != checkpoint_format || state == metadata.end()) {
    fail("{}: no checkpoint of this program (its metadata lacks format '{}')", path.string(), checkpoint_format);
  }
  const nlohmann::json parsed = nlohmann::json::parse(state->second, nullptr, /*allow_exceptions=*/false);
  if (!parsed.is_object() || !parsed.contains("step") || !parsed["step"].is_number_integer()) {
    fail("{}: the checkpoint's state is damaged", path.string());
  }
  return parsed;
}

}  // namespace

CheckpointFolder::CheckpointFolder(std::filesystem::path run) : folder_(std::move(run) / "checkpoints") {}

std::filesystem::path CheckpointFolder::path(int64_t step) const {
  return folder_ / fmt::format("step-{:08d}.safetensors", step);
}

std::filesystem::path CheckpointFolder::best() const { return folder_ / "best.safetensors"; }

std::vector<int64_t> CheckpointFolder::steps() const {
  std::vector<int64_t> steps;
  std::error_code ignored;
  for (const auto& entry : std::filesystem::directory_iterator(folder_, ignored)) {
    const std::string name = entry.path().stem().string();
    if (!name.starts_with("step-") || name.size() > 20 || entry.path().extension() != ".safetensors") continue;
    if (name.find_first_not_of("0123456789", 5) == std::string::npos && name.size() > 5) {
      steps.push_back(std::stoll(name.substr(5)));
    }
  }
  std::sort(steps.rbegin(), steps.rend());
  return steps;
}

void CheckpointFolder::prune(int64_t keep) const {
  const std::vector<int64_t> all = steps();
  std::error_code ignored;
  for (size_t i = static_cast<size_t>(keep); i < all.size(); ++i) std::filesystem::remove(path(all[i]), ignored);
}

void save_checkpoint(const std::filesystem::path& path, const Checkpoint& checkpoint) {
  std::filesystem::create_directories(path.parent_path());
  save_safetensors(path, checkpoint.tensors, {{"format", checkpoint_format}, {"state", checkpoint.state.dump()}});
}

Checkpoint load_checkpoint(const std::filesystem::path& path) {
  const SafetensorsFile file(path);
  Checkpoint checkpoint{{}, parse_state(file, path)};
  for (const SafetensorsEntry& entry : file.entries()) {
    checkpoint.tensors.emplace_back(entry.name, file.tensor(entry.name));
  }
  return checkpoint;
}

nlohmann::json load_checkpoint_state(const std::filesystem::path& path) {
  return parse_state(SafetensorsFile(path), path);
}

NamedTensors named_state(const torch::nn::Module& module, const std::string& prefix) {
  NamedTensors state;
  for (const auto& item : module.named_parameters()) state.emplace_back(prefix + item.key(), item.value().detach());
  for (const auto& item : module.named_buffers()) state.emplace_back(prefix + item.key(), item.value());
  return state;
}

LoadReport load_weights(torch::nn::Module& module, const NamedTensors& tensors, const std::string& prefix) {
  const torch::NoGradGuard no_grad;
  std::map<std::string, torch::Tensor> stored;
  for (const auto& [name, tensor] : tensors) {
    if (name.starts_with(prefix)) stored.emplace(name.substr(prefix.size()), tensor);
  }
  LoadReport report;
  for (auto& [name, tensor] : named_state(module, "")) {
    const auto found = stored.find(name);
    if (found == stored.end()) {
      report.missing.push_back(name);
      continue;
    }
    if (found->second.sizes() == tensor.sizes()) {
      tensor.copy_(found->second);
    } else {
      report.misshapen.push_back(fmt::format("{}: [{}] in the checkpoint, [{}] here", name,
                                             fmt::join(found->second.sizes(), ", "), fmt::join(tensor.sizes(), ", ")));
    }
    stored.erase(found);
  }
  for (const auto& [name, tensor] : stored) report.unexpected.push_back(name);
  return report;
}

std::filesystem::path find_checkpoint(const std::filesystem::path& run_or_file) {
  std::error_code ignored;
  if (std::filesystem::is_regular_file(run_or_file, ignored)) return run_or_file;
  if (!std::filesystem::is_directory(run_or_file, ignored)) {
    fail("{}: no such run or checkpoint", run_or_file.string());
  }
  const CheckpointFolder folder(run_or_file);
  if (std::filesystem::exists(folder.best(), ignored)) return folder.best();
  const std::vector<int64_t> steps = folder.steps();
  if (steps.empty()) fail("{}: holds no checkpoint (looked in its folder 'checkpoints')", run_or_file.string());
  return folder.path(steps.front());
}

}  // namespace roformer
