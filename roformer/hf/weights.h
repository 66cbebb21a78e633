#pragma once

#include <nlohmann/json.hpp>

#include <filesystem>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "roformer/hf/safetensors.h"

// The weights of Hugging Face folders, whatever the family: reading, filling a model, writing.

namespace roformer {

/// One tensor of a folder. `read` gives an owning copy on the CPU, dtype as stored.
struct HfTensor {
  at::ScalarType dtype;
  std::vector<int64_t> shape;
  std::string stored_name;
  std::function<torch::Tensor()> read;
};
using HfWeights = std::map<std::string, HfTensor, std::less<>>;

/// Reads the headers of the first that is there: model.safetensors, its index of shards, pytorch_model.bin,
/// or its index. `current_name` gives the name under which a stored tensor is looked for. Error when there
/// are none, for files that cannot be read, and for two tensors of one name.
HfWeights read_hf_weights(const std::filesystem::path& folder,
                          const std::function<std::string(const std::string&)>& current_name);

/// A damaged config.json must not ask for memory that no weights fill: an Error when it describes many more
/// parameters than the folder holds.
void check_hf_size(const std::filesystem::path& folder, double described, const HfWeights& weights);

/// A parameter of a model, and what the folder may call it.
struct HfParameter {
  std::string ours;
  std::string name;  ///< empty: the folder has none
  torch::Tensor value;
  std::string group = {};  ///< parameters that a folder has or lacks together; empty: must be there
};

/// What did not match one to one; names as in transformers.
struct HfReport {
  std::vector<std::string> fresh;   ///< in the model, not in the folder: left as initialised
  std::vector<std::string> unused;  ///< in the folder, without a place in the model: not read
};

/// What becomes of a tensor that no parameter asks for.
enum class HfLeftover { redundant, unused, unexpected };

/// Copies weights into parameters, cast to their dtype. One Error lists `problems` found before and all that
/// is missing, of another shape, without floating point or unexpected; the model is then unchanged.
/// `leftover` may add problems of its own.
HfReport load_hf_weights(const std::string& source, const HfWeights& weights,
                         const std::vector<HfParameter>& parameters, std::vector<std::string> problems,
                         const std::function<HfLeftover(const std::string&, const HfTensor&,
                                                        std::vector<std::string>& problems)>& leftover);

/// Makes the folder where needed, and writes config.json and model.safetensors.
void write_hf_folder(const std::filesystem::path& folder, const nlohmann::json& config,
                     const std::vector<std::pair<std::string, torch::Tensor>>& tensors);

}  // namespace roformer
