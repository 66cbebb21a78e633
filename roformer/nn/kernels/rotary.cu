#include <ATen/core/Tensor.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

#include <algorithm>
#include <cstdint>

#include "roformer/nn/kernels/rotary.h"
#include "roformer/nn/kernels/rotary_cuda.h"

namespace roformer::kernels {
namespace {

/// N values that travel in one load or store; one by one where memory may not be aligned to them (Loose).
template <class T, int N>
struct alignas(N * sizeof(T)) Pack {
  T at[N];
};

template <int N, bool Loose, class T>
__device__ Pack<T, N> load(const T* from) {
  if constexpr (!Loose) {
    return *reinterpret_cast<const Pack<T, N>*>(from);
  } else {
    Pack<T, N> pack;
    for (int i = 0; i < N; ++i) pack.at[i] = from[i];
    return pack;
  }
}

template <bool Loose, int N, class T>
__device__ void store(T* to, const Pack<T, N>& pack) {
  if constexpr (!Loose) {
    *reinterpret_cast<Pack<T, N>*>(to) = pack;
  } else {
    for (int i = 0; i < N; ++i) to[i] = pack.at[i];
  }
}

/// The numbers of kernels/rotary.h, which is float32 alone: its pointers stay null here.
template <class T>
struct Task {
  const T* x;
  T* y;
  const float* table;
  Rotary shape;
  int64_t tokens;
  int chunks;  ///< pieces of work in one row: those of the turned columns, then those of the others
};

/// Turns N pairs of columns, the first of them pair `first`.
template <int N, class T>
__device__ void turn(const T* x, const float* table, T* y, int first, const Rotary& shape) {
  const int half = static_cast<int>(shape.dim) / 2;
  const float sign = shape.inverse ? -1.0f : 1.0f;
  const Pack<float, 2 * N> angles = load<2 * N, N == 1>(table + 2 * first);  // cos and sin in turn
  auto rotate = [&](int i, T& a, T& b) {
    const float c = angles.at[2 * i], s = sign * angles.at[2 * i + 1];
    const float u = static_cast<float>(a), v = static_cast<float>(b);
    a = static_cast<T>(u * c - v * s);
    b = static_cast<T>(v * c + u * s);
  };
  if (shape.halves) {
    Pack<T, N> a = load<N, false>(x + first), b = load<N, false>(x + first + half);
#pragma unroll
    for (int i = 0; i < N; ++i) rotate(i, a.at[i], b.at[i]);
    store<false>(y + first, a);
    store<false>(y + first + half, b);
  } else {
    Pack<T, 2 * N> pairs = load<2 * N, N == 1>(x + 2 * first);
#pragma unroll
    for (int i = 0; i < N; ++i) rotate(i, pairs.at[2 * i], pairs.at[2 * i + 1]);
    store<N == 1>(y + 2 * first, pairs);
  }
}

/// Threads: x over the chunks of a row, y over the heads, z over tokens. Chunks and then heads lie side by
/// side in memory where x comes from a projection, so that a warp reads without gaps.
template <int N, class T>
__global__ void rotary_kernel(const Task<T> task) {
  const int64_t token = static_cast<int64_t>(blockIdx.x) * blockDim.z + threadIdx.z;
  if (token >= task.tokens) return;
  const Rotary& shape = task.shape;
  const int64_t batch = token / shape.length, row = token % shape.length;
  const float* table = task.table + batch * shape.table_batch + row * shape.table_row;
  const int turned = static_cast<int>(shape.dim) / (2 * N);
  for (int64_t head = threadIdx.y; head < shape.heads; head += blockDim.y) {
    const T* x = task.x + batch * shape.x_batch + head * shape.x_head + row * shape.x_row;
    T* y = task.y + batch * shape.y_batch + head * shape.y_head + row * shape.y_row;
    for (int chunk = static_cast<int>(threadIdx.x); chunk < task.chunks;
         chunk += static_cast<int>(blockDim.x)) {
      if (chunk < turned) {
        turn<N>(x, table, y, chunk * N, shape);
      } else {
        const int64_t begin = shape.dim + (chunk - turned) * 2 * N;
        const int64_t end = begin + 2 * N < shape.width ? begin + 2 * N : shape.width;
        for (int64_t i = begin; i < end; ++i) y[i] = x[i];
      }
    }
  }
}

bool aligned(const void* pointer, size_t bytes) { return reinterpret_cast<uintptr_t>(pointer) % bytes == 0; }

template <class T>
void launch(const at::Tensor& x, const at::Tensor& table, const at::Tensor& y, bool halves, bool inverse) {
  Task<T> task{
      .x = x.const_data_ptr<T>(),
      .y = y.mutable_data_ptr<T>(),
      .table = table.const_data_ptr<float>(),
      .shape = {.x_batch = x.stride(0),
                .x_head = x.stride(1),
                .x_row = x.stride(2),
                .y_batch = y.stride(0),
                .y_head = y.stride(1),
                .y_row = y.stride(2),
                .table_batch = table.size(0) == 1 ? 0 : table.stride(0),
                .table_row = table.stride(1),
                .heads = x.size(1),
                .length = x.size(2),
                .width = x.size(3),
                .dim = 2 * table.size(2),
                .halves = halves,
                .inverse = inverse},
      .tokens = x.size(0) * x.size(2),
  };
  const Rotary& shape = task.shape;
  const bool packed = aligned(task.x, 4 * sizeof(T)) && aligned(task.y, 4 * sizeof(T)) &&
                      aligned(task.table, 4 * sizeof(float)) &&
                      (shape.dim | shape.x_batch | shape.x_head | shape.x_row | shape.y_batch | shape.y_head |
                       shape.y_row | shape.table_batch | shape.table_row) %
                              4 ==
                          0;
  const int64_t columns = packed ? 4 : 2;  // of one chunk
  task.chunks = static_cast<int>(shape.dim / columns + (shape.width - shape.dim + columns - 1) / columns);

  constexpr int threads = 256;
  dim3 block;
  block.x = static_cast<unsigned>(std::min(task.chunks, threads));
  block.y = static_cast<unsigned>(std::min<int64_t>(shape.heads, threads / block.x));
  block.z = std::clamp<unsigned>(threads / (block.x * block.y), 1, 64);
  const auto blocks = static_cast<unsigned>((task.tokens + block.z - 1) / block.z);
  const auto stream = c10::cuda::getCurrentCUDAStream(x.device().index());
  if (packed) {
    rotary_kernel<2, T><<<blocks, block, 0, stream>>>(task);
  } else {
    rotary_kernel<1, T><<<blocks, block, 0, stream>>>(task);
  }
  C10_CUDA_KERNEL_LAUNCH_CHECK();
}

}  // namespace
}  // namespace roformer::kernels

extern "C" void roformer_rotary_cuda(const at::Tensor& x, const at::Tensor& table, const at::Tensor& y,
                                     bool halves, bool inverse) {
  using roformer::kernels::launch;
  if (x.numel() == 0) return;
  const c10::cuda::CUDAGuard guard(x.device());
  switch (x.scalar_type()) {
    case at::kFloat:
      return launch<float>(x, table, y, halves, inverse);
    case at::kHalf:
      return launch<c10::Half>(x, table, y, halves, inverse);
    case at::kBFloat16:
      return launch<c10::BFloat16>(x, table, y, halves, inverse);
    default:
      TORCH_CHECK(false, "rotary on CUDA: float32, float16 or bfloat16 expected, got ", x.scalar_type());
  }
}

static_assert(std::is_same_v<decltype(&roformer_rotary_cuda), roformer::kernels::RotaryCuda>);
