#pragma once

#include "roformer/data/mlm_stream.h"
#include "roformer/models/heads.h"
#include "roformer/tasks/task.h"

namespace roformer {

/// Masked language modelling (section 4.2 of the paper): its options are those of the masks.
struct MlmOptions : MaskingOptions {
  static constexpr std::string_view type = "mlm";
};

/// An encoder with MLM head on a prepared corpus. Loss and accuracy are over the masked tokens.
class MlmTask : public Task {
 public:
  /// corpora: by the length of their sequences; `length` is the one for stages without a length of their own.
  /// model.vocab_size must be at least the tokenizer's.
  MlmTask(const MlmOptions& options, const EncoderOptions& model, const Tokenizer& tokenizer,
          std::map<int64_t, Corpus> corpora, int64_t length, int64_t eval_sequences);

  torch::nn::Module& model() override { return *model_; }
  std::unique_ptr<BatchStream> stream(Split split, const Stage& stage, Shard shard) override;
  Loss loss(const Batch& batch) override;
  void score(const Batch& batch, Evaluation& evaluation) override;

 private:
  MlmOptions options_;
  MaskTokens mask_tokens_;
  std::map<int64_t, Corpus> corpora_;
  int64_t length_, eval_sequences_;
  MaskedLm model_;
};

}  // namespace roformer
