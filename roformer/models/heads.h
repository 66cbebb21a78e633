#pragma once

#include "roformer/models/encoder.h"

namespace roformer {

/// BERT's MLM head: dense, activation, LayerNorm, then the token embedding as decoder, plus a bias.
class MlmHeadImpl : public torch::nn::Module {
 public:
  explicit MlmHeadImpl(const EncoderOptions& options);
  /// hidden: [N, dim]; token_weight: [V, dim], borrowed from the encoder -> logits [N, V].
  torch::Tensor forward(const torch::Tensor& hidden, const torch::Tensor& token_weight);

 private:
  Activation activation_;
  torch::nn::Linear dense_{nullptr};
  torch::nn::LayerNorm norm_{nullptr};
  torch::Tensor bias_;
};
TORCH_MODULE(MlmHead);

/// An encoder with an MLM head. Logits are computed for the targets of the batch alone: 15 % of the tokens.
class MaskedLmImpl : public torch::nn::Module {
 public:
  explicit MaskedLmImpl(const EncoderOptions& options, PositionEncoding encoding = nullptr);
  /// Logits [N, V] at batch.targets.
  torch::Tensor forward(const Batch& batch);

  Encoder encoder{nullptr};
  MlmHead head{nullptr};
};
TORCH_MODULE(MaskedLm);

}  // namespace roformer
