#include "roformer/tasks/mlm.h"

namespace roformer {

MlmTask::MlmTask(const MlmOptions& options, const EncoderOptions& model, const Tokenizer& tokenizer,
                 std::map<int64_t, Corpus> corpora, int64_t length, int64_t eval_sequences)
    : options_(options),
      mask_tokens_(tokenizer),
      corpora_(std::move(corpora)),
      length_(length),
      eval_sequences_(eval_sequences),
      model_(model) {}

std::unique_ptr<BatchStream> MlmTask::stream(Split split, const Stage& stage, Shard shard) {
  const MlmStreamOptions options{options_, stage.batch, stage.seed, shard};
  const Corpus& corpus = corpora_.at(stage.length > 0 ? stage.length : length_);
  if (split == Split::valid) return make_mlm_validation(corpus.valid, mask_tokens_, options, eval_sequences_);
  corpus.require_batch(stage.batch * shard.size);
  return make_mlm_training(corpus.train, mask_tokens_, options);
}

Loss MlmTask::loss(const Batch& batch) {
  const torch::Tensor logits = model_->forward(batch).to(torch::kFloat32);
  return {at::cross_entropy_loss(logits, batch.labels, {}, at::Reduction::Sum), batch.target_count()};
}

void MlmTask::score(const Batch& batch, Evaluation& evaluation) {
  const torch::Tensor logits = model_->forward(batch).to(torch::kFloat32);
  const torch::Tensor loss = at::cross_entropy_loss(logits, batch.labels, {}, at::Reduction::Sum);
  const torch::Tensor correct = (logits.argmax(-1) == batch.labels).sum();
  evaluation.loss_sum += loss.item<float>();
  evaluation.correct += correct.item<int64_t>();
  evaluation.count += batch.target_count();
}

}  // namespace roformer
