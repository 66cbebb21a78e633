#include "roformer/models/heads.h"

namespace roformer {

MlmHeadImpl::MlmHeadImpl(const EncoderOptions& options)
    : activation_(options.activation),
      dense_(register_module("dense", torch::nn::Linear(options.dim, options.dim))),
      norm_(register_module(
          "norm", torch::nn::LayerNorm(torch::nn::LayerNormOptions({options.dim}).eps(options.norm_eps)))),
      bias_(register_parameter("bias", torch::zeros({options.vocab_size}))) {
  initialise(*this, options.init_std);
}

torch::Tensor MlmHeadImpl::forward(const torch::Tensor& hidden, const torch::Tensor& token_weight) {
  return torch::linear(norm_(activate(activation_, dense_(hidden))), token_weight, bias_);
}

MaskedLmImpl::MaskedLmImpl(const EncoderOptions& options, PositionEncoding encoding)
    : encoder(register_module("encoder", Encoder(options, encoding))),
      head(register_module("head", MlmHead(options))) {}

torch::Tensor MaskedLmImpl::forward(const Batch& batch) {
  TORCH_CHECK(batch.targets.defined(), "masked language model: the batch has no targets");
  const torch::Tensor hidden = encoder(batch.tokens, batch.keep, batch.segments);
  return head(hidden.flatten(0, 1).index_select(0, batch.targets), encoder->token_weight());
}

}  // namespace roformer
