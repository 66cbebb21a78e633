#pragma once

#include <cstddef>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "roformer/core/error.h"

namespace roformer {

/// A JSON object in a file from outside.
class JsonFile {
 public:
  enum class Absent { error, empty };

  /// Error that names the file: unreadable, more than `limit` bytes, not JSON (or not UTF-8), nested more
  /// than 32 deep, not an object. `absent`: whether a file that is not there is an Error too, or an empty
  /// object.
  JsonFile(std::filesystem::path path, size_t limit, Absent absent = Absent::error);

  std::string name() const { return path_.string(); }
  const nlohmann::json& values() const { return values_; }
  /// Null pointer: absent or null.
  const nlohmann::json* find(std::string_view key) const;

  /// An Error that begins with the file's name.
  template <class... A>
  [[noreturn]] void refuse(fmt::format_string<A...> format, A&&... arguments) const {
    fail("{}: {}", name(), fmt::format(format, std::forward<A>(arguments)...));
  }

 private:
  std::filesystem::path path_;
  nlohmann::json values_ = nlohmann::json::object();
};

}  // namespace roformer
