#pragma once

#include <array>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "roformer/core/config.h"

namespace roformer {

/// What a special token is for; every tokenizer has all five, whatever it calls them.
enum class Special { pad, unknown, classify, separate, mask };

/// Bytes [begin, end) of a text.
struct Span {
  int64_t begin = 0;
  int64_t end = 0;
};

/// Text to token ids and back. Ids are 0 .. vocab_size() - 1, special tokens included. Safe to use from
/// several threads at once.
class Tokenizer {
 public:
  virtual ~Tokenizer() = default;

  virtual int64_t vocab_size() const = 0;
  virtual int32_t special(Special role) const = 0;
  virtual bool is_special(int32_t id) const = 0;
  /// Appends the ids of `text`, without special tokens around it; and, where asked for, the bytes of the text
  /// that each token stands for.
  virtual void encode(std::string_view text, std::vector<int32_t>& ids,
                      std::vector<Span>* spans = nullptr) const = 0;
  /// The token as the vocabulary spells it.
  virtual std::string token(int32_t id) const = 0;
  virtual std::string decode(const std::vector<int32_t>& ids) const = 0;
  /// False for tokens that go on with the word of the token before ("##ing").
  virtual bool starts_word(int32_t id) const = 0;
  /// True: encode() takes valid UTF-8 without NUL only, which readers check. False: it takes any bytes.
  virtual bool needs_text() const = 0;
  /// Changes whenever ids could change: part of the key of cached token files.
  virtual std::string fingerprint() const = 0;
};

/// Every byte is a token: ids 0-255, then [PAD] 256, [UNK] 257, [CLS] 258, [SEP] 259, [MASK] 260. Takes any
/// bytes. [UNK] never comes out of encode; decode writes special tokens by their names.
struct BytesOptions {
  static constexpr std::string_view type = "bytes";
};
template <class V>
void fields(V&, BytesOptions&) {}

/// BERT's tokenizer: clean, lower-case, split at white space, punctuation and Chinese characters, then the
/// longest pieces of the vocabulary (Devlin et al. 2019). Ids equal those of transformers' BertTokenizer, the
/// slow one.
struct WordPieceOptions {
  static constexpr std::string_view type = "wordpiece";
  std::filesystem::path vocab;
  bool lowercase = true;
  std::optional<bool> strip_accents;
  bool split_chinese = true;
  int64_t max_word = 100;
};
template <class V>
void fields(V& v, WordPieceOptions& o) {
  v("vocab", o.vocab, "vocab.txt, one token a line", required());
  v("lowercase", o.lowercase, "lower-case the text first");
  v("strip_accents", o.strip_accents, "drop accents; null = as lowercase");
  v("split_chinese", o.split_chinese, "every Chinese character is a word of its own");
  v("max_word", o.max_word, "characters; a longer word is [UNK]", within(1, 10000));
}

enum class WordsVariant { slow, fast };
inline auto enum_names(WordsVariant) {
  return std::array<std::pair<WordsVariant, std::string_view>, 2>{
      {{WordsVariant::slow, "slow"}, {WordsVariant::fast, "fast"}}};
}

/// Chinese words (WoBERT, RoFormer): jieba's cut without its hidden Markov model; a word of the vocabulary is
/// a token, every other one goes through WordPiece. Ids equal those of transformers' RoFormerTokenizer (slow)
/// or RoFormerTokenizerFast (fast).
struct WordsOptions {
  static constexpr std::string_view type = "words";
  std::filesystem::path vocab;
  std::filesystem::path dictionary;
  bool lowercase = true;
  WordsVariant variant = WordsVariant::slow;
  int64_t max_word = 100;
};
template <class V>
void fields(V& v, WordsOptions& o) {
  v("vocab", o.vocab, "vocab.txt, one token a line", required());
  v("dictionary", o.dictionary,
    "jieba's dict.txt: word, frequency, part of speech; default: models/jieba/dict.txt beside the program "
    "(`make "
    "models`)");
  v("lowercase", o.lowercase, "lower-case the text first");
  v("variant", o.variant,
    "where transformers' two tokenizers differ: cut first (slow) or normalise first (fast)");
  v("max_word", o.max_word, "characters; a longer word is [UNK]", within(1, 10000));
}

/// A SentencePiece model, BPE or unigram. Special tokens are found by their usual names; what the model lacks
/// gets an id after its own ones. Special tokens spelled out in a text stay text.
struct SentencePieceOptions {
  static constexpr std::string_view type = "sentencepiece";
  std::filesystem::path model;
};
template <class V>
void fields(V& v, SentencePieceOptions& o) {
  v("model", o.model, "the .model file (`roformer train-tokenizer` makes one)", required());
}

using TokenizerOptions = std::variant<BytesOptions, WordPieceOptions, WordsOptions, SentencePieceOptions>;

/// Error: a file that is missing or damaged, by name and line.
std::unique_ptr<Tokenizer> make_tokenizer(const TokenizerOptions& options);

/// One text, or two, as a model reads them: [CLS] first [SEP] (second [SEP]).
struct Encoding {
  std::vector<int32_t> ids;
  std::vector<int32_t> segments;  ///< 0 up to the first [SEP], then 1
  int64_t dropped = 0;            ///< tokens cut off
};

/// `second` null: a single text. With max_length > 0 (at least 3; 4 for pairs) tokens are dropped from the
/// end of the longer text, one at a time; of two equally long ones from the second (transformers'
/// `longest_first`, slow tokenizers).
Encoding encode_texts(const Tokenizer& tokenizer, std::string_view first, const std::string_view* second,
                      int64_t max_length);

}  // namespace roformer
