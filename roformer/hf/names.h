#pragma once

#include <string>
#include <string_view>

#include "roformer/hf/safetensors.h"
#include "roformer/models/pretrained.h"

// Names of the tensors in Hugging Face's Bert and RoFormer models, bare, with MLM head or with classifier
// (transformers: models/bert/modeling_bert.py, models/roformer/modeling_roformer.py).

namespace roformer {

enum class HfFamily { bert, roformer };

/// What the names of an encoder's tensors begin with.
constexpr std::string_view hf_prefix(HfFamily family) {
  return family == HfFamily::bert ? "bert." : "roformer.";
}

/// The Hugging Face name of a parameter of MaskedLm, SequenceClassifier or Pretrained, whose `head` says what
/// "head." is: "encoder.layers.0.ffn.up.weight" -> "bert.encoder.layer.0.intermediate.dense.weight". Empty
/// where that family has none (a trainable theta).
std::string hf_name(std::string_view ours, HfFamily family, HeadType head = HeadType::mlm);

/// The family whose encoder the file holds, by the prefix of its names; Error when there is none.
HfFamily hf_family(const SafetensorsFile& file);

}  // namespace roformer
