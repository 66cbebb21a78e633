#include "roformer/hf/weights.h"

#include <fmt/ranges.h>

#include <set>

#include "roformer/core/display.h"
#include "roformer/core/error.h"
#include "roformer/core/files.h"
#include "roformer/core/json_file.h"
#include "roformer/hf/pickle.h"

namespace roformer {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;
using HfNameMap = std::function<std::string(const std::string&)>;

constexpr size_t max_index_bytes = 64 << 20;

class HfWeightsReader {
 public:
  HfWeightsReader(fs::path folder, const HfNameMap& current_name)
      : folder_(std::move(folder)), current_name_(current_name) {}

  HfWeights read() {
    if (exists("model.safetensors")) {
      add_safetensors("model.safetensors");
    } else if (exists("model.safetensors.index.json")) {
      add_index("model.safetensors.index.json", &HfWeightsReader::add_safetensors);
    } else if (exists("pytorch_model.bin")) {
      add_pickle("pytorch_model.bin");
    } else if (exists("pytorch_model.bin.index.json")) {
      add_index("pytorch_model.bin.index.json", &HfWeightsReader::add_pickle);
    } else {
      fail("{}: no weights here; model.safetensors or pytorch_model.bin, or the index of its parts, is read",
           folder_.string());
    }
    return std::move(weights_);
  }

 private:
  bool exists(const char* name) const { return fs::is_regular_file(folder_ / name); }

  void add(const std::string& stored, HfTensor tensor) {
    tensor.stored_name = stored;
    const auto [at, added] = weights_.emplace(current_name_(stored), std::move(tensor));
    if (!added) {
      fail("{}: '{}' and '{}' are the same tensor", folder_.string(), shown(at->second.stored_name),
           shown(stored));
    }
  }
  void add_safetensors(const std::string& name) {
    const SafetensorsFile file(folder_ / name);
    for (const SafetensorsEntry& entry : file.entries()) {
      add(entry.name, {entry.dtype, entry.shape, {}, [file, key = entry.name] { return file.tensor(key); }});
    }
  }
  void add_pickle(const std::string& name) {
    const PickleFile file(folder_ / name);
    for (const auto& [key, entry] : file.entries()) {
      add(key, {entry.dtype, entry.shape, {}, [file, key = key] { return file.tensor(key); }});
    }
  }
  void add_index(const char* name, void (HfWeightsReader::*add_file)(const std::string&)) {
    const fs::path path = folder_ / name;
    const JsonFile index(path, max_index_bytes);
    const Json* map = index.find("weight_map");
    if (!map || !map->is_object()) index.refuse("'weight_map' is missing");
    std::set<std::string> files;
    for (const auto& [key, file] : map->items()) {
      if (!file.is_string()) index.refuse("the file of '{}' is no text", shown(key));
      const std::string part = file.get<std::string>();
      if (part.empty() || part.find_first_of(std::string_view("/\\\0", 3)) != std::string::npos ||
          part == "..") {
        index.refuse("'{}' is no file of this folder", shown(part));
      }
      files.insert(part);
    }
    for (const std::string& file : files) (this->*add_file)(file);
    std::vector<std::string> absent;
    for (const auto& [key, file] : map->items()) {
      if (!weights_.count(current_name_(key))) absent.push_back("'" + shown(key) + "'");
    }
    if (!absent.empty()) fail("{}: not in the files: {}", path.string(), fmt::join(absent, ", "));
  }

  fs::path folder_;
  const HfNameMap& current_name_;
  HfWeights weights_;
};

}  // namespace

HfWeights read_hf_weights(const fs::path& folder, const HfNameMap& current_name) {
  return HfWeightsReader(folder, current_name).read();
}

void check_hf_size(const fs::path& folder, double described, const HfWeights& weights) {
  double stored = 0;
  for (const auto& [name, tensor] : weights) {
    double elements = 1;
    for (const int64_t size : tensor.shape) elements *= static_cast<double>(size);
    stored += elements;
  }
  if (described > 4 * stored + 1e6) {
    fail("{}: config.json describes a model of {:.0f} parameters, the weights have {:.0f}", folder.string(),
         described, stored);
  }
}

HfReport load_hf_weights(const std::string& source, const HfWeights& weights,
                         const std::vector<HfParameter>& parameters, std::vector<std::string> problems,
                         const std::function<HfLeftover(const std::string&, const HfTensor&,
                                                        std::vector<std::string>&)>& leftover) {
  HfReport report;
  std::vector<std::pair<torch::Tensor, const HfTensor*>> matches;
  std::vector<const HfParameter*> absent;
  std::set<std::string> present_groups;
  std::set<std::string, std::less<>> used;
  for (const HfParameter& parameter : parameters) {
    const auto found = parameter.name.empty() ? weights.end() : weights.find(parameter.name);
    if (found == weights.end()) {
      absent.push_back(&parameter);
      continue;
    }
    present_groups.insert(parameter.group);
    used.insert(found->first);
    const HfTensor& stored = found->second;
    if (!at::isFloatingType(stored.dtype)) {
      problems.push_back(fmt::format("'{}' holds no floating-point numbers", shown(stored.stored_name)));
    } else if (parameter.value.sizes() != torch::IntArrayRef(stored.shape)) {
      problems.push_back(fmt::format("'{}' is [{}], not [{}]", shown(stored.stored_name),
                                     fmt::join(stored.shape, ", "),
                                     fmt::join(parameter.value.sizes(), ", ")));
    } else {
      matches.emplace_back(parameter.value, &stored);
    }
  }
  for (const HfParameter* parameter : absent) {
    const std::string& name = parameter->name.empty() ? parameter->ours : parameter->name;
    if (parameter->group.empty() || present_groups.count(parameter->group)) {
      problems.push_back(fmt::format("'{}' is missing", name));
    } else {
      report.fresh.push_back(name);
    }
  }
  for (const auto& [name, tensor] : weights) {
    if (used.count(name)) continue;
    const HfLeftover use = leftover(name, tensor, problems);
    if (use == HfLeftover::unused) report.unused.push_back(name);
    if (use == HfLeftover::unexpected) {
      problems.push_back(fmt::format("'{}' is unexpected", shown(tensor.stored_name)));
    }
  }
  if (!problems.empty()) fail("{}: does not fit the model: {}", source, fmt::join(problems, "; "));
  torch::NoGradGuard no_grad;
  for (auto& [parameter, stored] : matches) parameter.copy_(stored->read());
  return report;
}

void write_hf_folder(const fs::path& folder, const Json& config,
                     const std::vector<std::pair<std::string, torch::Tensor>>& tensors) {
  std::error_code error;
  fs::create_directories(folder, error);
  if (error) fail("cannot create {}: {}", folder.string(), error.message());
  save_safetensors(folder / "model.safetensors", tensors, {{"format", "pt"}});
  write_file_atomically(folder / "config.json",
                        config.dump(2, ' ', false, Json::error_handler_t::replace) + "\n");
}

}  // namespace roformer
