#include "roformer/hf/folder.h"

#include <algorithm>
#include <cmath>

#include "roformer/core/display.h"
#include "roformer/hf/config_json.h"

namespace roformer {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

// --- config.json
// ---------------------------------------------------------------------------------------------------

int64_t config_length(HfConfig& config, HfFamily family) {
  return config.integer("max_position_embeddings", hf_max_length(family), 1, 1 << 22);
}

HfFamily config_family(HfConfig& config) {
  const std::string type = config.model_type();
  for (const auto& [family, name] : enum_names(HfFamily{})) {
    if (type == name) return family;
  }
  if (type == "llama") config.refuse("model_type 'llama' is a language model, and an encoder is needed here");
  config.refuse("model_type '{}' is not supported; 'bert', 'nezha' and 'roformer' are", shown(type));
}

/// Options of the encoder; defaults are those of transformers' BertConfig, RoFormerConfig and NezhaConfig.
EncoderOptions config_encoder(HfConfig& config, HfFamily family) {
  const bool roformer = family == HfFamily::roformer, nezha = family == HfFamily::nezha;
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
  o.vocab_size = config.integer("vocab_size", roformer ? 50000 : nezha ? 21128 : 30522, 1, 1 << 24);
  const int64_t embedding = config.integer("embedding_size", o.dim, 1, 65536);
  if (embedding != o.dim) {
    if (!roformer)
      config.refuse("'embedding_size' differs from 'hidden_size': not a {}", nezha ? "NEZHA" : "BERT");
    o.embedding = embedding;
  }
  o.activation = config.activation("hidden_act", "gelu");
  if (const std::string type = config.text("position_embedding_type", "absolute"); type != "absolute") {
    config.refuse("position_embedding_type '{}' is not supported; 'absolute' is", shown(type));
  }
  const bool rotary_value = config.boolean("rotary_value", false);
  if (roformer) {
    o.positions = {RotaryOptions{.values = rotary_value}};
    return o;
  }
  if (rotary_value) config.refuse("'rotary_value' does not belong to a {}", nezha ? "NEZHA" : "BERT");
  if (nezha) {
    o.positions = {NezhaOptions{.max_distance = config.integer("max_relative_position", 64, 1, 1 << 20)}};
    // Files of the first implementation say it; its other models have a table of positions.
    if (!config.boolean("use_relative_position", true)) {
      config.refuse("'use_relative_position' is false: not a NEZHA with relative positions");
    }
  } else {
    o.positions = {LearnedOptions{.max_length = config_length(config, family), .init_std = o.init_std}};
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
    if (name.starts_with(bare)) return hf_prefix(family) + name;
  }
  return name;
}

/// Parameters that config.json promises.
double described_size(const HfFolder& folder) {
  const EncoderOptions& o = folder.encoder;
  auto real = [](int64_t n) { return static_cast<double>(n); };
  double described = real(o.vocab_size + o.segments) * real(o.embedding_dim()) +
                     real(o.layers) * (4.0 * real(o.dim) + 2.0 * real(o.ffn)) * real(o.dim);
  if (folder.family == HfFamily::bert) described += real(folder.max_length) * real(o.dim);
  return described;
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

/// The name in the folder; empty where the family has none.
std::string name_in_family(const std::string& ours, const HfModelView& view, HfFamily family) {
  if (view.head == HeadType::classifier && ours.starts_with("head.") &&
      view.classifier.kind != hf_head_kind(family)) {
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

/// Options that shapes do not show.
std::vector<std::string> option_problems(const EncoderOptions& ours, const EncoderOptions& theirs) {
  std::vector<std::string> problems;
  auto compare = [&](std::string_view name, const auto& a, const auto& b) {
    if (a != b) problems.push_back(fmt::format("model.{} is {}, the folder's {}", name, a, b));
  };
  compare("layers", ours.layers, theirs.layers);
  compare("heads", ours.heads, theirs.heads);
  compare("activation", hf_activation_name(ours.activation), hf_activation_name(theirs.activation));
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
  if (type(ours) == "nezha" && type(theirs) == "nezha") {
    compare("positions.max_distance", std::get<NezhaOptions>(ours.positions[0]).max_distance,
            std::get<NezhaOptions>(theirs.positions[0]).max_distance);
  }
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

/// Tensors that say nothing that the rest does not say; names without the family's prefix.
bool is_redundant(std::string_view name) {
  return name == "embeddings.position_ids" || name == "encoder.embed_positions.weight" ||
         name == "cls.predictions.decoder.weight" || name == "cls.predictions.decoder.bias" ||
         name.ends_with("relative_positions_encoding.positions_encoding");
}

bool is_other_head(std::string_view name) {
  for (const std::string_view start : {"cls.predictions.", "cls.seq_relationship.", "pooler.", "classifier.",
                                       "qa_outputs.", "sequence_summary."}) {
    if (name.starts_with(start)) return true;
  }
  return false;
}

}  // namespace

HfFolder open_hf(const fs::path& path) {
  HfConfig config(path);
  HfFolder folder;
  folder.path = path;
  folder.family = config_family(config);
  folder.encoder = config_encoder(config, folder.family);
  folder.max_length = config_length(config, folder.family);
  folder.pad_token = config.integer("pad_token_id", 0, -1, 1 << 24);
  folder.tied = config.boolean("tie_word_embeddings", true);
  const std::vector<std::string> labels = config_labels(config);
  const std::string problem = config.text("problem_type", "");
  if (!problem.empty() && problem != "regression" && problem != "single_label_classification" &&
      problem != "multi_label_classification") {
    config.refuse("problem_type '{}' is not known", shown(problem));
  }
  // Absent, it is 0.1 in a NEZHA; null is the encoder's.
  if (folder.family != HfFamily::roformer && !config.get("classifier_dropout").is_null()) {
    folder.classifier.dropout = config.number("classifier_dropout", 0.0, 0.0, 0.99);
  } else if (folder.family == HfFamily::nezha && !config.has("classifier_dropout")) {
    folder.classifier.dropout = 0.1;
  }
  const std::string class_name = config.architecture();
  config.refuse_others();
  try {
    validate(folder.encoder);
  } catch (const Error& error) {
    config.refuse("{}", error.what());
  }

  folder.weights =
      read_hf_weights(path, [&](const std::string& name) { return current_name(name, folder.family); });
  check_hf_size(path, described_size(folder), folder.weights);
  const auto token = folder.weights.find(hf_name("encoder.token.weight", folder.family));
  if (token != folder.weights.end() && at::isFloatingType(token->second.dtype))
    folder.dtype = token->second.dtype;

  folder.classifier.kind = hf_head_kind(folder.family);
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
  folder.pooler = folder.family != HfFamily::roformer && folder.head != HeadType::classifier &&
                  folder.weights.count(hf_name("pooler.weight", folder.family)) > 0;
  // Without an own decoder in the file there is nothing to be untied.
  if (folder.head != HeadType::mlm) folder.tied = true;
  return folder;
}

HfReport load_hf(torch::nn::Module& model, const HfFolder& folder) {
  const HfModelView view = view_model(model);
  std::vector<std::string> problems = option_problems(view.encoder->options(), folder.encoder);
  if (view.head == HeadType::mlm && folder.head == HeadType::mlm && view.tied && !folder.tied) {
    problems.push_back(
        "the folder's decoder is not tied to the embeddings ('tie_word_embeddings'), the model's is");
  }
  std::vector<HfParameter> parameters;
  for (const auto& item : model.named_parameters()) {
    const std::string ours = view.prefix + item.key();
    std::string name = name_in_family(ours, view, folder.family);
    const std::string other = "cls.predictions.decoder.bias";
    if (name == "cls.predictions.bias" && !folder.weights.count(name) && folder.weights.count(other))
      name = other;
    parameters.push_back({ours, std::move(name), item.value(), optional_group(ours, view)});
  }
  const std::string prefix = hf_prefix(folder.family);
  auto leftover = [&](const std::string& name, const HfTensor& tensor, std::vector<std::string>& found) {
    const std::string_view inner =
        std::string_view(name).substr(name.starts_with(prefix) ? prefix.size() : 0);
    if (!is_redundant(inner)) return is_other_head(inner) ? HfLeftover::unused : HfLeftover::unexpected;
    if (folder.family == HfFamily::roformer && inner == "encoder.embed_positions.weight") {
      const EncoderOptions& o = view.encoder->options();
      std::string problem = sinusoid_problem(tensor, name, o.dim / o.heads);
      if (!problem.empty()) found.push_back(std::move(problem));
    }
    return HfLeftover::redundant;
  };
  return load_hf_weights(folder.path.string(), folder.weights, parameters, std::move(problems), leftover);
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
  constexpr std::string_view families = "Hugging Face's BERT, NEZHA and RoFormer";
  if (o.norm != NormPlacement::post) {
    fail("{} have no pre-norm blocks; only model.norm: post can be written", families);
  }
  if (!std::holds_alternative<SoftmaxAttention>(o.attention)) {
    fail("{} have softmax attention; model.attention: {} cannot be written", families,
         alternative_name(o.attention));
  }
  if (o.positions.size() != 1) {
    fail("{} have one position encoding; {} cannot be written", families, o.positions.size());
  }
  const bool nezha = std::holds_alternative<NezhaOptions>(o.positions[0]);
  if (nezha || std::holds_alternative<LearnedOptions>(o.positions[0])) {
    if (o.embedding_dim() != o.dim) {
      fail("Hugging Face's {} has no model.embedding other than model.dim", nezha ? "NEZHA" : "BERT");
    }
    return nezha ? HfFamily::nezha : HfFamily::bert;
  }
  const auto* rotary = std::get_if<RotaryOptions>(&o.positions[0]);
  if (!rotary) {
    fail("{} have learned, nezha and rotary positions; no other can be written", families);
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
  const bool roformer = family == HfFamily::roformer;
  const std::string class_name = roformer ? "RoFormer" : family == HfFamily::nezha ? "Nezha" : "Bert";
  const int64_t max_length = options.max_length.value_or(hf_max_length(family));
  // An encoding passed to the constructor is not what the options say.
  const auto children = view.encoder->named_children();
  const auto* encoding = children["positions"]->as<PositionEncodingImpl>();
  if (!encoding || encoding->name() != alternative_name(o.positions[0])) {
    fail("a position encoding from outside cannot be written in Hugging Face's format");
  }
  if (view.head == HeadType::classifier && view.classifier.kind != hf_head_kind(family)) {
    fail("Hugging Face's {} has its own classification head; fine-tune with head: {} to write this model",
         class_name, enum_name(hf_head_kind(family)));
  }

  HfReport report;
  std::vector<std::pair<std::string, torch::Tensor>> tensors;
  const std::string prefix = hf_prefix(family);
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
  if (roformer) {
    add(prefix + "encoder.embed_positions.weight", sinusoid_table(max_length, o.dim / o.heads));
  }

  Json config;
  config["architectures"] = {class_name + (view.head == HeadType::mlm          ? "ForMaskedLM"
                                           : view.head == HeadType::classifier ? "ForSequenceClassification"
                                                                               : "Model")};
  config["model_type"] = enum_name(family);
  config["vocab_size"] = o.vocab_size;
  config["hidden_size"] = o.dim;
  config["num_hidden_layers"] = o.layers;
  config["num_attention_heads"] = o.heads;
  config["intermediate_size"] = o.ffn;
  config["hidden_act"] = hf_activation_name(o.activation);
  config["hidden_dropout_prob"] = o.dropout;
  config["attention_probs_dropout_prob"] = o.attention_dropout.value_or(o.dropout);
  config["layer_norm_eps"] = o.norm_eps;
  config["initializer_range"] = o.init_std;
  config["type_vocab_size"] = segments;
  config["pad_token_id"] = options.pad_token;
  config["torch_dtype"] = hf_dtype_name(options.dtype);
  const auto* learned = std::get_if<LearnedOptions>(&o.positions[0]);
  config["max_position_embeddings"] = learned ? learned->max_length : max_length;
  if (learned) config["position_embedding_type"] = "absolute";
  if (const auto* nezha = std::get_if<NezhaOptions>(&o.positions[0])) {
    config["max_relative_position"] = nezha->max_distance;
  }
  if (roformer) {
    config["embedding_size"] = o.embedding_dim();
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
    if (!roformer)
      config["classifier_dropout"] = view.classifier.dropout ? Json(*view.classifier.dropout) : Json();
  }

  write_hf_folder(path, config, tensors);
  return report;
}

}  // namespace roformer
