#include "roformer/text/wordpiece.h"

#include <fmt/format.h>

#include <algorithm>

#include "roformer/text/build.h"

namespace roformer {
namespace {

// Kinds of bytes, as bits.
constexpr unsigned char kind_letter = 1, kind_sign = 2, kind_space = 4, kind_other = 8;

constexpr std::string_view inside_word = "##";

bool is_piece_of_word(std::string_view token) {
  return token.size() > inside_word.size() && token.starts_with(inside_word);
}

}  // namespace

void to_characters(std::string_view text, int64_t offset, const WordRules& rules,
                   std::vector<TextChar>& out) {
  if (!rules.lowercase) {
    decode_utf8(text, offset, out);
    return;
  }
  for (size_t at = 0; at < text.size();) {
    const int64_t begin = offset + static_cast<int64_t>(at);
    const char32_t code = next_code_point(text, at);
    append_lower({code, begin, offset + static_cast<int64_t>(at)}, out);
  }
}

void WordSplitter::clean(const TextChar* begin, const TextChar* end, const WordRules& rules) {
  cleaned_.clear();
  for (const TextChar* c = begin; c < end; ++c) {
    if (c->code == '\t' || c->code == '\n' || c->code == '\r' || is_space_separator(c->code)) {
      cleaned_.push_back({' ', c->begin, c->end});
    } else if (c->code == 0 || c->code == 0xFFFD || is_other(c->code)) {
      continue;
    } else if (rules.split_chinese && is_bert_chinese(c->code)) {
      cleaned_.push_back({' ', c->begin, c->begin});
      cleaned_.push_back(*c);
      cleaned_.push_back({' ', c->end, c->end});
    } else {
      cleaned_.push_back(*c);
    }
  }
  to_nfc(cleaned_);
}

bool WordSplitter::spells_special() const {
  if (token_.front().code != '[' || token_.back().code != ']') return false;
  return std::any_of(
      std::begin(bert_special_names), std::end(bert_special_names), [&](std::string_view name) {
        return std::equal(
            token_.begin(), token_.end(), name.begin(), name.end(),
            [](const TextChar& c, char byte) { return c.code == static_cast<unsigned char>(byte); });
      });
}

void WordSplitter::strip_accents() {
  to_nfd(token_);
  std::erase_if(token_, [](const TextChar& c) { return c.code >= 0x300 && is_mark(c.code); });
}

WordPieces::WordPieces(const Vocabulary& vocabulary, const WordRules& rules)
    : vocabulary_(vocabulary), rules_(rules) {
  for (size_t byte = 0; byte < 256; ++byte) {
    const auto c = static_cast<char>(byte);
    lower_[byte] = rules.lowercase && c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c;
    if (c == ' ' || c == '\t' || c == '\n' || c == '\r') {
      kinds_[byte] = kind_space;
    } else if (byte < 0x20 || byte >= 0x7F) {
      kinds_[byte] = kind_other;
    } else {
      kinds_[byte] = is_bert_punctuation(static_cast<char32_t>(byte)) ? kind_sign : kind_letter;
    }
    if (byte < 128) {
      const int32_t id = vocabulary.find(std::string_view(&c, 1));
      signs_[byte] = id < 0 ? vocabulary.special(Special::unknown) : id;
    }
  }
}

int32_t WordPieces::special_at(std::string_view text) const {
  for (size_t role = 0; role < 5; ++role) {
    if (text.starts_with(bert_special_names[role])) return vocabulary_.special(static_cast<Special>(role));
  }
  return -1;
}

/// `hash`: of the whole word; span_of(a, b): the bytes of the text behind bytes [a, b) of the word.
template <class SpanOf>
inline void WordPieces::add_pieces(std::string_view word, int64_t characters, uint64_t hash,
                                   const SpanOf& span_of, Output& out) const {
  const size_t known = out.ids.size();
  if (characters <= rules_.max_word) {
    const int32_t whole = vocabulary_.find(word, hash);
    if (whole >= 0) {
      out.ids.push_back(whole);
      if (out.spans) out.spans->push_back(span_of(0, word.size()));
      return;
    }
    uint64_t hashes[1025];  // of the beginnings of what is left; no token is longer than 1024 bytes
    static const uint64_t inside_hash = Vocabulary::hash(inside_word);
    size_t start = 0;
    while (start < word.size()) {
      const std::string_view prefix = start > 0 ? inside_word : std::string_view();
      const size_t room = vocabulary_.longest() > prefix.size() ? vocabulary_.longest() - prefix.size() : 0;
      size_t length = std::min(word.size() - start, room);
      hashes[0] = start > 0 ? inside_hash : Vocabulary::hash_of_nothing;
      for (size_t k = 0; k < length; ++k) hashes[k + 1] = Vocabulary::hash_more(hashes[k], word[start + k]);
      int32_t id = -1;
      for (; length > 0; --length) {  // the vocabulary has whole characters only
        id = vocabulary_.find(word.substr(start, length), hashes[length], prefix);
        if (id >= 0) break;
      }
      if (id < 0) break;
      out.ids.push_back(id);
      if (out.spans) out.spans->push_back(span_of(start, start + length));
      start += length;
    }
    if (start == word.size()) return;
  }
  const size_t taken_back = out.ids.size() - known;
  out.ids.resize(known);
  out.ids.push_back(vocabulary_.special(Special::unknown));
  if (out.spans) {
    out.spans->resize(out.spans->size() - taken_back);
    out.spans->push_back(span_of(0, word.size()));
  }
}

/// No white space, no control characters.
void WordPieces::add_ascii(std::string_view text, int64_t offset, Output& out) const {
  for (size_t i = 0; i < text.size();) {
    const auto at = static_cast<int64_t>(i) + offset;
    const auto first = static_cast<unsigned char>(text[i]);
    if (kinds_[first] == kind_sign) {
      if (first == '[') {
        const int32_t special = special_at(text.substr(i));
        if (special >= 0) {
          const size_t length = vocabulary_.token(special).size();
          out.ids.push_back(special);
          if (out.spans) out.spans->push_back({at, at + static_cast<int64_t>(length)});
          i += length;
          continue;
        }
      }
      out.ids.push_back(signs_[first]);
      if (out.spans) out.spans->push_back({at, at + 1});
      ++i;
      continue;
    }
    uint64_t hash = Vocabulary::hash_of_nothing;
    const size_t begin = i;
    out.word.clear();
    for (; i < text.size(); ++i) {
      const auto byte = static_cast<unsigned char>(text[i]);
      if (kinds_[byte] != kind_letter) break;
      hash = Vocabulary::hash_more(hash, lower_[byte]);
    }
    out.word.resize(i - begin);
    for (size_t k = begin; k < i; ++k) out.word[k - begin] = lower_[static_cast<unsigned char>(text[k])];
    add_pieces(
        out.word, static_cast<int64_t>(out.word.size()), hash,
        [at](size_t a, size_t b) {
          return Span{at + static_cast<int64_t>(a), at + static_cast<int64_t>(b)};
        },
        out);
  }
}

void WordPieces::encode(std::string_view text, Output& out) const {
  for (size_t i = 0; i < text.size();) {
    unsigned char kinds = 0;
    const size_t begin = i;
    for (; i < text.size(); ++i) {
      const unsigned char kind = kinds_[static_cast<unsigned char>(text[i])];
      if (kind == kind_space) break;
      kinds |= kind;
    }
    // Nothing that BasicTokenizer does looks across a space, composition included.
    const std::string_view chunk = text.substr(begin, i - begin);
    if ((kinds & kind_other) == 0) {
      add_ascii(chunk, static_cast<int64_t>(begin), out);
    } else {
      size_t done = 0;
      for (size_t k = chunk.find('['); k != chunk.npos; k = chunk.find('[', k)) {
        const int32_t special = special_at(chunk.substr(k));
        if (special < 0) {
          ++k;
          continue;
        }
        add_text(chunk.substr(done, k - done), static_cast<int64_t>(begin + done), out);
        const auto at = static_cast<int64_t>(begin + k);
        k += vocabulary_.token(special).size();
        out.ids.push_back(special);
        if (out.spans) out.spans->push_back({at, static_cast<int64_t>(begin + k)});
        done = k;
      }
      add_text(chunk.substr(done), static_cast<int64_t>(begin + done), out);
    }
    while (i < text.size() && kinds_[static_cast<unsigned char>(text[i])] == kind_space) ++i;
  }
}

void WordPieces::add_text(std::string_view text, int64_t offset, Output& out) const {
  out.chars.clear();
  to_characters(text, offset, rules_, out.chars);
  add_characters(out.chars.data(), out.chars.data() + out.chars.size(), out);
}

void WordPieces::add_characters(const TextChar* begin, const TextChar* end, Output& out) const {
  out.splitter.split(begin, end, rules_,
                     [&](const TextChar* first, const TextChar* last) { add_word(first, last, out); });
}

void WordPieces::add_word(const TextChar* begin, const TextChar* end, Output& out) const {
  out.word.clear();
  out.word_bytes.clear();
  for (const TextChar* c = begin; c < end; ++c) {
    append_utf8(out.word, c->code);
    if (out.spans) out.word_bytes.resize(out.word.size(), Span{c->begin, c->end});
  }
  add_pieces(
      out.word, end - begin, Vocabulary::hash(out.word),
      [&out](size_t a, size_t b) {
        Span span = out.word_bytes[a];
        for (size_t i = a + 1; i < b; ++i) {  // reordered marks may reach to either side
          span.begin = std::min(span.begin, out.word_bytes[i].begin);
          span.end = std::max(span.end, out.word_bytes[i].end);
        }
        return span;
      },
      out);
}

std::string VocabularyTokenizer::decode(const std::vector<int32_t>& ids) const {
  std::string text;
  for (const int32_t id : ids) {
    std::string_view token = vocabulary_.token(id);
    if (!text.empty()) {
      if (is_piece_of_word(token)) {
        token.remove_prefix(inside_word.size());
      } else {
        text += ' ';
      }
    }
    text += token;
  }
  return text;
}

bool VocabularyTokenizer::starts_word(int32_t id) const { return !is_piece_of_word(vocabulary_.token(id)); }

namespace {

class WordPieceTokenizer final : public VocabularyTokenizer {
 public:
  explicit WordPieceTokenizer(const WordPieceOptions& o)
      : VocabularyTokenizer(o.vocab),
        rules_{o.lowercase, o.strip_accents.value_or(o.lowercase), o.split_chinese, o.max_word},
        pieces_(vocabulary_, rules_) {}

  void encode(std::string_view text, std::vector<int32_t>& ids, std::vector<Span>* spans) const override {
    WordPieces::Output out{ids, spans, {}, {}, {}, {}};
    pieces_.encode(text, out);
  }
  std::string fingerprint() const override {
    return fmt::format("wordpiece 1 {:016x} {} {} {} {}", vocabulary_.digest(), rules_.lowercase,
                       rules_.strip_accents, rules_.split_chinese, rules_.max_word);
  }

 private:
  WordRules rules_;
  WordPieces pieces_;
};

}  // namespace

std::unique_ptr<Tokenizer> build_tokenizer(const WordPieceOptions& options) {
  return std::make_unique<WordPieceTokenizer>(options);
}

}  // namespace roformer
