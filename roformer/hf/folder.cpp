#include "roformer/hf/folder.h"

#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <cmath>
#include <set>

#include "roformer/core/display.h"
#include "roformer/core/error.h"
#include "roformer/core/files.h"
#include "roformer/core/json_file.h"
#include "roformer/hf/pickle.h"

namespace roformer {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

constexpr size_t max_config_bytes = 4 << 20;
constexpr size_t max_index_bytes = 64 << 20;

// --- config.json
// ---------------------------------------------------------------------------------------------------

struct HfActivation {
  std::string_view name;
  Activation activation;
};
/// Names of transformers' ACT2FN; the first of each activation is the one that save_hf writes.
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

bool says_no(const Json& value) {
  return value.is_null() || (value.is_boolean() && !value.get<bool>()) ||
         (value.is_number() && value.get<double>() == 0.0) ||
         ((value.is_array() || value.is_object() || value.is_string()) && value.empty()) ||
         (value.is_string() && value.get_ref<const std::string&>().empty());
}

/// Typed access to config.json; remembers which keys were read.
class HfConfig : public JsonFile {
 public:
  explicit HfConfig(const fs::path& path) : JsonFile(path, max_config_bytes) {}

  /// The value, or null where the key is absent; either way it counts as known.
  const Json& get(const char* key) {
    known_.insert(key);
    static const Json null;
    const Json* found = find(key);
    return found ? *found : null;
  }
  int64_t integer(const char* key, int64_t missing, int64_t least, int64_t most) {
    const Json& value = get(key);
    if (value.is_null()) return missing;
    const bool fits =
        value.is_number_integer() && (!value.is_number_unsigned() || value.get<uint64_t>() <= INT64_MAX);
    if (!fits || value.get<int64_t>() < least || value.get<int64_t>() > most) {
      refuse("'{}' must be an integer from {} to {}", key, least, most);
    }
    return value.get<int64_t>();
  }
  double number(const char* key, double missing, double least, double most) {
    const Json& value = get(key);
    if (value.is_null()) return missing;
    if (!value.is_number() || !(value.get<double>() >= least && value.get<double>() <= most)) {
      refuse("'{}' must be a number from {} to {}", key, least, most);
    }
    return value.get<double>();
  }
  bool boolean(const char* key, bool missing) {
    const Json& value = get(key);
    if (value.is_null()) return missing;
    if (!value.is_boolean()) refuse("'{}' must be true or false", key);
    return value.get<bool>();
  }
  std::string text(const char* key, std::string_view missing) {
    const Json& value = get(key);
    if (value.is_null()) return std::string(missing);
    if (!value.is_string()) refuse("'{}' must be a text", key);
    return value.get<std::string>();
  }

  void refuse_others() {
    for (const auto& [key, value] : values().items()) {
      auto among = [&, name = std::string_view(key)](const auto& list) {
        return std::find(std::begin(list), std::end(list), name) != std::end(list);
      };
      if (known_.count(key) || among(harmless_keys) || key.starts_with("_") || key.starts_with("summary_")) {
        continue;
      }
      if (among(refused_keys)) {
        if (!says_no(value)) refuse("'{}' is not supported", key);
      } else if (!value.is_null()) {
        refuse("option '{}' is not known here; remove it if the model computes the same without it",
               shown(key));
      }
    }
  }

