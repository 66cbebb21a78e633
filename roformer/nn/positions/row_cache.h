#pragma once

#include <functional>
#include <utility>
#include <vector>

#include "roformer/torch.h"

namespace roformer {

/// Rows of a fixed table by position, computed in float64 and kept in float32 (float64 for float64 models) on
/// each device that asks. It is neither parameter nor buffer, so no cast of the module rounds it and no
/// checkpoint holds it. It grows past any length by doubling.
class RowCache {
 public:
  /// `fill(n)`: the first n rows, float64 on the CPU.
  explicit RowCache(std::function<torch::Tensor(int64_t)> fill) : fill_(std::move(fill)) {}

  /// At least `length` rows for computing with `dtype` on `device`.
  const torch::Tensor& rows(int64_t length, torch::Device device, torch::Dtype dtype);

 private:
  std::function<torch::Tensor(int64_t)> fill_;
  std::vector<torch::Tensor> tables_;  // one per device and dtype
};

/// Rows of a table for the positions `ids`, int64 [B or 1, L]: [B or 1, L, ...]. A plain range is a view.
torch::Tensor rows_at(const torch::Tensor& table, const torch::Tensor& ids, bool contiguous, int64_t start);

}  // namespace roformer
