#include <algorithm>
#include <cmath>

#include "roformer/core/error.h"
#include "roformer/nn/positions/relative.h"
#include "roformer/nn/positions/row_cache.h"

// Encodings that add a bias without a look at the content: one per forward pass, for all layers.

namespace roformer {

torch::Tensor t5_buckets(const torch::Tensor& relative, bool bidirectional, int64_t buckets,
                         int64_t max_distance) {
  torch::Tensor first = torch::zeros_like(relative);
  torch::Tensor distance;
  if (bidirectional) {
    buckets /= 2;
    first = relative.gt(0).to(torch::kInt64) * buckets;
    distance = relative.abs();
  } else {
    distance = (-relative).clamp_min(0);
  }
  const int64_t exact = std::max<int64_t>(buckets / 2, 1);
  // float32 as in T5: its rounding decides at the edges of buckets.
  const double factor = static_cast<double>(buckets - exact);
  const torch::Tensor logarithm =
      (distance.clamp_min(1).to(torch::kFloat32) / static_cast<double>(exact)).log() /
      std::log(static_cast<double>(max_distance) / static_cast<double>(exact)) * factor;
  const torch::Tensor far = (logarithm.to(torch::kInt64) + exact).clamp_max(buckets - 1);
  return first + torch::where(distance.lt(exact), distance, far);
}

torch::Tensor alibi_slopes(int64_t heads) {
  int64_t power = 1;
  while (2 * power <= heads) power *= 2;
  std::vector<double> slopes;
  for (int64_t h = 1; h <= power; ++h)
    slopes.push_back(std::exp2(-8.0 * static_cast<double>(h) / static_cast<double>(power)));
  for (int64_t h = 1; static_cast<int64_t>(slopes.size()) < heads; h += 2) {
    slopes.push_back(std::exp2(-4.0 * static_cast<double>(h) / static_cast<double>(power)));
  }
  return torch::tensor(slopes, torch::kFloat64);
}

namespace {

/// rows of a table [R, H] by bucket [B or 1, Lq, Lk]: [B or 1, H, Lq, Lk].
torch::Tensor bias_of_buckets(const torch::Tensor& table, const torch::Tensor& buckets) {
  return table.index_select(0, buckets.flatten())
      .view({buckets.size(0), buckets.size(1), buckets.size(2), -1})
      .permute({0, 3, 1, 2});
}

class T5Impl : public PositionEncodingImpl {
 public:
  T5Impl(const T5Options& options, const ModelShape& shape) : options_(options), causal_(shape.causal) {
    table_ = register_parameter("table", torch::randn({options.buckets, shape.heads}) * options.init_std);
  }

  torch::Tensor bias(const Positions& positions) override {
    return bias_of_buckets(
        table_, t5_buckets(-distances(positions), !causal_, options_.buckets, options_.max_distance));
  }
  double scale(int64_t) const override { return 1.0; }
  Needs needs() const override { return Needs::bias; }
  std::string_view name() const override { return T5Options::type; }

 private:
  T5Options options_;
  bool causal_;
  torch::Tensor table_;
};

class AlibiImpl : public PositionEncodingImpl {
 public:
  explicit AlibiImpl(int64_t heads)  // rows of the cache are heads here
      : cache_([heads](int64_t) { return alibi_slopes(heads).unsqueeze(-1).unsqueeze(-1); }), heads_(heads) {}

  torch::Tensor bias(const Positions& positions) override {
    const torch::Tensor& slopes = cache_.rows(heads_, positions.q.device(), torch::kFloat32);
    return -slopes * distances(positions).abs().unsqueeze(1);
  }
  Needs needs() const override { return Needs::bias; }
  std::string_view name() const override { return AlibiOptions::type; }

 private:
  RowCache cache_;
  int64_t heads_;
};

/// Eq. 9.
class TupeImpl : public PositionEncodingImpl {
 public:
  TupeImpl(const TupeOptions& options, const ModelShape& shape)
      : options_(options), heads_(shape.heads), head_dim_(shape.head_dim), causal_(shape.causal) {
    auto add = [&](const char* name, torch::IntArrayRef size) {
      return register_parameter(name, torch::randn(size) * options.init_std);
    };
    const int64_t width = shape.heads * shape.head_dim;
    table_ = add("table", {options.max_length, shape.dim});
    query_ = add("query", {width, shape.dim});
    key_ = add("key", {width, shape.dim});
    if (options.buckets > 0) relative_ = add("relative", {options.buckets, shape.heads});
    if (options.untie_first) first_ = add("first", {2, shape.heads});
  }

  torch::Tensor bias(const Positions& positions) override {
    auto side = [&](const torch::Tensor& weight, const torch::Tensor& ids, int64_t start) {
      const torch::Tensor p = rows_at(table_, ids, positions.contiguous, start);  // [B or 1, L, dim]
      return torch::matmul(p, weight.t()).unflatten(-1, {heads_, head_dim_}).transpose(1, 2);
    };
    const torch::Tensor q = side(query_, positions.q, positions.q_start) * scale(head_dim_);
    torch::Tensor bias = torch::matmul(q, side(key_, positions.k, positions.k_start).transpose(-2, -1));
    if (relative_.defined()) {
      bias = bias + bias_of_buckets(relative_, t5_buckets(-distances(positions), !causal_, options_.buckets,
                                                          options_.max_distance));
    }
    if (!first_.defined()) return bias;
    auto untie = [&](int64_t row, const torch::Tensor& pairs) {
      bias =
          torch::where(pairs.unsqueeze(1), first_[row].view({1, heads_, 1, 1}).to(bias.scalar_type()), bias);
    };
    untie(1, positions.k.eq(0).unsqueeze(1));  // the others to [CLS]
    untie(0, positions.q.eq(0).unsqueeze(2));  // [CLS] to all
    return bias;
  }
  double scale(int64_t head_dim) const override {
    return 1.0 / std::sqrt(2.0 * static_cast<double>(head_dim));
  }
  Needs needs() const override { return Needs::bias; }
  int64_t limit() const override { return options_.max_length; }
  std::string_view name() const override { return TupeOptions::type; }

 private:
  TupeOptions options_;
  int64_t heads_, head_dim_;
  bool causal_;
  torch::Tensor table_, query_, key_, relative_, first_;
};

}  // namespace

namespace {

void require_buckets(std::string_view name, int64_t buckets, int64_t max_distance, bool causal) {
  const int64_t least = causal ? 2 : 4;
  if (buckets % least != 0) {
    fail("positions: {} 'buckets' must be a multiple of {} here, got {}", name, least, buckets);
  }
  if (max_distance <= buckets / least) {
    fail("positions: {} 'max_distance' must be more than {} for {} buckets, got {}", name, buckets / least,
         buckets, max_distance);
  }
}

}  // namespace

void validate(const T5Options& options, const ModelShape& shape) {
  require_buckets(T5Options::type, options.buckets, options.max_distance, shape.causal);
}

void validate(const TupeOptions& options, const ModelShape& shape) {
  if (options.buckets > 0)
    require_buckets(TupeOptions::type, options.buckets, options.max_distance, shape.causal);
}

PositionEncoding make(const T5Options& options, const ModelShape& shape) {
  return new_encoding<T5Impl>(options, shape);
}
PositionEncoding make(const AlibiOptions&, const ModelShape& shape) {
  return new_encoding<AlibiImpl>(shape.heads);
}
PositionEncoding make(const TupeOptions& options, const ModelShape& shape) {
  return new_encoding<TupeImpl>(options, shape);
}

}  // namespace roformer
