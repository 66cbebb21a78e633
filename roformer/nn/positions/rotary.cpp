#include "roformer/nn/rotary.h"

#include <ATen/Parallel.h>

#include <algorithm>
#include <cmath>

#include "roformer/core/error.h"
#include "roformer/nn/kernels/rotary.h"
#include "roformer/nn/kernels/rotary_cuda.h"
#include "roformer/nn/positions/row_cache.h"

namespace roformer {

kernels::RotaryCuda kernels::rotary_cuda = nullptr;

torch::Tensor rotary_theta(int64_t dim, double base) {
  return torch::pow(base, torch::arange(0, dim, 2, torch::kFloat64) / -static_cast<double>(dim));
}

namespace {

/// Theta with the base that stretches the slowest pair by `factor` and leaves the fastest alone.
torch::Tensor ntk_theta(int64_t dim, double base, double factor) {
  const double d = static_cast<double>(dim);
  return rotary_theta(dim, dim > 2 ? base * std::pow(factor, d / (d - 2.0)) : base);
}

ScaledTheta scale_theta(const NoScaling&, int64_t dim, double base, int64_t) {
  return {rotary_theta(dim, base)};
}

ScaledTheta scale_theta(const LinearScaling& o, int64_t dim, double base, int64_t) {
  return {rotary_theta(dim, base) / o.factor};
}

ScaledTheta scale_theta(const NtkScaling& o, int64_t dim, double base, int64_t) {
  return {ntk_theta(dim, base, o.factor)};
}

ScaledTheta scale_theta(const DynamicNtkScaling& o, int64_t dim, double base, int64_t length) {
  const double beyond =
      static_cast<double>(std::max(length, o.original_length)) / static_cast<double>(o.original_length);
  return {ntk_theta(dim, base, o.factor * beyond - (o.factor - 1.0))};
}

ScaledTheta scale_theta(const YarnScaling& o, int64_t dim, double base, int64_t) {
  // The pair that turns `turns` times within the original length.
  auto pair_of = [&](double turns) {
    return static_cast<double>(dim) *
           std::log(static_cast<double>(o.original_length) / (turns * 2.0 * M_PI)) / (2.0 * std::log(base));
  };
  double low = pair_of(o.beta_fast), high = pair_of(o.beta_slow);
  if (o.truncate) {
    low = std::floor(low);
    high = std::ceil(high);
  }
  low = std::max(low, 0.0);
  high = std::min(high, static_cast<double>(dim - 1));
  if (low == high) high += 0.001;
  const torch::Tensor ramp = ((torch::arange(dim / 2, torch::kFloat64) - low) / (high - low)).clamp(0.0, 1.0);
  const torch::Tensor theta = rotary_theta(dim, base);
  return {theta / o.factor * ramp + theta * (1.0 - ramp),
          o.attention_factor.value_or(0.1 * std::log(o.factor) + 1.0)};
}

ScaledTheta scale_theta(const Llama3Scaling& o, int64_t dim, double base, int64_t) {
  const torch::Tensor theta = rotary_theta(dim, base);
  const torch::Tensor turns = theta * (static_cast<double>(o.original_length) / (2.0 * M_PI));
  const torch::Tensor keep =
      ((turns - o.low_freq_factor) / (o.high_freq_factor - o.low_freq_factor)).clamp(0.0, 1.0);
  return {theta / o.factor * (1.0 - keep) + theta * keep};
}

}  // namespace

ScaledTheta scaled_theta(const RotaryOptions& options, int64_t dim, int64_t length) {
  return std::visit([&](const auto& scaling) { return scale_theta(scaling, dim, options.base, length); },
                    options.scaling);
}

torch::Tensor rotary_angles(int64_t length, int64_t dim, double base) {
  return torch::outer(torch::arange(length, torch::kFloat64), rotary_theta(dim, base));
}

torch::Tensor sinusoid_rows(const torch::Tensor& angles, SinusoidLayout layout) {
  const std::vector<torch::Tensor> columns{angles.sin(), angles.cos()};
  return layout == SinusoidLayout::interleaved ? torch::stack(columns, -1).flatten(-2)
                                               : torch::cat(columns, -1);
}

// --- The rotation
// --------------------------------------------------------------------------------------------------

torch::Tensor apply_rotary_plain(const torch::Tensor& x, const torch::Tensor& table, RotaryLayout layout) {
  const int64_t half = table.size(-2), width = x.size(-1);
  const bool interleaved = layout == RotaryLayout::interleaved;
  const torch::Dtype wide = x.scalar_type() == torch::kFloat64 ? torch::kFloat64 : table.scalar_type();
  const torch::Tensor polar =
      torch::view_as_complex(table.to(wide).contiguous()).unsqueeze(1);  // [B or 1, 1, L, half]

  torch::Tensor pairs = x.narrow(-1, 0, 2 * half).to(wide);  // to [B, H, L, half, 2]
  pairs = interleaved ? pairs.unflatten(-1, {half, 2}) : pairs.unflatten(-1, {2, half}).transpose(-1, -2);
  pairs = torch::view_as_real(torch::view_as_complex(pairs.contiguous()) * polar);
  const torch::Tensor turned =
      (interleaved ? pairs : pairs.transpose(-1, -2)).flatten(-2).to(x.scalar_type());
  return 2 * half == width ? turned : torch::cat({turned, x.narrow(-1, 2 * half, width - 2 * half)}, -1);
}

namespace {

constexpr int64_t rotary_grain = 65536;  // elements that are worth a thread

/// [B, H, L, d] in memory; with `heads_inside` as a view of [B, L, H, d], the order of the projections.
torch::Tensor empty_heads(torch::IntArrayRef size, bool heads_inside, const torch::TensorOptions& options) {
  if (!heads_inside) return torch::empty(size, options);
  return torch::empty({size[0], size[2], size[1], size[3]}, options).transpose(1, 2);
}

struct FusedRotary : torch::autograd::Function<FusedRotary> {
  static torch::Tensor forward(torch::autograd::AutogradContext* ctx, const torch::Tensor& x,
                               const torch::Tensor& table, bool halves, bool inverse, bool heads_inside) {
    ctx->save_for_backward({table});
    ctx->saved_data["halves"] = halves;
    ctx->saved_data["inverse"] = inverse;
    ctx->saved_data["heads_inside"] = x.stride(1) < x.stride(2);
    const torch::Tensor in = x.stride(-1) == 1 ? x : x.contiguous();
    torch::Tensor out = empty_heads(x.sizes(), heads_inside, x.options());
    if (x.is_cuda()) {
      kernels::rotary_cuda(in, table, out, halves, inverse);
      return out;
    }
    const kernels::Rotary task{
        .x = in.const_data_ptr<float>(),
        .y = out.mutable_data_ptr<float>(),
        .table = table.const_data_ptr<float>(),
        .x_batch = in.stride(0),
        .x_head = in.stride(1),
        .x_row = in.stride(2),
        .y_batch = out.stride(0),
        .y_head = out.stride(1),
        .y_row = out.stride(2),
        .table_batch = table.size(0) == 1 ? 0 : table.stride(0),
        .table_row = table.stride(1),
        .heads = x.size(1),
        .length = x.size(2),
        .width = x.size(3),
        .dim = 2 * table.size(2),
        .halves = halves,
        .inverse = inverse,
    };
    const int64_t grain = std::max<int64_t>(1, rotary_grain / std::max<int64_t>(1, task.heads * task.width));
    at::parallel_for(0, x.size(0) * x.size(2), grain,
                     [&](int64_t begin, int64_t end) { kernels::rotary(task, begin, end); });
    return out;
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* ctx,
                                                 torch::autograd::variable_list grads) {
    // A rotation is orthogonal: its transpose turns back. The gradient is laid out as x was.
    auto data = [&](const char* name) { return ctx->saved_data[name].toBool(); };
    return {apply(grads[0], ctx->get_saved_variables()[0], data("halves"), !data("inverse"),
                  data("heads_inside")),
            {},
            {},
            {},
            {}};
  }
};

bool has_kernel(const torch::Tensor& x) {
  const torch::Dtype type = x.scalar_type();
  if (x.is_cpu()) return type == torch::kFloat32;
  return x.is_cuda() && kernels::rotary_cuda &&
         (type == torch::kFloat32 || type == torch::kFloat16 || type == torch::kBFloat16);
}

}  // namespace

torch::Tensor apply_rotary(const torch::Tensor& x, const torch::Tensor& table, RotaryLayout layout) {
  TORCH_CHECK(x.dim() == 4 && table.dim() == 4 && table.size(3) == 2 && table.size(1) == x.size(2) &&
                  (table.size(0) == 1 || table.size(0) == x.size(0)) && 2 * table.size(2) <= x.size(3),
              "apply_rotary: x [B, H, L, d] and table [B or 1, L, dim / 2, 2] expected, got ", x.sizes(),
              " and ", table.sizes());
  const bool fused = has_kernel(x) && table.device() == x.device() &&
                     table.scalar_type() == torch::kFloat32 && !table.requires_grad();
  if (!fused) return apply_rotary_plain(x, table, layout);
  const bool rows_dense = table.stride(3) == 1 && table.stride(2) == 2;
  return FusedRotary::apply(x, rows_dense ? table : table.contiguous(), layout == RotaryLayout::halves,
                            /*inverse=*/false, /*heads_inside=*/false);
}

// --- The encoding
// --------------------------------------------------------------------------------------------------

namespace {

/// cos and sin of angles, side by side: [..., 2].
torch::Tensor cos_sin(const torch::Tensor& angles) { return torch::stack({angles.cos(), angles.sin()}, -1); }

class RotaryImpl : public PositionEncodingImpl {
 public:
  /// Eq. 19 divides by unrotated features: there the amplitude of YaRN would scale the output, and is left
  /// out.
  RotaryImpl(const RotaryOptions& options, int64_t dim, bool linear)
      : options_(options), dim_(dim), linear_(linear), cache_(rows_for(0)) {
    if (options_.trainable) {
      const ScaledTheta scaled = scaled_theta(options, dim, 0);
      theta_ = register_parameter("theta", scaled.theta.to(torch::kFloat32));
      amplitude_ = linear ? 1.0 : scaled.amplitude;
    }
  }