 private:
  std::set<std::string, std::less<>> known_;
};

/// The first class name of "architectures", or nothing.
std::string architecture(HfConfig& config) {
  const Json& list = config.get("architectures");
  if (list.is_null()) return {};
  if (!list.is_array()) config.refuse("'architectures' must be a list of texts");
  for (const Json& name : list) {
    if (!name.is_string()) config.refuse("'architectures' must be a list of texts");
  }
  return list.empty() ? std::string() : list[0].get<std::string>();
}

HfFamily config_family(HfConfig& config) {
  std::string type = config.text("model_type", "");
  if (type.empty()) {  // the first BERT files: transformers then goes by the name of the folder
    const std::string class_name = architecture(config);
    if (class_name.starts_with("BertFor") || class_name == "BertModel") type = "bert";
    if (class_name.starts_with("RoFormer")) type = "roformer";
    if (type.empty()) config.refuse("'model_type' is missing; add \"model_type\": \"bert\" or \"roformer\"");
  }
  if (type == "bert") return HfFamily::bert;
  if (type == "roformer") return HfFamily::roformer;
  config.refuse("model_type '{}' is not supported; 'bert' and 'roformer' are", shown(type));
}

/// Options of the encoder; defaults are those of transformers' BertConfig and RoFormerConfig.
EncoderOptions config_encoder(HfConfig& config, HfFamily family) {
  const bool bert = family == HfFamily::bert;
  EncoderOptions o;
  o.dim = config.integer("hidden_size", 768, 1, 65536);
  o.layers = config.integer("num_hidden_layers", 12, 1, 1024);
  o.heads = config.integer("num_attention_heads", 12, 1, 1024);
  o.ffn = config.integer("intermediate_size", 3072, 1, 1 << 20);
  o.dropout = config.number("hidden_dropout_prob", 0.1, 0.0, 0.99);
  o.attention_dropout = config.number("attention_probs_dropout_prob", 0.1, 0.0, 0.99);
  o.norm_eps = config.number("layer_norm_eps", 1e-12, 1e-30, 1.0);
  o.init_std = config.number("initializer_range", 0.02, 0.0, 1e3);
  o.segments = config.integer("type_vocab_size", 2, 1, 1 << 16);
  o.vocab_size = config.integer("vocab_size", bert ? 30522 : 50000, 1, 1 << 24);
  const int64_t embedding = config.integer("embedding_size", o.dim, 1, 65536);
  if (embedding != o.dim) {
    if (bert) config.refuse("'embedding_size' differs from 'hidden_size': not a BERT");
    o.embedding = embedding;
  }
  const std::string name = config.text("hidden_act", "gelu");
  const auto* activation = std::find_if(std::begin(hf_activations), std::end(hf_activations),
                                        [&](const HfActivation& a) { return a.name == name; });
  if (activation == std::end(hf_activations)) {
    config.refuse(
        "hidden_act '{}' is not supported; gelu, gelu_new, gelu_pytorch_tanh, relu, silu and tanh are",
        shown(name));
  }
  o.activation = activation->activation;
  if (const std::string type = config.text("position_embedding_type", "absolute"); type != "absolute") {
    config.refuse("position_embedding_type '{}' is not supported; 'absolute' is", shown(type));
  }
  const int64_t length = config.integer("max_position_embeddings", bert ? 512 : 1536, 1, 1 << 22);
  if (bert) {
    o.positions = {LearnedOptions{.max_length = length, .init_std = o.init_std}};
    if (!says_no(config.get("rotary_value"))) config.refuse("'rotary_value' does not belong to a BERT");
  } else {
    o.positions = {RotaryOptions{.values = config.boolean("rotary_value", false)}};
  }
  return o;
}

/// Names of the labels by number: "id2label", else as many as "num_labels", else two.
std::vector<std::string> config_labels(HfConfig& config) {
  const Json& table = config.get("id2label");
  if (table.is_object() && table.empty()) config.refuse("'id2label' names no label");
  const int64_t count =
      config.integer("num_labels", table.is_object() ? static_cast<int64_t>(table.size()) : 2, 1, 1 << 20);
  std::vector<std::string> names;
  for (int64_t i = 0; i < count; ++i) names.push_back(fmt::format("LABEL_{}", i));
  if (table.is_null()) return names;
  if (!table.is_object()) config.refuse("'id2label' must be an object");
  if (static_cast<int64_t>(table.size()) != count) config.refuse("'id2label' and 'num_labels' disagree");
  for (int64_t i = 0; i < count; ++i) {
    const auto found = table.find(std::to_string(i));
    if (found == table.end() || !found->is_string()) {
      config.refuse("'id2label' must name every label from \"0\" to \"{}\" by a text", count - 1);
    }
    names[static_cast<size_t>(i)] = found->get<std::string>();
  }
  return names;
}

// --- Weights
// -------------------------------------------------------------------------------------------------------

/// The name that transformers gives the tensor today.
std::string current_name(std::string name, HfFamily family) {
  for (const auto& [old_end, new_end] :
       {std::pair<std::string_view, std::string_view>{"LayerNorm.gamma", "LayerNorm.weight"},
        {"LayerNorm.beta", "LayerNorm.bias"}}) {
    if (name.size() >= old_end.size() &&
        name.compare(name.size() - old_end.size(), old_end.size(), old_end) == 0) {
      name.replace(name.size() - old_end.size(), old_end.size(), new_end);
    }
  }
  for (const std::string_view bare : {"embeddings.", "embeddings_project.", "encoder.", "pooler."}) {
    if (name.starts_with(bare)) return std::string(hf_prefix(family)) + name;
  }
  return name;
}

class HfWeightsReader {
 public:
  HfWeightsReader(fs::path folder, HfFamily family) : folder_(std::move(folder)), family_(family) {}

