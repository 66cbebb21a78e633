#include "roformer/core/display.h"

#include <string>

#include "tests/catch.h"

using roformer::display_width;
using roformer::printable;
using roformer::shorten;

TEST_CASE("printable text holds no controls and only UTF-8") {
  CHECK(printable("plain, ä, 中") == "plain, ä, 中");
  CHECK(printable("a\x1b[31m\nb\tc\x7f") == "a [31m b c ");
  CHECK(printable("\xc2\x9b"
                  "2J") == " 2J");  // C1 control sequence introducer
  CHECK(printable("\xe2\x80\xae"
                  "abc") == " abc");  // right-to-left override
  CHECK(printable(std::string("a\0b", 3)) == "a b");
  CHECK(printable("\xff\xc3") == "??");
  CHECK(printable("\xc0\xaf\xed\xa0\x80") == "?????");  // overlong, surrogate
  CHECK(printable("\xf0\x9f\x98\x80") == "\xf0\x9f\x98\x80");
}

TEST_CASE("display width counts columns") {
  CHECK(display_width("abc") == 3);
  CHECK(display_width("äöü") == 3);
  CHECK(display_width("中文") == 4);
  CHECK(display_width("e\xcc\x81") == 1);  // combining accent
}

TEST_CASE("a shown piece of a file is printable and short") {
  CHECK(roformer::shown("a\nb\xff") == "a b?");
  CHECK(roformer::shown(std::string(1 << 20, 'x'), 5) == "xxxx…");
}

TEST_CASE("shortened text fits") {
  CHECK(shorten("abcdef", 6) == "abcdef");
  CHECK(shorten("abcdef", 5) == "abcd…");
  CHECK(shorten("中文字", 4) == "中…");
  CHECK(shorten("abc", 1) == "…");
  CHECK(shorten("abc", 0).empty());
}
