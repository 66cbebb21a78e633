#include "roformer/tasks/glue.h"

#include "roformer/core/error.h"

namespace roformer {
namespace {

/// Of one dev set.
MetricValue glue_metric(Metric metric, const std::vector<Prediction>& predictions, int64_t set) {
  std::vector<double> labels, values;
  for (const Prediction& each : predictions) {
    if (each.set != set) continue;
    labels.push_back(each.label);
    values.push_back(each.value);
  }
  return evaluate_numbers(metric, labels, values);
}

}  // namespace

void validate(const GlueOptions& options) {
  if (options.name == GlueTask::ax)
    fail("ax has no training data: train on mnli, then `roformer predict` it");
}

std::vector<Metric> glue_metrics(GlueTask task) {
  std::vector<Metric> metrics;
  for (const std::string& name : glue_info(task).metrics) {
    for (const auto& [metric, known] : enum_names(Metric{})) {
      if (name == known) metrics.push_back(metric);
    }
  }
  return metrics;
}

Encoding encode_example(const Tokenizer& tokenizer, const TextExample& example, bool pair, int64_t length) {
  const std::string_view second = example.second;
  return encode_texts(tokenizer, example.first, pair ? &second : nullptr, length);
}

FineTuneTask::FineTuneTask(const GlueOptions& options, const EncoderOptions& model,
                           const Tokenizer& tokenizer)
    : options_(options),
      info_(glue_info(options.name)),
      pad_(tokenizer.special(Special::pad)),
      segments_(model.segments > 1) {
  train_ = read(glue_files(options_.name, options_.folder, GluePart::train), tokenizer, options_.train_rows,
                nullptr);
  valid_ = read(glue_files(options_.name, options_.folder, GluePart::dev), tokenizer, 0, &valid_ends_);
  const int64_t labels = info_.regression() ? 1 : static_cast<int64_t>(info_.labels.size());
  model_ = SequenceClassifier(model, ClassifierOptions{options_.head, labels, {}});
}

FineTuneTask::Examples FineTuneTask::read(const std::vector<GlueSource>& sources, const Tokenizer& tokenizer,
                                          int64_t rows, std::vector<int64_t>* ends) {
  auto examples = std::make_shared<std::vector<LabelledExample>>();
  for (const GlueSource& source : sources) {
    const GlueFile file = read_glue(options_.name, source);
    for (const std::string& note : file.notes) notes_.push_back(source.file.string() + ": " + note);
    for (const TextExample& example : file.examples) {
      if (rows > 0 && static_cast<int64_t>(examples->size()) == rows) break;
      const double label = info_.regression() ? example.score : static_cast<double>(example.label);
      examples->push_back({encode_example(tokenizer, example, info_.pair, options_.length), label});
    }
    if (ends) ends->push_back(static_cast<int64_t>(examples->size()));
  }
  return examples;
}

ExampleStreamOptions FineTuneTask::stream_options(const Stage& stage, Shard shard) const {
  return {stage.batch, stage.seed, shard, options_.bucket, info_.regression(), pad_, segments_};
}

std::unique_ptr<BatchStream> FineTuneTask::stream(Split split, const Stage& stage, Shard shard) {
  return split == Split::valid ? make_example_validation(valid_, stream_options(stage, shard))
                               : make_example_training(train_, stream_options(stage, shard));
}

int64_t FineTuneTask::batches_per_epoch(const Stage& stage, Shard shard) const {
  return example_batches(static_cast<int64_t>(train_->size()), stream_options(stage, shard));
}

torch::Tensor FineTuneTask::loss_sum(const torch::Tensor& logits, const torch::Tensor& labels) const {
  if (info_.regression()) return (logits.squeeze(-1) - labels).square().sum();
  return at::cross_entropy_loss(logits, labels, {}, at::Reduction::Sum);
}

Loss FineTuneTask::loss(const Batch& batch) {
  const torch::Tensor logits = model_->forward(batch).to(torch::kFloat32);
  return {loss_sum(logits, batch.labels), batch.target_count()};
}

void FineTuneTask::score(const Batch& batch, Evaluation& evaluation) {
  const torch::Tensor logits = model_->forward(batch).to(torch::kFloat32);
  const torch::Tensor values =
      (info_.regression() ? logits.squeeze(-1) : logits.argmax(-1)).to(torch::kCPU, torch::kFloat64);
  const torch::Tensor labels = batch.labels.to(torch::kCPU, torch::kFloat64);
  evaluation.loss_sum += loss_sum(logits, batch.labels).item<float>();
  evaluation.count += batch.target_count();
  for (size_t row = 0; row < batch.examples.size(); ++row) {
    int64_t set = 0, example = batch.examples[row];
    while (example >= valid_ends_[static_cast<size_t>(set)]) ++set;
    if (set > 0) example -= valid_ends_[static_cast<size_t>(set - 1)];
    const auto i = static_cast<int64_t>(row);
    evaluation.predictions.push_back({set, example, values[i].item<double>(), labels[i].item<double>()});
  }
}

Metrics FineTuneTask::metrics(const Evaluation& evaluation) const {
  Metrics metrics{
      {"loss", evaluation.loss_sum / static_cast<double>(std::max<int64_t>(evaluation.count, 1))}};
  for (const Metric metric : glue_metrics(options_.name)) {
    for (int64_t set = 0; set < static_cast<int64_t>(valid_ends_.size()); ++set) {
      const MetricValue value = glue_metric(metric, evaluation.predictions, set);
      const std::string name(enum_name(metric));
      if (value.value) metrics[set == 0 ? name : name + "_mm"] = *value.value;
    }
  }
  return metrics;
}

Headline FineTuneTask::headline() const {
  return {std::string(enum_name(glue_metrics(options_.name).front())), true};
}

}  // namespace roformer
