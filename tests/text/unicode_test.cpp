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

TEST_CASE("utf-8: reading and writing every code point") {
  int64_t wrong = 0;
  for (char32_t code = 0; code < 0x110000; ++code) {
    if (code >= 0xD800 && code <= 0xDFFF) continue;
    std::string text;
    append_utf8(text, code);
    wrong += text != utf8_of(code);
    size_t at = 0;
    wrong += next_code_point(text, at) != code || at != text.size();
  }
  CHECK(wrong == 0);
  std::string text;
  append_utf8(text, 0xD800);
  append_utf8(text, 0x110000);
  CHECK(text == "\uFFFD\uFFFD");
}

TEST_CASE("utf-8: what is broken reads as U+FFFD, as often as in Python") {
  const auto read = [](std::string_view text) {
    std::u32string codes;
    for (size_t at = 0; at < text.size();) codes += next_code_point(text, at);
    return codes;
  };
  // bytes.decode("utf-8", errors="replace")
  CHECK(read("a\xFFz") == U"a\uFFFDz");
  CHECK(read("\xE2\x82(") == U"\uFFFD(");  // one for the two bytes that began a character
  CHECK(read("\xE2\x82") == U"\uFFFD");
  CHECK(read("\xF0\x9F\x98") == U"\uFFFD");
  CHECK(read("\xF0\x9F\x98\xC3\xA9") == U"\uFFFD\u00E9");
  CHECK(read("\xED\xA0\x80") == U"\uFFFD\uFFFD\uFFFD");  // a surrogate: no byte of it begins anything
  CHECK(read("\xC0\x80") == U"\uFFFD\uFFFD");
  CHECK(read("\xF4\x90\x80\x80") == U"\uFFFD\uFFFD\uFFFD\uFFFD");
  CHECK(read("\xC3\xC3\xA9") == U"\uFFFD\u00E9");
}

TEST_CASE("unicode: categories") {
  CHECK(is_other(0x07));
  CHECK(is_other(0x200D));  // Cf
  CHECK(is_other(0xE000));  // Co
  CHECK(is_other(0xFFFF));  // Cn
  CHECK(is_other(0x0378));  // Cn
  CHECK_FALSE(is_other('a'));
  CHECK(is_mark(0x301));
  CHECK_FALSE(is_mark(0x903));  // Mc
  CHECK(is_space_separator(0xA0));
  CHECK_FALSE(is_space_separator('\t'));
  CHECK_FALSE(is_space_separator(0x2028));
  for (const char32_t code : {0x09, 0x0B, 0x1C, 0x20, 0x85, 0xA0, 0x1680, 0x2028, 0x2029, 0x3000}) {
    CHECK(is_python_space(code));
  }
  int spaces = 0;
  for (char32_t code = 0; code < 0x110000; ++code) spaces += is_python_space(code);
  CHECK(spaces == 29);  // sum(chr(i).isspace() for i in range(0x110000))
  CHECK_FALSE(is_python_space(0x200B));
  for (const char32_t code : {U'!', U'$', U'^', U'`', U'~', U'\u00BF', U'\u2013', U'\u3002'})
    CHECK(is_bert_punctuation(code));
  for (const char32_t code : {U'a', U'0', U' ', U'\u20AC', U'\u00B4'}) CHECK_FALSE(is_bert_punctuation(code));
  CHECK(is_bert_chinese(0x4E00));
  CHECK(is_bert_chinese(0x2F800));
  CHECK_FALSE(is_bert_chinese(0x3042));
  CHECK_FALSE(is_bert_chinese(0xAC00));
  // Unicode 8 knows U+036F, not U+1193B of Unicode 13, and calls nothing unassigned.
  CHECK(is_mark_in_unicode_8(0x36F));
  CHECK(is_mark(0x1193B));
  CHECK_FALSE(is_mark_in_unicode_8(0x1193B));
  CHECK(is_other_in_unicode_8(0x200D));
  CHECK_FALSE(is_other_in_unicode_8(0xFFFF));
}

TEST_CASE("unicode: composition, decomposition, lower case, and the bytes behind them") {
  const auto chars = [](std::string_view text) {
    std::vector<TextChar> out;
    decode_utf8(text, 100, out);
    return out;
  };
  const auto codes = [](const std::vector<TextChar>& text) {
    std::u32string out;
    for (const TextChar& c : text) out += c.code;
    return out;
  };
  std::vector<TextChar> t = chars("e\u0301a");
  to_nfc(t);
  CHECK(codes(t) == U"\u00E9a");
  CHECK((t[0].begin == 100 && t[0].end == 103));
  CHECK((t[1].begin == 103 && t[1].end == 104));
  t = chars("\u00E9a");
  to_nfd(t);
  CHECK(codes(t) == U"e\u0301a");
  CHECK((t[0].begin == 100 && t[0].end == 102 && t[1].begin == 100 && t[1].end == 102));
  t = chars("a\u0301\u0327b");  // the mark below goes first
  to_nfd(t);
  CHECK(codes(t) == U"a\u0327\u0301b");
  CHECK((t[1].begin == 103 && t[1].end == 105));
  t = chars("a\u0301\u0327b");
  to_nfc(t);
  CHECK(codes(t) == U"\u00E1\u0327b");
  t = chars("\uD55C\u1E69");  // Hangul, and a letter with two marks
  to_nfd(t);
  CHECK(codes(t) == U"\u1112\u1161\u11AB\u0073\u0323\u0307");
  to_nfc(t);
  CHECK(codes(t) == U"\uD55C\u1E69");
  t = chars("\u212B\uF900");  // singletons
  to_nfc(t);
  CHECK(codes(t) == U"\u00C5\u8C48");
  t.clear();
  for (const TextChar& c : chars("A\u0130\u03A3\u212A\u00DF\U00010400")) append_lower(c, t);
  CHECK(codes(t) == U"ai\u0307\u03C3k\u00DF\U00010428");
  CHECK((t[1].begin == t[2].begin && t[1].end == t[2].end));
}

}  // namespace roformer
