#pragma once

#include <array>
#include <string>
#include <string_view>

#include "roformer/hf/safetensors.h"
#include "roformer/models/pretrained.h"

// Names of the tensors in Hugging Face's Bert, RoFormer and Nezha models, bare, with MLM head or with
// classifier (transformers: models/bert/modeling_bert.py, models/roformer/modeling_roformer.py,
// models/deprecated/nezha/modeling_nezha.py).

namespace roformer {

enum class HfFamily { bert, roformer, nezha };
/// As `model_type` in config.json.
inline auto enum_names(HfFamily) {
  return std::array<std::pair<HfFamily, std::string_view>, 3>{
      {{HfFamily::bert, "bert"}, {HfFamily::roformer, "roformer"}, {HfFamily::nezha, "nezha"}}};
}

/// What the names of an encoder's tensors begin with: "bert.".
std::string hf_prefix(HfFamily family);

/// NEZHA's classifier is BERT's.
constexpr HeadKind hf_head_kind(HfFamily family) {
  return family == HfFamily::roformer ? HeadKind::roformer : HeadKind::bert;
}

/// The Hugging Face name of a parameter of MaskedLm, SequenceClassifier or Pretrained, whose `head` says what
/// "head." is: "encoder.layers.0.ffn.up.weight" -> "bert.encoder.layer.0.intermediate.dense.weight". Empty
/// where that family has none (a trainable theta).
std::string hf_name(std::string_view ours, HfFamily family, HeadType head = HeadType::mlm);

/// The family whose encoder the file holds, by the prefix of its names; Error when there is none.
HfFamily hf_family(const SafetensorsFile& file);

}  // namespace roformer
