#pragma once

#include <vector>

#include "roformer/torch.h"

namespace roformer {

/// What one forward pass reads. B sequences of L tokens; undefined tensors mean "not there".
struct Batch {
  torch::Tensor tokens;    ///< int64 [B, L]
  torch::Tensor keep;      ///< bool [B, L], true = token, false = padding; undefined = all tokens
  torch::Tensor segments;  ///< int64 [B, L]; undefined = all 0
  torch::Tensor targets;   ///< int64 [N], indices into the flat [B * L] tokens whose label counts, ascending;
                           ///< undefined where every token has a label, or a label belongs to a whole sequence
  torch::Tensor labels;    ///< [N] for targets, [B * L] for tokens or [B] for sequences: int64 classes, or float32
                           ///< scores

  int64_t token_count = 0;             ///< tokens that are no padding, counted on the host
  std::vector<int64_t> examples = {};  ///< which example of the data each sequence is; empty = nobody asks

  /// Labels of this batch, known on the host, so no device is asked.
  int64_t target_count() const { return labels.defined() ? labels.size(0) : 0; }

  Batch to(torch::Device device) const {
    auto move = [&](const torch::Tensor& t) { return t.defined() ? t.to(device, /*non_blocking=*/true) : t; };
    return {move(tokens), move(keep), move(segments), move(targets), move(labels), token_count, examples};
  }
};

}  // namespace roformer
