#pragma once

#include <array>

#include "roformer/nn/attention.h"
#include "roformer/nn/dropout.h"

namespace roformer {

enum class Activation { gelu, gelu_tanh, relu, silu, tanh };
inline auto enum_names(Activation) {
  return std::array<std::pair<Activation, std::string_view>, 5>{{{Activation::gelu, "gelu"},
                                                                 {Activation::gelu_tanh, "gelu_tanh"},
                                                                 {Activation::relu, "relu"},
                                                                 {Activation::silu, "silu"},
                                                                 {Activation::tanh, "tanh"}}};
}
torch::Tensor activate(Activation activation, const torch::Tensor& x);

enum class NormPlacement { post, pre };
inline auto enum_names(NormPlacement) {
  return std::array<std::pair<NormPlacement, std::string_view>, 2>{
      {{NormPlacement::post, "post"}, {NormPlacement::pre, "pre"}}};
}

enum class NormKind { layer, rms };
inline auto enum_names(NormKind) {
  return std::array<std::pair<NormKind, std::string_view>, 2>{
      {{NormKind::layer, "layer"}, {NormKind::rms, "rms"}}};
}

/// LayerNorm, or RMSNorm (Zhang and Sennrich 2019): x / sqrt(mean(x^2) + eps) * weight. x: [..., dim].
class NormImpl : public torch::nn::Module {
 public:
  NormImpl(NormKind kind, int64_t dim, double eps);
  torch::Tensor forward(const torch::Tensor& x);

 private:
  double eps_;
  torch::Tensor weight_, bias_;  // RMSNorm has no bias
};
TORCH_MODULE(Norm);

struct FeedForwardOptions {
  int64_t dim = 512;
  int64_t hidden = 2048;
  Activation activation = Activation::gelu;
  bool gated = false;
  bool bias = true;
};

/// The position-wise network W2 f(W1 x), or gated W2 (f(W3 x) * W1 x), which silu makes SwiGLU (Shazeer
/// 2020). x: [..., dim].
class FeedForwardImpl : public torch::nn::Module {
 public:
  explicit FeedForwardImpl(const FeedForwardOptions& options);
  torch::Tensor forward(const torch::Tensor& x);

 private:
  Activation activation_;
  torch::nn::Linear up_{nullptr}, gate_{nullptr}, down_{nullptr};
};
TORCH_MODULE(FeedForward);

struct LayerOptions {
  AttentionOptions attention;
  FeedForwardOptions ffn;
  double dropout = 0.1;
  NormPlacement norm = NormPlacement::post;
  NormKind norm_kind = NormKind::layer;
  double norm_eps = 1e-12;
};

/// One Transformer block: attention, then feed-forward, each with dropout, residual and norm (after it:
/// `post`, as in BERT; before it: `pre`). x: [B, L, dim] -> [B, L, dim]. Encoders and causal models are made
/// of it; the context says which it is.
class LayerImpl : public torch::nn::Module {
 public:
  explicit LayerImpl(const LayerOptions& options);
  torch::Tensor forward(const torch::Tensor& x, PositionEncoding& encoding, const AttentionContext& context,
                        AttentionCache* cache = nullptr);

 private:
  double dropout_;
  NormPlacement norm_;
  Attention attention_{nullptr};
  FeedForward ffn_{nullptr};
  Norm attention_norm_{nullptr}, ffn_norm_{nullptr};
};
TORCH_MODULE(Layer);

/// N(0, std) for the weights of Linear and Embedding, zero biases, LayerNorm 1 and 0, in order of
/// registration from the default generator. Leaves other parameters (norms of layers, tables of encodings)
/// alone.
void initialise(torch::nn::Module& module, double std);

}  // namespace roformer
