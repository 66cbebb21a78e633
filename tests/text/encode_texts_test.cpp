#include <algorithm>
#include <stdexcept>

#include "tests/text/oracles.h"

namespace roformer {
namespace {

std::vector<int32_t> encoded(std::string_view a, std::string_view b, int64_t max_length) {
  static const auto bytes = make_tokenizer(BytesOptions{});
  return encode_texts(*bytes, a, &b, max_length).ids;
}

}  // namespace

TEST_CASE("texts: one text, wrapped and cut at its end") {
  const auto bytes = make_tokenizer(BytesOptions{});
  Encoding e = encode_texts(*bytes, "abc", nullptr, 0);
  CHECK(e.ids == std::vector<int32_t>{258, 'a', 'b', 'c', 259});
  CHECK(e.segments == std::vector<int32_t>(5, 0));
  CHECK(e.dropped == 0);
  e = encode_texts(*bytes, "abc", nullptr, 4);
  CHECK(e.ids == std::vector<int32_t>{258, 'a', 'b', 259});
  CHECK(e.dropped == 1);
  CHECK(encode_texts(*bytes, "abc", nullptr, 5).dropped == 0);
  CHECK(encode_texts(*bytes, "", nullptr, 3).ids == std::vector<int32_t>{258, 259});
  CHECK_THROWS_AS(encode_texts(*bytes, "abc", nullptr, 2), std::invalid_argument);
}

TEST_CASE("texts: of a pair the longer loses, of equal ones the second") {
  const auto bytes = make_tokenizer(BytesOptions{});
  const std::string_view second = "xyz";
  const Encoding e = encode_texts(*bytes, "ab", &second, 0);
  CHECK(e.ids == std::vector<int32_t>{258, 'a', 'b', 259, 'x', 'y', 'z', 259});
  CHECK(e.segments == std::vector<int32_t>{0, 0, 0, 0, 1, 1, 1, 1});
  CHECK(encoded("ab", "xyz", 7) == std::vector<int32_t>{258, 'a', 'b', 259, 'x', 'y', 259});
  CHECK(encoded("ab", "xyz", 6) == std::vector<int32_t>{258, 'a', 'b', 259, 'x', 259});
  CHECK(encoded("ab", "xyz", 5) == std::vector<int32_t>{258, 'a', 259, 'x', 259});
  CHECK(encoded("ab", "xyz", 4) == std::vector<int32_t>{258, 'a', 259, 259});
  CHECK(encoded("abcdef", "x", 5) == std::vector<int32_t>{258, 'a', 259, 'x', 259});
  CHECK(encoded("", "xyz", 5) == std::vector<int32_t>{258, 259, 'x', 'y', 259});
  CHECK(encoded("", "", 4) == std::vector<int32_t>{258, 259, 259});
  const std::string_view none = "";
  CHECK_THROWS_AS(encode_texts(*bytes, "abc", &none, 3), std::invalid_argument);
}

TEST_CASE("texts: any lengths, against one token at a time") {
  const auto bytes = make_tokenizer(BytesOptions{});
  for (size_t a = 0; a < 12; ++a) {
    for (size_t b = 0; b < 12; ++b) {
      const std::string first(a, 'a'), text(b, 'b');
      const std::string_view second = text;
      for (int64_t max_length = 4; max_length < 30; ++max_length) {
        size_t keep_a = a, keep_b = b;
        while (static_cast<int64_t>(keep_a + keep_b + 3) > max_length) --(keep_a > keep_b ? keep_a : keep_b);
        const Encoding e = encode_texts(*bytes, first, &second, max_length);
        REQUIRE(std::count(e.ids.begin(), e.ids.end(), 'a') == static_cast<int64_t>(keep_a));
        REQUIRE(std::count(e.ids.begin(), e.ids.end(), 'b') == static_cast<int64_t>(keep_b));
        REQUIRE(e.ids.size() == keep_a + keep_b + 3);
        REQUIRE(e.dropped == static_cast<int64_t>(a + b - keep_a - keep_b));
      }
    }
  }
}

}  // namespace roformer
