#include "roformer/hf/llama.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "roformer/core/display.h"
#include "roformer/hf/config_json.h"

namespace roformer {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

constexpr double max_factor = 1e6;
constexpr int64_t max_context = 1 << 24;

// --- config.json
// ---------------------------------------------------------------------------------------------------

/// mscale of YaRN as DeepSeek's models have it (transformers: _compute_yarn_parameters).
double yarn_mscale(double factor, double mscale) {
  return factor > 1.0 ? 0.1 * mscale * std::log(factor) + 1.0 : 1.0;
}

int64_t original_length(HfConfig& scaling, int64_t missing) {
  return scaling.integer("original_max_position_embeddings", missing, 1, max_context);
}

RotaryScaling config_scaling(HfConfig& scaling, int64_t max_length) {
  const std::string old_type = scaling.text("type", ""), new_type = scaling.text("rope_type", old_type);
  if (!old_type.empty() && old_type != new_type) {
    scaling.refuse("'type' and 'rope_type' of the rotary scaling differ");
  }
  if (new_type.empty() || new_type == "default") return NoScaling{};
  auto required = [&](const char* key, double least, double most) {
    if (scaling.get(key).is_null()) scaling.refuse("'{}' is missing for {} scaling", key, shown(new_type));
    return scaling.number(key, 0.0, least, most);
  };
  if (new_type == "linear") return LinearScaling{required("factor", 1.0, max_factor)};
  if (new_type == "dynamic") {
    // transformers goes by max_position_embeddings alone.
    if (original_length(scaling, max_length) != max_length) {
      scaling.refuse(
          "'original_max_position_embeddings' of dynamic scaling is not 'max_position_embeddings'");
    }
    return DynamicNtkScaling{required("factor", 1.0, max_factor), max_length};
  }
  if (new_type == "yarn") {
    YarnScaling yarn{.factor = required("factor", 1.0, max_factor),
                     .original_length = original_length(scaling, max_length),
                     .beta_fast = scaling.number("beta_fast", 32.0, 1e-6, 1e6),
                     .beta_slow = scaling.number("beta_slow", 1.0, 1e-6, 1e6),
                     .attention_factor = {},
                     .truncate = scaling.boolean("truncate", true)};
    const double mscale = scaling.number("mscale", 0.0, 0.0, 1e3);
    const double all_dim = scaling.number("mscale_all_dim", 0.0, 0.0, 1e3);
    if (!scaling.get("attention_factor").is_null()) {
      yarn.attention_factor = scaling.number("attention_factor", 1.0, 1e-6, 1e6);
    } else if (mscale > 0.0 && all_dim > 0.0) {
      yarn.attention_factor = yarn_mscale(yarn.factor, mscale) / yarn_mscale(yarn.factor, all_dim);
    }
    return yarn;
  }
  if (new_type == "llama3") {
    if (scaling.get("original_max_position_embeddings").is_null()) {
      scaling.refuse("'original_max_position_embeddings' is missing for llama3 scaling");
    }
    return Llama3Scaling{.factor = required("factor", 1.0, max_factor),
                         .low_freq_factor = required("low_freq_factor", 1e-6, 1e6),
                         .high_freq_factor = required("high_freq_factor", 1e-6, 1e6),
                         .original_length = original_length(scaling, max_length)};
  }
  scaling.refuse("rotary scaling '{}' is not supported; default, linear, dynamic, yarn and llama3 are",
                 shown(new_type));
}

void refuse_partial_rotation(HfConfig& config) {
  if (config.number("partial_rotary_factor", 1.0, 0.0, 1.0) != 1.0) {
    config.refuse("'partial_rotary_factor' is not 1: LLaMA turns whole heads");
  }
}

/// transformers 4 has "rope_theta" and "rope_scaling", transformers 5 "rope_parameters" with both in it.
RotaryOptions config_rotary(HfConfig& config, int64_t max_length) {
  constexpr double least = 1.0 + 1e-6, most = 1e15;
  RotaryOptions rotary{.layout = RotaryLayout::halves};
  rotary.base = config.number("rope_theta", 10000.0, least, most);
  const bool scaled = !config.get("rope_scaling").is_null();
  const bool parameters = !config.get("rope_parameters").is_null();
  if (scaled && parameters) config.refuse("'rope_scaling' and 'rope_parameters' are both there; keep one");
  if (!scaled && !parameters) return rotary;
  HfConfig scaling = config.object(parameters ? "rope_parameters" : "rope_scaling");
  const double base = scaling.number("rope_theta", rotary.base, least, most);
  if (base != rotary.base && !config.get("rope_theta").is_null()) {
    config.refuse("'rope_theta' is there twice, with two values");
  }
  rotary.base = base;
  refuse_partial_rotation(scaling);
  rotary.scaling = config_scaling(scaling, max_length);
  scaling.refuse_others();
  return rotary;
}

std::optional<int64_t> config_token(HfConfig& config, const char* key, std::optional<int64_t> missing) {
  if (!config.has(key)) return missing;
  if (config.get(key).is_null()) return {};
  return config.integer(key, 0, -1, 1 << 24);
}

std::vector<int64_t> config_eos(HfConfig& config) {
  const Json& value = config.get("eos_token_id");
  if (!value.is_array()) {
    const std::optional<int64_t> one = config_token(config, "eos_token_id", 2);
    return one ? std::vector<int64_t>{*one} : std::vector<int64_t>{};
  }
  std::vector<int64_t> tokens;
  for (const Json& each : value) {
    if (!each.is_number_unsigned() || each.get<uint64_t>() > (1 << 24)) {
      config.refuse("'eos_token_id' must be a token or a list of tokens");
    }
    tokens.push_back(each.get<int64_t>());
  }
  return tokens;
}

/// Defaults are those of transformers' LlamaConfig.
CausalLmOptions config_llama(HfConfig& config, int64_t max_length) {
  CausalLmOptions o;
  o.dim = config.integer("hidden_size", 4096, 1, 65536);
  o.layers = config.integer("num_hidden_layers", 32, 1, 1024);
  o.heads = config.integer("num_attention_heads", 32, 1, 1024);
  o.ffn = config.integer("intermediate_size", 11008, 1, 1 << 20);
  o.vocab_size = config.integer("vocab_size", 32000, 1, 1 << 24);
  o.kv_heads = config.integer("num_key_value_heads", o.heads, 1, 1024);
  if (o.kv_heads == o.heads) o.kv_heads = 0;
  const int64_t width = config.integer("head_dim", 0, 1, 65536);
  if (width * o.heads != o.dim) o.head_dim = width;
  o.activation = config.activation("hidden_act", "silu");
  o.gated = true;
  o.norm = NormKind::rms;
  o.norm_eps = config.number("rms_norm_eps", 1e-6, 1e-30, 1.0);
  o.init_std = o.embedding_std = config.number("initializer_range", 0.02, 0.0, 1e3);
  o.tied = config.boolean("tie_word_embeddings", false);
  o.bias = config.boolean("attention_bias", false);
  if (config.boolean("mlp_bias", false) != o.bias) {
    config.refuse("'attention_bias' and 'mlp_bias' differ, and this model has one option for both");
  }
  if (config.number("attention_dropout", 0.0, 0.0, 1.0) != 0.0) {
    config.refuse(
        "'attention_dropout' without other dropout is not supported; 0 changes nothing in a trained model");
  }
  if (config.integer("pretraining_tp", 1, 0, 1 << 20) != 1) {
    config.refuse("'pretraining_tp' other than 1 is not supported");
  }
  refuse_partial_rotation(config);
  o.positions = {config_rotary(config, max_length)};
  return o;
}

Json scaling_json(const NoScaling&) { return {}; }
Json scaling_json(const LinearScaling& o) { return {{"factor", o.factor}}; }
Json scaling_json(const NtkScaling&) { return {}; }  // refused before
Json scaling_json(const DynamicNtkScaling& o) { return {{"factor", o.factor}}; }
Json scaling_json(const YarnScaling& o) {
  Json json = {{"factor", o.factor},
               {"original_max_position_embeddings", o.original_length},
               {"beta_fast", o.beta_fast},
               {"beta_slow", o.beta_slow}};
  if (o.attention_factor) json["attention_factor"] = *o.attention_factor;
  if (!o.truncate) json["truncate"] = false;
  return json;
}
Json scaling_json(const Llama3Scaling& o) {
  return {{"factor", o.factor},
          {"low_freq_factor", o.low_freq_factor},
          {"high_freq_factor", o.high_freq_factor},
          {"original_max_position_embeddings", o.original_length}};
}

// --- Weights
// -------------------------------------------------------------------------------------------------------

using LlamaName = std::pair<std::string_view, std::string_view>;

constexpr std::array<LlamaName, 3> llama_outer_names{{
    {"token.", "model.embed_tokens."},
    {"norm.", "model.norm."},
    {"output.", "lm_head."},
}};

/// Modules of one block, after "layers.N." and "model.layers.N.".
constexpr std::array<LlamaName, 9> llama_layer_names{{
    {"attention.query.", "self_attn.q_proj."},
    {"attention.key.", "self_attn.k_proj."},
    {"attention.value.", "self_attn.v_proj."},
    {"attention.output.", "self_attn.o_proj."},
    {"attention_norm.", "input_layernorm."},
    {"ffn_norm.", "post_attention_layernorm."},
    {"ffn.gate.", "mlp.gate_proj."},
    {"ffn.up.", "mlp.up_proj."},
    {"ffn.down.", "mlp.down_proj."},
}};

/// The name in a folder of a parameter of CausalLm; empty where LLaMA has none.
std::string llama_name(std::string_view ours) {
  std::string start;
  constexpr std::string_view layers = "layers.";
  const bool inner = ours.starts_with(layers);
  if (inner) {
    const size_t end = std::min(ours.find('.', layers.size()), ours.size() - 1) + 1;
    start = std::string("model.").append(ours.substr(0, end));
    ours.remove_prefix(end);
  }
  const auto translate = [&](const auto& table) -> std::string {
    for (const auto& [name, theirs] : table) {
      if (ours.starts_with(name)) return start.append(theirs).append(ours.substr(name.size()));
    }
    return {};
  };
  return inner ? translate(llama_layer_names) : translate(llama_outer_names);
}

/// LlamaModel alone is stored without the prefix.
std::string current_llama_name(const std::string& stored) {
  for (const std::string_view bare : {"embed_tokens.", "layers.", "norm."}) {
    if (stored.starts_with(bare)) return "model." + stored;
  }
  return stored;
}

double llama_size(const CausalLmOptions& o) {
  auto real = [](int64_t n) { return static_cast<double>(n); };
  const double kv_heads = real(o.kv_heads > 0 ? o.kv_heads : o.heads);
  const double layer = 2.0 * (real(o.heads) + kv_heads) * real(o.head_width()) + 3.0 * real(o.ffn);
  return (o.tied ? 1.0 : 2.0) * real(o.vocab_size) * real(o.dim) + real(o.layers) * layer * real(o.dim);
}

/// Options that shapes do not show.
std::vector<std::string> llama_option_problems(const CausalLmOptions& ours, const CausalLmOptions& theirs) {
  std::vector<std::string> problems;
  auto compare = [&](std::string_view name, const auto& a, const auto& b) {
    if (a != b) problems.push_back(fmt::format("model.{} is {}, the folder's {}", name, a, b));
  };
  compare("layers", ours.layers, theirs.layers);
  compare("heads", ours.heads, theirs.heads);
  compare("tied", ours.tied, theirs.tied);
  compare("norm", enum_name(ours.norm), enum_name(theirs.norm));
  compare("norm_eps", ours.norm_eps, theirs.norm_eps);
  compare("activation", enum_name(ours.activation), enum_name(theirs.activation));
  compare("attention", alternative_name(ours.attention), alternative_name(theirs.attention));
  // Scaling may be of the reader's choice: it is for lengths beyond training. A rotation it must be.
  const auto* rotary = ours.positions.size() == 1 ? std::get_if<RotaryOptions>(&ours.positions[0]) : nullptr;
  if (!rotary) {
    problems.push_back("model.positions is not rotary, the folder's is");
    return problems;
  }
  const auto& stored = std::get<RotaryOptions>(theirs.positions[0]);
  compare("positions.layout", enum_name(rotary->layout), enum_name(stored.layout));
  compare("positions.base", rotary->base, stored.base);
  compare("positions.values", rotary->values, stored.values);
  compare("positions.xpos", rotary->xpos, stored.xpos);
  if (rotary->dim != 0) compare("positions.dim", rotary->dim, theirs.head_width());
  return problems;
}

/// Rows of a head's query or key, (0, 1), (2, 3), ... -> (0, d/2), (1, d/2 + 1), ...: eq. 34 in LLaMA's
/// order.
torch::Tensor rows_in_halves(const torch::Tensor& weight, int64_t head_width) {
  std::vector<int64_t> sizes = weight.sizes().vec(), pairs = sizes;
  pairs.erase(pairs.begin());
  pairs.insert(pairs.begin(), {weight.size(0) / head_width, head_width / 2, 2});
  return weight.view(pairs).transpose(1, 2).reshape(sizes);
}

}  // namespace

