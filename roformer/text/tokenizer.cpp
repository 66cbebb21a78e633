#include "roformer/text/tokenizer.h"

#include <algorithm>
#include <stdexcept>

#include "roformer/text/build.h"

namespace roformer {

std::unique_ptr<Tokenizer> make_tokenizer(const TokenizerOptions& options) {
  return std::visit([](const auto& each) { return build_tokenizer(each); }, options);
}

Encoding encode_texts(const Tokenizer& tokenizer, std::string_view first, const std::string_view* second,
                      int64_t max_length) {
  const int64_t around = second ? 3 : 2;
  if (max_length > 0 && max_length <= around) {
    throw std::invalid_argument("encode_texts: no room for a token beside the special ones");
  }
  std::vector<int32_t> a, b;
  tokenizer.encode(first, a);
  if (second) tokenizer.encode(*second, b);

  Encoding out;
  auto length_a = static_cast<int64_t>(a.size()), length_b = static_cast<int64_t>(b.size());
  if (max_length > 0) {
    out.dropped = std::max<int64_t>(0, length_a + length_b + around - max_length);
    // One at a time from the longer text: down to equal lengths first, then in turns, the second first.
    int64_t rest = out.dropped;
    const int64_t level = std::min(rest, std::abs(length_a - length_b));
    (length_a > length_b ? length_a : length_b) -= level;
    rest -= level;
    length_b -= (rest + 1) / 2;
    length_a -= rest / 2;
  }
  const auto append = [&](const std::vector<int32_t>& ids, int64_t length, int32_t segment) {
    out.ids.insert(out.ids.end(), ids.begin(), ids.begin() + length);
    out.ids.push_back(tokenizer.special(Special::separate));
    out.segments.resize(out.ids.size(), segment);
  };
  out.ids.reserve(static_cast<size_t>(length_a + length_b + around));
  out.ids.push_back(tokenizer.special(Special::classify));
  append(a, length_a, 0);
  if (second) append(b, length_b, 1);
  return out;
}

}  // namespace roformer
