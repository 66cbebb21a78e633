#include "roformer/nn/feature_map.h"

#include <cmath>
#include <limits>
#include <numbers>
#include <vector>

#include "roformer/core/random.h"

namespace roformer {
namespace {

constexpr double infinity_of_features = std::numeric_limits<double>::infinity();
constexpr double shortest_vector = 1e-6;  // keeps x / |x| and its gradient finite at x = 0

torch::Tensor at_least_float(const torch::Tensor& x) {
  return x.to(at::promote_types(x.scalar_type(), torch::kFloat32));
}

/// Two independent normal numbers (Box and Muller).
std::pair<double, double> normal_pair(Random& random) {
  const double radius = std::sqrt(-2.0 * std::log(1.0 - random.uniform()));
  const double angle = 2.0 * std::numbers::pi * random.uniform();
  return {radius * std::cos(angle), radius * std::sin(angle)};
}

std::vector<double> normal_vector(Random& random, int64_t size) {
  std::vector<double> x(static_cast<size_t>(size));
  for (size_t i = 0; i < x.size(); i += 2) {
    const auto [a, b] = normal_pair(random);
    x[i] = a;
    if (i + 1 < x.size()) x[i + 1] = b;
  }
  return x;
}

double product_of(const std::vector<double>& a, const std::vector<double>& b) {
  double sum = 0;
  for (size_t i = 0; i < a.size(); ++i) sum += a[i] * b[i];
  return sum;
}

/// A unit vector in a random direction that is orthogonal to `others`, of which there are fewer than `size`.
std::vector<double> next_direction(Random& random, int64_t size,
                                   const std::vector<std::vector<double>>& others) {
  std::vector<double> x = normal_vector(random, size);
  for (int pass = 0; pass < 2; ++pass) {  // the second removes what rounding left of the first
    for (const std::vector<double>& other : others) {
      const double along = product_of(x, other);
      for (size_t i = 0; i < x.size(); ++i) x[i] -= along * other[i];
    }
    const double length = std::sqrt(product_of(x, x));
    for (double& value : x) value /= length;
  }
  return x;
}

/// [B, 1, Lk, 1], true = padding.
torch::Tensor padding_rows(const torch::Tensor& keep) {
  return keep.logical_not().unsqueeze(1).unsqueeze(-1);
}

/// One maximum for each sequence and head, over tokens and columns: [B, H, 1, 1], 0 where there is no token.
/// Nothing flows back through it, as it cancels.
torch::Tensor key_maximum(const torch::Tensor& exponent, const torch::Tensor& keep) {
  const torch::Tensor x = exponent.detach();
  if (x.size(2) == 0) return x.new_zeros({x.size(0), x.size(1), 1, 1});
  if (!keep.defined()) return x.amax({2, 3}, /*keepdim=*/true);
  const torch::Tensor top = x.masked_fill(padding_rows(keep), -infinity_of_features).amax({2, 3}, true);
  return top.masked_fill(top == -infinity_of_features, 0.0);
}

/// exp, 0 in rows of padding. The exponent is masked, not its exp, which could be infinite there and make NaN
/// of a gradient of 0.
torch::Tensor masked_exp(torch::Tensor exponent, const torch::Tensor& keep) {
  if (keep.defined()) exponent = exponent.masked_fill(padding_rows(keep), -infinity_of_features);
  return exponent.exp();
}

torch::Tensor masked(const torch::Tensor& phi, const torch::Tensor& keep) {
  return keep.defined() ? phi.masked_fill(padding_rows(keep), 0.0) : phi;
}

torch::Tensor cosine_features(const torch::Tensor& x) {
  const torch::Tensor unit =
      x / torch::linalg_vector_norm(x, 2, {-1}, /*keepdim=*/true).clamp_min(shortest_vector);
  return torch::constant_pad_nd(unit, {0, 1}, 1.0);
}

/// max(0, y) + epsilon in place of y. Backward needs the result alone, so there is no second tensor.
torch::Tensor relu_features(torch::Tensor y, double epsilon) {
  if (epsilon == 0) return y.relu_();
  return at::hardtanh_(y.add_(epsilon), epsilon, std::numeric_limits<double>::infinity());
}

/// |y|^2 / 2 with y = x / d^(1/4): [..., 1]
torch::Tensor half_square(const torch::Tensor& x) {
  return x.square().sum(-1, /*keepdim=*/true) * (0.5 / std::sqrt(static_cast<double>(x.size(-1))));
}

}  // namespace

int64_t feature_width(const FeatureOptions& options, int64_t head_dim) {
  if (const auto* favor = std::get_if<FavorFeatures>(&options)) {
    if (favor->features > 0) return favor->features;
    const double d = static_cast<double>(head_dim);
    return std::max<int64_t>(2, static_cast<int64_t>(d * std::log(d)) / 2 * 2);
  }
  return std::holds_alternative<CosineFeatures>(options) ? head_dim + 1 : head_dim;
}

int64_t feature_rotary_width(const FeatureOptions& options, int64_t head_dim) {
  return std::holds_alternative<CosineFeatures>(options) ? head_dim : feature_width(options, head_dim);
}

void validate(const FeatureOptions& options, int64_t head_dim) {
  if (head_dim < 1) fail("feature maps need heads at least 1 wide, not {}", head_dim);
  const auto* favor = std::get_if<FavorFeatures>(&options);
  if (favor && favor->features % 2 != 0) {
    fail("features: {} is odd, and a rotation turns pairs of features; use {} or {}", favor->features,
         std::max<int64_t>(2, favor->features - 1), favor->features + 1);
  }
}

torch::Tensor favor_projection(int64_t features, int64_t head_dim, FavorScaling scaling, uint64_t key) {
  TORCH_CHECK(features > 0 && head_dim > 0, "favor_projection: no rows or no columns");
  Random random(key);
  torch::Tensor out = torch::empty({features, head_dim}, torch::kFloat32);
  float* to = out.mutable_data_ptr<float>();
  std::vector<std::vector<double>> block;
  for (int64_t row = 0; row < features; ++row) {
    if (static_cast<int64_t>(block.size()) == head_dim) block.clear();
    block.push_back(next_direction(random, head_dim, block));
    double length = std::sqrt(static_cast<double>(head_dim));
    if (scaling == FavorScaling::chi) {
      const std::vector<double> fresh = normal_vector(random, head_dim);
      length = std::sqrt(product_of(fresh, fresh));
    }
    for (const double x : block.back()) *to++ = static_cast<float>(length * x);
  }
  return out;
}

FeatureMapImpl::FeatureMapImpl(const FeatureOptions& options, int64_t head_dim, int64_t index)
    : options_(options), head_dim_(head_dim), index_(index) {
  validate(options, head_dim);
  width_ = feature_width(options, head_dim);
  rotary_width_ = feature_rotary_width(options, head_dim);
  if (std::holds_alternative<FavorFeatures>(options)) {
    projection_ = register_buffer("projection", torch::empty({width_, head_dim}));
    draw();
  }
}

void FeatureMapImpl::draw() {
  const auto& o = std::get<FavorFeatures>(options_);
  const uint64_t key =
      mix(static_cast<uint64_t>(o.seed), static_cast<uint64_t>(index_), static_cast<uint64_t>(draw_));
  const torch::NoGradGuard no_grad;
  // A new tensor: what an unfinished backward pass saved stays as it was.
  const torch::Tensor drawn = favor_projection(width_, head_dim_, o.scaling, key);
  projection_.set_data(drawn.to(projection_.options()));
}

void FeatureMapImpl::at_update(int64_t update) {
  const auto* o = std::get_if<FavorFeatures>(&options_);
  if (!o) return;
  const int64_t number = o->redraw_every > 0 ? update / o->redraw_every : 0;
  if (number == draw_) return;
  draw_ = number;
  draw();
}

torch::Tensor FeatureMapImpl::favor_products(const torch::Tensor& x) const {
  const double scale = std::pow(static_cast<double>(head_dim_), -0.25);
  return torch::matmul(x, (projection_.to(x.scalar_type()) * scale).t());
}

torch::Tensor FeatureMapImpl::query(const torch::Tensor& q) {
  TORCH_CHECK(q.dim() == 4 && q.size(3) == head_dim_, "features: q must be [B, heads, L, ", head_dim_,
              "], got ", q.sizes());
  const c10::impl::ExcludeDispatchKeyGuard no_autocast(c10::autocast_dispatch_keyset);
  const torch::Tensor x = at_least_float(q);
  if (std::holds_alternative<EluFeatures>(options_)) return torch::elu(x) + 1.0;
  if (std::holds_alternative<ShenFeatures>(options_)) return torch::softmax(x, -1);
  if (std::holds_alternative<CosineFeatures>(options_)) return cosine_features(x);

  const auto& o = std::get<FavorFeatures>(options_);
  torch::Tensor y = favor_products(x);
  if (o.kernel == FavorKernel::relu) {
    return relu_features(y, o.epsilon);
  }
  // 1 / sqrt(M) goes into the exponent, which saves a tensor of the size of phi.
  torch::Tensor less = y.detach().amax(-1, /*keepdim=*/true) + 0.5 * std::log(static_cast<double>(width_));
  if (o.epsilon == 0) return y.sub_(less).exp_();  // |y|^2 / 2 is a factor of the row: it cancels
  return y.sub_(less + half_square(x)).exp_() + o.epsilon / std::sqrt(static_cast<double>(width_));
}

torch::Tensor FeatureMapImpl::key(const torch::Tensor& k, const torch::Tensor& keep, bool causal) {
  TORCH_CHECK(k.dim() == 4 && k.size(3) == head_dim_, "features: k must be [B, heads, L, ", head_dim_,
              "], got ", k.sizes());
  TORCH_CHECK(
      !keep.defined() || (keep.scalar_type() == torch::kBool && keep.dim() == 2 && keep.size(1) == k.size(2)),
      "features: keep must be bool [B, Lk]");
  const c10::impl::ExcludeDispatchKeyGuard no_autocast(c10::autocast_dispatch_keyset);
  const torch::Tensor x = at_least_float(k);
  if (std::holds_alternative<EluFeatures>(options_)) return masked(torch::elu(x) + 1.0, keep);
  if (std::holds_alternative<ShenFeatures>(options_))
    return masked_exp(causal ? x : x - key_maximum(x, keep), keep);
  if (std::holds_alternative<CosineFeatures>(options_)) return masked(cosine_features(x), keep);

  const auto& o = std::get<FavorFeatures>(options_);
  torch::Tensor y = favor_products(x);
  if (o.kernel == FavorKernel::relu) {
    return masked(relu_features(y, o.epsilon), keep);
  }
  torch::Tensor less = half_square(x) + 0.5 * std::log(static_cast<double>(width_));
  if (!causal) less = less + key_maximum(o.epsilon > 0 ? y : y - half_square(x), keep);
  const torch::Tensor phi = masked_exp(y.sub_(less), keep);
  if (o.epsilon == 0) return phi;
  return masked(phi + o.epsilon / std::sqrt(static_cast<double>(width_)), keep);
}

FeatureMap make(const FeatureOptions& options, int64_t head_dim, int64_t index) {
  return FeatureMap(options, head_dim, index);
}

void redraw_features(torch::nn::Module& model, int64_t update) {
  for (const std::shared_ptr<torch::nn::Module>& module : model.modules(/*include_self=*/false)) {
    if (auto* features = module->as<FeatureMapImpl>()) features->at_update(update);
  }
}

}  // namespace roformer
