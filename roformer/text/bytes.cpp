#include <array>
#include <stdexcept>

#include "roformer/text/tokenizer.h"

namespace roformer {
namespace {

class BytesTokenizer final : public Tokenizer {
 public:
  int64_t vocab_size() const override { return first_special + static_cast<int64_t>(names.size()); }
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

  void encode(std::string_view text, std::vector<int32_t>& ids) const override {
    const auto* bytes = reinterpret_cast<const unsigned char*>(text.data());
    ids.insert(ids.end(), bytes, bytes + text.size());
  }
  std::string decode(const std::vector<int32_t>& ids) const override {
    std::string text;
    for (const int32_t id : ids) {
      if (id < 0 || id >= vocab_size()) throw std::out_of_range("bytes: no token has this id");
      if (id < first_special) {
        text += static_cast<char>(id);
      } else {
        text += names[static_cast<size_t>(id - first_special)];
      }
    }
    return text;
  }

  bool needs_text() const override { return false; }
  std::string fingerprint() const override { return "bytes 1"; }

 private:
  static constexpr int32_t first_special = 256;
  static constexpr std::array<std::string_view, 5> names = {"[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"};
};

std::unique_ptr<Tokenizer> build_tokenizer(const BytesOptions&) { return std::make_unique<BytesTokenizer>(); }

}  // namespace

std::unique_ptr<Tokenizer> make_tokenizer(const TokenizerOptions& options) {
  return std::visit([](const auto& each) { return build_tokenizer(each); }, options);
}

}  // namespace roformer