  std::map<std::string, HfTensor, std::less<>> read() {
    if (exists("model.safetensors")) {
      add_safetensors("model.safetensors");
    } else if (exists("model.safetensors.index.json")) {
      add_index("model.safetensors.index.json", &HfWeightsReader::add_safetensors);
    } else if (exists("pytorch_model.bin")) {
      add_pickle("pytorch_model.bin");
    } else if (exists("pytorch_model.bin.index.json")) {
      add_index("pytorch_model.bin.index.json", &HfWeightsReader::add_pickle);
    } else {
      fail("{}: no weights here; model.safetensors or pytorch_model.bin, or the index of its parts, is read",
           folder_.string());
    }
    return std::move(weights_);
  }

 private:
  bool exists(const char* name) const { return fs::is_regular_file(folder_ / name); }

  void add(const std::string& stored, HfTensor tensor) {
    tensor.stored_name = stored;
    const auto [at, added] = weights_.emplace(current_name(stored, family_), std::move(tensor));
    if (!added) {
      fail("{}: '{}' and '{}' are the same tensor", folder_.string(), shown(at->second.stored_name),
           shown(stored));
    }
  }
  void add_safetensors(const std::string& name) {
    const SafetensorsFile file(folder_ / name);
    for (const SafetensorsEntry& entry : file.entries()) {
      add(entry.name, {entry.dtype, entry.shape, {}, [file, key = entry.name] { return file.tensor(key); }});
    }
  }
  void add_pickle(const std::string& name) {
    const PickleFile file(folder_ / name);
    for (const auto& [key, entry] : file.entries()) {
      add(key, {entry.dtype, entry.shape, {}, [file, key = key] { return file.tensor(key); }});
    }
  }
  void add_index(const char* name, void (HfWeightsReader::*add_file)(const std::string&)) {
    const fs::path path = folder_ / name;
    const JsonFile index(path, max_index_bytes);
    const Json* map = index.find("weight_map");
    if (!map || !map->is_object()) index.refuse("'weight_map' is missing");
    std::set<std::string> files;
    for (const auto& [key, file] : map->items()) {
      if (!file.is_string()) index.refuse("the file of '{}' is no text", shown(key));
      const std::string part = file.get<std::string>();
      if (part.empty() || part.find_first_of(std::string_view("/\\\0", 3)) != std::string::npos ||
          part == "..") {
        index.refuse("'{}' is no file of this folder", shown(part));
      }
      files.insert(part);
    }
    for (const std::string& file : files) (this->*add_file)(file);
    std::vector<std::string> absent;
    for (const auto& [key, file] : map->items()) {
      if (!weights_.count(current_name(key, family_))) absent.push_back("'" + shown(key) + "'");
    }
    if (!absent.empty()) fail("{}: not in the files: {}", path.string(), fmt::join(absent, ", "));
  }

