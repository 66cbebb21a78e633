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

NormImpl::NormImpl(NormKind kind, int64_t dim, double eps) : eps_(eps) {
  weight_ = register_parameter("weight", torch::ones({dim}));
  if (kind == NormKind::layer) bias_ = register_parameter("bias", torch::zeros({dim}));
}

torch::Tensor NormImpl::forward(const torch::Tensor& x) {
  if (bias_.defined()) return at::layer_norm(x, weight_.sizes(), weight_, bias_, eps_);
  return at::rms_norm(x, weight_.sizes(), weight_, eps_);
}

FeedForwardImpl::FeedForwardImpl(const FeedForwardOptions& options) : activation_(options.activation) {
  auto linear = [&](int64_t in, int64_t out) {
    return torch::nn::Linear(torch::nn::LinearOptions(in, out).bias(options.bias));
  };
  up_ = register_module("up", linear(options.dim, options.hidden));
  down_ = register_module("down", linear(options.hidden, options.dim));
  if (options.gated) gate_ = register_module("gate", linear(options.dim, options.hidden));
}

torch::Tensor FeedForwardImpl::forward(const torch::Tensor& x) {
  if (gate_) return down_(activate(activation_, gate_(x)) * up_(x));
  return down_(activate(activation_, up_(x)));
}

LayerImpl::LayerImpl(const LayerOptions& options) : dropout_(options.dropout), norm_(options.norm) {
  auto norm = [&] { return Norm(options.norm_kind, options.attention.dim, options.norm_eps); };
  attention_ = register_module("attention", Attention(options.attention));
  attention_norm_ = register_module("attention_norm", norm());
  ffn_ = register_module("ffn", FeedForward(options.ffn));
  ffn_norm_ = register_module("ffn_norm", norm());
}

torch::Tensor LayerImpl::forward(const torch::Tensor& x, PositionEncoding& encoding,
                                 const AttentionContext& context, AttentionCache* cache) {
  auto drop = [&](const torch::Tensor& t) { return roformer::dropout(t, dropout_, is_training()); };
  if (norm_ == NormPlacement::pre) {
    const torch::Tensor h = x + drop(attention_(attention_norm_(x), encoding, context, cache));
    return h + drop(ffn_(ffn_norm_(h)));
  }
  const torch::Tensor h = attention_norm_(x + drop(attention_(x, encoding, context, cache)));
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