HfLlamaFolder open_hf_llama(const fs::path& path) {
  HfConfig config(path);
  if (const std::string type = config.model_type(); type != "llama") {
    config.refuse("model_type '{}' is not supported; 'llama' is, of the language models", shown(type));
  }
  HfLlamaFolder folder;
  folder.path = path;
  HfLlamaSettings& settings = folder.settings;
  settings.max_length = config.integer("max_position_embeddings", 2048, 1, max_context);
  settings.bos_token = config_token(config, "bos_token_id", 1);
  settings.eos_tokens = config_eos(config);
  settings.pad_token = config_token(config, "pad_token_id", {});
  folder.options = config_llama(config, settings.max_length);
  config.refuse_others();
  try {
    validate(folder.options);
  } catch (const Error& error) {
    config.refuse("{}", error.what());
  }
  folder.weights = read_hf_weights(path, current_llama_name);
  check_hf_size(path, llama_size(folder.options), folder.weights);
  const auto token = folder.weights.find("model.embed_tokens.weight");
  if (token != folder.weights.end() && at::isFloatingType(token->second.dtype)) {
    settings.dtype = token->second.dtype;
  }
  return folder;
}

void load_hf_llama(CausalLmImpl& model, const HfLlamaFolder& folder) {
  std::vector<HfParameter> parameters;
  for (const auto& item : model.named_parameters()) {
    parameters.push_back({item.key(), llama_name(item.key()), item.value()});
  }
  auto leftover = [&](const std::string& name, const HfTensor& tensor, std::vector<std::string>& problems) {
    if (name.ends_with(".rotary_emb.inv_freq"))
      return HfLeftover::redundant;  // old files: theta, as computed
    if (name != "lm_head.weight" || !folder.options.tied) return HfLeftover::unexpected;
    const auto token = folder.weights.find("model.embed_tokens.weight");
    if (token == folder.weights.end() || !torch::equal(tensor.read(), token->second.read())) {
      problems.push_back("'lm_head.weight' is not the embedding that 'tie_word_embeddings' says it is");
    }
    return HfLeftover::redundant;
  };
  load_hf_weights(folder.path.string(), folder.weights, parameters,
                  llama_option_problems(model.options(), folder.options), leftover);
}

