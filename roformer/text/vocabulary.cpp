#include "roformer/text/vocabulary.h"

#include <algorithm>
#include <bit>
#include <stdexcept>

#include "roformer/core/display.h"
#include "roformer/core/error.h"
#include "roformer/core/files.h"
#include "roformer/text/unicode.h"

namespace roformer {
namespace {

constexpr size_t vocabulary_bytes = size_t{64} << 20;
constexpr size_t vocabulary_tokens = 10'000'000;
constexpr size_t token_bytes = 1024;

}  // namespace

Vocabulary::Vocabulary(const std::filesystem::path& file) : text_(read_file(file, vocabulary_bytes)) {
  digest_ = hash(text_);
  const std::string name = file.string();
  if (text_.empty()) fail("{}: empty; a vocabulary has one token a line", name);
  if (text_.starts_with("\xEF\xBB\xBF"))
    fail("{}:1: byte order mark; remove it (sed -i '1s/^\\xEF\\xBB\\xBF//')", name);
  if (text_.back() != '\n') text_ += '\n';

  const auto lines = static_cast<size_t>(std::count(text_.begin(), text_.end(), '\n'));
  if (lines > vocabulary_tokens) fail("{}: {} lines; at most {} are read", name, lines, vocabulary_tokens);
  slots_.resize(std::bit_ceil(lines * 2));
  mask_ = slots_.size() - 1;
  starts_.reserve(lines + 1);
  starts_.push_back(0);
  for (size_t line = 1, begin = 0; begin < text_.size(); ++line) {
    const size_t end = text_.find('\n', begin);
    const std::string_view token = std::string_view(text_).substr(begin, end - begin);
    if (token.ends_with('\r'))
      fail("{}:{}: Windows line end; convert the file (sed -i 's/\\r$//')", name, line);
    if (token.empty())
      fail(
          "{}:{}: empty line; every line is a token, so ids depend on it: put a token there, such as "
          "[unused{}]",
          name, line, line);
    if (token.find('\0') != token.npos) fail("{}:{}: NUL byte; is this a vocabulary?", name, line);
    if (token.find('\r') != token.npos) fail("{}:{}: carriage return inside a token; remove it", name, line);
    if (valid_utf8_prefix(token) != token.size()) fail("{}:{}: not UTF-8; convert the file", name, line);
    if (token.size() > token_bytes) {
      fail("{}:{}: a token of {} bytes; is this a vocabulary? At most {} are read", name, line, token.size(),
           token_bytes);
    }
    const uint64_t token_hash = hash(token);
    size_t place = slot_of(token_hash);
    for (; slots_[place].id >= 0; place = (place + 1) & mask_) {
      if (slots_[place].tag == static_cast<uint32_t>(token_hash) && text_of(slots_[place].id) == token) {
        fail("{}:{}: '{}' is also on line {}; give one of them another text, such as [unused{}]", name, line,
             printable(token), slots_[place].id + 1, line);
      }
    }
    slots_[place] = {static_cast<uint32_t>(token_hash), static_cast<int32_t>(line - 1)};
    longest_ = std::max(longest_, token.size());
    begin = end + 1;
    starts_.push_back(static_cast<uint32_t>(begin));
  }
  for (size_t role = 0; role < 5; ++role) {
    special_[role] = find(bert_special_names[role]);
    if (special_[role] < 0) {
      fail("{}: no {} among its {} tokens; add a line {} (in place of an unused token, to keep the ids)",
           name, bert_special_names[role], lines, bert_special_names[role]);
    }
  }
}

std::string_view Vocabulary::token(int32_t id) const {
  if (id < 0 || id >= size()) throw std::out_of_range("vocabulary: no token has this id");
  return text_of(id);
}

bool Vocabulary::is_special(int32_t id) const {
  return std::find(std::begin(special_), std::end(special_), id) != std::end(special_);
}

}  // namespace roformer
