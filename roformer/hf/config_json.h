#pragma once

#include <memory>
#include <set>
#include <string>
#include <string_view>

#include "roformer/core/json_file.h"
#include "roformer/nn/layers.h"

// config.json of Hugging Face folders: what the readers and writers of all model families share.

namespace roformer {

/// Typed access to config.json, or to an object in it. It remembers which keys were asked for, so that none
/// is passed over in silence. Every Error begins with the file's name.
class HfConfig {
 public:
  using Json = nlohmann::json;

  /// Error for a folder without config.json, and for what JsonFile refuses.
  explicit HfConfig(const std::filesystem::path& folder);

  /// Whether the key is there at all, null or not.
  bool has(const char* key) const { return values_->contains(key); }
  /// The value, or null where the key is absent; either way it counts as known.
  const Json& get(const char* key);
  /// `missing` where the key is absent or null; an Error for another type and for values out of range.
  int64_t integer(const char* key, int64_t missing, int64_t least, int64_t most);
  double number(const char* key, double missing, double least, double most);
  bool boolean(const char* key, bool missing);
  std::string text(const char* key, std::string_view missing);
  /// By transformers' names of activations (ACT2FN).
  Activation activation(const char* key, std::string_view missing);
  /// The object at `key`, whose keys are then counted by themselves; Error where there is none.
  HfConfig object(const char* key);

  /// "model_type", or what the class name says; Error when neither does.
  std::string model_type();
  /// The first class name of "architectures", or nothing.
  std::string architecture();

  /// Error for the first key that was not asked for, unless it cannot change what a model computes from token
  /// ids.
  void refuse_others();

  template <class... A>
  [[noreturn]] void refuse(fmt::format_string<A...> format, A&&... arguments) const {
    file_->refuse(format, std::forward<A>(arguments)...);
  }

 private:
  HfConfig(std::shared_ptr<const JsonFile> file, const Json& values, std::string prefix)
      : file_(std::move(file)), values_(&values), prefix_(std::move(prefix)) {}
  std::string name(std::string_view key) const { return prefix_ + std::string(key); }

  std::shared_ptr<const JsonFile> file_;
  const Json* values_;
  std::string prefix_;  ///< of keys in messages: "rope_scaling." in that object
  std::set<std::string, std::less<>> known_;
};

/// Null, false, zero, empty.
bool says_no(const nlohmann::json& value);

/// The `model_type` of a folder: "bert", "roformer", "nezha", "llama", ... Error as HfConfig.
std::string hf_model_type(const std::filesystem::path& folder);

/// transformers' names, for config.json.
std::string hf_activation_name(Activation activation);
std::string hf_dtype_name(at::ScalarType dtype);

/// The `type` of the alternative that a choice of options holds.
template <class... T>
std::string_view alternative_name(const std::variant<T...>& choice) {
  return std::visit([](const auto& x) { return std::decay_t<decltype(x)>::type; }, choice);
}

}  // namespace roformer
