#pragma once

#include <zlib.h>

#include <filesystem>
#include <fstream>
#include <stdexcept>
#include <string>
#include <string_view>

#include "roformer/core/error.h"
#include "roformer/text/tokenizer.h"
#include "roformer/text/unicode.h"

namespace roformer::test {

inline std::filesystem::path write_text(const std::filesystem::path& path, std::string_view text) {
  std::filesystem::create_directories(path.parent_path());
  std::ofstream(path, std::ios::binary) << text;
  return path;
}

inline std::filesystem::path write_gzip(const std::filesystem::path& path, std::string_view text,
                                        bool append = false) {
  gzFile file = ::gzopen(path.c_str(), append ? "ab" : "wb");
  if (file == nullptr) throw std::runtime_error("cannot write " + path.string());
  ::gzwrite(file, text.data(), static_cast<unsigned>(text.size()));
  ::gzclose(file);
  return path;
}

/// The message of the Error that a call throws; "" if it throws none.
template <class F>
std::string error_of(F&& call) {
  try {
    call();
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

inline bool contains(std::string_view text, std::string_view part) { return text.find(part) != text.npos; }

/// Sentences that differ, about `bytes` in all, a paragraph every few lines. Equal for equal seeds.
inline std::string made_up_text(size_t bytes, uint32_t seed = 1) {
  static constexpr std::string_view words[] = {"the",   "a",     "rotary", "position", "of",   "turns",
                                               "angle", "by",    "word",   "layer",    "sees", "grows",
                                               "with",  "every", "step",   "small"};
  std::string text;
  uint64_t state = seed;
  const auto draw = [&](uint64_t n) {
    state = state * 6364136223846793005ULL + 1442695040888963407ULL;
    return (state >> 33) % n;
  };
  while (text.size() < bytes) {
    for (uint64_t n = 4 + draw(9); n > 0; --n) {
      text += words[draw(16)];
      text += n == 1 ? ".\n" : " ";
    }
    if (draw(5) == 0) text += '\n';
  }
  return text;
}

/// Characters as tokens (their code points), so a tokenizer that needs text: ids 5 .. 0x10FFFF + 5, specials
/// first.
class CodePointTokenizer : public Tokenizer {
 public:
  int64_t vocab_size() const override { return 0x110000 + 5; }
  int32_t special(Special role) const override { return static_cast<int32_t>(role); }
  bool is_special(int32_t id) const override { return id < 5; }
  void encode(std::string_view text, std::vector<int32_t>& ids,
              std::vector<Span>* spans = nullptr) const override {
    if (valid_utf8_prefix(text) != text.size()) throw std::logic_error("a reader let broken UTF-8 through");
    for (size_t i = 0; i < text.size();) {
      const auto begin = static_cast<int64_t>(i);
      const auto lead = static_cast<unsigned char>(text[i]);
      const int more = lead < 0x80 ? 0 : lead < 0xE0 ? 1 : lead < 0xF0 ? 2 : 3;
      int32_t code = more == 0 ? lead : lead & (0x3F >> more);
      for (int k = 0; k < more; ++k) code = code << 6 | (static_cast<unsigned char>(text[++i]) & 0x3F);
      ids.push_back(code + 5);
      ++i;
      if (spans) spans->push_back({begin, static_cast<int64_t>(i)});
    }
  }
  std::string token(int32_t id) const override { return std::to_string(id); }
  bool starts_word(int32_t) const override { return true; }
  std::string decode(const std::vector<int32_t>&) const override { return ""; }
  bool needs_text() const override { return true; }
  std::string fingerprint() const override { return fingerprint_; }

  std::string fingerprint_ = "code points";
};

}  // namespace roformer::test
