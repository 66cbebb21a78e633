#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "roformer/core/config.h"

namespace roformer {

/// What a special token is for; every tokenizer has all five, whatever it calls them.
enum class Special { pad, unknown, classify, separate, mask };

/// Text to token ids and back. Ids are 0 .. vocab_size() - 1, special tokens included. Safe to use from
/// several threads at once.
class Tokenizer {
 public:
  virtual ~Tokenizer() = default;

  virtual int64_t vocab_size() const = 0;
  virtual int32_t special(Special role) const = 0;
  virtual bool is_special(int32_t id) const = 0;
  /// Appends the ids of `text`, without special tokens around it.
  virtual void encode(std::string_view text, std::vector<int32_t>& ids) const = 0;
  virtual std::string decode(const std::vector<int32_t>& ids) const = 0;
  /// True: encode() takes valid UTF-8 without NUL only, which readers check. False: it takes any bytes.
  virtual bool needs_text() const = 0;
  /// Changes whenever ids could change: part of the key of cached token files.
  virtual std::string fingerprint() const = 0;
};

/// Every byte is a token: ids 0-255, then [PAD] 256, [UNK] 257, [CLS] 258, [SEP] 259, [MASK] 260. Takes any
/// bytes. [UNK] never comes out of encode; decode writes special tokens by their names.
struct BytesOptions {
  static constexpr std::string_view type = "bytes";
};
template <class V>
void fields(V&, BytesOptions&) {}

using TokenizerOptions = std::variant<BytesOptions>;

std::unique_ptr<Tokenizer> make_tokenizer(const TokenizerOptions& options);

}  // namespace roformer
