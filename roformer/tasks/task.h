#pragma once

#include <map>
#include <memory>
#include <string>

#include "roformer/core/shard.h"
#include "roformer/data/stream.h"

namespace roformer {

enum class Split { train, valid };

/// What a stream must know of the run: sequences of one micro-batch and process, and the seed.
struct Stage {
  int64_t batch = 1;
  uint64_t seed = 1;
};

/// A loss as sum and count, so that accumulation and data parallelism are exact for uneven batches: the trainer divides
/// each sum by the count of the whole update before its backward pass.
struct Loss {
  torch::Tensor sum;  ///< float32 scalar, nats
  int64_t count = 0;  ///< known on the host
};

using Metrics = std::map<std::string, double>;

/// Sums from which metrics follow; kept exact, so evaluations merge.
struct Evaluation {
  double loss_sum = 0.0;  ///< nats
  int64_t count = 0;
  int64_t correct = 0;
  Metrics metrics() const;  ///< "loss" and "accuracy" per counted target
};

/// A model with its data and its loss: all that the trainer needs.
class Task {
 public:
  virtual ~Task() = default;
  virtual torch::nn::Module& model() = 0;
  virtual std::unique_ptr<BatchStream> stream(Split split, const Stage& stage, Shard shard) = 0;
  /// With gradients. batch lies on the model's device.
  virtual Loss loss(const Batch& batch) = 0;
  /// Without gradients, in eval mode: adds the batch to the evaluation.
  virtual void score(const Batch& batch, Evaluation& evaluation) = 0;
  /// The metric that picks the best checkpoint (lower is better).
  virtual std::string headline() const { return "loss"; }
};

}  // namespace roformer
