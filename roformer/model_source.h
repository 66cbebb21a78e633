#pragma once

#include "roformer/hf/folder.h"
#include "roformer/run.h"

namespace roformer {

/// A trained model, wherever it lies.
struct ModelSource {
  Pretrained model{nullptr};   ///< on the CPU, in eval mode
  std::optional<TokenizerOptions> tokenizer;  ///< a Hugging Face folder may come without one
  HfSaveOptions save;          ///< as the folder had it
  std::vector<std::string> notes;
};

/// MODEL of the commands: a run folder (or a checkpoint in one), or a Hugging Face folder.
ModelSource load_model_source(const std::filesystem::path& source);

}  // namespace roformer
