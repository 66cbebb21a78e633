#include "roformer/report/html.h"

#include <algorithm>
#include <string>

#include "tests/catch.h"

using roformer::HtmlSection;
using roformer::to_html;

namespace {

size_t html_count(const std::string& page, const std::string& piece) {
  size_t count = 0;
  for (size_t at = page.find(piece); at != std::string::npos; at = page.find(piece, at + 1)) ++count;
  return count;
}

/// A page with `text` wherever texts go.
std::string html_with(const std::string& text) {
  HtmlSection section;
  section.title = text;
  section.paragraphs = {text};
  section.table = roformer::Table{text, {text}, {{text}}, {text}};
  section.pictures = {text};
  section.texts = {{text, text, false}, {text, text, true}};
  return to_html(text, {section});
}

}  // namespace

TEST_CASE("a page shows titles, paragraphs, tables, pictures and texts") {
  HtmlSection section;
  section.title = "Results";
  section.paragraphs = {"Two arms."};
  section.table = roformer::Table{"Losses", {"arm", "loss"}, {{"none", "1.5 ± 0.1"}}, {"n = 2"}};
  section.pictures = {"<svg/>"};
  section.texts = {{"Again:", "roformer\n", false}, {"All options", "\na: 1\n", true}};
  const std::string page = to_html("Ablation", {section, {"Second", {}, {}, {}, {}}});
  const std::string body = page.substr(page.find("<title>"));
  CHECK(body ==
        "<title>Ablation</title>\n</head>\n<body>\n<h1>Ablation</h1>\n"
        "<section>\n<h2>Results</h2>\n<p>Two arms.</p>\n"
        "<div class=\"wide\"><table>\n<caption>Losses</caption>\n"
        "<thead><tr><th>arm</th><th class=\"number\">loss</th></tr>\n</thead>\n"
        "<tbody>\n<tr><td>none</td><td class=\"number\">1.5 ± 0.1</td></tr>\n</tbody>\n</table></div>\n"
        "<p class=\"note\">n = 2</p>\n"
        "<img alt=\"Results\" src=\"data:image/svg+xml;base64,PHN2Zy8+\">\n"
        "<p>Again:</p>\n<pre>\nroformer\n</pre>\n"
        "<details><summary>All options</summary>\n<pre>\n\na: 1\n</pre>\n</details>\n"
        "</section>\n<section>\n<h2>Second</h2>\n</section>\n</body>\n</html>\n");
  CHECK(page.starts_with("<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n"));
  CHECK(page.find("prefers-color-scheme: dark") != std::string::npos);
}

TEST_CASE("a page is one file: nothing is fetched, nothing runs") {
  HtmlSection section;
  section.pictures = {"<svg xmlns=\"http://www.w3.org/2000/svg\"><script>alert(1)</script></svg>"};
  const std::string page = to_html("x", {section, section});
  CHECK(html_count(page, "<img") == 2);
  CHECK(html_count(page, "src=\"data:") == 2);
  CHECK(html_count(page, "default-src 'none'; img-src data:; style-src 'unsafe-inline'") == 1);
  for (const char* way_out :
       {"http:", "https:", "//", "@import", "url(", "<script", "<iframe", "<svg", " on"}) {
    INFO(way_out);
    CHECK(html_count(page, way_out) == 0);
  }
}

TEST_CASE("texts from outside are shown, not read as HTML") {
  const std::string plain = html_with("x");
  const std::vector<std::string> hostile = {
      "<script>alert(1)</script>",
      "</script></style></title></pre></details><img src=x onerror=alert(1)>",
      "\" onload=\"alert(1)",
      "' onload='alert(1)",
      "&lt;b&gt; &#60;b&#62;",
      "<!-- ",
      "]]>",
      "{{x}} ${x} %s {}"};
  for (const std::string& text : hostile) {
    INFO(text);
    const std::string page = html_with(text);
    // As many tags and quotes as without: none came from the text.
    for (const char* mark : {"<", ">", "\"", "'"}) CHECK(html_count(page, mark) == html_count(plain, mark));
  }
  const std::string page = html_with("a & b &lt; <i> \"q\" 'p'");
  // title, heading, heading of the section, paragraph, caption, column, cell, note, alt, two labels, two
  // texts
  CHECK(html_count(page, "a &amp; b &amp;lt; &lt;i&gt; &quot;q&quot; &#39;p&#39;") == 13);
}

TEST_CASE("a page is UTF-8 without control characters, whatever the texts hold") {
  const std::string bytes =
      std::string("a\0b\x1b[31m\x7f\xc2\x9b", 11) + "|\xff|\xc0\xaf|\xed\xa0\x80|\xe2\x80\xae|ä中😀|\xf0\x9f";
  const std::string page = html_with(bytes);
  const std::string r = "\uFFFD";
  CHECK(html_count(page, "a b [31m  |" + r + "|" + r + r + "|" + r + r + r + "| |ä中😀|" + r + r) == 13);
  CHECK(std::all_of(page.begin(), page.end(), [](char c) {
    return static_cast<unsigned char>(c) >= 0x20 ? c != 0x7F : c == '\n' || c == '\t';
  }));
  CHECK(html_with("line\n\tnext").find("<pre>\nline\n\tnext</pre>") != std::string::npos);
}

TEST_CASE("base64") {
  // RFC 4648, section 10.
  const std::vector<std::pair<std::string, std::string>> known = {{"", ""},
                                                                  {"f", "Zg=="},
                                                                  {"fo", "Zm8="},
                                                                  {"foo", "Zm9v"},
                                                                  {"foob", "Zm9vYg=="},
                                                                  {"fooba", "Zm9vYmE="},
                                                                  {"foobar", "Zm9vYmFy"},
                                                                  {"\xff\xfe\xfb", "//77"}};
  for (const auto& [bytes, text] : known) CHECK(roformer::base64(bytes) == text);
}
