#pragma once

#include <memory>
#include <vector>

#include "roformer/core/shard.h"
#include "roformer/data/stream.h"
#include "roformer/text/tokenizer.h"

namespace roformer {

/// A text, or a pair of texts, with a label for the whole of it.
struct LabelledExample {
  Encoding tokens;
  double label = 0.0;  ///< class, or score
};

struct ExampleStreamOptions {
  int64_t batch = 32;  ///< sequences of one batch of one shard
  uint64_t seed = 1;
  Shard shard;
  int64_t bucket =
      1;  ///< batches that are sorted by length together, so that little is padded; 1 = no sorting
  bool scores = false;   ///< labels are float32 scores, not classes
  int32_t pad = 0;       ///< fills up to the longest sequence of the batch
  bool segments = true;  ///< tell the model which text a token is from
};

/// Batches of one pass: the last one may be short.
int64_t example_batches(int64_t examples, const ExampleStreamOptions& options);

/// Endless passes, each in an order of its own that follows from (seed, pass). A pass ends with a short batch
/// (left out if it has fewer sequences than there are shards). batch.keep is undefined when no token is
/// padding. `examples` must not be empty.
std::unique_ptr<BatchStream> make_example_training(
    std::shared_ptr<const std::vector<LabelledExample>> examples, const ExampleStreamOptions& options);

/// All examples once, longest first. Rank r of n takes examples r, r + n, ... of each batch.
std::unique_ptr<BatchStream> make_example_validation(
    std::shared_ptr<const std::vector<LabelledExample>> examples, const ExampleStreamOptions& options);

}  // namespace roformer