  fs::path folder_;
  HfFamily family_;
  std::map<std::string, HfTensor, std::less<>> weights_;
};

/// A damaged config.json must not ask for memory that no weights fill.
void check_size(const HfFolder& folder) {
  const EncoderOptions& o = folder.encoder;
  auto real = [](int64_t n) { return static_cast<double>(n); };
  double described = real(o.vocab_size + o.segments) * real(o.embedding_dim()) +
                     real(o.layers) * (4.0 * real(o.dim) + 2.0 * real(o.ffn)) * real(o.dim);
  if (folder.family == HfFamily::bert) described += real(folder.max_length) * real(o.dim);
  double stored = 0;
  for (const auto& [name, tensor] : folder.weights) {
    double elements = 1;
    for (const int64_t size : tensor.shape) elements *= real(size);
    stored += elements;
  }
  if (described > 4 * stored + 1e6) {
    fail("{}: config.json describes a model of {:.0f} parameters, the weights have {:.0f}",
         folder.path.string(), described, stored);
  }
}

// --- Models
// --------------------------------------------------------------------------------------------------------

/// What a model of ours is made of.
struct HfModelView {
  const EncoderImpl* encoder = nullptr;
  HeadType head = HeadType::none;
  bool pooler = false;
  bool tied = true;
  ClassifierOptions classifier;
  std::string prefix;  ///< what parameter names lack: "encoder." of a bare encoder
};

HfModelView view_model(const torch::nn::Module& model) {
  HfModelView view;
  if (const auto* lm = model.as<MaskedLmImpl>()) {
    view.encoder = lm->encoder.ptr().get();
    view.head = HeadType::mlm;
  } else if (const auto* classifier = model.as<SequenceClassifierImpl>()) {
    view.encoder = classifier->encoder.ptr().get();
    view.head = HeadType::classifier;
    view.classifier = classifier->head->options();
  } else if (const auto* pretrained = model.as<PretrainedImpl>()) {
    view.encoder = pretrained->encoder.ptr().get();
    view.head = pretrained->options().head;
    view.pooler = pretrained->options().pooler;
    view.tied = pretrained->options().tied;
    view.classifier = pretrained->options().classifier;
  } else if (const auto* encoder = model.as<EncoderImpl>()) {
    view.encoder = encoder;
    view.prefix = "encoder.";
  } else {
    TORCH_CHECK(false, "Hugging Face files hold Encoder, MaskedLm, SequenceClassifier or Pretrained, not ",
                model.name());
  }
  return view;
}

HeadKind kind_of(HfFamily family) { return family == HfFamily::bert ? HeadKind::bert : HeadKind::roformer; }

/// The name in the folder; empty where the family has none.
std::string name_in_family(const std::string& ours, const HfModelView& view, HfFamily family) {
  if (view.head == HeadType::classifier && ours.starts_with("head.") &&
      view.classifier.kind != kind_of(family)) {
    return {};
  }
  return hf_name(ours, family, view.head);
}

/// Parameters that a folder has or lacks together: heads. Empty: none may be absent.
std::string optional_group(const std::string& ours, const HfModelView& view) {
  if (ours.starts_with("pooler.")) return "pooler";
  if (!ours.starts_with("head.")) return {};
  // BERT's pooler is part of the encoder there, so it may come without the output layer.
  if (view.head == HeadType::classifier && view.classifier.kind == HeadKind::bert) {
    return ours.substr(0, ours.find('.', 5));
  }
  return "head";
}

/// RoFormer's fixed table: columns sin, then cos, float64 angles, rounded to float32: [rows, width].
torch::Tensor sinusoid_table(int64_t rows, int64_t width) {
  torch::Tensor table = torch::empty({rows, width}, torch::kFloat32);
  auto cells = table.accessor<float, 2>();
  for (int64_t j = 0; 2 * j < width; ++j) {
    const double divisor = std::pow(10000.0, 2.0 * static_cast<double>(j) / static_cast<double>(width));
    for (int64_t m = 0; m < rows; ++m) {
      const double angle = static_cast<double>(m) / divisor;
      cells[m][j] = static_cast<float>(std::sin(angle));
      cells[m][j + width / 2] = static_cast<float>(std::cos(angle));
    }
  }
  return table;
}

/// A table that someone trained would be lost in silence.
std::string sinusoid_problem(const HfTensor& stored, const std::string& name, int64_t head_dim) {
  if (stored.shape.size() != 2 || stored.shape[1] != head_dim || !at::isFloatingType(stored.dtype)) {
    return fmt::format("'{}' is no table of sines for heads of {}", name, head_dim);
  }
  const torch::Tensor table = stored.read();
  if (table.size(0) == 0) return {};
  // Others computed their angles in float32, which costs 1e-4 at position 1500.
  const double tolerance = stored.dtype == at::kFloat || stored.dtype == at::kDouble ? 1e-3 : 1e-2;
  const double difference =
      (table.to(torch::kFloat64) - sinusoid_table(table.size(0), head_dim)).abs().max().item<double>();
  if (difference <= tolerance) return {};
  return fmt::format(
      "'{}' is not the table of sines (it differs by {:.2g}): trained tables are not supported", name,
      difference);
}

std::string activation_name(Activation activation) {
  for (const HfActivation& known : hf_activations) {
    if (known.activation == activation) return std::string(known.name);
  }
  TORCH_CHECK(false, "no name for this activation");
}

/// The `type` of the alternative that a choice holds.
template <class... T>
std::string_view alternative_name(const std::variant<T...>& choice) {
  return std::visit([](const auto& x) { return std::decay_t<decltype(x)>::type; }, choice);
}

/// Options that shapes do not show.
std::vector<std::string> option_problems(const EncoderOptions& ours, const EncoderOptions& theirs) {
  std::vector<std::string> problems;
  auto compare = [&](std::string_view name, const auto& a, const auto& b) {
    if (a != b) problems.push_back(fmt::format("model.{} is {}, the folder's {}", name, a, b));
  };
  compare("layers", ours.layers, theirs.layers);
  compare("heads", ours.heads, theirs.heads);
  compare("activation", activation_name(ours.activation), activation_name(theirs.activation));
  compare("norm_eps", ours.norm_eps, theirs.norm_eps);
  if (ours.norm != theirs.norm) problems.push_back("model.norm is pre, the folder's post");
  auto type = [](const EncoderOptions& o) {
    std::string names;
    for (const PositionOptions& p : o.positions) {
      names += (names.empty() ? "" : " + ") + std::string(alternative_name(p));
    }
    return names;
  };
  compare("positions", type(ours), type(theirs));
  compare("attention", alternative_name(ours.attention), alternative_name(theirs.attention));
  if (type(ours) == "rotary" && type(theirs) == "rotary") {
    const auto& a = std::get<RotaryOptions>(ours.positions[0]);
    const auto& b = std::get<RotaryOptions>(theirs.positions[0]);
    const int64_t head_dim = theirs.dim / theirs.heads;
    compare("positions.values", a.values, b.values);
    compare("positions.base", a.base, b.base);
    compare("positions.scaling", alternative_name(a.scaling), alternative_name(b.scaling));
    compare("positions.dim", a.dim == 0 ? head_dim : a.dim, b.dim == 0 ? head_dim : b.dim);
    if (a.layout != b.layout)
      problems.push_back("model.positions.layout is halves, the folder's interleaved");
  }
  return problems;
}

/// Tensors that say nothing that the rest does not say.
bool is_redundant(std::string_view name) {
  return name == "bert.embeddings.position_ids" || name == "roformer.embeddings.position_ids" ||
         name == "roformer.encoder.embed_positions.weight" || name == "cls.predictions.decoder.weight" ||
         name == "cls.predictions.decoder.bias";
}

bool is_other_head(std::string_view name) {
  for (const std::string_view start :
       {"cls.predictions.", "cls.seq_relationship.", "bert.pooler.", "roformer.pooler.", "classifier.",
        "qa_outputs.", "sequence_summary."}) {
    if (name.starts_with(start)) return true;
  }
  return false;
}

}  // namespace

