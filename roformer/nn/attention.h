#pragma once

#include "roformer/nn/positions.h"

namespace roformer {

struct AttentionOptions {
  int64_t dim = 512;
  int64_t heads = 8;
  double dropout = 0.0;  ///< on the attention weights
  bool bias = true;      ///< of the four projections
};

/// Multi-head self-attention (eq. 2 and 16 with positions from `encoding`):
///   softmax(scale * rot(q) rot(k)^T + logits + bias) v + values.
/// x: [B, L, dim] -> [B, L, dim]. Softmax accumulates in float32. A row whose keys are all padding gives
/// zeros before the output projection, never NaN.
class AttentionImpl : public torch::nn::Module {
 public:
  explicit AttentionImpl(const AttentionOptions& options);

  torch::Tensor forward(const torch::Tensor& x, PositionEncoding& encoding, const AttentionContext& context);

 private:
  AttentionOptions options_;
  torch::nn::Linear query_{nullptr}, key_{nullptr}, value_{nullptr}, output_{nullptr};
};
TORCH_MODULE(Attention);

/// softmax(scale * q k^T + extra) v, plain ATen. q: [B, H, Lq, d]; k, v: [B, H, Lk, d]; keep: bool [B, Lk],
/// true = token, or undefined; extra: broadcastable to [B, H, Lq, Lk] or undefined. `causal`: the queries are
/// the last Lq of the Lk keys and see no later key. Rows without any key give zeros and finite gradients. The
/// twin of the fused path, and what a reader reads. Writes the weights after dropout to *probs when given; a
/// row without keys is uniform there.
torch::Tensor attention_plain(const torch::Tensor& q, const torch::Tensor& k, const torch::Tensor& v,
                              const torch::Tensor& keep, const torch::Tensor& extra, bool causal,
                              double scale, double dropout, torch::Tensor* probs = nullptr);

/// The same by at::scaled_dot_product_attention.
torch::Tensor attention_fused(const torch::Tensor& q, const torch::Tensor& k, const torch::Tensor& v,
                              const torch::Tensor& keep, const torch::Tensor& extra, bool causal,
                              double scale, double dropout);

/// Which of the two a layer takes when the encoding leaves the choice.
bool fused_attention_pays(const torch::Tensor& q, double dropout);

}  // namespace roformer
