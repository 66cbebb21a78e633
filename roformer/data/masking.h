#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "roformer/core/config.h"
#include "roformer/core/random.h"
#include "roformer/text/tokenizer.h"

namespace roformer {

/// Which tokens the masked language model has to guess (Devlin et al. 2019, section 3.1; RoFormer
/// section 4.2).
struct MaskingOptions {
  double mask = 0.15;
  double replace = 0.8;
  double random = 0.1;
  int64_t span = 1;
  bool whole_words = false;
};
template <class V>
void fields(V& v, MaskingOptions& o) {
  v("mask", o.mask, "part of the tokens that must be guessed, special tokens and padding never", above(0.0),
    within(0.0, 1.0));
  v("replace", o.replace, "part of these that [MASK] replaces", within(0.0, 1.0));
  v("random", o.random, "part of these that a random token replaces; the rest stays as it is",
    within(0.0, 1.0));
  v("span", o.span,
    "1: each token by itself; more: runs of tokens, with lengths up to 2 * span, short ones more often "
    "(5 = SpanBERT, 3.8 on average)",
    within(1, 1024));
  v("whole_words", o.whole_words,
    "choose whole words, all pieces of one together; what replaces a piece is still decided piece by piece");
}
void validate(const MaskingOptions& options);

/// What masking needs to know of a tokenizer.
struct MaskTokens {
  explicit MaskTokens(const Tokenizer& tokenizer);

  int64_t vocab_size;
  int64_t pad, mask;
  std::vector<char> special;  ///< by id
  std::vector<char> goes_on;  ///< by id: goes on with the word of the token before
};

/// Masks one window in place and appends to `positions` (ascending, within the window) and `labels` (the ids
/// that stood there). The result depends on `random` alone. span 1: each token that is not special is chosen
/// with probability `mask`, as in Hugging Face's DataCollatorForLanguageModeling; of those chosen, [MASK] / a
/// random id of the whole vocabulary (special tokens included, as there) / unchanged. span > 1: spans with
/// lengths from Geo(1 / span) limited to 2 * span, from uniform starts, until `mask` of the tokens are chosen
/// (SpanBERT, Joshi et al. 2020, section 3.1); replaced span by span. A span ends at special tokens and at
/// tokens chosen before. whole_words: the same as span 1 for words instead of tokens: a token and those right behind it
/// that go on with its word are chosen together, then each is replaced by a decision of its own (BERT's
/// whole-word-masking release; google-research/bert: create_pretraining_data.py).
/// If chance chooses no token of a window, one is chosen at random (BERT's max(1, ...)), so only a window
/// without any ordinary token has no target.
void mask_window(std::span<int64_t> ids, const MaskingOptions& options, const MaskTokens& tokens,
                 Random random, std::vector<int64_t>& positions, std::vector<int64_t>& labels);

}  // namespace roformer
