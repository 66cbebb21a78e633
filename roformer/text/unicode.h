#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace roformer {

/// Length of the longest prefix that is well-formed UTF-8 (Unicode 15, table 3-7: no surrogates, no overlong
/// forms, nothing above U+10FFFF). Equals text.size() if all of it is.
size_t valid_utf8_prefix(std::string_view text);

/// The code point at text[at]; `at` (< text.size()) moves behind it. Broken UTF-8 reads as U+FFFD, one for
/// each start of a sequence that cannot go on, as in Python's bytes.decode(errors="replace").
char32_t next_code_point(std::string_view text, size_t& at);

/// A surrogate or a number above U+10FFFF is written as U+FFFD.
void append_utf8(std::string& out, char32_t code);

/// A character and the bytes [begin, end) of the text that it was made from.
struct TextChar {
  char32_t code;
  int64_t begin;
  int64_t end;
};

/// Appends the characters of `text`, whose first byte is number `offset`.
void decode_utf8(std::string_view text, int64_t offset, std::vector<TextChar>& out);

// What Python's str and unicodedata call it, with ICU's tables (Unicode 15 in ICU 72).
bool is_other(char32_t code);            ///< category C*: control, format, private, unassigned
bool is_mark(char32_t code);             ///< category Mn
bool is_space_separator(char32_t code);  ///< category Zs
bool is_python_space(char32_t code);     ///< str.isspace()
// The same for Hugging Face's fast tokenizers, whose tables are those of Unicode 8 and know no "unassigned".
bool is_other_in_unicode_8(char32_t code);
bool is_mark_in_unicode_8(char32_t code);
/// BERT's: category P* and all ASCII signs.
bool is_bert_punctuation(char32_t code);
/// BERT's: the blocks of CJK ideographs. Neither kana nor Hangul.
bool is_bert_chinese(char32_t code);

/// Appends str.lower() of one character: two for U+0130, one for every other.
void append_lower(const TextChar& c, std::vector<TextChar>& out);

/// Canonical composition and decomposition. A character made from several ones, or among several ones that
/// were reordered, stands for the bytes of all of them.
void to_nfc(std::vector<TextChar>& text);
void to_nfd(std::vector<TextChar>& text);

}  // namespace roformer
