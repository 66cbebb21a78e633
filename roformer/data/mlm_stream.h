#pragma once

#include <memory>

#include "roformer/core/shard.h"
#include "roformer/data/masking.h"
#include "roformer/data/stream.h"
#include "roformer/data/token_file.h"

namespace roformer {

struct MlmStreamOptions {
  MaskingOptions masking;
  int64_t batch = 16;  ///< sequences of one batch of one shard
  uint64_t seed = 1;
  Shard shard;
};

/// Endless batches for training. Sample s of the run is window permutation(s mod windows) of epoch s div
/// windows: each epoch has an order of its own, and batches run over its end. Masks follow from (seed, epoch,
/// window): fresh in every epoch, the same for any batch size, shard and restart. Of each batch * shard.size
/// samples rank r takes r, r + size, r + 2 size, ..., so the ranks together read what one process with batch
/// * size sequences reads. batch.keep is undefined when no token is padding. `windows` must not be empty.
std::unique_ptr<BatchStream> make_mlm_training(std::shared_ptr<const TokenFile> windows,
                                               const MaskTokens& tokens, const MlmStreamOptions& options);

/// The first `sequences` windows (or all there are) of a fixed random order, with fixed masks: the same for
/// every run over this text whatever its seed, then the end. The last batch may be short; a rank that has no
/// sample in it ends one batch earlier.
std::unique_ptr<BatchStream> make_mlm_validation(std::shared_ptr<const TokenFile> windows,
                                                 const MaskTokens& tokens, const MlmStreamOptions& options,
                                                 int64_t sequences);

}  // namespace roformer
