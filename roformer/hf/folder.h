#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "roformer/hf/names.h"
#include "roformer/hf/weights.h"

// Folders of Hugging Face's BERT, RoFormer and NEZHA: config.json and weights (transformers: models/bert,
// models/roformer, models/deprecated/nezha). Tokenizer files are not looked at here. Language models are in
// llama.h.

namespace roformer {

struct HfFolder : PretrainedOptions {
  std::filesystem::path path;
  HfFamily family = HfFamily::bert;
  std::vector<std::string> label_names;  ///< of a classifier: one per label, as config.json or "LABEL_0", ...
  std::string problem_type;  ///< "regression", "single_label_classification", "multi_label_classification"
  int64_t max_length = 0;    ///< max_position_embeddings
  int64_t pad_token = 0;
  at::ScalarType dtype = at::kFloat;  ///< of the token embedding in the file
  /// By the name that transformers gives them today: with "bert." and so on, `weight` for `gamma`.
  HfWeights weights;
};

/// Reads config.json and the headers of the weights: model.safetensors, its index of shards,
/// pytorch_model.bin, or its index, the first that is there. Keys that config.json lacks have the defaults
/// of transformers. Error for another `model_type`, for an option that changes the computation and that we do
/// not have, for a key that we do not know (never ignored), and for weights that cannot be read.
HfFolder open_hf(const std::filesystem::path& folder);

/// Copies the weights into an Encoder, MaskedLm, SequenceClassifier or Pretrained, cast to the dtype of its
/// parameters. A head may be absent from the folder as a whole (fresh), and the folder may have heads that
/// the model lacks (unused). Else one Error lists all that is missing, unexpected, of another shape, or set
/// otherwise in the options; the model is then unchanged.
HfReport load_hf(torch::nn::Module& model, const HfFolder& folder);

/// For a file without config.json: copies the weights of a masked language model into `model` as load_hf
/// does. Error that lists every missing and wrongly shaped tensor; the model is then unchanged. The file may
/// hold more: the tied decoder, RoFormer's fixed table of sines, a pooler.
void load_hf_mlm(MaskedLmImpl& model, const SafetensorsFile& file);

/// A model for all that the folder holds, loaded. `report`: what had no place (next-sentence head, ...).
Pretrained load_pretrained(const HfFolder& folder, HfReport* report = nullptr);

/// Longest sequence of transformers' models where config.json does not say.
constexpr int64_t hf_max_length(HfFamily family) { return family == HfFamily::roformer ? 1536 : 512; }

struct HfSaveOptions {
  at::ScalarType dtype = at::kFloat;  ///< of the stored tensors: HfFolder::dtype gives back what was read
  std::vector<std::string> label_names = {};  ///< of a classifier; empty = LABEL_0, ...
  std::string problem_type = {};              ///< empty = left to the number of labels
  std::optional<int64_t> max_length = {};     ///< longest sequence there; BERT's table says its own
  int64_t pad_token = 0;
};

/// Writes config.json and model.safetensors of an Encoder, MaskedLm, SequenceClassifier or Pretrained, so
/// that AutoModel, AutoModelForMaskedLM or AutoModelForSequenceClassification find every key they look for,
/// and no other. Learned positions make a BERT, rotary ones a RoFormer, nezha a NEZHA; Error that says why
/// for a model that has no counterpart there. `unused` of the report: tensors that the format has no place
/// for beside the head. An encoder of BERT or NEZHA without a pooler opens with `add_pooling_layer=False`.
HfReport save_hf(const std::filesystem::path& folder, const torch::nn::Module& model,
                 const HfSaveOptions& options = {});

/// The family in which save_hf would write the encoder; the Error that it would throw.
HfFamily hf_family_of(const EncoderOptions& options);

}  // namespace roformer