  torch::Tensor rotate(const torch::Tensor& heads, Side side, const Positions& positions) override {
    if (side == Side::value && !options_.values) return heads;
    const bool query = side == Side::query;
    const torch::Tensor& ids = query ? positions.q : positions.k;
    torch::Tensor rows = table(ids, query ? positions.q_start : positions.k_start, positions, heads);
    if (options_.xpos > 0.0 && side != Side::value)
      rows = rows * fading(ids, side, positions).to(rows.scalar_type());
    return apply_rotary(heads, rows, options_.layout);
  }

  bool cache_rotated() const override { return !follows_length() && options_.xpos == 0.0; }
  std::string_view name() const override { return RotaryOptions::type; }

  // A learned theta is never rounded to half precision: far positions multiply its error.
  void to(torch::Device device, torch::Dtype dtype, bool non_blocking) override {
    PositionEncodingImpl::to(device, wide(dtype), non_blocking);
  }
  void to(torch::Dtype dtype, bool non_blocking) override {
    PositionEncodingImpl::to(wide(dtype), non_blocking);
  }
  void to(torch::Device device, bool non_blocking) override {
    PositionEncodingImpl::to(device, non_blocking);
  }

 private:
  static torch::Dtype wide(torch::Dtype dtype) {
    return dtype == torch::kFloat64 ? torch::kFloat64 : torch::kFloat32;
  }

