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

TEST_CASE("text for a terminal may be cut anywhere") {
  // Everything that UTF-8 has: two to four bytes, the edges of E0, ED, F0 and F4, and what is not UTF-8.
  const std::string text =
      "a\x1b[31m\nb\tc\r\x7f \xc3\xa4 \xe0\xa0\x80 \xed\x9f\xbf \xf0\x90\x80\x80 \xf4\x8f\xbf\xbd "
      "\xc2\x9b \xe2\x80\xae \xff \xc0\xaf \xed\xa0\x80 \xf4\x90\x80\x80 \xe2\x82 \xf0\x9f\x98.\xf0\x9f";
  const std::string r = "\uFFFD";
  const std::string expected = "a [31m\nb\tc   \xc3\xa4 \xe0\xa0\x80 \xed\x9f\xbf \xf0\x90\x80\x80 "
                               "\xf4\x8f\xbf\xbd     " +
                               r + " " + r + r + " " + r + r + r + " " + r + r + r + r + " " + r + r + " " + r + r +
                               r + "." + r + r;
  for (size_t piece = 1; piece <= text.size(); ++piece) {
    roformer::TerminalText terminal;
    std::string shown;
    for (size_t at = 0; at < text.size(); at += piece) shown += terminal.add(text.substr(at, piece));
    CHECK(shown + terminal.finish() == expected);
    CHECK(terminal.finish().empty());
  }
  // What is complete does not wait, what is hopeless neither.
  roformer::TerminalText terminal;
  CHECK(terminal.add("a\xe4\xb8").size() == 1);
  CHECK(terminal.add("\xad") == "\xe4\xb8\xad");
  CHECK(terminal.add("\xed") == "");
  CHECK(terminal.add("\xa0") == r + r);
}
