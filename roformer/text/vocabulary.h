#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "roformer/text/tokenizer.h"

namespace roformer {

/// The tokens of a vocab.txt: line n (from 0) is token n. Found by their text without allocation, and by the
/// running hash of their bytes, so that all beginnings of a word cost one pass over it.
class Vocabulary {
 public:
  /// Error "file:line: ..." for what transformers would read wrongly or not at all: CRLF, a byte order mark,
  /// an empty line, a token twice, broken UTF-8, NUL; without a line if [PAD], [UNK], [CLS], [SEP] or [MASK]
  /// is missing.
  explicit Vocabulary(const std::filesystem::path& file);

  int64_t size() const { return static_cast<int64_t>(starts_.size()) - 1; }
  /// std::out_of_range if there is no such id.
  std::string_view token(int32_t id) const;
  /// -1: none.
  int32_t find(std::string_view token) const { return find(token, hash(token)); }
  int32_t special(Special role) const { return special_[static_cast<size_t>(role)]; }
  bool is_special(int32_t id) const;
  /// Bytes of the longest token.
  size_t longest() const { return longest_; }
  /// Of the whole file.
  uint64_t digest() const { return digest_; }

  static constexpr uint64_t hash_of_nothing = 0xCBF29CE484222325ULL;
  static uint64_t hash_more(uint64_t hash, char byte) {
    return (hash ^ static_cast<unsigned char>(byte)) * 0x100000001B3ULL;  // FNV-1a
  }
  static uint64_t hash(std::string_view token, uint64_t before = hash_of_nothing) {
    for (const char c : token) before = hash_more(before, c);
    return before;
  }
  /// The token whose text is `prefix` + `rest` and whose hash is `hash`; -1: none.
  int32_t find(std::string_view rest, uint64_t hash, std::string_view prefix = {}) const {
    for (size_t i = slot_of(hash);; i = (i + 1) & mask_) {
      const Slot& slot = slots_[i];
      if (slot.id < 0) return -1;
      if (slot.tag != static_cast<uint32_t>(hash)) continue;
      const std::string_view known = text_of(slot.id);
      if (known.size() == prefix.size() + rest.size() && known.substr(prefix.size()) == rest &&
          known.substr(0, prefix.size()) == prefix) {
        return slot.id;
      }
    }
  }

 private:
  struct Slot {
    uint32_t tag = 0;
    int32_t id = -1;
  };
  size_t slot_of(uint64_t hash) const { return static_cast<size_t>(hash ^ hash >> 32) & mask_; }
  std::string_view text_of(int32_t id) const {
    const auto i = static_cast<size_t>(id);
    return std::string_view(text_).substr(starts_[i], starts_[i + 1] - starts_[i] - 1);
  }

  std::string text_;              // the file, with a line end behind every token
  std::vector<uint32_t> starts_;  // of each token in it, and the end
  std::vector<Slot> slots_;
  size_t mask_ = 0;
  size_t longest_ = 0;
  uint64_t digest_ = 0;
  int32_t special_[5] = {};
};

/// BERT's names of the special tokens, in the order of enum Special.
inline constexpr std::string_view bert_special_names[5] = {"[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"};

}  // namespace roformer
