#include "roformer/models/heads.h"

#include "roformer/nn/dropout.h"

namespace roformer {

MlmHeadImpl::MlmHeadImpl(const EncoderOptions& options, bool tied)
    : activation_(options.activation),
      dense_(register_module("dense", torch::nn::Linear(options.dim, options.embedding_dim()))),
      norm_(register_module(
          "norm", torch::nn::LayerNorm(
                      torch::nn::LayerNormOptions({options.embedding_dim()}).eps(options.norm_eps)))),
      bias_(register_parameter("bias", torch::zeros({options.vocab_size}))) {
  initialise(*this, options.init_std);
  if (!tied) {
    decoder_ = register_parameter(
        "decoder", torch::randn({options.vocab_size, options.embedding_dim()}) * options.init_std);
  }
}

torch::Tensor MlmHeadImpl::forward(const torch::Tensor& hidden, const torch::Tensor& token_weight) {
  return torch::linear(norm_(activate(activation_, dense_(hidden))),
                       decoder_.defined() ? decoder_ : token_weight, bias_);
}

MaskedLmImpl::MaskedLmImpl(const EncoderOptions& options, PositionEncoding encoding)
    : encoder(register_module("encoder", Encoder(options, encoding))),
      head(register_module("head", MlmHead(options))) {}

torch::Tensor MaskedLmImpl::forward(const Batch& batch) {
  TORCH_CHECK(batch.targets.defined(), "masked language model: the batch has no targets");
  const torch::Tensor hidden = encoder(batch.tokens, batch.keep, batch.segments);
  return head(hidden.flatten(0, 1).index_select(0, batch.targets), encoder->token_weight());
}

ClassifierHeadImpl::ClassifierHeadImpl(const EncoderOptions& encoder, const ClassifierOptions& options)
    : options_(options),
      activation_(options.kind == HeadKind::bert ? Activation::tanh : encoder.activation),
      dropout_(options.dropout.value_or(encoder.dropout)),
      dense_(register_module("dense", torch::nn::Linear(encoder.dim, encoder.dim))),
      output_(register_module("output", torch::nn::Linear(encoder.dim, options.labels))) {
  TORCH_CHECK(options.labels > 0, "classifier: labels is not set");
  initialise(*this, encoder.init_std);
}

torch::Tensor ClassifierHeadImpl::forward(const torch::Tensor& hidden) {
  torch::Tensor x = hidden.select(1, 0);
  if (options_.kind == HeadKind::roformer) x = roformer::dropout(x, dropout_, is_training());
  x = activate(activation_, dense_(x));
  return output_(roformer::dropout(x, dropout_, is_training()));
}

SequenceClassifierImpl::SequenceClassifierImpl(const EncoderOptions& encoder_options,
                                               const ClassifierOptions& classifier, PositionEncoding encoding)
    : encoder(register_module("encoder", Encoder(encoder_options, encoding))),
      head(register_module("head", ClassifierHead(encoder_options, classifier))) {}

torch::Tensor SequenceClassifierImpl::forward(const Batch& batch) {
  return head(encoder(batch.tokens, batch.keep, batch.segments));
}

}  // namespace roformer
