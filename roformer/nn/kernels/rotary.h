#pragma once

#include <cstdint>

namespace roformer::kernels {

/// One rotation of x [batch, heads, length, width] float32 into y of the same shape: eq. 34 for the first
/// `dim` columns, the others are copied. Strides count floats; the last one is 1. x and y do not overlap.
struct Rotary {
  const float* x;
  float* y;
  const float* table;  ///< per row `dim` floats: cos and sin of each angle in turn
  int64_t x_batch, x_head, x_row;
  int64_t y_batch, y_head, y_row;
  int64_t table_batch, table_row;
  int64_t heads, length, width, dim;
  bool halves;   ///< pairs are (i, i + dim / 2) instead of (2i, 2i + 1)
  bool inverse;  ///< turn by the negative angle: the backward pass
};

/// Does tokens begin .. end - 1 of the batch * length ones. Each output depends on its own token alone, so
/// any split over threads gives the same bits.
void rotary(const Rotary& task, int64_t begin, int64_t end);

}  // namespace roformer::kernels
