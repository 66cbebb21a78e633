#pragma once

#include "roformer/nn/positions.h"

// What encodings of distances share.

namespace roformer {

/// m - n of every pair: int64 [B or 1, Lq, Lk].
torch::Tensor distances(const Positions& positions);

/// Buckets of T5 for `relative` = n - m, int64, any shape: exact for small distances, logarithmic up to
/// max_distance, the last one beyond. Bidirectional: half of the buckets for n > m; else the future shares
/// bucket 0 with distance 0.
torch::Tensor t5_buckets(const torch::Tensor& relative, bool bidirectional, int64_t buckets,
                         int64_t max_distance);

/// Slopes of ALiBi: 2^(-8 h / heads) for a power of two; else those of the next lower power of two and every
/// other one of the next higher. float64 [heads] on the CPU.
torch::Tensor alibi_slopes(int64_t heads);

/// scores[.., i, t] of query i and table row t -> [.., i, j] with t = rows[i, j]. scores: [B, H, Lq, R];
/// rows: int64 [B or 1, Lq, Lk].
torch::Tensor pick_rows(const torch::Tensor& scores, const torch::Tensor& rows);

/// The same where the rows are the distances Lq - 1, ..., 1 - Lk in this order and positions are ranges that
/// end together: [.., Lq, Lq + Lk - 1] -> [.., Lq, Lk], a view in O(1).
torch::Tensor relative_shift(const torch::Tensor& scores, int64_t keys);

}  // namespace roformer