  bool follows_length() const { return std::holds_alternative<DynamicNtkScaling>(options_.scaling); }

  RowCache rows_for(int64_t length) const {
    return RowCache([options = options_, dim = dim_, linear = linear_, length](int64_t rows) {
      const ScaledTheta scaled = scaled_theta(options, dim, length);
      return cos_sin(torch::outer(torch::arange(rows, torch::kFloat64), scaled.theta)) *
             (linear ? 1.0 : scaled.amplitude);
    });
  }

  torch::Tensor table(const torch::Tensor& ids, int64_t start, const Positions& positions,
                      const torch::Tensor& heads) {
    if (options_.trainable) {
      const torch::Tensor angles = ids.to(torch::kFloat64).unsqueeze(-1) * theta_.to(torch::kFloat64);
      return cos_sin(angles).to(heads.scalar_type() == torch::kFloat64 ? torch::kFloat64 : torch::kFloat32) *
             amplitude_;
    }
    if (follows_length() && positions.length != cache_length_) {
      cache_ = rows_for(positions.length);
      cache_length_ = positions.length;
    }
    return rows_at(cache_.rows(positions.length, heads.device(), heads.scalar_type()), ids,
                   positions.contiguous, start);
  }

  /// xPos: zeta_i^(n / xpos) for queries, its inverse for keys, zeta_i = (2i + 0.4 d) / (1.4 d). Counted from
  /// the middle of the sequence, which cancels in the scores and keeps the powers in range.
  torch::Tensor fading(const torch::Tensor& ids, Side side, const Positions& positions) const {
    const double d = static_cast<double>(dim_);
    const torch::TensorOptions wide = torch::TensorOptions(torch::kFloat64).device(ids.device());
    const torch::Tensor zeta = (torch::arange(0, dim_, 2, wide) + 0.4 * d) / (1.4 * d);
    const double sign = side == Side::query ? 1.0 : -1.0;
    const torch::Tensor power = (ids - positions.length / 2).to(torch::kFloat64) * (sign / options_.xpos);
    return zeta.pow(power.unsqueeze(-1)).unsqueeze(-1);
  }

