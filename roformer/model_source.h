#pragma once

#include "roformer/hf/folder.h"
#include "roformer/hf/llama.h"
#include "roformer/run.h"

namespace roformer {

/// A trained model, wherever it lies.
struct ModelSource {
  Pretrained model{nullptr};                  ///< on the CPU, in eval mode
  std::optional<TokenizerOptions> tokenizer;  ///< a Hugging Face folder may come without one
  HfSaveOptions save;                         ///< as the folder had it
  std::vector<std::string> notes;
};

/// MODEL of the commands: a run folder (or a checkpoint in one), or a Hugging Face folder.
ModelSource load_model_source(const std::filesystem::path& source);

/// All weights of a checkpoint into the model that its run trained. Error when anything is missing, left over
/// or of another shape.
void load_all_weights(torch::nn::Module& model, const std::filesystem::path& checkpoint);

/// A language model, wherever it lies.
struct CausalSource {
  CausalLm model{nullptr};  ///< on the CPU, in eval mode
  HfLlamaSettings save;     ///< as the folder had it; bytes of a run have no tokens that begin or end a text
  std::optional<TokenizerOptions> tokenizer;  ///< of a run; tokenizer_of_folder knows that of a folder
  TrainerOptions trainer;  ///< device, threads and matrix products: those of the run, or of `sets`
  std::string name;        ///< checkpoint or folder
};

/// Whether MODEL of the commands holds a language model: a run of the task byte_lm, or a Hugging Face folder
/// of a LLaMA.
bool holds_causal_model(const std::filesystem::path& source);
/// That model, with `sets` over the options of its run; for a folder they may say trainer.* only. Error when
/// there is none.
CausalSource load_causal_source(const std::filesystem::path& source,
                                const std::vector<std::string>& sets = {});

}  // namespace roformer
