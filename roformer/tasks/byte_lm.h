#pragma once

#include "roformer/data/byte_stream.h"
#include "roformer/models/causal_lm.h"
#include "roformer/tasks/task.h"

namespace roformer {

/// Language modelling on bytes (section 4.4 of the paper, Enwik8).
struct ByteLmOptions {
  static constexpr std::string_view type = "byte_lm";
  std::filesystem::path file;
  int64_t length = 1024;
  int64_t eval_windows = 64;
  BytePart evaluate = BytePart::valid;
};
template <class V>
void fields(V& v, ByteLmOptions& o) {
  v("file", o.file,
    "the bytes, in order 90 % to train on, 5 % to validate, 5 % to test (Enwik8: 90, 5, 5 million)",
    required());
  v("length", o.length, "bytes of a window, each of which predicts the next", within(1, 1 << 20));
  v("eval_windows", o.eval_windows,
    "windows of an evaluation, evenly spread, the same ones each time; 0 = all", at_least(0));
  v("evaluate", o.evaluate, "the part that is evaluated; test: once, at the end");
}

/// A causal model on a file of bytes. Loss in nats per byte; bits_per_byte = loss / ln 2; perplexity =
/// e^loss.
class ByteLmTask : public Task {
 public:
  ByteLmTask(const ByteLmOptions& options, const CausalLmOptions& model);

  torch::nn::Module& model() override { return *model_; }
  std::unique_ptr<BatchStream> stream(Split split, const Stage& stage, Shard shard) override;
  Loss loss(const Batch& batch) override;
  void score(const Batch& batch, Evaluation& evaluation) override;
  Metrics metrics(const Evaluation& evaluation) const override;
  /// Name and parts of the file.
  std::vector<std::string> notes() const override;

 private:
  torch::Tensor logits(const Batch& batch);

  ByteLmOptions options_;
  std::shared_ptr<const ByteCorpus> corpus_;
  CausalLm model_;
};

}  // namespace roformer
