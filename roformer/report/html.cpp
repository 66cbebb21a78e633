#include "roformer/report/html.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>

#include "roformer/core/display.h"

namespace roformer {
namespace {

// The policy is a second wall behind the escapes: even a script that got through would not run.
constexpr std::string_view page_head = R"(<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; img-src data:; style-src 'unsafe-inline'">
<meta name="viewport" content="width=device-width, initial-scale=1">
<link rel="icon" href="data:,">
<style>
:root { color-scheme: light dark; --text: #1c1c1c; --faint: #5a5a5a; --line: #d5d5d5; --page: #ffffff; --box: #f4f4f4; }
@media (prefers-color-scheme: dark) {
  :root { --text: #e4e4e4; --faint: #a8a8a8; --line: #444444; --page: #181818; --box: #242424; }
}
body { margin: 2rem auto; max-width: 76rem; padding: 0 1rem; color: var(--text); background: var(--page);
       font: 1rem/1.5 system-ui, sans-serif; }
h1, h2 { line-height: 1.2; overflow-wrap: anywhere; }
h2 { margin-top: 2.5rem; border-bottom: 1px solid var(--line); }
.wide { overflow-x: auto; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
caption { text-align: left; font-weight: 600; padding-bottom: .3rem; }
th, td { padding: .3rem .8rem; border-bottom: 1px solid var(--line); text-align: left; vertical-align: top; }
th.number, td.number { text-align: right; white-space: nowrap; }
p.note { color: var(--faint); max-width: 60rem; }
pre { background: var(--box); padding: .6rem .8rem; overflow-x: auto; }
img { display: block; max-width: 100%; height: auto; margin: 1rem 0; background: #ffffff; }
summary { cursor: pointer; }
</style>
)";

std::string escaped_html(std::string_view text) {
  TerminalText decoder;
  std::string clean = decoder.add(text), out;
  clean += decoder.finish();
  for (const char c : clean) {
    switch (c) {
      case '&':
        out += "&amp;";
        break;
      case '<':
        out += "&lt;";
        break;
      case '>':
        out += "&gt;";
        break;
      case '"':
        out += "&quot;";
        break;
      case '\'':
        out += "&#39;";
        break;
      default:
        out += c;
    }
  }
  return out;
}

std::string html_paragraph(std::string_view text, std::string_view kind = "") {
  return fmt::format("<p{}>{}</p>\n", kind, escaped_html(text));
}

std::string html_row(const std::vector<std::string>& cells, const std::vector<bool>& numbers,
                     std::string_view tag) {
  std::string out = "<tr>";
  for (size_t c = 0; c < cells.size(); ++c)
    out +=
        fmt::format("<{0}{1}>{2}</{0}>", tag, numbers[c] ? " class=\"number\"" : "", escaped_html(cells[c]));
  return out + "</tr>\n";
}

std::string html_table(const Table& table) {
  const std::vector<bool> numbers = number_columns(table);
  std::string out = "<div class=\"wide\"><table>\n";
  if (!table.title.empty()) out += "<caption>" + escaped_html(table.title) + "</caption>\n";
  out += "<thead>" + html_row(table.columns, numbers, "th") + "</thead>\n<tbody>\n";
  for (const auto& row : table.rows) out += html_row(row, numbers, "td");
  out += "</tbody>\n</table></div>\n";
  for (const std::string& note : table.notes) out += html_paragraph(note, " class=\"note\"");
  return out;
}

std::string html_text(const HtmlText& text) {
  const std::string label = escaped_html(text.label);
  // A line feed right after <pre> is dropped by the reader, so one is given.
  const std::string body = "<pre>\n" + escaped_html(text.text) + "</pre>\n";
  if (text.folded) return "<details><summary>" + label + "</summary>\n" + body + "</details>\n";
  return (label.empty() ? "" : "<p>" + label + "</p>\n") + body;
}

std::string html_section(const HtmlSection& section) {
  std::string out = "<section>\n";
  if (!section.title.empty()) out += "<h2>" + escaped_html(section.title) + "</h2>\n";
  for (const std::string& paragraph : section.paragraphs) out += html_paragraph(paragraph);
  if (section.table) out += html_table(*section.table);
  // As an image an SVG has names of its own (several on one page do not clash) and runs nothing.
  for (const std::string& picture : section.pictures)
    out += fmt::format("<img alt=\"{}\" src=\"data:image/svg+xml;base64,{}\">\n", escaped_html(section.title),
                       base64(picture));
  for (const HtmlText& text : section.texts) out += html_text(text);
  return out + "</section>\n";
}

}  // namespace

std::string base64(std::string_view bytes) {
  constexpr std::string_view digits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string out;
  for (size_t i = 0; i < bytes.size(); i += 3) {
    uint32_t group = 0;
    const size_t count = std::min<size_t>(3, bytes.size() - i);
    for (size_t k = 0; k < 3; ++k) group = group << 8 | (k < count ? static_cast<uint8_t>(bytes[i + k]) : 0u);
    for (size_t k = 0; k < 4; ++k) out += k <= count ? digits[group >> (18 - 6 * k) & 63] : '=';
  }
  return out;
}

std::string to_html(std::string_view title, const std::vector<HtmlSection>& sections) {
  const std::string shown_title = escaped_html(title);
  std::string out(page_head);
  out += "<title>" + shown_title + "</title>\n</head>\n<body>\n<h1>" + shown_title + "</h1>\n";
  for (const HtmlSection& section : sections) out += html_section(section);
  return out + "</body>\n</html>\n";
}

}  // namespace roformer
