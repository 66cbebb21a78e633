#pragma once

#include "roformer/nn/positions.h"

// The rotation of eq. 14-16 and 34 as a function of tensors; RotaryOptions makes the encoding that uses it.

namespace roformer {

/// theta_i = base^(-2i / dim), i = 0 .. dim / 2 - 1: [dim / 2] float64 on the CPU.
torch::Tensor rotary_theta(int64_t dim, double base = 10000.0);

/// Theta and the factor of cos and sin for sequences of `length` tokens under options.scaling.
struct ScaledTheta {
  torch::Tensor theta;  ///< [dim / 2] float64 on the CPU
  double amplitude = 1.0;
};
ScaledTheta scaled_theta(const RotaryOptions& options, int64_t dim, int64_t length);

/// Angles m * theta_i, m = 0 .. length - 1, in double: [length, dim / 2] float64 on the CPU.
torch::Tensor rotary_angles(int64_t length, int64_t dim, double base = 10000.0);

/// sin and cos of rows of angles [rows, dim / 2] as eq. 4 lays them out: [rows, dim].
torch::Tensor sinusoid_rows(const torch::Tensor& angles, SinusoidLayout layout);

/// Turns the first `dim` columns of x by the angles of `table` and copies the others.
/// x: [B, H, L, d], any device and floating dtype, any strides. table: [B or 1, L, dim / 2, 2], cos and sin,
/// float32 or float64, on the device of x. Returns [B, H, L, d] in the dtype of x. bfloat16 and float16 are
/// computed in float32. With a fixed table, float32 on the CPU takes the fused loop (nn/kernels/rotary.h) and
/// what is no float64 on CUDA the fused kernel where the CUDA library is open (nn/kernels/rotary_cuda.h); all
/// else takes apply_rotary_plain. Differentiable any number of times; to the table as well, where it requires
/// a gradient.
torch::Tensor apply_rotary(const torch::Tensor& x, const torch::Tensor& table, RotaryLayout layout);

/// The same in plain ATen: a complex product of the pairs with cos + i sin.
torch::Tensor apply_rotary_plain(const torch::Tensor& x, const torch::Tensor& table, RotaryLayout layout);

}  // namespace roformer
