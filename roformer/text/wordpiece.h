#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "roformer/text/tokenizer.h"
#include "roformer/text/unicode.h"
#include "roformer/text/vocabulary.h"

namespace roformer {

/// What BERT's BasicTokenizer does to a text; and the longest word, in characters, that is looked up.
struct WordRules {
  bool lowercase = true;
  bool strip_accents = true;
  bool split_chinese = true;
  int64_t max_word = 100;
};

/// Splits text into characters, in lower case if the rules say so; the first byte of `text` is number
/// `offset`.
void to_characters(std::string_view text, int64_t offset, const WordRules& rules, std::vector<TextChar>& out);

/// Characters to words, as the slow BasicTokenizer in transformers: calls add(first, last) for each.
class WordSplitter {
 public:
  template <class F>
  void split(const TextChar* begin, const TextChar* end, const WordRules& rules, F&& add) {
    clean(begin, end, rules);
    for (size_t i = 0; i < cleaned_.size();) {
      if (is_python_space(cleaned_[i].code)) {
        ++i;
        continue;
      }
      token_.clear();
      for (; i < cleaned_.size() && !is_python_space(cleaned_[i].code); ++i) token_.push_back(cleaned_[i]);
      const TextChar* const last = token_.data() + token_.size();
      if (spells_special()) {  // brought to light by cleaning: a word like any other, but not split
        add(token_.data(), last);
        continue;
      }
      if (rules.strip_accents) strip_accents();
      const TextChar* const stop = token_.data() + token_.size();
      for (const TextChar* c = token_.data(); c < stop;) {
        const TextChar* const first = c;
        if (is_bert_punctuation(c->code)) {
          ++c;
        } else {
          while (c < stop && !is_bert_punctuation(c->code)) ++c;
        }
        add(first, c);
      }
    }
  }

 private:
  void clean(const TextChar* begin, const TextChar* end, const WordRules& rules);
  bool spells_special() const;
  void strip_accents();

  std::vector<TextChar> cleaned_, token_;
};

/// BERT's two steps, as in transformers' slow tokenizer: text to words, word to pieces.
class WordPieces {
 public:
  WordPieces(const Vocabulary& vocabulary, const WordRules& rules);

  /// Where the tokens go, and what is reused from word to word. One per call of encode.
  struct Output {
    std::vector<int32_t>& ids;
    std::vector<Span>* spans;
    std::string word;
    std::vector<Span> word_bytes;
    std::vector<TextChar> chars;
    WordSplitter splitter;
  };

  /// Any text without special tokens in it; without them and without upper case (if lowercase), any
  /// characters.
  void add_text(std::string_view text, int64_t offset, Output& out) const;
  void add_characters(const TextChar* begin, const TextChar* end, Output& out) const;
  /// One word, already clean.
  void add_word(const TextChar* begin, const TextChar* end, Output& out) const;
  /// White space, words of ASCII and special tokens are dealt with here; every other word goes to add_text.
  void encode(std::string_view text, Output& out) const;

  /// The special token at the beginning of `text`; -1: none.
  int32_t special_at(std::string_view text) const;

 private:
  template <class SpanOf>
  void add_pieces(std::string_view word, int64_t characters, uint64_t hash, const SpanOf& span_of,
                  Output& out) const;
  void add_ascii(std::string_view text, int64_t offset, Output& out) const;

  const Vocabulary& vocabulary_;
  WordRules rules_;
  std::array<unsigned char, 256> kinds_;
  std::array<char, 256> lower_;
  std::array<int32_t, 128> signs_;  // the token of each ASCII sign
};

/// What tokenizers with a Vocabulary share.
class VocabularyTokenizer : public Tokenizer {
 public:
  explicit VocabularyTokenizer(const std::filesystem::path& file) : vocabulary_(file) {}
  int64_t vocab_size() const override { return vocabulary_.size(); }
  int32_t special(Special role) const override { return vocabulary_.special(role); }
  bool is_special(int32_t id) const override { return vocabulary_.is_special(id); }
  std::string token(int32_t id) const override { return std::string(vocabulary_.token(id)); }
  std::string decode(const std::vector<int32_t>& ids) const override;
  bool starts_word(int32_t id) const override;
  bool needs_text() const override { return true; }

 protected:
  Vocabulary vocabulary_;
};

}  // namespace roformer
