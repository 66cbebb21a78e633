#pragma once

#include <filesystem>
#include <optional>
#include <vector>

#include "roformer/hf/weights.h"
#include "roformer/models/causal_lm.h"

// Folders of Hugging Face's LLaMA with its output map (transformers: models/llama, LlamaForCausalLM).
// Tokenizer files are not looked at here.

namespace roformer {

/// What config.json says beside the options of the model.
struct HfLlamaSettings {
  at::ScalarType dtype = at::kFloat;  ///< of the stored tensors: of the token embedding in a file
  int64_t max_length = 2048;          ///< max_position_embeddings
  std::optional<int64_t> bos_token = 1;
  std::vector<int64_t> eos_tokens = {2};  ///< any of them ends a text
  std::optional<int64_t> pad_token = {};
};

struct HfLlamaFolder {
  std::filesystem::path path;
  CausalLmOptions options;  ///< half-split RoPE with its scaling, RMSNorm, gated feed-forward
  HfLlamaSettings settings;
  HfWeights weights;  ///< by today's names: "model.layers.0.self_attn.q_proj.weight"
};

/// Reads config.json and the headers of the weights; where they lie is as in open_hf. Both spellings of the
/// rotary options are read ("rope_scaling" with "type" or "rope_type", "rope_parameters"): default, linear,
/// dynamic, yarn, llama3. Keys that config.json lacks have the defaults of transformers. Error for another
/// `model_type`, for an option that changes the computation and that we do not have, for a key that we do not
/// know (never ignored), and for weights that cannot be read.
HfLlamaFolder open_hf_llama(const std::filesystem::path& folder);

/// Copies the weights, cast to the dtype of the model's parameters. Else one Error lists all that is missing,
/// unexpected, of another shape, or set otherwise in the options; the model is then unchanged.
void load_hf_llama(CausalLmImpl& model, const HfLlamaFolder& folder);

/// The model of a folder, loaded.
CausalLm load_llama(const HfLlamaFolder& folder);

/// Writes config.json and model.safetensors, so that LlamaForCausalLM finds every key it looks for, and no
/// other. Interleaved RoPE is written as half-split: the rows of W_q and W_k change places, and no score
/// changes. Dropout is not written: LLaMA has none where this model has it. With dynamic scaling
/// max_position_embeddings is its original_length, whatever the settings say. Error as check_llama.
void save_hf_llama(const std::filesystem::path& folder, const CausalLmImpl& model,
                   const HfLlamaSettings& settings = {});

/// Error that says why, for a model that LLaMA's format cannot hold.
void check_llama(const CausalLmOptions& options);

}  // namespace roformer
