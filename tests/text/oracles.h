#pragma once

#include <filesystem>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "roformer/text/tokenizer.h"
#include "tests/catch.h"
#include "tests/support.h"

namespace roformer::test {

inline std::vector<nlohmann::json> read_json_lines(const std::filesystem::path& path) {
  std::ifstream file(path);
  if (!file) FAIL("cannot read " << path);
  std::vector<nlohmann::json> out;
  for (std::string line; std::getline(file, line);) out.push_back(nlohmann::json::parse(line));
  return out;
}

inline std::vector<int32_t> ids_of(const Tokenizer& tokenizer, std::string_view text) {
  std::vector<int32_t> ids;
  tokenizer.encode(text, ids);
  return ids;
}

inline std::vector<std::string> tokens_of(const Tokenizer& tokenizer, std::string_view text) {
  std::vector<std::string> tokens;
  for (const int32_t id : ids_of(tokenizer, text)) tokens.push_back(tokenizer.token(id));
  return tokens;
}

/// One span a token, in the text, on the bounds of characters; the same ids with and without.
inline void check_spans(const Tokenizer& tokenizer, const std::string& text) {
  std::vector<int32_t> ids;
  std::vector<Span> spans;
  tokenizer.encode(text, ids, &spans);
  INFO(text);
  REQUIRE(spans.size() == ids.size());
  CHECK(ids == ids_of(tokenizer, text));
  for (const Span& span : spans) {
    REQUIRE(span.begin >= 0);
    REQUIRE(span.begin < span.end);
    REQUIRE(span.end <= static_cast<int64_t>(text.size()));
  }
}

/// Every line of <name>.jsonl and <name>_pairs.jsonl.
inline void check_oracles(const std::filesystem::path& folder, const std::string& name,
                          const Tokenizer& tokenizer, bool fast = false) {
  using Ids = std::vector<int32_t>;
  size_t lines = 0;
  for (const nlohmann::json& line : read_json_lines(folder / (name + ".jsonl"))) {
    ++lines;
    const std::string text = line["text"];
    INFO(name << ": " << text);
    const char* key = fast && line.contains("fast_ids") ? "fast_ids" : "ids";
    // Where the two dictionaries make a difference, the slow ids of this one are given, too.
    const bool other_words = line.contains("shared_dict_ids");
    const Encoding encoding = encode_texts(tokenizer, text, nullptr, 0);
    if (!fast || !other_words) {
      CHECK(encoding.ids == line[other_words ? "shared_dict_ids" : key].get<Ids>());
    }
    CHECK(encoding.segments == Ids(encoding.ids.size(), 0));
    CHECK(encoding.dropped == 0);
    if (!fast && !other_words)
      CHECK(tokens_of(tokenizer, text) == line["tokens"].get<std::vector<std::string>>());
    check_spans(tokenizer, text);
  }
  CHECK(lines > 300);
  if (fast) return;  // pairs are cut as the slow tokenizers do
  lines = 0;
  for (const nlohmann::json& line : read_json_lines(folder / (name + "_pairs.jsonl"))) {
    ++lines;
    const std::string text = line["text"], second = line["text_pair"];
    const std::string_view pair = second;
    INFO(name << ": " << text << " | " << pair << " | " << line["max_length"]);
    const Encoding encoding = encode_texts(tokenizer, text, &pair, line["max_length"].get<int64_t>());
    CHECK(encoding.ids == line["ids"].get<Ids>());
    CHECK(encoding.segments == line["token_type_ids"].get<Ids>());
    const Encoding whole = encode_texts(tokenizer, text, &pair, 0);
    CHECK(whole.ids.size() == encoding.ids.size() + static_cast<size_t>(encoding.dropped));
  }
  CHECK(lines == 60);
}

}  // namespace roformer::test
