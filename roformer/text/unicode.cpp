#include "roformer/text/unicode.h"

#include <unicode/uchar.h>
#include <unicode/unorm2.h>

#include <algorithm>
#include <cstring>
#include <stdexcept>

namespace roformer {
namespace {

constexpr char32_t replacement_character = 0xFFFD;

struct Utf8Step {
  char32_t code;
  uint32_t length;
  bool valid;
};

/// The sequence at s[0 .. size). Where it is broken: the bytes that begin one, at least the first.
Utf8Step utf8_step(const unsigned char* s, size_t size) {
  const unsigned char lead = s[0];
  if (lead < 0x80) return {lead, 1, true};
  uint32_t length;
  // The second byte has a narrower range behind four lead bytes: no overlong forms, no surrogates, <=
  // U+10FFFF.
  unsigned char low = 0x80, high = 0xBF;
  char32_t code;
  if (lead >= 0xC2 && lead <= 0xDF) {
    length = 2;
    code = lead & 0x1F;
  } else if (lead >= 0xE0 && lead <= 0xEF) {
    length = 3;
    code = lead & 0x0F;
    if (lead == 0xE0) low = 0xA0;
    if (lead == 0xED) high = 0x9F;
  } else if (lead >= 0xF0 && lead <= 0xF4) {
    length = 4;
    code = lead & 0x07;
    if (lead == 0xF0) low = 0x90;
    if (lead == 0xF4) high = 0x8F;
  } else {
    return {replacement_character, 1, false};
  }
  for (uint32_t k = 1; k < length; ++k) {
    if (k >= size || s[k] < low || s[k] > high) return {replacement_character, k, false};
    code = code << 6 | (s[k] & 0x3F);
    low = 0x80;
    high = 0xBF;
  }
  return {code, length, true};
}

const UNormalizer2* normalizer(bool compose) {
  UErrorCode status = U_ZERO_ERROR;
  const UNormalizer2* found = compose ? unorm2_getNFCInstance(&status) : unorm2_getNFDInstance(&status);
  if (U_FAILURE(status))
    throw std::runtime_error(std::string("ICU has no normalizer: ") + u_errorName(status));
  return found;
}

uint32_t category_bits(char32_t code) { return U_GET_GC_MASK(static_cast<UChar32>(code)); }

bool in_unicode_8(char32_t code) {
  UVersionInfo version;
  u_charAge(static_cast<UChar32>(code), version);
  return version[0] >= 1 && version[0] <= 8;
}

}  // namespace

size_t valid_utf8_prefix(std::string_view text) {
  const auto* s = reinterpret_cast<const unsigned char*>(text.data());
  const size_t size = text.size();
  size_t i = 0;
  while (i < size) {
    if (i + 8 <= size) {  // eight ASCII bytes at a time
      uint64_t word;
      std::memcpy(&word, s + i, 8);
      if ((word & 0x8080808080808080ULL) == 0) {
        i += 8;
        continue;
      }
    }
    const Utf8Step step = utf8_step(s + i, size - i);
    if (!step.valid) return i;
    i += step.length;
  }
  return i;
}

char32_t next_code_point(std::string_view text, size_t& at) {
  const Utf8Step step = utf8_step(reinterpret_cast<const unsigned char*>(text.data()) + at, text.size() - at);
  at += step.length;
  return step.code;
}

void append_utf8(std::string& out, char32_t code) {
  if (code > 0x10FFFF || (code >= 0xD800 && code <= 0xDFFF)) code = replacement_character;
  const auto add = [&](char32_t byte) { out += static_cast<char>(byte); };
  if (code < 0x80) {
    add(code);
    return;
  }
  if (code < 0x800) {
    add(0xC0 | code >> 6);
  } else {
    if (code < 0x10000) {
      add(0xE0 | code >> 12);
    } else {
      add(0xF0 | code >> 18);
      add(0x80 | (code >> 12 & 0x3F));
    }
    add(0x80 | (code >> 6 & 0x3F));
  }
  add(0x80 | (code & 0x3F));
}

void decode_utf8(std::string_view text, int64_t offset, std::vector<TextChar>& out) {
  for (size_t at = 0; at < text.size();) {
    const int64_t begin = offset + static_cast<int64_t>(at);
    const char32_t code = next_code_point(text, at);
    out.push_back({code, begin, offset + static_cast<int64_t>(at)});
  }
}

bool is_other(char32_t code) { return (category_bits(code) & U_GC_C_MASK) != 0; }
bool is_mark(char32_t code) { return (category_bits(code) & U_GC_MN_MASK) != 0; }
bool is_other_in_unicode_8(char32_t code) {
  return in_unicode_8(code) && (category_bits(code) & (U_GC_CC_MASK | U_GC_CF_MASK | U_GC_CO_MASK)) != 0;
}
bool is_mark_in_unicode_8(char32_t code) { return in_unicode_8(code) && is_mark(code); }
bool is_space_separator(char32_t code) { return (category_bits(code) & U_GC_ZS_MASK) != 0; }

bool is_python_space(char32_t code) {
  if (code < 0x80) return code == ' ' || (code >= 0x09 && code <= 0x0D) || (code >= 0x1C && code <= 0x1F);
  return code == 0x85 || (category_bits(code) & U_GC_Z_MASK) != 0;
}

bool is_bert_punctuation(char32_t code) {
  if (code < 0x80) {
    return (code >= 33 && code <= 47) || (code >= 58 && code <= 64) || (code >= 91 && code <= 96) ||
           (code >= 123 && code <= 126);
  }
  return (category_bits(code) & U_GC_P_MASK) != 0;
}

bool is_bert_chinese(char32_t code) {
  if (code < 0x3400) return false;
  return (code >= 0x4E00 && code <= 0x9FFF) || (code >= 0x3400 && code <= 0x4DBF) ||
         (code >= 0x20000 && code <= 0x2A6DF) || (code >= 0x2A700 && code <= 0x2B73F) ||
         (code >= 0x2B740 && code <= 0x2B81F) || (code >= 0x2B820 && code <= 0x2CEAF) ||
         (code >= 0xF900 && code <= 0xFAFF) || (code >= 0x2F800 && code <= 0x2FA1F);
}

void append_lower(const TextChar& c, std::vector<TextChar>& out) {
  if (c.code < 0x80) {
    out.push_back({c.code >= 'A' && c.code <= 'Z' ? c.code + 32 : c.code, c.begin, c.end});
  } else {
    // The one character whose lower case is longer in every language (Unicode's SpecialCasing).
    out.push_back({static_cast<char32_t>(u_tolower(static_cast<UChar32>(c.code))), c.begin, c.end});
    if (c.code == 0x130) out.push_back({0x307, c.begin, c.end});
  }
}

void to_nfd(std::vector<TextChar>& text) {
  static const UNormalizer2* const nfd = normalizer(false);
  // Latin letters with accents begin at U+00C0; marks that change places with others at U+0300.
  if (std::all_of(text.begin(), text.end(), [](const TextChar& c) { return c.code < 0xC0; })) return;
  std::vector<TextChar> out;
  out.reserve(text.size() + text.size() / 2);
  const auto order = [](const TextChar& c) {
    return unorm2_getCombiningClass(nfd, static_cast<UChar32>(c.code));
  };
  size_t starter = 0;  // behind the last character that marks cannot pass
  const auto sort_marks = [&] {
    if (out.size() - starter > 1) {
      std::stable_sort(out.begin() + static_cast<std::ptrdiff_t>(starter), out.end(),
                       [&](const TextChar& a, const TextChar& b) { return order(a) < order(b); });
    }
  };
  const auto add = [&](char32_t code, const TextChar& from) {
    const TextChar c{code, from.begin, from.end};
    const bool passable = code >= 0x300 && order(c) != 0;
    if (!passable) sort_marks();
    out.push_back(c);
    if (!passable) starter = out.size();
  };
  for (const TextChar& c : text) {
    UChar pieces[32];
    UErrorCode status = U_ZERO_ERROR;
    const int32_t length =
        c.code < 0xC0 ? -1 : unorm2_getDecomposition(nfd, static_cast<UChar32>(c.code), pieces, 32, &status);
    if (length < 0) {
      add(c.code, c);
      continue;
    }
    for (int32_t i = 0; i < length;) {
      UChar32 code;
      U16_NEXT(pieces, i, length, code);
      add(static_cast<char32_t>(code), c);
    }
  }
  sort_marks();
  text = std::move(out);
}

void to_nfc(std::vector<TextChar>& text) {
  static const UNormalizer2* const nfc = normalizer(true);
  // Below the first combining mark every character is composed and stays.
  if (std::all_of(text.begin(), text.end(), [](const TextChar& c) { return c.code < 0x300; })) return;
  std::vector<TextChar> out;
  out.reserve(text.size());
  std::vector<TextChar> piece;
  std::vector<UChar> before, after;
  for (size_t begin = 0; begin < text.size();) {
    // Nothing composes or changes places across a boundary, so piece by piece keeps track of the bytes.
    size_t end = begin + 1;
    while (end < text.size() && !unorm2_hasBoundaryBefore(nfc, static_cast<UChar32>(text[end].code))) ++end;
    if (end - begin == 1 && unorm2_isInert(nfc, static_cast<UChar32>(text[begin].code))) {
      out.push_back(text[begin++]);
      continue;
    }
    // In canonical order first: ICU sorts marks one by one, which a long run of them makes quadratic.
    piece.assign(text.begin() + static_cast<std::ptrdiff_t>(begin),
                 text.begin() + static_cast<std::ptrdiff_t>(end));
    to_nfd(piece);
    before.clear();
    for (const TextChar& c : piece) {
      const auto code = static_cast<UChar32>(c.code);
      if (code > 0xFFFF) {
        before.push_back(U16_LEAD(code));
        before.push_back(U16_TRAIL(code));
      } else {
        before.push_back(static_cast<UChar>(code));
      }
    }
    after.resize(before.size());  // composition only shortens
    UErrorCode status = U_ZERO_ERROR;
    const int32_t made = unorm2_normalize(nfc, before.data(), static_cast<int32_t>(before.size()),
                                          after.data(), static_cast<int32_t>(after.size()), &status);
    if (U_FAILURE(status))
      throw std::runtime_error(std::string("ICU cannot compose: ") + u_errorName(status));
    piece.clear();
    int64_t first = text[begin].begin, last = text[begin].end;
    for (size_t i = begin; i < end; ++i) {
      first = std::min(first, text[i].begin);
      last = std::max(last, text[i].end);
    }
    for (int32_t i = 0; i < made;) {
      UChar32 code;
      U16_NEXT(after.data(), i, made, code);
      piece.push_back({static_cast<char32_t>(code), first, last});
    }
    const auto same_code = [](const TextChar& x, const TextChar& y) { return x.code == y.code; };
    const bool as_it_was =
        std::equal(piece.begin(), piece.end(), text.begin() + static_cast<std::ptrdiff_t>(begin),
                   text.begin() + static_cast<std::ptrdiff_t>(end), same_code);
    const auto* const from = as_it_was ? text.data() + begin : piece.data();
    out.insert(out.end(), from, from + piece.size());
    begin = end;
  }
  text = std::move(out);
}

}  // namespace roformer
