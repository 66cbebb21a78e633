#pragma once

// What tests of Hugging Face folders share.

#include "roformer/core/error.h"
#include "tests/tensors.h"
// after torch
#include "tests/fuzz.h"

namespace roformer::test {

/// Python writes NaN, which is no JSON: null.
inline nlohmann::json read_json(const std::filesystem::path& file) {
  std::string text = fuzz_bytes(file);
  for (size_t at; (at = text.find(": NaN")) != std::string::npos;) text.replace(at, 5, ": null");
  return nlohmann::json::parse(text);
}

/// Rows of equal length, int64 [B, L].
inline torch::Tensor ids_of(const nlohmann::json& rows) {
  std::vector<int64_t> flat;
  for (const auto& row : rows) {
    for (int64_t id : row) flat.push_back(id);
  }
  return torch::tensor(flat, torch::kInt64).view({static_cast<int64_t>(rows.size()), -1});
}

/// Every parameter random, biases and norms too.
template <class Model>
Model randomise(Model model) {
  torch::NoGradGuard no_grad;
  uint64_t seed = 0;
  for (torch::Tensor& p : model->parameters()) p.copy_(random_tensor(p.sizes(), ++seed) * 0.3);
  model->eval();
  return model;
}

inline nlohmann::json folder_config(const std::filesystem::path& folder) {
  return read_json(folder / "config.json");
}

/// What `open` says of a folder.
template <class Open>
std::string open_error(const Open& open, const std::filesystem::path& folder) {
  try {
    open(folder);
  } catch (const Error& error) {
    return error.what();
  }
  return "accepted";
}

/// What `open` says with keys of config.json set otherwise, without the file's name.
template <class Open>
std::string config_error(const Open& open, const std::filesystem::path& folder,
                         const nlohmann::json& change) {
  const nlohmann::json good = folder_config(folder);
  nlohmann::json config = good;
  config.update(change);
  fuzz_write(folder / "config.json", config.dump());
  std::string error = open_error(open, folder);
  fuzz_write(folder / "config.json", good.dump());
  const std::string file = (folder / "config.json").string() + ": ";
  return error.rfind(file, 0) == 0 ? error.substr(file.size()) : error;
}

using FolderTensors = std::vector<std::pair<std::string, torch::Tensor>>;

inline FolderTensors folder_tensors(const std::filesystem::path& folder) {
  const SafetensorsFile file(folder / "model.safetensors");
  FolderTensors out;
  for (const SafetensorsEntry& entry : file.entries()) out.emplace_back(entry.name, file.tensor(entry.name));
  return out;
}

}  // namespace roformer::test