HfFolder open_hf(const fs::path& path) {
  if (!fs::is_directory(path)) fail("{}: no such folder", path.string());
  if (!fs::is_regular_file(path / "config.json")) fail("{}: no config.json here", path.string());
  HfConfig config(path / "config.json");
  HfFolder folder;
  folder.path = path;
  folder.family = config_family(config);
  folder.encoder = config_encoder(config, folder.family);
  folder.max_length =
      config.integer("max_position_embeddings", folder.family == HfFamily::bert ? 512 : 1536, 1, 1 << 22);
  folder.pad_token = config.integer("pad_token_id", 0, -1, 1 << 24);
  folder.tied = config.boolean("tie_word_embeddings", true);
  const std::vector<std::string> labels = config_labels(config);
  const std::string problem = config.text("problem_type", "");
  if (!problem.empty() && problem != "regression" && problem != "single_label_classification" &&
      problem != "multi_label_classification") {
    config.refuse("problem_type '{}' is not known", shown(problem));
  }
  const Json& classifier_dropout = config.get("classifier_dropout");
  if (folder.family == HfFamily::bert && !classifier_dropout.is_null()) {
    folder.classifier.dropout = config.number("classifier_dropout", 0.0, 0.0, 0.99);
  }
  const std::string class_name = architecture(config);
  config.refuse_others();
  try {
    validate(folder.encoder);
  } catch (const Error& error) {
    config.refuse("{}", error.what());
  }

  folder.weights = HfWeightsReader(path, folder.family).read();
  check_size(folder);
  const auto token = folder.weights.find(hf_name("encoder.token.weight", folder.family));
  if (token != folder.weights.end() && at::isFloatingType(token->second.dtype))
    folder.dtype = token->second.dtype;

  folder.classifier.kind = kind_of(folder.family);
  const auto output = folder.weights.find(hf_name("head.output.weight", folder.family, HeadType::classifier));
  // Heads for tokens or choices have the same names.
  const bool sequences =
      class_name.empty() || class_name.find("ForSequenceClassification") != std::string::npos;
  if (output != folder.weights.end() && sequences) {
    folder.head = HeadType::classifier;
    folder.label_names = labels;
    folder.classifier.labels = static_cast<int64_t>(labels.size());
    folder.problem_type = !problem.empty()     ? problem
                          : labels.size() == 1 ? "regression"
                                               : "single_label_classification";
  } else if (folder.weights.count("cls.predictions.transform.dense.weight")) {
    folder.head = HeadType::mlm;
  }
  folder.pooler = folder.family == HfFamily::bert && folder.head != HeadType::classifier &&
                  folder.weights.count("bert.pooler.dense.weight") > 0;
  // Without an own decoder in the file there is nothing to be untied.
  if (folder.head != HeadType::mlm) folder.tied = true;
  return folder;
}

