#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "roformer/report/tables.h"

namespace roformer {

/// A text shown as it is, in a fixed-width font: a command, a file.
struct HtmlText {
  std::string label;
  std::string text;
  bool folded = false;  ///< shown when the label is clicked
};

struct HtmlSection {
  std::string title;
  std::vector<std::string> paragraphs;
  std::optional<Table> table;         ///< its title as caption, its notes below
  std::vector<std::string> pictures;  ///< each the text of an SVG file; shown on white
  std::vector<HtmlText> texts;
};

/// One HTML page, light or dark as the reader's system is, that needs no other file and loads none. Whatever
/// the texts hold is shown, never read as HTML: bytes that are not UTF-8 as U+FFFD, control characters as
/// spaces. Scripts in pictures do not run.
std::string to_html(std::string_view title, const std::vector<HtmlSection>& sections);

/// RFC 4648, with padding.
std::string base64(std::string_view bytes);

}  // namespace roformer
