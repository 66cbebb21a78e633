#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace roformer {

/// Text that is safe to show on one line: control characters become spaces, bytes that are not UTF-8 become
/// '?'.
std::string printable(std::string_view text);

/// Columns that printable text takes on a terminal: East Asian wide characters two, combining marks none.
std::size_t display_width(std::string_view printable_text);

/// Printable text cut to at most `columns` columns; what was cut shows as "…".
std::string shorten(std::string_view printable_text, std::size_t columns);

/// A piece of a file in a message: printable, and short however long the piece is.
std::string shown(std::string_view text, std::size_t columns = 60);

/// Text for a terminal that comes in pieces, cut anywhere. Line breaks and tabs stay; other control characters
/// become spaces, bytes that are not UTF-8 become U+FFFD. A character that is not complete yet waits.
class TerminalText {
 public:
  std::string add(std::string_view bytes);
  /// What still waits will not be completed.
  std::string finish();

 private:
  std::string waiting_;
};

}  // namespace roformer