CausalLm load_llama(const HfLlamaFolder& folder) {
  CausalLm model(folder.options);
  load_hf_llama(*model, folder);
  return model;
}

void check_llama(const CausalLmOptions& o) {
  constexpr std::string_view has = "Hugging Face's LLaMA has";
  if (o.norm != NormKind::rms) fail("{} RMSNorm; only model.norm: rms can be written", has);
  if (!o.gated) fail("{} a gated feed-forward; only model.gated: true can be written", has);
  if (!std::holds_alternative<SoftmaxAttention>(o.attention)) {
    fail("{} softmax attention; model.attention: {} cannot be written", has, alternative_name(o.attention));
  }
  const auto* rotary = o.positions.size() == 1 ? std::get_if<RotaryOptions>(&o.positions[0]) : nullptr;
  if (!rotary) fail("{} rotary positions, alone; no other can be written", has);
  if (rotary->trainable || rotary->values || rotary->xpos > 0.0 ||
      (rotary->dim != 0 && rotary->dim != o.head_width())) {
    fail(
        "{} fixed theta for all columns of queries and keys; rotary 'trainable', 'values', 'xpos' and 'dim' "
        "cannot be written",
        has);
  }
  if (std::holds_alternative<NtkScaling>(rotary->scaling)) {
    fail("{} no scaling 'ntk'; write base * factor^(d / (d - 2)) as 'base' instead", has);
  }
}