  RotaryOptions options_;
  int64_t dim_;
  bool linear_;
  RowCache cache_;
  int64_t cache_length_ = 0;  // that cache_ was made for, where theta follows the length
  torch::Tensor theta_;
  double amplitude_ = 1.0;  // of a learned theta's table
};

}  // namespace

void validate(const RotaryOptions& options, const ModelShape& shape) {
  const int64_t width = shape.rotary_width > 0 ? shape.rotary_width : shape.head_dim;
  if (options.dim % 2 != 0) {
    fail("positions: rotary 'dim' must be even because columns turn in pairs, got {}", options.dim);
  }
  if (options.dim > width) {
    fail("positions: rotary 'dim' is {}, but a head has {} columns only; 0 turns all", options.dim, width);
  }
  if (options.dim == 0 && width % 2 != 0) {
    fail(
        "positions: rotary needs an even head width, got {} (dim {} over {} heads); change these or set an "
        "even "
        "rotary 'dim' below it",
        width, shape.dim, shape.heads);
  }
  if (options.xpos > 0.0 && !shape.causal) {
    fail(
        "positions: rotary 'xpos' fades keys before the query and magnifies keys after it, so it needs a "
        "causal model, "
        "and this one reads both directions; set xpos: 0");
  }
  if (shape.linear && (options.xpos > 0.0 || options.values)) {
    fail("positions: rotary '{}' is for softmax attention, but model.attention is linear",
         options.xpos > 0.0 ? "xpos" : "values");
  }
  if (options.trainable && std::holds_alternative<DynamicNtkScaling>(options.scaling)) {
    fail("positions: rotary 'trainable' and 'scaling: dynamic' both decide theta; keep one of them");
  }
  if (const auto* yarn = std::get_if<YarnScaling>(&options.scaling);
      yarn && yarn->beta_fast < yarn->beta_slow) {
    fail("positions: yarn 'beta_fast' ({}) is below 'beta_slow' ({})", yarn->beta_fast, yarn->beta_slow);
  }
  if (const auto* llama = std::get_if<Llama3Scaling>(&options.scaling);
      llama && llama->high_freq_factor <= llama->low_freq_factor) {
    fail("positions: llama3 'high_freq_factor' ({}) must be above 'low_freq_factor' ({})",
         llama->high_freq_factor, llama->low_freq_factor);
  }
}

PositionEncoding make(const RotaryOptions& options, const ModelShape& shape) {
  validate(options, shape);
  const int64_t width = shape.rotary_width > 0 ? shape.rotary_width : shape.head_dim;
  return new_encoding<RotaryImpl>(options, options.dim > 0 ? options.dim : width, shape.linear);
}

}  // namespace roformer
