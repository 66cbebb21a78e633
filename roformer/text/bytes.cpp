#include <iterator>
#include <stdexcept>

#include "roformer/text/build.h"
#include "roformer/text/vocabulary.h"

namespace roformer {
namespace {

class BytesTokenizer final : public Tokenizer {
 public:
  int64_t vocab_size() const override {
    return first_special + static_cast<int64_t>(std::size(bert_special_names));
  }
  int32_t special(Special role) const override {
    switch (role) {
      case Special::pad:
        return first_special;
      case Special::unknown:
        return first_special + 1;
      case Special::classify:
        return first_special + 2;
      case Special::separate:
        return first_special + 3;
      case Special::mask:
        return first_special + 4;
    }
    throw std::logic_error("bytes: no such special token");
  }
  bool is_special(int32_t id) const override { return id >= first_special && id < vocab_size(); }

  void encode(std::string_view text, std::vector<int32_t>& ids, std::vector<Span>* spans) const override {
    const auto* bytes = reinterpret_cast<const unsigned char*>(text.data());
    ids.insert(ids.end(), bytes, bytes + text.size());
    if (!spans) return;
    for (int64_t i = 0; i < static_cast<int64_t>(text.size()); ++i) spans->push_back({i, i + 1});
  }
  std::string token(int32_t id) const override {
    if (id < 0 || id >= vocab_size()) throw std::out_of_range("bytes: no token has this id");
    if (id < first_special) return std::string(1, static_cast<char>(id));
    return std::string(bert_special_names[static_cast<size_t>(id - first_special)]);
  }
  std::string decode(const std::vector<int32_t>& ids) const override {
    std::string text;
    for (const int32_t id : ids) text += token(id);
    return text;
  }

  // Bytes know no words: each may be masked alone.
  bool starts_word(int32_t) const override { return true; }
  bool needs_text() const override { return false; }
  std::string fingerprint() const override { return "bytes 1"; }

 private:
  static constexpr int32_t first_special = 256;
};

}  // namespace

std::unique_ptr<Tokenizer> build_tokenizer(const BytesOptions&) { return std::make_unique<BytesTokenizer>(); }

}  // namespace roformer