HfReport load_hf(torch::nn::Module& model, const HfFolder& folder) {
  const HfModelView view = view_model(model);
  std::vector<std::string> problems = option_problems(view.encoder->options(), folder.encoder);
  HfReport report;
  struct Match {
    torch::Tensor parameter;
    const HfTensor* stored;
  };
  struct Absent {
    std::string group, name;
  };
  std::vector<Match> matches;
  std::vector<Absent> absent;
  std::set<std::string> present_groups;
  std::set<std::string, std::less<>> used;
  for (const auto& item : model.named_parameters()) {
    const std::string ours = view.prefix + item.key();
    const std::string name = name_in_family(ours, view, folder.family);
    const std::string group = optional_group(ours, view);
    auto found = name.empty() ? folder.weights.end() : folder.weights.find(name);
    if (found == folder.weights.end() && name == "cls.predictions.bias") {
      found = folder.weights.find("cls.predictions.decoder.bias");
    }
    if (found == folder.weights.end()) {
      absent.push_back({group, name.empty() ? ours : name});
      continue;
    }
    present_groups.insert(group);
    used.insert(found->first);
    const HfTensor& stored = found->second;
    if (!at::isFloatingType(stored.dtype)) {
      problems.push_back(fmt::format("'{}' holds no floating-point numbers", stored.stored_name));
    } else if (item.value().sizes() != torch::IntArrayRef(stored.shape)) {
      problems.push_back(fmt::format("'{}' is [{}], not [{}]", shown(stored.stored_name),
                                     fmt::join(stored.shape, ", "), fmt::join(item.value().sizes(), ", ")));
    } else {
      matches.push_back({item.value(), &stored});
    }
  }
  for (const Absent& a : absent) {
    if (a.group.empty() || present_groups.count(a.group)) {
      problems.push_back(fmt::format("'{}' is missing", a.name));
    } else {
      report.fresh.push_back(a.name);
    }
  }
  if (view.head == HeadType::mlm && folder.head == HeadType::mlm && view.tied && !folder.tied) {
    problems.push_back(
        "the folder's decoder is not tied to the embeddings ('tie_word_embeddings'), the model's is");
  }
  for (const auto& [name, tensor] : folder.weights) {
    if (used.count(name)) continue;
    if (is_redundant(name)) {
      if (name != "roformer.encoder.embed_positions.weight" || folder.family != HfFamily::roformer) continue;
      const EncoderOptions& o = view.encoder->options();
      if (std::string problem = sinusoid_problem(tensor, name, o.dim / o.heads); !problem.empty()) {
        problems.push_back(std::move(problem));
      }
    } else if (is_other_head(name)) {
      report.unused.push_back(name);
    } else {
      problems.push_back(fmt::format("'{}' is unexpected", shown(tensor.stored_name)));
    }
  }
  if (!problems.empty()) {
    fail("{}: does not fit the model: {}", folder.path.string(), fmt::join(problems, "; "));
  }
  torch::NoGradGuard no_grad;
  for (const Match& match : matches) {
    torch::Tensor parameter = match.parameter;
    parameter.copy_(match.stored->read());
  }
  return report;
}

