#pragma once

#include <memory>
#include <optional>

#include "roformer/data/batch.h"

namespace roformer {

/// Where a stream stands: the number of samples (over all shards) consumed since the start. The epoch and the place in
/// it follow from it, so this is all that a checkpoint keeps of the data.
struct StreamState {
  int64_t samples = 0;
};

/// A source of batches that can be left and entered anywhere. Training streams never end; validation streams do.
class BatchStream {
 public:
  virtual ~BatchStream() = default;
  /// The next batch; empty at the end of a finite stream.
  virtual std::optional<Batch> next() = 0;
  /// As of the last batch handed out.
  virtual StreamState state() const = 0;
  virtual void restore(StreamState state) = 0;
};

/// Fills batches on a thread of its own, `depth` ahead. state() is that of the batch handed out, not of the one being
/// prepared. An exception of the source is rethrown by next().
std::unique_ptr<BatchStream> prefetch(std::unique_ptr<BatchStream> source, int depth = 2);

}  // namespace roformer
