#include "roformer/hf/config_json.h"

#include <algorithm>

#include "roformer/core/display.h"

namespace roformer {
namespace {

using Json = nlohmann::json;

constexpr size_t max_config_bytes = 4 << 20;

struct HfActivation {
  std::string_view name;
  Activation activation;
};
/// Names of transformers' ACT2FN; the first of each activation is the one that is written.
constexpr HfActivation hf_activations[] = {
    {"gelu", Activation::gelu},          {"gelu_python", Activation::gelu},
    {"gelu_new", Activation::gelu_tanh}, {"gelu_pytorch_tanh", Activation::gelu_tanh},
    {"relu", Activation::relu},          {"silu", Activation::silu},
    {"swish", Activation::silu},         {"tanh", Activation::tanh},
};

/// Keys that do not change what these models compute from token ids.
constexpr std::string_view harmless_keys[] = {"architectures",
                                              "bad_words_ids",
                                              "begin_suppress_tokens",
                                              "bos_token_id",
                                              "chunk_size_feed_forward",
                                              "decoder_start_token_id",
                                              "directionality",
                                              "diversity_penalty",
                                              "do_sample",
                                              "dtype",
                                              "early_stopping",
                                              "encoder_no_repeat_ngram_size",
                                              "eos_token_id",
                                              "exponential_decay_length_penalty",
                                              "finetuning_task",
                                              "forced_bos_token_id",
                                              "forced_eos_token_id",
                                              "gradient_checkpointing",
                                              "label2id",
                                              "language",
                                              "length_penalty",
                                              "max_length",
                                              "min_length",
                                              "mask_token_id",
                                              "model_max_length",
                                              "name",
                                              "no_repeat_ngram_size",
                                              "num_beam_groups",
                                              "num_beams",
                                              "num_return_sequences",
                                              "output_attentions",
                                              "output_hidden_states",
                                              "output_past",
                                              "output_scores",
                                              "pooler_activation",
                                              "pooler_fc_size",
                                              "pooler_num_attention_heads",
                                              "pooler_num_fc_layers",
                                              "pooler_size_per_head",
                                              "pooler_type",
                                              "prefix",
                                              "remove_invalid_values",
                                              "repetition_penalty",
                                              "return_dict",
                                              "return_dict_in_generate",
                                              "sep_token_id",
                                              "cls_token_id",
                                              "unk_token_id",
                                              "suppress_tokens",
                                              "task_specific_params",
                                              "temperature",
                                              "tf_legacy_loss",
                                              "tokenizer_class",
                                              "top_k",
                                              "top_p",
                                              "torch_dtype",
                                              "torchscript",
                                              "transformers_version",
                                              "typical_p",
                                              "use_bfloat16",
                                              "use_cache",
                                              "vocab_file"};

/// Keys of what is not implemented: accepted where they say "no".
constexpr std::string_view refused_keys[] = {
    "add_cross_attention", "cross_attention_hidden_size", "is_decoder",         "is_encoder_decoder",
    "pruned_heads",        "quantization_config",         "tie_encoder_decoder"};

}  // namespace

bool says_no(const Json& value) {
  return value.is_null() || (value.is_boolean() && !value.get<bool>()) ||
         (value.is_number() && value.get<double>() == 0.0) ||
         ((value.is_array() || value.is_object() || value.is_string()) && value.empty()) ||
         (value.is_string() && value.get_ref<const std::string&>().empty());
}

HfConfig::HfConfig(const std::filesystem::path& folder) {
  if (!std::filesystem::is_directory(folder)) fail("{}: no such folder", folder.string());
  const std::filesystem::path path = folder / "config.json";
  if (!std::filesystem::is_regular_file(path)) fail("{}: no config.json here", folder.string());
  file_ = std::make_shared<const JsonFile>(path, max_config_bytes);
  values_ = &file_->values();
}

const Json& HfConfig::get(const char* key) {
  known_.insert(key);
  static const Json null;
  const auto found = values_->find(key);
  return found == values_->end() ? null : *found;
}

int64_t HfConfig::integer(const char* key, int64_t missing, int64_t least, int64_t most) {
  const Json& value = get(key);
  if (value.is_null()) return missing;
  const bool fits =
      value.is_number_integer() && (!value.is_number_unsigned() || value.get<uint64_t>() <= INT64_MAX);
  if (!fits || value.get<int64_t>() < least || value.get<int64_t>() > most) {
    refuse("'{}' must be an integer from {} to {}", name(key), least, most);
  }
  return value.get<int64_t>();
}

double HfConfig::number(const char* key, double missing, double least, double most) {
  const Json& value = get(key);
  if (value.is_null()) return missing;
  if (!value.is_number() || !(value.get<double>() >= least && value.get<double>() <= most)) {
    refuse("'{}' must be a number from {} to {}", name(key), least, most);
  }
  return value.get<double>();
}

bool HfConfig::boolean(const char* key, bool missing) {
  const Json& value = get(key);
  if (value.is_null()) return missing;
  if (!value.is_boolean()) refuse("'{}' must be true or false", name(key));
  return value.get<bool>();
}

std::string HfConfig::text(const char* key, std::string_view missing) {
  const Json& value = get(key);
  if (value.is_null()) return std::string(missing);
  if (!value.is_string()) refuse("'{}' must be a text", name(key));
  return value.get<std::string>();
}

Activation HfConfig::activation(const char* key, std::string_view missing) {
  const std::string wanted = text(key, missing);
  const auto* found = std::find_if(std::begin(hf_activations), std::end(hf_activations),
                                   [&](const HfActivation& a) { return a.name == wanted; });
  if (found == std::end(hf_activations)) {
    refuse("{} '{}' is not supported; gelu, gelu_new, gelu_pytorch_tanh, relu, silu and tanh are", name(key),
           shown(wanted));
  }
  return found->activation;
}

HfConfig HfConfig::object(const char* key) {
  const Json& value = get(key);
  if (!value.is_object()) refuse("'{}' must be an object", name(key));
  return HfConfig(file_, value, name(key) + ".");
}

std::string HfConfig::model_type() {
  std::string type = text("model_type", "");
  if (!type.empty()) return type;
  // The first BERT files: transformers then goes by the name of the folder.
  const std::string class_name = architecture();
  if (class_name.starts_with("BertFor") || class_name == "BertModel") return "bert";
  if (class_name.starts_with("RoFormer")) return "roformer";
  if (class_name.starts_with("Nezha")) return "nezha";
  if (class_name.starts_with("LlamaFor")) return "llama";
  refuse(R"('model_type' is missing; add "model_type": "bert", "llama", "nezha" or "roformer")");
}

std::string HfConfig::architecture() {
  const Json& list = get("architectures");
  if (list.is_null()) return {};
  if (!list.is_array()) refuse("'architectures' must be a list of texts");
  for (const Json& each : list) {
    if (!each.is_string()) refuse("'architectures' must be a list of texts");
  }
  return list.empty() ? std::string() : list[0].get<std::string>();
}

void HfConfig::refuse_others() {
  for (const auto& [key, value] : values_->items()) {
    if (known_.count(key) || value.is_null()) continue;
    auto among = [&, name = std::string_view(key)](const auto& list) {
      return std::find(std::begin(list), std::end(list), name) != std::end(list);
    };
    if (prefix_.empty()) {
      if (among(harmless_keys) || key.starts_with("_") || key.starts_with("summary_")) continue;
      if (among(refused_keys)) {
        if (says_no(value)) continue;
        refuse("'{}' is not supported", key);
      }
    }
    refuse("option '{}' is not known here; remove it if the model computes the same without it",
           shown(name(key)));
  }
}

std::string hf_model_type(const std::filesystem::path& folder) { return HfConfig(folder).model_type(); }

std::string hf_activation_name(Activation activation) {
  for (const HfActivation& known : hf_activations) {
    if (known.activation == activation) return std::string(known.name);
  }
  TORCH_CHECK(false, "no name for this activation");
}

std::string hf_dtype_name(at::ScalarType dtype) {
  switch (dtype) {
    case at::kHalf:
      return "float16";
    case at::kBFloat16:
      return "bfloat16";
    case at::kDouble:
      return "float64";
    default:
      return "float32";
  }
}

}  // namespace roformer
