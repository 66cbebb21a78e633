#include "roformer/nn/kernels/dropout.h"

#include <algorithm>
#include <bit>
#include <cmath>

#include "roformer/core/random.h"
#include "roformer/nn/kernels/clones.h"

namespace roformer::kernels {
namespace {

// A full-avalanche 32-bit permutation ("lowbias32", C. Wellons, https://github.com/skeeto/hash-prospector)
// with a second key and a third multiplication: one key alone would make the masks of two seeds shuffled
// copies of each other. The comparison looks at the high bits first, so the usual last shift is left out.
ROFORMER_INLINE uint32_t hash32(uint32_t x, uint32_t key) {
  x ^= x >> 16;
  x *= 0x7feb352dU;
  x ^= x >> 15;
  x += key;
  x *= 0x846ca68bU;
  x ^= x >> 16;
  return x * 0x9e3779b1U;
}

constexpr int block_bits = 30;  // elements under one pair of keys; 32-bit counters vectorise best

}  // namespace

ROFORMER_CLONES void dropout(const float* x, float* y, int64_t begin, int64_t end, double p, uint64_t seed) {
  if (p >= 1.0) return void(std::fill(y + begin, y + end, 0.0f));
  const float scale = static_cast<float>(1.0 / (1.0 - p));
  // Signed, because AVX2 has no unsigned comparison: hash - 2^31 >= threshold with probability 1 - p.
  const int64_t dropped = std::min<int64_t>(std::llround(p * 0x1p32), 0xffffffff);
  const int32_t threshold = static_cast<int32_t>(dropped - (int64_t{1} << 31));
  for (int64_t at = begin; at < end;) {
    const int64_t block = at >> block_bits;
    const int64_t stop = std::min(end, (block + 1) << block_bits);
    const uint64_t keys = mix(seed, static_cast<uint64_t>(block));
    const uint32_t first = static_cast<uint32_t>(keys), second = static_cast<uint32_t>(keys >> 32);
    const uint32_t low = static_cast<uint32_t>(at), count = static_cast<uint32_t>(stop - at);
    const float* __restrict in = x + at;
    float* __restrict out = y + at;
    for (uint32_t i = 0; i < count; ++i) {
      const uint32_t hash = hash32((low + i) ^ first, second);
      // A mask of bits rather than a condition: the compiler vectorises it, and a dropped infinity becomes 0.
      const uint32_t mask = static_cast<int32_t>(hash) >= threshold ? 0xffffffffU : 0U;
      out[i] = std::bit_cast<float>(std::bit_cast<uint32_t>(in[i] * scale) & mask);
    }
    at = stop;
  }
}

}  // namespace roformer::kernels