void load_hf_mlm(MaskedLmImpl& model, const SafetensorsFile& file) {
  HfFolder folder;
  folder.path = "the file of weights";
  folder.family = hf_family(file);
  folder.head = HeadType::mlm;
  folder.encoder = model.encoder->options();  // no config.json says otherwise
  for (const SafetensorsEntry& entry : file.entries()) {
    folder.weights.emplace(entry.name, HfTensor{entry.dtype, entry.shape, entry.name,
                                                [file, name = entry.name] { return file.tensor(name); }});
  }
  const HfReport report = load_hf(model, folder);
  if (!report.fresh.empty()) fail("the file of weights has no head of a masked language model");
}

Pretrained load_pretrained(const HfFolder& folder, HfReport* report) {
  Pretrained model(static_cast<const PretrainedOptions&>(folder));
  HfReport loaded = load_hf(*model, folder);
  if (report) *report = std::move(loaded);
  return model;
}

HfFamily hf_family_of(const EncoderOptions& o) {
  if (o.norm != NormPlacement::post) {
    fail("Hugging Face's BERT and RoFormer have no pre-norm blocks; only model.norm: post can be written");
  }
  if (!std::holds_alternative<SoftmaxAttention>(o.attention)) {
    fail("Hugging Face's BERT and RoFormer have softmax attention; model.attention: {} cannot be written",
         alternative_name(o.attention));
  }
  if (o.positions.size() != 1) {
    fail("Hugging Face's BERT and RoFormer have one position encoding; {} cannot be written",
         o.positions.size());
  }
  if (std::holds_alternative<LearnedOptions>(o.positions[0])) {
    if (o.embedding_dim() != o.dim) fail("Hugging Face's BERT has no model.embedding other than model.dim");
    return HfFamily::bert;
  }
  const auto* rotary = std::get_if<RotaryOptions>(&o.positions[0]);
  if (!rotary) {
    fail("Hugging Face's BERT has learned positions and its RoFormer rotary ones; no other can be written");
  }
  if (rotary->layout != RotaryLayout::interleaved || rotary->base != 10000.0 || rotary->trainable ||
      !std::holds_alternative<NoScaling>(rotary->scaling) ||
      (rotary->dim != 0 && rotary->dim != o.dim / o.heads)) {
    fail(
        "Hugging Face's RoFormer turns all columns of a head, interleaved, with base 10000 and fixed theta; "
        "other "
        "rotary options cannot be written");
  }
  return HfFamily::roformer;
}

