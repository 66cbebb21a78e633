#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "roformer/core/shard.h"
#include "roformer/data/stream.h"

namespace roformer {

enum class Split { train, valid };

/// What a stream must know of the run: sequences of one micro-batch and process, the seed, and tokens of a
/// sequence where the stage has a length of its own (0 = the data's).
struct Stage {
  int64_t batch = 1;
  uint64_t seed = 1;
  int64_t length = 0;
};

/// A loss as sum and count, so that accumulation and data parallelism are exact for uneven batches: the
/// trainer divides each sum by the count of the whole update before its backward pass.
struct Loss {
  torch::Tensor sum;  ///< float32 scalar, nats
  int64_t count = 0;  ///< known on the host
};

using Metrics = std::map<std::string, double>;

/// What a model said of one example.
struct Prediction {
  int64_t set = 0;      ///< of several validation sets
  int64_t example = 0;  ///< its number in the set
  double value = 0.0;   ///< class, or score
  double label = 0.0;   ///< the right one
};

/// What metrics follow from; kept exact, so evaluations merge.
struct Evaluation {
  double loss_sum = 0.0;  ///< nats (squared error for scores)
  int64_t count = 0;
  int64_t correct = 0;
  std::vector<Prediction> predictions;  ///< where the metrics need more than sums
};

/// The metric that picks the best checkpoint.
struct Headline {
  std::string metric = "loss";
  bool higher_is_better = false;
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
  /// An undefined metric (a correlation with a constant) is left out. Default: "loss" and "accuracy" per
  /// label.
  virtual Metrics metrics(const Evaluation& evaluation) const;
  virtual Headline headline() const { return {}; }
  /// Micro-batches of one pass over the training data; 0 = passes are not what this task counts in.
  virtual int64_t batches_per_epoch(const Stage&, Shard) const { return 0; }
  /// What the user may want to know of the data, one line each.
  virtual std::vector<std::string> notes() const { return {}; }
};

}  // namespace roformer
