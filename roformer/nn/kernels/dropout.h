#pragma once

#include <cstdint>

namespace roformer::kernels {

/// y[i] = keep(seed, i) ? x[i] / (1 - p) : 0 for begin <= i < end, with P(keep) = 1 - p, 0 <= p <= 1. Whether
/// an element stays is a hash of (seed, i): no stored mask, the same for any split over threads, and the
/// backward pass is the same call on the gradient. x and y do not overlap.
void dropout(const float* x, float* y, int64_t begin, int64_t end, double p, uint64_t seed);

}  // namespace roformer::kernels
