#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <vector>

#include "roformer/core/files.h"

namespace roformer {

/// metrics.jsonl: one JSON object per line, in the order of writing. Doubles come back bit for bit; NaN and
/// infinities are written as null.
class MetricsLog {
 public:
  static constexpr std::size_t max_line = std::size_t{1} << 20;  // bytes

  /// Opens for appending; drops an unfinished last line, which a killed process may have left.
  explicit MetricsLog(const std::filesystem::path& path);

  /// Written with one write call; a failure (full disk) is an Error and leaves the file as it was.
  void append(const nlohmann::ordered_json& record);

  /// All records. A torn last line is ignored; a broken line elsewhere is an Error with file:line.
  /// A missing file is an Error.
  static std::vector<nlohmann::json> read(const std::filesystem::path& path);

  /// Keeps the records with "step" <= step and those without a step, and drops a torn last line; atomic.
  /// A missing file is left missing.
  static void rewind(const std::filesystem::path& path, std::int64_t step);

 private:
  AppendFile file_;
};

}  // namespace roformer
