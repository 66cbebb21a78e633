#include <string>

#include "roformer/text/tokenizer.h"
#include "tests/catch.h"

namespace roformer {

TEST_CASE("bytes: every byte string comes back") {
  const auto tokenizer = make_tokenizer(BytesOptions{});
  std::string all;
  for (int i = 0; i < 256; ++i) all += static_cast<char>(i);
  std::vector<int32_t> ids = {7};
  tokenizer->encode(all, ids);
  REQUIRE(ids.size() == 257);
  CHECK(ids[0] == 7);  // appended
  for (int i = 0; i < 256; ++i) CHECK(ids[static_cast<size_t>(i) + 1] == i);
  ids.erase(ids.begin());
  CHECK(tokenizer->decode(ids) == all);
  CHECK_FALSE(tokenizer->needs_text());
}

TEST_CASE("bytes: special tokens") {
  const auto tokenizer = make_tokenizer(BytesOptions{});
  CHECK(tokenizer->vocab_size() == 261);
  CHECK(tokenizer->special(Special::pad) == 256);
  CHECK(tokenizer->special(Special::unknown) == 257);
  CHECK(tokenizer->special(Special::classify) == 258);
  CHECK(tokenizer->special(Special::separate) == 259);
  CHECK(tokenizer->special(Special::mask) == 260);
  for (int32_t id = -1; id < 262; ++id) CHECK(tokenizer->is_special(id) == (id >= 256 && id <= 260));
  CHECK(tokenizer->decode({258, 'a', 260, 259, 256}) == "[CLS]a[MASK][SEP][PAD]");
  CHECK_THROWS_AS(tokenizer->decode({261}), std::out_of_range);
  CHECK_THROWS_AS(tokenizer->decode({-1}), std::out_of_range);
}

}  // namespace roformer
