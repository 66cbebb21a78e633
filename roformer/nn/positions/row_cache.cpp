#include "roformer/nn/positions/row_cache.h"

#include <algorithm>

namespace roformer {

const torch::Tensor& RowCache::rows(int64_t length, torch::Device device, torch::Dtype dtype) {
  const torch::Dtype kept = dtype == torch::kFloat64 ? torch::kFloat64 : torch::kFloat32;
  auto found = std::find_if(tables_.begin(), tables_.end(), [&](const torch::Tensor& table) {
    return table.device() == device && table.scalar_type() == kept;
  });
  if (found == tables_.end()) found = tables_.insert(tables_.end(), torch::Tensor());
  if (!found->defined() || found->size(0) < length) {
    const int64_t smallest = 256;
    const int64_t rows = std::max({length, smallest, found->defined() ? 2 * found->size(0) : 0});
    // A table first needed during evaluation must serve training as well.
    const torch::InferenceMode no_inference(false);
    const torch::NoGradGuard no_grad;
    *found = fill_(rows).to(kept).to(device);
  }
  return *found;
}

torch::Tensor rows_at(const torch::Tensor& table, const torch::Tensor& ids, bool contiguous, int64_t start) {
  if (contiguous) return table.narrow(0, start, ids.size(-1)).unsqueeze(0);
  return table.index_select(0, ids.flatten()).unflatten(0, ids.sizes());
}

}  // namespace roformer
