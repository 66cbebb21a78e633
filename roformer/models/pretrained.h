#pragma once

#include "roformer/models/heads.h"

namespace roformer {

/// What stands on an encoder.
enum class HeadType { none, mlm, classifier };

struct PretrainedOptions {
  EncoderOptions encoder = {};
  HeadType head = HeadType::none;
  ClassifierOptions classifier = {};  ///< of HeadType::classifier
  bool pooler = false;                ///< BERT's pooler: dense and tanh on the first token
  bool tied = true;                   ///< the MLM head decodes with the token embedding
};

/// An encoder with whatever a published folder, or a run, puts on it. Parameters are named as in MaskedLm and
/// SequenceClassifier ("encoder.", "head."), so weights of these fit; "pooler." comes on top.
class PretrainedImpl : public torch::nn::Module {
 public:
  explicit PretrainedImpl(const PretrainedOptions& options, PositionEncoding encoding = nullptr);

  struct Output {
    torch::Tensor last_hidden_state;  ///< [B, L, dim]
    torch::Tensor pooler_output;      ///< [B, dim]; undefined without a pooler
    torch::Tensor logits;             ///< [B, L, V] or [B, labels]; undefined without a head
  };
  /// Arguments as Encoder::forward.
  Output forward(const torch::Tensor& tokens, const torch::Tensor& keep = {},
                 const torch::Tensor& segments = {});

  const PretrainedOptions& options() const { return options_; }

  Encoder encoder{nullptr};
  torch::nn::Linear pooler{nullptr};
  MlmHead mlm{nullptr};
  ClassifierHead classifier{nullptr};

 private:
  PretrainedOptions options_;
};
TORCH_MODULE(Pretrained);

}  // namespace roformer
