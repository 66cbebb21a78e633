#pragma once

#include <filesystem>
#include <functional>
#include <memory>
#include <optional>

#include "roformer/tasks/task.h"
#include "roformer/train/checkpoint.h"
#include "roformer/train/optimizer.h"
#include "roformer/train/precision.h"
#include "roformer/train/run_log.h"
#include "roformer/train/schedule.h"
#include "roformer/train/world.h"

namespace roformer {

/// A part of the training with a length and a batch of its own (Table 4 of the paper).
struct StageOptions {
  int64_t length = 0;
  int64_t batch = 16;
  int64_t steps = 1000;
};
template <class V>
void fields(V& v, StageOptions& o) {
  v("length", o.length, "tokens in a sequence", required(), within(3, 1 << 20));
  v("batch", o.batch, "sequences of one micro-batch", required(), within(1, 65536));
  v("steps", o.steps, "updates", required(), within(1, 1e9));
}

struct TrainerOptions {
  int64_t steps = 1000;
  std::optional<double> epochs;
  std::vector<StageOptions> stages;
  int64_t batch = 16;
  int64_t accumulate = 1;
  double clip = 1.0;
  OptimizerOptions optimizer = AdamWOptions{};
  ScheduleOptions schedule = ConstantOptions{};
  Precision precision = Precision::fp32;
  MatmulPrecision matmul_precision = MatmulPrecision::highest;
  double ema = 0.0;
  int64_t log_every = 10;
  int64_t evaluate_every = 100;
  int64_t checkpoint_every = 500;
  int64_t keep = 2;
  int64_t patience = 0;
  int64_t seed = 1;
  std::string device = "auto";
  int64_t threads = 0;
};
template <class V>
void fields(V& v, TrainerOptions& o) {
  v("steps", o.steps, "total updates", within(1, 1e9));
  v("epochs", o.epochs, "passes over the examples instead of steps, for tasks that have them", above(0.0),
    within(0.0, 1e6));
  v("stages", o.stages,
    "instead of steps, batch and data.length: a list of {length, batch, steps}, one after another; optimizer and schedule "
    "go on across them");
  v("batch", o.batch, "sequences of one micro-batch; an update reads batch x accumulate", within(1, 65536));
  v("accumulate", o.accumulate, "micro-batches of one update", within(1, 65536));
  v("clip", o.clip, "largest L2 norm of the gradient, after unscaling; 0 = no clipping", at_least(0.0));
  v("optimizer", o.optimizer, "how weights follow gradients");
  v("schedule", o.schedule, "learning rate over the updates");
  v("precision", o.precision, "autocast of the forward pass; weights stay float32");
  v("matmul_precision", o.matmul_precision, "float32 matrix products: LibTorch's choice of speed, checked at the start");
  v("ema", o.ema, "decay of an exponential moving average of the weights, used in evaluation; 0 = none",
    within(0.0, 0.999999));
  v("log_every", o.log_every, "updates between two training records", at_least(1));
  v("evaluate_every", o.evaluate_every, "updates between two evaluations (and one at the end of each stage); 0 = after each "
    "epoch", at_least(0));
  v("checkpoint_every", o.checkpoint_every, "updates between two checkpoints (and one at the end)", at_least(1));
  v("keep", o.keep, "newest checkpoints to keep, beside the best", at_least(1));
  v("patience", o.patience, "stop after so many evaluations without a new best; 0 = never", at_least(0));
  v("seed", o.seed, "of initial weights, data order, masks and dropout", at_least(0));
  v("device", o.device, "auto, cpu, cuda or cuda:N");
  v("threads", o.threads, "CPU threads; 0 = one per core", within(0, 1024));
}
void validate(const TrainerOptions& options);

/// `epochs` and `stages` made into numbers of updates: steps is their sum, evaluate_every at least 1.
TrainerOptions resolve(const TrainerOptions& options, const Task& task, const World& world);

/// The validation split with the model as it is; its count is 0 without validation data.
Evaluation evaluate_task(Task& task, const Stage& stage, Precision precision, const World& world);

/// Trains a task in a run folder: writes metrics.jsonl, TensorBoard events and checkpoints there. A run that was killed
/// at any moment and resumed equals an uninterrupted one bit for bit on the CPU.
class Trainer {
 public:
  Trainer(Task& task, const TrainerOptions& options, const World& world, std::filesystem::path run_folder);

  /// Goes on from the newest checkpoint that can be read; damaged ones are named in a warning and skipped. False when
  /// the folder holds none. Error when it holds checkpoints but none that can be read.
  bool resume();

  struct Result {
    Metrics metrics;        ///< of the last evaluation
    Evaluation evaluation;  ///< the last one; empty without validation data or when asked to end
    int64_t step = 0;       ///< updates made
    bool finished = false;  ///< false: asked to end (Ctrl-C) before that
    int64_t tokens = 0;
    double seconds = 0.0;  ///< training time, all restarts together
  };
  /// progress: called after every update with (step, training loss of the update, tokens per second).
  using Progress = std::function<void(int64_t, double, double)>;
  Result fit(const Progress& progress = {});

  int64_t step() const { return step_; }

 private:
  struct Update {
    double loss_sum = 0.0;
    int64_t count = 0;
    int64_t tokens = 0;
    double grad_norm = 0.0;
    double lr = 0.0;
  };
  Stage stage() const;
  void open_stream();
  Update make_update();
  Metrics evaluate_weights();
  Metrics evaluate();
  void log_update(RunLog& log, const Update& update);
  void evaluate_and_keep_best(RunLog& log);
  bool finished() const;  ///< all updates made, or patience is over
  void save(const RunLog& log);
  void restore(const Checkpoint& checkpoint);
  NamedTensors averaged_state() const;

  Task& task_;
  TrainerOptions options_;
  World world_;
  std::filesystem::path folder_;
  CheckpointFolder checkpoints_;
  Optimizer optimizer_;
  LossScaler scaler_;
  NamedTensors ema_;  ///< averages of the parameters, same order; empty without ema
  std::unique_ptr<BatchStream> stream_;
  size_t stage_index_ = 0;
  int64_t stage_end_ = 0;  ///< its last update
  Evaluation last_evaluation_;

  // What a checkpoint keeps beside tensors.
  int64_t step_ = 0;
  int64_t saved_step_ = 0;
  int64_t tokens_ = 0;
  double seconds_ = 0.0;
  Metrics last_metrics_;
  std::optional<double> best_;
  int64_t evaluations_since_best_ = 0;
  Update since_log_;  ///< sums over the updates since the last training record
};

}  // namespace roformer
