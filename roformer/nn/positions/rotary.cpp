#include "roformer/nn/rotary.h"

#include <ATen/Parallel.h>

#include <algorithm>

#include "roformer/core/error.h"
#include "roformer/nn/kernels/rotary.h"
#include "roformer/nn/kernels/rotary_cuda.h"
#include "roformer/nn/positions/row_cache.h"

namespace roformer {

kernels::RotaryCuda kernels::rotary_cuda = nullptr;

torch::Tensor rotary_theta(int64_t dim, double base) {
  return torch::pow(base, torch::arange(0, dim, 2, torch::kFloat64) / -static_cast<double>(dim));
}

torch::Tensor rotary_angles(int64_t length, int64_t dim, double base) {
  return torch::outer(torch::arange(length, torch::kFloat64), rotary_theta(dim, base));
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
  RotaryImpl(const RotaryOptions& options, int64_t dim)
      : options_(options),
        dim_(dim),
        cache_([dim, base = options.base](int64_t rows) { return cos_sin(rotary_angles(rows, dim, base)); }) {
    if (options_.trainable)
      theta_ = register_parameter("theta", rotary_theta(dim, options.base).to(torch::kFloat32));
  }

  torch::Tensor rotate(const torch::Tensor& heads, Side side, const Positions& positions) override {
    if (side == Side::value && !options_.values) return heads;
    const bool query = side == Side::query;
    return apply_rotary(heads,
                        table(query ? positions.q : positions.k,
                              query ? positions.q_start : positions.k_start, positions, heads),
                        options_.layout);
  }

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

  torch::Tensor table(const torch::Tensor& ids, int64_t start, const Positions& positions,
                      const torch::Tensor& heads) {
    if (!options_.trainable) {
      return rows_at(cache_.rows(positions.length, heads.device(), heads.scalar_type()), ids,
                     positions.contiguous, start);
    }
    const torch::Tensor angles = ids.to(torch::kFloat64).unsqueeze(-1) * theta_.to(torch::kFloat64);
    return cos_sin(angles).to(heads.scalar_type() == torch::kFloat64 ? torch::kFloat64 : torch::kFloat32);
  }

  RotaryOptions options_;
  int64_t dim_;
  RowCache cache_;
  torch::Tensor theta_;
};

}  // namespace

void validate(const RotaryOptions& options, const ModelShape& shape) {
  if (options.dim % 2 != 0) {
    fail("positions: rotary 'dim' must be even because columns turn in pairs, got {}", options.dim);
  }
  if (options.dim > shape.head_dim) {
    fail("positions: rotary 'dim' is {}, but a head has {} columns only; 0 turns all", options.dim,
         shape.head_dim);
  }
  if (options.dim == 0 && shape.head_dim % 2 != 0) {
    fail(
        "positions: rotary needs an even head width, got {} (dim {} over {} heads); change these or set an "
        "even "
        "rotary 'dim' below it",
        shape.head_dim, shape.dim, shape.heads);
  }
}

PositionEncoding make(const RotaryOptions& options, const ModelShape& shape) {
  validate(options, shape);
  return new_encoding<RotaryImpl>(options, options.dim > 0 ? options.dim : shape.head_dim);
}

}  // namespace roformer
