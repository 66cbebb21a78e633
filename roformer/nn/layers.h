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

/// The position-wise network W2 f(W1 x). x: [..., dim].
class FeedForwardImpl : public torch::nn::Module {
 public:
  FeedForwardImpl(int64_t dim, int64_t hidden, Activation activation);
  torch::Tensor forward(const torch::Tensor& x);

 private:
  Activation activation_;
  torch::nn::Linear up_{nullptr}, down_{nullptr};
};
TORCH_MODULE(FeedForward);

struct EncoderLayerOptions {
  int64_t dim = 512;
  int64_t heads = 8;
  int64_t ffn = 2048;
  double dropout = 0.1;
  double attention_dropout = 0.1;
  Activation activation = Activation::gelu;
  NormPlacement norm = NormPlacement::post;
  double norm_eps = 1e-12;
};

/// One Transformer block: attention, then feed-forward, each with dropout, residual and LayerNorm (after it:
/// `post`, as in BERT; before it: `pre`). x: [B, L, dim] -> [B, L, dim].
class EncoderLayerImpl : public torch::nn::Module {
 public:
  explicit EncoderLayerImpl(const EncoderLayerOptions& options);
  torch::Tensor forward(const torch::Tensor& x, PositionEncoding& encoding, const AttentionContext& context);

 private:
  EncoderLayerOptions options_;
  Attention attention_{nullptr};
  FeedForward ffn_{nullptr};
  torch::nn::LayerNorm attention_norm_{nullptr}, ffn_norm_{nullptr};
};
TORCH_MODULE(EncoderLayer);

/// N(0, std) for the weights of Linear and Embedding, zero biases, LayerNorm 1 and 0, in order of
/// registration from the default generator. Leaves other parameters (tables of encodings) alone.
void initialise(torch::nn::Module& module, double std);

}  // namespace roformer