HfReport save_hf(const fs::path& path, const torch::nn::Module& model, const HfSaveOptions& options) {
  const HfModelView view = view_model(model);
  const EncoderOptions& o = view.encoder->options();
  const HfFamily family = hf_family_of(o);
  const bool bert = family == HfFamily::bert;
  // An encoding passed to the constructor is not what the options say.
  const auto children = view.encoder->named_children();
  const auto* encoding = children["positions"]->as<PositionEncodingImpl>();
  if (!encoding || encoding->name() != (bert ? LearnedOptions::type : RotaryOptions::type)) {
    fail("a position encoding from outside cannot be written in Hugging Face's format");
  }
  if (view.head == HeadType::classifier && view.classifier.kind != kind_of(family)) {
    fail("Hugging Face's {} has its own classification head; fine-tune with head: {} to write this model",
         bert ? "BERT" : "RoFormer", bert ? "bert" : "roformer");
  }

  HfReport report;
  std::vector<std::pair<std::string, torch::Tensor>> tensors;
  const std::string prefix(hf_prefix(family));
  auto add = [&](std::string name, const torch::Tensor& tensor) {
    // As transformers does: an encoder alone is written without the prefix.
    if (view.head == HeadType::none && name.starts_with(prefix)) name.erase(0, prefix.size());
    tensors.emplace_back(std::move(name), tensor.detach().to(torch::kCPU).to(options.dtype));
  };
  for (const auto& item : model.named_parameters()) {
    const std::string ours = view.prefix + item.key();
    const std::string name = name_in_family(ours, view, family);
    if (name.empty()) fail("parameter '{}' has no name in Hugging Face's format", ours);
    if (view.head != HeadType::none && ours.starts_with("pooler.")) {
      report.unused.push_back(name);
    } else {
      add(name, item.value());
    }
  }
  const int64_t segments = o.segments > 0 ? o.segments : 2;
  if (o.segments == 0) {
    add(hf_name("encoder.segment.weight", family), torch::zeros({segments, o.embedding_dim()}));
  }
  if (!bert) {
    add(prefix + "encoder.embed_positions.weight", sinusoid_table(options.max_length, o.dim / o.heads));
  }

  Json config;
  const std::string class_name = bert ? "Bert" : "RoFormer";
  config["architectures"] = {class_name + (view.head == HeadType::mlm          ? "ForMaskedLM"
                                           : view.head == HeadType::classifier ? "ForSequenceClassification"
                                                                               : "Model")};
  config["model_type"] = bert ? "bert" : "roformer";
  config["vocab_size"] = o.vocab_size;
  config["hidden_size"] = o.dim;
  config["num_hidden_layers"] = o.layers;
  config["num_attention_heads"] = o.heads;
  config["intermediate_size"] = o.ffn;
  config["hidden_act"] = activation_name(o.activation);
  config["hidden_dropout_prob"] = o.dropout;
  config["attention_probs_dropout_prob"] = o.attention_dropout.value_or(o.dropout);
  config["layer_norm_eps"] = o.norm_eps;
  config["initializer_range"] = o.init_std;
  config["type_vocab_size"] = segments;
  config["pad_token_id"] = options.pad_token;
  config["torch_dtype"] = options.dtype == at::kHalf       ? "float16"
                          : options.dtype == at::kBFloat16 ? "bfloat16"
                          : options.dtype == at::kDouble   ? "float64"
                                                           : "float32";
  if (bert) {
    config["position_embedding_type"] = "absolute";
    config["max_position_embeddings"] = std::get<LearnedOptions>(o.positions[0]).max_length;
  } else {
    config["embedding_size"] = o.embedding_dim();
    config["max_position_embeddings"] = options.max_length;
    config["rotary_value"] = std::get<RotaryOptions>(o.positions[0]).values;
  }
  if (!view.tied) config["tie_word_embeddings"] = false;
  if (view.head == HeadType::classifier) {
    const auto labels = static_cast<size_t>(view.classifier.labels);
    if (!options.label_names.empty() && options.label_names.size() != labels) {
      fail("{} names for {} labels", options.label_names.size(), labels);
    }
    for (size_t i = 0; i < labels; ++i) {
      const std::string name =
          options.label_names.empty() ? fmt::format("LABEL_{}", i) : options.label_names[i];
      config["id2label"][std::to_string(i)] = name;
      config["label2id"][name] = i;
    }
    if (!options.problem_type.empty()) config["problem_type"] = options.problem_type;
    if (bert)
      config["classifier_dropout"] = view.classifier.dropout ? Json(*view.classifier.dropout) : Json();
  }

  std::error_code error;
  fs::create_directories(path, error);
  if (error) fail("cannot create {}: {}", path.string(), error.message());
  save_safetensors(path / "model.safetensors", tensors, {{"format", "pt"}});
  write_file_atomically(path / "config.json",
                        config.dump(2, ' ', false, Json::error_handler_t::replace) + "\n");
  return report;
}

}  // namespace roformer
