#include "roformer/tasks/byte_lm.h"

#include <fmt/format.h>

#include <cmath>

namespace roformer {

ByteLmTask::ByteLmTask(const ByteLmOptions& options, const CausalLmOptions& model)
    : options_(options), corpus_(std::make_shared<ByteCorpus>(options.file, options.length)), model_(model) {}

std::unique_ptr<BatchStream> ByteLmTask::stream(Split split, const Stage& stage, Shard shard) {
  const ByteStreamOptions options{stage.length > 0 ? stage.length : options_.length, stage.batch, stage.seed,
                                  shard};
  if (split == Split::train) return make_byte_training(corpus_, options);
  return make_byte_evaluation(corpus_, options_.evaluate, options, options_.eval_windows);
}

torch::Tensor ByteLmTask::logits(const Batch& batch) {
  return model_->forward(batch.tokens).flatten(0, 1).to(torch::kFloat32);
}

Loss ByteLmTask::loss(const Batch& batch) {
  return {at::cross_entropy_loss(logits(batch), batch.labels, {}, at::Reduction::Sum), batch.target_count()};
}

void ByteLmTask::score(const Batch& batch, Evaluation& evaluation) {
  const torch::Tensor scores = logits(batch);
  evaluation.loss_sum += at::cross_entropy_loss(scores, batch.labels, {}, at::Reduction::Sum).item<float>();
  evaluation.correct += scores.argmax(-1).eq(batch.labels).sum().item<int64_t>();
  evaluation.count += batch.target_count();
}

Metrics ByteLmTask::metrics(const Evaluation& evaluation) const {
  Metrics metrics = Task::metrics(evaluation);
  const double loss = metrics.at("loss");
  metrics["bits_per_byte"] = loss / std::log(2.0);
  metrics["perplexity"] = std::exp(loss);
  return metrics;
}

std::vector<std::string> ByteLmTask::notes() const {
  auto bytes = [&](BytePart part) { return corpus_->part(part).size(); };
  return {fmt::format("{}: {} bytes, {} to train on, {} to validate, {} to test", corpus_->name(),
                      corpus_->size(), bytes(BytePart::train), bytes(BytePart::valid),
                      bytes(BytePart::test))};
}

}  // namespace roformer
