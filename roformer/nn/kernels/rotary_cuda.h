#pragma once

namespace at {
class Tensor;
}

namespace roformer::kernels {

/// The rotation of kernels/rotary.h on CUDA, from x into y, both [B, H, L, d] with a last stride of 1:
/// float32, float16 or bfloat16, computed in float32. table: [B or 1, L, dim / 2, 2] float32 with dense rows.
/// All on one device; runs on its current stream.
using RotaryCuda = void (*)(const at::Tensor& x, const at::Tensor& table, const at::Tensor& y, bool halves,
                            bool inverse);

/// Null until World has opened the CUDA library, which holds it: then CUDA tensors take the plain twin.
extern RotaryCuda rotary_cuda;

/// Its name in the library.
inline constexpr const char* rotary_cuda_symbol = "roformer_rotary_cuda";

}  // namespace roformer::kernels
