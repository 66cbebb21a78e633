#pragma once

#include "roformer/nn/feature_map.h"
#include "roformer/nn/linear_attention.h"
#include "roformer/nn/positions.h"

namespace roformer {

/// softmax(q k^T / sqrt(d)) v, eq. 2.
struct SoftmaxAttention {
  static constexpr std::string_view type = "softmax";
};
template <class V>
void fields(V&, SoftmaxAttention&) {}

/// Where RoPE meets the feature map: after it, in the numerator alone (eq. 19, the paper's method), or before
/// it (as the code that the paper cites), in numerator and denominator.
enum class RotaryOrder { after, before };
inline auto enum_names(RotaryOrder) {
  return std::array<std::pair<RotaryOrder, std::string_view>, 2>{
      {{RotaryOrder::after, "after"}, {RotaryOrder::before, "before"}}};
}

/// phi(q) (phi(k)^T v) / phi(q) sum phi(k), eq. 17-19: linear in the length.
struct LinearAttention {
  static constexpr std::string_view type = "linear";
  FeatureOptions features = FavorFeatures{};
  RotaryOrder rotary = RotaryOrder::after;
};
template <class V>
void fields(V& v, LinearAttention& o) {
  v("features", o.features, "the feature map phi");
  v("rotary", o.rotary,
    "turn features, in the numerator alone (after: eq. 19), or queries and keys (before)");
}

using AttentionKind = std::variant<SoftmaxAttention, LinearAttention>;

struct AttentionOptions {
  int64_t dim = 512;
  int64_t heads = 8;
  int64_t kv_heads = 0;  ///< heads of keys and values, each for heads / kv_heads queries; 0 = heads
  int64_t head_dim = 0;  ///< 0 = dim / heads
  double dropout = 0.0;  ///< on the attention weights (softmax attention)
  bool bias = true;      ///< of the four projections
  AttentionKind kind = SoftmaxAttention{};
  int64_t layer = 0;  ///< its number: features of FAVOR+ differ by layer
};

/// Columns that a rotation meets under this kind of attention: features where they turn (eq. 19), else the
/// head's.
int64_t rotary_width(const AttentionKind& kind, int64_t head_dim);
/// heads divide dim and so on; feature maps fit the head, as Errors.
void validate(const AttentionOptions& options);

/// What one layer keeps of the tokens so far, while a sequence grows. Softmax: keys (rotated, unless
/// encoding->cache_rotated() is false) and values, [B, kv_heads, L, head_dim]; linear: sums of fixed size.
struct AttentionCache {
  torch::Tensor k, v;
  LinearState sums;
};

/// Multi-head self-attention (eq. 2 and 16 with positions from `encoding`):
///   softmax(scale * rot(q) rot(k)^T + logits + bias) v + values,
/// or linear attention (eq. 17-19).
/// x: [B, L, dim] -> [B, L, dim]. Softmax accumulates in float32. A row whose keys are all padding gives
/// zeros before the output projection, never NaN. With a cache (causal only) x holds new tokens alone, which
/// go into it; context.positions.q and x have their length, context.positions.k and context.keep that of all
/// tokens.
class AttentionImpl : public torch::nn::Module {
 public:
  explicit AttentionImpl(const AttentionOptions& options);

  torch::Tensor forward(const torch::Tensor& x, PositionEncoding& encoding, const AttentionContext& context,
                        AttentionCache* cache = nullptr);

 private:
  torch::Tensor softmax_attention(const torch::Tensor& q, torch::Tensor k, torch::Tensor v,
                                  PositionEncoding& encoding, const AttentionContext& context,
                                  AttentionCache* cache);
  torch::Tensor linear_attention(const torch::Tensor& q, const torch::Tensor& k, const torch::Tensor& v,
                                 PositionEncoding& encoding, const AttentionContext& context,
                                 AttentionCache* cache);

  AttentionOptions options_;
  int64_t head_dim_;
  torch::nn::Linear query_{nullptr}, key_{nullptr}, value_{nullptr}, output_{nullptr};
  FeatureMap features_{nullptr};  // of linear attention
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
