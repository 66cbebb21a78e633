#pragma once

#include "roformer/data/example_stream.h"
#include "roformer/data/glue.h"
#include "roformer/eval/metrics.h"
#include "roformer/models/heads.h"
#include "roformer/tasks/task.h"

namespace roformer {

/// Fine-tuning on a GLUE task (section 4.3 of the paper).
struct GlueOptions {
  static constexpr std::string_view type = "glue";
  GlueTask name = GlueTask::mrpc;
  std::filesystem::path folder;
  int64_t length = 128;
  int64_t train_rows = 0;
  int64_t bucket = 8;
  HeadKind head = HeadKind::roformer;
};
template <class V>
void fields(V& v, GlueOptions& o) {
  v("name", o.name, "the task; ax (the diagnostic set) has no training data: predict it with an mnli run");
  v("folder", o.folder, "the task's folder, or the one above it, with the official TSV files", required());
  v("length", o.length, "longest sequence in tokens; longer texts are cut, the longer one of a pair first",
    within(8, 1 << 16));
  v("train_rows", o.train_rows, "only the first so many training rows; 0 = all", at_least(0));
  v("bucket", o.bucket, "batches that are sorted by length together, which saves padding; 1 = none",
    within(1, 1 << 20));
  v("head", o.head,
    "on the first token. roformer: dropout, dense, the model's activation, dropout, output; bert: dense "
    "(BERT's pooler), "
    "tanh, dropout, output");
}
void validate(const GlueOptions& options);

/// The metrics of a task, the headline first.
std::vector<Metric> glue_metrics(GlueTask task);

/// The tokens of an example, cut to `length`.
Encoding encode_example(const Tokenizer& tokenizer, const TextExample& example, bool pair, int64_t length);

/// An encoder with a classifier on a GLUE task. Loss: cross-entropy, or squared error for STS-B's scores as
/// they are. Metrics of the dev set; of MNLI also accuracy_mm, on the mismatched one.
class FineTuneTask : public Task {
 public:
  /// Reads and tokenizes train and dev. model.vocab_size must be at least the tokenizer's.
  FineTuneTask(const GlueOptions& options, const EncoderOptions& model, const Tokenizer& tokenizer);

  torch::nn::Module& model() override { return *model_; }
  std::unique_ptr<BatchStream> stream(Split split, const Stage& stage, Shard shard) override;
  Loss loss(const Batch& batch) override;
  void score(const Batch& batch, Evaluation& evaluation) override;
  Metrics metrics(const Evaluation& evaluation) const override;
  Headline headline() const override;
  int64_t batches_per_epoch(const Stage& stage, Shard shard) const override;

  /// What the files had to say: rows left out.
  std::vector<std::string> notes() const override { return notes_; }

 private:
  using Examples = std::shared_ptr<const std::vector<LabelledExample>>;
  Examples read(const std::vector<GlueSource>& sources, const Tokenizer& tokenizer, int64_t rows,
                std::vector<int64_t>* ends);
  torch::Tensor loss_sum(const torch::Tensor& logits, const torch::Tensor& labels) const;
  ExampleStreamOptions stream_options(const Stage& stage, Shard shard) const;

  GlueOptions options_;
  const GlueInfo& info_;
  int32_t pad_;
  bool segments_;
  std::vector<std::string> notes_;
  Examples train_, valid_;
  std::vector<int64_t> valid_ends_;  ///< MNLI's two dev sets lie one after the other
  SequenceClassifier model_{nullptr};
};

}  // namespace roformer
