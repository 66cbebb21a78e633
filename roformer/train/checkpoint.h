#pragma once

#include <filesystem>
#include <functional>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "roformer/train/optimizer.h"

// A checkpoint is one safetensors file: tensors "model.<parameter or buffer>", "optimizer.<...>", "ema.<...>",
// "random.<...>", and in its metadata "format" = "roformer-1" and "state", a JSON object. It is read as data, never
// executed, and written aside, synced and renamed.

namespace roformer {

struct Checkpoint {
  NamedTensors tensors;
  nlohmann::json state;
};

/// Numbered checkpoints of a run folder, and its best one: checkpoints/step-00000100.safetensors, best.safetensors.
class CheckpointFolder {
 public:
  explicit CheckpointFolder(std::filesystem::path run);

  std::filesystem::path path(int64_t step) const;
  std::filesystem::path best() const;
  /// Steps present, newest first.
  std::vector<int64_t> steps() const;
  /// Removes all numbered ones but the newest `keep`.
  void prune(int64_t keep) const;

 private:
  std::filesystem::path folder_;
};

void save_checkpoint(const std::filesystem::path& path, const Checkpoint& checkpoint);
/// Error naming the file when it is truncated, foreign or of another version.
Checkpoint load_checkpoint(const std::filesystem::path& path);
/// The metadata alone.
nlohmann::json load_checkpoint_state(const std::filesystem::path& path);

/// Parameters and buffers of a module as "<prefix><name>".
NamedTensors named_state(const torch::nn::Module& module, const std::string& prefix);

/// What load_weights did not take over.
struct LoadReport {
  std::vector<std::string> missing;     ///< in the module only: keep their initial values
  std::vector<std::string> unexpected;  ///< in the checkpoint only
  std::vector<std::string> misshapen;   ///< "name: [2, 3] in the checkpoint, [2, 4] here"
};

/// Copies "<prefix><name>" tensors into the module wherever name and shape fit.
LoadReport load_weights(torch::nn::Module& module, const NamedTensors& tensors, const std::string& prefix);

/// The checkpoint that a run folder or a file stands for: of a folder the best one, else the newest.
std::filesystem::path find_checkpoint(const std::filesystem::path& run_or_file);

}  // namespace roformer
