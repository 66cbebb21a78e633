#include "roformer/nn/layers.h"

#include "roformer/nn/dropout.h"

namespace roformer {

torch::Tensor activate(Activation activation, const torch::Tensor& x) {
  switch (activation) {
    case Activation::gelu:
      return at::gelu(x);
    case Activation::gelu_tanh:
      return at::gelu(x, "tanh");
    case Activation::relu:
      return at::relu(x);
    case Activation::silu:
      return at::silu(x);
    case Activation::tanh:
      return at::tanh(x);
  }
  TORCH_CHECK(false, "activate: unknown activation");
}

FeedForwardImpl::FeedForwardImpl(int64_t dim, int64_t hidden, Activation activation)
    : activation_(activation),
      up_(register_module("up", torch::nn::Linear(dim, hidden))),
      down_(register_module("down", torch::nn::Linear(hidden, dim))) {}

torch::Tensor FeedForwardImpl::forward(const torch::Tensor& x) {
  return down_(activate(activation_, up_(x)));
}

EncoderLayerImpl::EncoderLayerImpl(const EncoderLayerOptions& options) : options_(options) {
  auto norm = [&] {
    return torch::nn::LayerNorm(torch::nn::LayerNormOptions({options.dim}).eps(options.norm_eps));
  };
  attention_ = register_module(
      "attention", Attention(AttentionOptions{
                       .dim = options.dim, .heads = options.heads, .dropout = options.attention_dropout}));
  attention_norm_ = register_module("attention_norm", norm());
  ffn_ = register_module("ffn", FeedForward(options.dim, options.ffn, options.activation));
  ffn_norm_ = register_module("ffn_norm", norm());
}

torch::Tensor EncoderLayerImpl::forward(const torch::Tensor& x, PositionEncoding& encoding,
                                        const AttentionContext& context) {
  auto drop = [&](const torch::Tensor& t) { return roformer::dropout(t, options_.dropout, is_training()); };
  if (options_.norm == NormPlacement::pre) {
    const torch::Tensor h = x + drop(attention_(attention_norm_(x), encoding, context));
    return h + drop(ffn_(ffn_norm_(h)));
  }
  const torch::Tensor h = attention_norm_(x + drop(attention_(x, encoding, context)));
  return ffn_norm_(h + drop(ffn_(h)));
}

void initialise(torch::nn::Module& module, double std) {
  torch::NoGradGuard no_grad;
  if (auto* linear = module.as<torch::nn::LinearImpl>()) {
    linear->weight.normal_(0.0, std);
    if (linear->bias.defined()) linear->bias.zero_();
  } else if (auto* embedding = module.as<torch::nn::EmbeddingImpl>()) {
    embedding->weight.normal_(0.0, std);
  } else if (auto* norm = module.as<torch::nn::LayerNormImpl>()) {
    norm->reset_parameters();
  }
  for (const auto& child : module.children()) {
    if (!child->as<PositionEncodingImpl>()) initialise(*child, std);
  }
}

}  // namespace roformer
