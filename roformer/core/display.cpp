#include "roformer/core/display.h"

#include <cstdint>

namespace roformer {
namespace {

struct DecodedChar {
  char32_t code = 0;
  std::size_t bytes = 1;
  bool valid = false;
};

DecodedChar decode_char(std::string_view text) {
  const auto byte = [&](std::size_t i) { return static_cast<std::uint8_t>(text[i]); };
  const std::uint8_t first = byte(0);
  if (first < 0x80) return {first, 1, true};
  const std::size_t bytes = first >= 0xF0 ? 4 : first >= 0xE0 ? 3 : 2;
  if (first < 0xC2 || first > 0xF4 || bytes > text.size()) return {};
  char32_t code = first & (0x7Fu >> bytes);
  for (std::size_t i = 1; i < bytes; ++i) {
    if ((byte(i) & 0xC0) != 0x80) return {};
    code = code << 6 | (byte(i) & 0x3Fu);
  }
  const bool overlong = (bytes == 3 && code < 0x800) || (bytes == 4 && code < 0x10000);
  const bool surrogate = code >= 0xD800 && code <= 0xDFFF;
  if (overlong || surrogate || code > 0x10FFFF || (code & 0xFFFE) == 0xFFFE) return {};
  return {code, bytes, true};
}

bool is_control(char32_t c) {
  // Direction overrides would let a name rearrange the line around it.
  return c < 0x20 || (c >= 0x7F && c < 0xA0) || (c >= 0x2028 && c <= 0x202E) || (c >= 0x2066 && c <= 0x2069);
}

/// `text` is the beginning of a character that more bytes would complete.
bool incomplete(std::string_view text) {
  // Which second bytes a first one takes differs, but every one takes the least or the greatest of all.
  for (const char second : {'\x80', '\xBF'}) {
    std::string longer(text);
    if (longer.size() == 1) longer += second;
    longer += "\x80\x80";
    const DecodedChar c = decode_char(longer);
    if (c.valid && c.bytes > text.size()) return true;
  }
  return false;
}

// Rough East Asian Width (Unicode Standard Annex 11): whole blocks, which is enough to keep lines apart.
std::size_t char_width(char32_t c) {
  const auto within = [c](char32_t low, char32_t high) { return c >= low && c <= high; };
  if (within(0x300, 0x36F) || within(0x200B, 0x200F) || within(0x20D0, 0x20FF) || within(0xFE00, 0xFE0F))
    return 0;
  const bool wide = within(0x1100, 0x115F) || within(0x2E80, 0x303E) || within(0x3041, 0xA4CF) ||
                    within(0xAC00, 0xD7A3) || within(0xF900, 0xFAFF) || within(0xFE30, 0xFE6F) ||
                    within(0xFF00, 0xFF60) || within(0xFFE0, 0xFFE6) || within(0x1F300, 0x1FAFF) ||
                    within(0x20000, 0x3FFFD);
  return wide ? 2 : 1;
}

}  // namespace

std::string printable(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  while (!text.empty()) {
    const DecodedChar c = decode_char(text);
    if (!c.valid)
      out += '?';
    else if (is_control(c.code))
      out += ' ';
    else
      out += text.substr(0, c.bytes);
    text.remove_prefix(c.bytes);
  }
  return out;
}

std::size_t display_width(std::string_view text) {
  std::size_t width = 0;
  while (!text.empty()) {
    const DecodedChar c = decode_char(text);
    width += char_width(c.code);
    text.remove_prefix(c.bytes);
  }
  return width;
}

std::string shorten(std::string_view text, std::size_t columns) {
  if (display_width(text) <= columns) return std::string(text);
  if (columns == 0) return {};
  std::size_t width = 1, end = 0;  // 1: the ellipsis
  while (end < text.size()) {
    const DecodedChar c = decode_char(text.substr(end));
    width += char_width(c.code);
    if (width > columns) break;
    end += c.bytes;
  }
  return std::string(text.substr(0, end)) + "…";
}

std::string shown(std::string_view text, std::size_t columns) {
  return shorten(printable(text.substr(0, 8 * columns)), columns);
}

std::string TerminalText::add(std::string_view bytes) {
  waiting_ += bytes;
  std::string out;
  std::string_view text = waiting_;
  while (!text.empty()) {
    const DecodedChar c = decode_char(text);
    if (!c.valid && incomplete(text)) break;
    if (!c.valid)
      out += "\uFFFD";
    else if (is_control(c.code) && c.code != '\n' && c.code != '\t')
      out += ' ';
    else
      out += text.substr(0, c.bytes);
    text.remove_prefix(c.bytes);
  }
  waiting_.erase(0, waiting_.size() - text.size());
  return out;
}

std::string TerminalText::finish() {
  std::string out;
  for (size_t i = 0; i < waiting_.size(); ++i) out += "\uFFFD";
  waiting_.clear();
  return out;
}

}  // namespace roformer