void save_hf_llama(const fs::path& path, const CausalLmImpl& model, const HfLlamaSettings& settings) {
  const CausalLmOptions& o = model.options();
  check_llama(o);
  // An encoding passed to the constructor is not what the options say.
  const auto children = model.named_children();
  const auto* encoding = children["positions"]->as<PositionEncodingImpl>();
  if (!encoding || encoding->name() != RotaryOptions::type) {
    fail("a position encoding from outside cannot be written in Hugging Face's format");
  }
  const auto& rotary = std::get<RotaryOptions>(o.positions[0]);

  std::vector<std::pair<std::string, torch::Tensor>> tensors;
  for (const auto& item : model.named_parameters()) {
    const std::string name = llama_name(item.key());
    if (name.empty()) fail("parameter '{}' has no name in Hugging Face's format", item.key());
    torch::Tensor tensor = item.value().detach().to(torch::kCPU).to(settings.dtype);
    const bool turned =
        name.find(".q_proj.") != std::string::npos || name.find(".k_proj.") != std::string::npos;
    if (turned && rotary.layout == RotaryLayout::interleaved) tensor = rows_in_halves(tensor, o.head_width());
    tensors.emplace_back(name, tensor);
  }

  Json config;
  config["architectures"] = {"LlamaForCausalLM"};
  config["model_type"] = "llama";
  config["vocab_size"] = o.vocab_size;
  config["hidden_size"] = o.dim;
  config["num_hidden_layers"] = o.layers;
  config["num_attention_heads"] = o.heads;
  config["num_key_value_heads"] = o.kv_heads > 0 ? o.kv_heads : o.heads;
  config["head_dim"] = o.head_width();
  config["intermediate_size"] = o.ffn;
  config["hidden_act"] = hf_activation_name(o.activation);
  config["rms_norm_eps"] = o.norm_eps;
  if (o.init_std) config["initializer_range"] = *o.init_std;
  config["attention_bias"] = config["mlp_bias"] = o.bias;
  config["tie_word_embeddings"] = o.tied;
  config["max_position_embeddings"] = settings.max_length;
  config["rope_theta"] = rotary.base;
  config["rope_scaling"] =
      std::visit([](const auto& scaling) { return scaling_json(scaling); }, rotary.scaling);
  if (!config["rope_scaling"].is_null()) {
    config["rope_scaling"]["rope_type"] = alternative_name(rotary.scaling);
  }
  if (const auto* dynamic = std::get_if<DynamicNtkScaling>(&rotary.scaling)) {
    config["max_position_embeddings"] = dynamic->original_length;
  }
  config["bos_token_id"] = settings.bos_token ? Json(*settings.bos_token) : Json();
  config["eos_token_id"] = settings.eos_tokens.empty()       ? Json()
                           : settings.eos_tokens.size() == 1 ? Json(settings.eos_tokens[0])
                                                             : Json(settings.eos_tokens);
  config["pad_token_id"] = settings.pad_token ? Json(*settings.pad_token) : Json();
  config["torch_dtype"] = hf_dtype_name(settings.dtype);
  write_hf_folder(path, config, tensors);
}

}  // namespace roformer
