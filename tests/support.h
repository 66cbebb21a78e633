#pragma once

#include <cstdlib>
#include <filesystem>
#include <optional>
#include <stdexcept>
#include <string>
#include <system_error>

#include "tests/catch.h"

namespace roformer::test {

/// The repository's root, for configs and fixtures.
inline std::filesystem::path source_dir() { return ROFORMER_SOURCE_DIR; }

/// The program under test; ctest names it.
inline std::filesystem::path program() {
  const char* path = std::getenv("ROFORMER_PROGRAM");
  return path ? std::filesystem::path(path) : source_dir() / "build" / "roformer";
}

/// An environment variable that is set, where it was not, until the end of the scope.
class DefaultVariable {
 public:
  DefaultVariable(const char* name, const char* value) : name_(std::getenv(name) ? nullptr : name) {
    if (name_) ::setenv(name_, value, 1);
  }
  ~DefaultVariable() {
    if (name_) ::unsetenv(name_);
  }
  DefaultVariable(const DefaultVariable&) = delete;
  DefaultVariable& operator=(const DefaultVariable&) = delete;

 private:
  const char* name_;
};

/// The folder that an environment variable names. Absent: says so and returns nothing, and the test returns too.
/// Named but missing is a mistake of whoever set it, so the test fails.
inline std::optional<std::filesystem::path> require_folder(const char* variable) {
  const char* value = std::getenv(variable);
  if (!value || !*value) {
    WARN(variable << " is not set: nothing checked here");
    return std::nullopt;
  }
  if (!std::filesystem::is_directory(value)) FAIL(variable << " names no folder: " << value);
  return std::filesystem::path(value);
}

/// Real data sets.
inline std::optional<std::filesystem::path> require_data() { return require_folder("ROFORMER_DATA"); }

/// Reference values of other implementations.
inline std::optional<std::filesystem::path> require_oracles() { return require_folder("ROFORMER_ORACLES"); }

/// A new folder, removed with all that is in it at the end of the scope.
class TempDir {
 public:
  TempDir() {
    std::string name = (std::filesystem::temp_directory_path() / "roformer-test-XXXXXX").string();
    if (!::mkdtemp(name.data())) throw std::runtime_error("cannot make a temporary folder like " + name);
    path_ = name;
  }
  ~TempDir() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  TempDir(const TempDir&) = delete;
  TempDir& operator=(const TempDir&) = delete;

  const std::filesystem::path& path() const { return path_; }
  std::filesystem::path operator/(const std::filesystem::path& name) const { return path_ / name; }

 private:
  std::filesystem::path path_;
};

}  // namespace roformer::test
