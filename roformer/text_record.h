#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

namespace roformer {

/// One line of JSON that stands for a text: {"text": "...", "text_pair": "..." or null, "max_length": 128};
/// other keys pass.
struct TextRecord {
  std::string first, second;
  bool pair = false;
  int64_t max_length = 0;  ///< 0 = no limit
  nlohmann::ordered_json object;
};

/// `where` ("in.jsonl:3") begins every Error; max_length is that of lines without one.
TextRecord read_text_record(std::string_view line, const std::string& where, int64_t max_length);

}  // namespace roformer
