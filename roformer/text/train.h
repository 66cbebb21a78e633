#pragma once

#include <array>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "roformer/core/config.h"

namespace roformer {

enum class TrainedTokenizer { wordpiece, bpe, unigram };
inline auto enum_names(TrainedTokenizer) {
  return std::array<std::pair<TrainedTokenizer, std::string_view>, 3>{
      {{TrainedTokenizer::wordpiece, "wordpiece"},
       {TrainedTokenizer::bpe, "bpe"},
       {TrainedTokenizer::unigram, "unigram"}}};
}

/// What `roformer train-tokenizer` is told.
struct TokenizerTrainingOptions {
  TrainedTokenizer kind = TrainedTokenizer::wordpiece;
  std::vector<std::filesystem::path> input;
  std::filesystem::path output;
  int64_t vocab_size = 30522;
  bool lowercase = true;
  int64_t min_count = 2;
  int64_t alphabet = 1000;
  double coverage = 0.9995;
  int64_t memory = 1024;
};
template <class V>
void fields(V& v, TokenizerTrainingOptions& o) {
  v("kind", o.kind, "wordpiece: a vocab.txt as BERT's; bpe, unigram: a SentencePiece model");
  v("input", o.input, "text: a file, a folder (read recursively) or a list of both; .gz is unpacked",
    required());
  v("output", o.output, "the file to write: vocab.txt, or a .model file", required());
  v("vocab_size", o.vocab_size, "tokens, the five special ones included", within(6, 1'000'000));
  v("lowercase", o.lowercase, "lower-case the text; the tokenizer must be told the same");
  v("min_count", o.min_count, "wordpiece: pairs of pieces that are rarer than this are never joined",
    within(1, 1e9));
  v("alphabet", o.alphabet, "wordpiece: only the most frequent characters, at most so many, become tokens",
    within(1, 100'000));
  v("coverage", o.coverage, "bpe, unigram: part of all characters in the text that the alphabet must cover",
    within(0.9, 1));
  v("memory", o.memory,
    "MiB for the text in memory: beyond it, wordpiece forgets rare words, bpe and unigram learn from an even "
    "sample of "
    "the lines",
    within(1, 1'000'000));
}

/// Puts the next line of the text into its argument; false: there is none.
using NextLine = std::function<bool(std::string&)>;

/// Learns a tokenizer from lines (the caller reads options.input) and writes options.output, whole or not at
/// all. Equal text gives equal files. The special tokens [PAD], [UNK], [CLS], [SEP], [MASK] are ids 0 to 4.
/// wordpiece: words as BERT's tokenizer splits them, begun from single characters; the most frequent pair of
/// neighbouring pieces becomes a piece, over and over (Sennrich et al. 2016; "##" inside words), as in
/// Hugging Face's WordPiece trainer. Fewer tokens than vocab_size if the text has no more pairs. bpe,
/// unigram: the SentencePiece library (Kudo & Richardson 2018). Error: no text, vocab_size too large for it,
/// the file cannot be written.
void train_tokenizer(const TokenizerTrainingOptions& options, const NextLine& next_line);

}  // namespace roformer
