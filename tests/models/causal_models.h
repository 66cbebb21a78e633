#pragma once

#include "roformer/models/causal_lm.h"

namespace roformer::test {

constexpr int64_t small_causal_vocab = 19;

/// Two layers x 16 with weights large enough that every part shows in the logits.
inline CausalLmOptions small_causal_lm(std::vector<PositionOptions> positions,
                                       AttentionKind attention = SoftmaxAttention{}) {
  CausalLmOptions o;
  o.dim = 16;
  o.layers = 2;
  o.heads = 2;
  o.ffn = 24;
  o.init_std = 0.3;
  o.embedding_std = 1.0;
  o.attention = std::move(attention);
  o.positions = std::move(positions);
  o.vocab_size = small_causal_vocab;
  return o;
}

/// One layer x 16 that LLaMA's format can hold.
inline CausalLmOptions small_llama(int64_t vocab_size) {
  CausalLmOptions o;
  o.dim = 16;
  o.layers = 1;
  o.heads = 2;
  o.ffn = 16;
  o.norm = NormKind::rms;
  o.gated = true;
  o.bias = false;
  o.vocab_size = vocab_size;
  return o;
}

}  // namespace roformer::test
