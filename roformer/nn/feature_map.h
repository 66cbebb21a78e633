#pragma once

#include <array>
#include <string_view>
#include <utility>
#include <variant>

#include "roformer/core/config.h"
#include "roformer/torch.h"

// Feature maps phi of linear attention (eq. 18 and 19): sim(q, k) = phi(q) . phi(k).

namespace roformer {

/// elu(x) + 1 (Katharopoulos et al. 2020).
struct EluFeatures {
  static constexpr std::string_view type = "elu";
};
template <class V>
void fields(V&, EluFeatures&) {}

/// Softmax over the channels of a query, exp of a key (Shen et al. 2021). Keys of an encoder are divided by
/// exp of their maximum, which cancels.
struct ShenFeatures {
  static constexpr std::string_view type = "shen";
};
template <class V>
void fields(V&, ShenFeatures&) {}

/// sim = 1 + cos(q, k) (Su, kexue.fm, the post that introduced RoPE): phi(x) = [x / |x|, 1]. Only the leading
/// head_dim columns turn, so the sum is 1 + cos(rot q, rot k). Turning before phi does the same to the
/// numerator and, as the post proposes, to the denominator too, which stays positive.
struct CosineFeatures {
  static constexpr std::string_view type = "cosine";
};
template <class V>
void fields(V&, CosineFeatures&) {}

enum class FavorKernel { softmax, relu };
inline auto enum_names(FavorKernel) {
  return std::array<std::pair<FavorKernel, std::string_view>, 2>{
      {{FavorKernel::softmax, "softmax"}, {FavorKernel::relu, "relu"}}};
}

enum class FavorScaling { chi, sqrt_d };
inline auto enum_names(FavorScaling) {
  return std::array<std::pair<FavorScaling, std::string_view>, 2>{
      {{FavorScaling::chi, "chi"}, {FavorScaling::sqrt_d, "sqrt_d"}}};
}

/// FAVOR+ (Choromanski et al. 2021): with y = x / d^(1/4) and a random W of orthogonal blocks,
///   softmax: exp(W y - |y|^2 / 2) / sqrt(M), so that phi(q) . phi(k) has the mean exp(q . k / sqrt(d));
///   relu:    max(0, W y).
/// Factors that cancel are chosen against overflow: a query's largest exponent becomes 0, and so does that of
/// all tokens of a sequence and head among the keys, except in causal use, where it would tell of later keys.
/// `epsilon` does not cancel. With one, the queries' and keys' maxima are those of W y, as in
/// performer-pytorch.
struct FavorFeatures {
  static constexpr std::string_view type = "favor";
  int64_t features = 0;
  FavorKernel kernel = FavorKernel::softmax;
  FavorScaling scaling = FavorScaling::chi;
  int64_t redraw_every = 1000;
  double epsilon = 0.0;
  int64_t seed = 1;
};
template <class V>
void fields(V& v, FavorFeatures& o) {
  v("features", o.features, "width M of phi (even); 0 = d ln d for heads of width d, rounded down to even",
    within(0, 1 << 16));
  v("kernel", o.kernel, "softmax approximates softmax attention; relu is a kernel of its own");
  v("scaling", o.scaling, "lengths of the random rows: of Gaussian vectors (chi), or sqrt(d) for all");
  v("redraw_every", o.redraw_every, "updates between two draws of the random matrix; 0 = keep the first",
    at_least(0));
  v("epsilon", o.epsilon,
    "added to phi, which biases attention towards the mean (performer-pytorch: 1e-4, relu 1e-3)",
    at_least(0.0));
  v("seed", o.seed, "of the random matrices; every layer has its own", at_least(0));
}

using FeatureOptions = std::variant<FavorFeatures, EluFeatures, ShenFeatures, CosineFeatures>;

/// Width M of phi for heads of width head_dim.
int64_t feature_width(const FeatureOptions& options, int64_t head_dim);

/// How many leading columns of phi a rotation may turn under eq. 19.
int64_t feature_rotary_width(const FeatureOptions& options, int64_t head_dim);

/// Throws Error for what does not fit a head: an odd number of features.
void validate(const FeatureOptions& options, int64_t head_dim);

/// W of FavorFeatures, [features, head_dim] float32 on the CPU: blocks of head_dim orthogonal rows. A
/// function of its arguments alone: no generator, no linear algebra library.
torch::Tensor favor_projection(int64_t features, int64_t head_dim, FavorScaling scaling, uint64_t key);

/// phi for one layer. float32 is the least precision inside; returns float32, or float64 for float64.
/// FavorFeatures keeps its W in the buffer "projection".
class FeatureMapImpl : public torch::nn::Module {
 public:
  FeatureMapImpl(const FeatureOptions& options, int64_t head_dim, int64_t index);

  int64_t width() const { return width_; }
  int64_t rotary_width() const { return rotary_width_; }

  /// q: [B, H, Lq, head_dim] -> [B, H, Lq, M]
  torch::Tensor query(const torch::Tensor& q);
  /// k: [B, H, Lk, head_dim] -> [B, H, Lk, M]; keep: bool [B, Lk], true = token, or undefined. Rows of
  /// padding are zero, and so leave numerator and denominator. With `causal` each row depends on its own key
  /// alone.
  torch::Tensor key(const torch::Tensor& k, const torch::Tensor& keep, bool causal);

  /// Brings W to the draw that belongs to an update, number update / redraw_every: the same however the
  /// update was reached.
  void at_update(int64_t update);

 private:
  torch::Tensor favor_products(const torch::Tensor& x) const;
  void draw();

  FeatureOptions options_;
  int64_t head_dim_, index_, width_, rotary_width_;
  int64_t draw_ = 0;  // number of the draw in projection_
  torch::Tensor projection_;
};
TORCH_MODULE(FeatureMap);

/// phi of the layer `index` (layers differ). Throws Error like validate().
FeatureMap make(const FeatureOptions& options, int64_t head_dim, int64_t index);

/// at_update() for every feature map in a model.
void redraw_features(torch::nn::Module& model, int64_t update);

}  // namespace roformer
