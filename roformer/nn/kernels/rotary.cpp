#include "roformer/nn/kernels/rotary.h"

#include <algorithm>
#include <cstring>

#include "roformer/nn/kernels/clones.h"

namespace roformer::kernels {
namespace {

ROFORMER_INLINE void turn_pairs(const float* __restrict x, const float* __restrict table, float* __restrict y,
                                int64_t dim, float sign) {
  for (int64_t i = 0; i < dim; i += 2) {
    const float c = table[i], s = sign * table[i + 1];
    y[i] = x[i] * c - x[i + 1] * s;
    y[i + 1] = x[i + 1] * c + x[i] * s;
  }
}

ROFORMER_INLINE void turn_halves(const float* __restrict x, const float* __restrict table,
                                 float* __restrict y, int64_t dim, float sign) {
  const int64_t half = dim / 2;
#pragma GCC ivdep
  for (int64_t i = 0; i < half; ++i) {
    const float c = table[2 * i], s = sign * table[2 * i + 1];
    y[i] = x[i] * c - x[i + half] * s;
    y[i + half] = x[i + half] * c + x[i] * s;
  }
}

// Rows of one head after another: their part of the table stays in the nearest cache while the heads take
// turns.
constexpr int64_t tile_rows = 128;
// Rows of a transposed view lie too far apart for the processor to guess the next one.
constexpr int64_t rows_ahead = 8;

ROFORMER_INLINE void prefetch(const float* row, int64_t width) {
  for (int64_t i = 0; i < width; i += 16) __builtin_prefetch(row + i);
}

}  // namespace

ROFORMER_CLONES void rotary(const Rotary& task, int64_t begin, int64_t end) {
  const Rotary t = task;
  const float sign = t.inverse ? -1.0f : 1.0f;
  for (int64_t at = begin; at < end;) {
    const int64_t batch = at / t.length, first = at % t.length;
    const int64_t rows = std::min({tile_rows, t.length - first, end - at});
    for (int64_t head = 0; head < t.heads; ++head) {
      const float* x = t.x + batch * t.x_batch + head * t.x_head + first * t.x_row;
      float* y = t.y + batch * t.y_batch + head * t.y_head + first * t.y_row;
      const float* table = t.table + batch * t.table_batch + first * t.table_row;
      for (int64_t row = 0; row < rows; ++row, x += t.x_row, y += t.y_row, table += t.table_row) {
        if (row + rows_ahead < rows) prefetch(x + rows_ahead * t.x_row, t.width);
        if (t.halves) {
          turn_halves(x, table, y, t.dim, sign);
        } else {
          turn_pairs(x, table, y, t.dim, sign);
        }
        if (t.dim < t.width)
          std::memcpy(y + t.dim, x + t.dim, static_cast<size_t>(t.width - t.dim) * sizeof(float));
      }
    }
    at += rows;
  }
}

}  // namespace roformer::kernels
