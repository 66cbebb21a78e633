#pragma once

#include "roformer/torch.h"

namespace roformer {

/// What one forward pass reads. B sequences of L tokens; undefined tensors mean "not there".
struct Batch {
  torch::Tensor tokens;    ///< int64 [B, L]
  torch::Tensor keep;      ///< bool [B, L], true = token, false = padding; undefined = all tokens
  torch::Tensor segments;  ///< int64 [B, L]; undefined = all 0
  torch::Tensor targets;   ///< int64 [N], indices into the flat [B * L] tokens whose label counts, ascending
  torch::Tensor labels;    ///< int64 [N], the labels at `targets`

  int64_t token_count = 0;  ///< tokens that are no padding, counted on the host

  /// Targets of this batch, known on the host, so no device is asked.
  int64_t target_count() const { return targets.defined() ? targets.size(0) : 0; }

  Batch to(torch::Device device) const {
    auto move = [&](const torch::Tensor& t) { return t.defined() ? t.to(device, /*non_blocking=*/true) : t; };
    return {move(tokens), move(keep), move(segments), move(targets), move(labels), token_count};
  }
};

}  // namespace roformer
