#pragma once

#include "roformer/models/encoder.h"

namespace roformer {

/// BERT's MLM head: dense, activation, LayerNorm, then the token embedding as decoder, plus a bias.
class MlmHeadImpl : public torch::nn::Module {
 public:
  /// `tied` = false: a decoder of its own, as some published models have.
  explicit MlmHeadImpl(const EncoderOptions& options, bool tied = true);
  /// hidden: [..., dim]; token_weight: [V, embedding width], borrowed from the encoder; not read when untied.
  /// Returns logits [..., V].
  torch::Tensor forward(const torch::Tensor& hidden, const torch::Tensor& token_weight);

 private:
  Activation activation_;
  torch::nn::Linear dense_{nullptr};
  torch::nn::LayerNorm norm_{nullptr};
  torch::Tensor bias_, decoder_;
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

enum class HeadKind { roformer, bert };
inline auto enum_names(HeadKind) {
  return std::array<std::pair<HeadKind, std::string_view>, 2>{
      {{HeadKind::roformer, "roformer"}, {HeadKind::bert, "bert"}}};
}

struct ClassifierOptions {
  HeadKind kind = HeadKind::roformer;
  int64_t labels = 2;                  ///< outputs; 1 = regression
  std::optional<double> dropout = {};  ///< before the layers of the head; none = as the encoder
};

/// Classifies by the first token, h = hidden[:, 0]. `roformer`: dropout, dense, the model's activation,
/// dropout, output; `bert`: dense, tanh, dropout, output (transformers: RoFormerClassificationHead;
/// BertPooler and `classifier`).
class ClassifierHeadImpl : public torch::nn::Module {
 public:
  ClassifierHeadImpl(const EncoderOptions& encoder, const ClassifierOptions& options);
  /// hidden: [B, L, dim] -> logits [B, labels].
  torch::Tensor forward(const torch::Tensor& hidden);

  const ClassifierOptions& options() const { return options_; }

 private:
  ClassifierOptions options_;
  Activation activation_;
  double dropout_;
  torch::nn::Linear dense_{nullptr}, output_{nullptr};
};
TORCH_MODULE(ClassifierHead);

/// An encoder with a classifier. Reads tokens, keep and segments of the batch.
class SequenceClassifierImpl : public torch::nn::Module {
 public:
  SequenceClassifierImpl(const EncoderOptions& encoder_options, const ClassifierOptions& classifier,
                         PositionEncoding encoding = nullptr);
  /// Logits [B, labels].
  torch::Tensor forward(const Batch& batch);

  Encoder encoder{nullptr};
  ClassifierHead head{nullptr};
};
TORCH_MODULE(SequenceClassifier);

}  // namespace roformer
