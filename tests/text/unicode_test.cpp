#include "roformer/text/unicode.h"

#include <string>

#include "tests/catch.h"

namespace roformer {
namespace {

/// UTF-8 by the definition: of a code point, none of whose forms but the shortest counts.
std::string utf8_of(unsigned code) {
  std::string out;
  const auto add = [&](unsigned byte) { out += static_cast<char>(byte); };
  if (code < 0x80) {
    add(code);
  } else if (code < 0x800) {
    add(0xC0 | code >> 6);
    add(0x80 | (code & 0x3F));
  } else if (code < 0x10000) {
    add(0xE0 | code >> 12);
    add(0x80 | (code >> 6 & 0x3F));
    add(0x80 | (code & 0x3F));
  } else {
    add(0xF0 | code >> 18);
    add(0x80 | (code >> 12 & 0x3F));
    add(0x80 | (code >> 6 & 0x3F));
    add(0x80 | (code & 0x3F));
  }
  return out;
}

}  // namespace

TEST_CASE("utf-8: every code point but the surrogates, nothing above U+10FFFF") {
  int64_t wrong = 0;
  for (unsigned code = 0; code < 0x110400; ++code) {
    const std::string text = utf8_of(code);
    const bool good = (code < 0xD800 || code > 0xDFFF) && code <= 0x10FFFF;
    wrong += (valid_utf8_prefix(text) == text.size()) != good;
    // Whatever is cut off is missed.
    if (text.size() > 1) wrong += valid_utf8_prefix(text.substr(0, text.size() - 1)) != 0;
  }
  CHECK(wrong == 0);
}

TEST_CASE("utf-8: overlong forms and stray bytes are found where they are") {
  using std::string_literals::operator""s;
  for (const std::string& bad :
       {"\xC0\x80"s, "\xC1\xBF"s, "\xE0\x9F\xBF"s, "\xF0\x8F\xBF\xBF"s, "\x80"s, "\xFF"s, "\xF5\x80\x80\x80"s,
        "\xC3"s, "\xC3("s, "\xE2\x82"s, "\xE2\x82("s, "\xF0\x9F\x98"s, "\xF0\x9F\x98 "s}) {
    for (const std::string& before : {""s, "a"s, "plain text of more than eight bytes"s, "ä"s, "0123456é"s}) {
      for (const std::string& after : {""s, "more text of more than eight bytes"s}) {
        CHECK(valid_utf8_prefix(before + bad + after) == before.size());
      }
    }
  }
  CHECK(valid_utf8_prefix("") == 0);
}

}  // namespace roformer
