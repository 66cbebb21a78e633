#include "roformer/hf/llama.h"

#include <cmath>

#include "roformer/hf/config_json.h"
#include "roformer/nn/rotary.h"
#include "tests/hf/folders.h"

// Folders of LLaMA: made and computed by transformers against what open_hf_llama and load_llama make of them,
// and folders that are written here.

using namespace roformer;
using roformer::test::max_error;

namespace {

namespace fs = std::filesystem;

const std::vector<std::string> llama_folders{"llama_gqa", "llama_mha_tied", "llama_linear_scaling",
                                             "llama_yarn", "llama_bf16"};

CausalLmOptions llama_options(const RotaryScaling& scaling = NoScaling{}) {
  CausalLmOptions o;
  o.dim = 16;
  o.layers = 2;
  o.heads = 4;
  o.kv_heads = 2;
  o.head_dim = 6;
  o.ffn = 24;
  o.activation = Activation::silu;
  o.gated = true;
  o.norm = NormKind::rms;
  o.bias = false;
  o.vocab_size = 19;
  RotaryOptions rotary{.layout = RotaryLayout::halves, .base = 500.0};
  rotary.scaling = scaling;
  o.positions = {rotary};
  return o;
}

const RotaryOptions& llama_rotary(const CausalLmOptions& options) {
  return std::get<RotaryOptions>(options.positions.at(0));
}

/// transformers' loss: each label is predicted from the token before it.
torch::Tensor llama_loss(CausalLm& model, const nlohmann::json& input) {
  const torch::Tensor keep = test::ids_of(input.at("attention_mask")).to(torch::kBool);
  const torch::Tensor logits = model(test::ids_of(input.at("input_ids")), keep);
  return at::cross_entropy_loss(logits.slice(1, 0, -1).flatten(0, 1),
                                test::ids_of(input.at("labels")).slice(1, 1).flatten());
}

void llama_forward(const fs::path& folder) {
  INFO(folder.filename().string());
  const nlohmann::json facts = test::read_json(folder / "case.json");
  const double tolerance = facts.at("tolerance_abs");
  const SafetensorsFile expected(folder / "expected.safetensors");
  CausalLm model = load_llama(open_hf_llama(folder));
  model->eval();
  torch::NoGradGuard no_grad;
  size_t compared = 0;
  const nlohmann::json inputs = test::read_json(folder / "inputs.json");
  for (const auto& [name, input] : inputs.items()) {
    INFO("batch " << name);
    const torch::Tensor tokens = test::ids_of(input.at("input_ids"));
    // Theirs counts columns and ours tokens, which the rotation does not see.
    const torch::Tensor keep = test::ids_of(input.at("attention_mask")).to(torch::kBool);
    const torch::Tensor hidden = model->hidden(tokens, keep);
    auto compare = [&](const std::string& what, const torch::Tensor& ours) {
      INFO(what);
      const torch::Tensor theirs = expected.tensor(name + "." + what);
      REQUIRE(max_error(ours.index({keep}), theirs.index({keep})) < tolerance);
      ++compared;
    };
    compare("last_hidden_state", hidden);
    compare("logits", model->logits(hidden));
    // With padding on the left their first token is predicted from a row that sees no token, where ours gives
    // zeros and theirs a mean over the padding.
    if (name == "left_padded") continue;
    const double loss = llama_loss(model, input).item<double>();
    REQUIRE(loss == Approx(facts.at("loss").at(name).get<double>()).margin(tolerance).epsilon(0));
  }
  REQUIRE(compared == 6);
}

/// A config.json for the weights of llama_options().
nlohmann::json llama_config(const nlohmann::json& change = nlohmann::json::object()) {
  nlohmann::json config = {{"model_type", "llama"},
                           {"vocab_size", 19},
                           {"hidden_size", 16},
                           {"num_hidden_layers", 2},
                           {"num_attention_heads", 4},
                           {"num_key_value_heads", 2},
                           {"head_dim", 6},
                           {"intermediate_size", 24},
                           {"rope_theta", 500.0},
                           {"max_position_embeddings", 64}};
  config.update(change);
  return config;
}

}  // namespace

TEST_CASE("llama: hidden states, logits and losses of transformers") {
  const auto oracles = test::require_oracles();
  if (!oracles) return;
  for (const std::string& name : llama_folders) llama_forward(*oracles / "hf" / name);
}

TEST_CASE("llama: states between the layers, and gradients of the first batch") {
  const auto oracles = test::require_oracles();
  if (!oracles) return;
  const fs::path path = *oracles / "hf" / "llama_gqa";
  CausalLm model = load_llama(open_hf_llama(path));
  model->eval();
  const nlohmann::json input = test::read_json(path / "inputs.json").at("right_padded");
  const SafetensorsFile states(path / "expected.safetensors");
  REQUIRE(torch::equal(model->named_parameters()["token.weight"].index_select(
                           0, test::ids_of(input.at("input_ids")).flatten()),
                       states.tensor("right_padded.hidden_state.0").flatten(0, 1)));
  llama_loss(model, input).backward();
  const std::map<std::string, std::string> names{
      {"model.embed_tokens.weight", "token.weight"},
      {"model.layers.0.self_attn.k_proj.weight", "layers.0.attention.key.weight"},
      {"model.layers.1.mlp.gate_proj.weight", "layers.1.ffn.gate.weight"},
      {"model.layers.1.input_layernorm.weight", "layers.1.attention_norm.weight"}};
  const SafetensorsFile expected(path / "gradients.safetensors");
  REQUIRE(expected.entries().size() == names.size());
  for (const auto& [theirs, ours] : names) {
    INFO(theirs);
    // case.json: gradients.tolerance
    REQUIRE(torch::allclose(model->named_parameters()[ours].grad(), expected.tensor(theirs), 1e-3, 1e-5));
  }
}

TEST_CASE("llama: greedy text, with a cache and without") {
  const auto oracles = test::require_oracles();
  if (!oracles) return;
  torch::NoGradGuard no_grad;
  size_t texts = 0;
  for (const std::string& name : llama_folders) {
    const fs::path path = *oracles / "hf" / name;
    const nlohmann::json facts = test::read_json(path / "case.json");
    if (!facts.contains("greedy")) continue;
    const auto prompt = facts.at("greedy").at("prompt").get<std::vector<int64_t>>();
    const auto sequence = facts.at("greedy").at("sequence").get<std::vector<int64_t>>();
    REQUIRE(sequence.size() == prompt.size() + 24);
    CausalLm model = load_llama(open_hf_llama(path));
    model->eval();
    for (const bool cached : {true, false}) {
      INFO(name << (cached ? ", cached" : ""));
      const NextLogits next = next_logits(model, cached);
      std::vector<int64_t> text = prompt;
      torch::Tensor tokens = torch::tensor(prompt).unsqueeze(0);
      while (text.size() < sequence.size()) {
        tokens = next(tokens).argmax(-1, true);
        text.push_back(tokens.item<int64_t>());
      }
      REQUIRE(text == sequence);
    }
    ++texts;
  }
  REQUIRE(texts == 4);
}

TEST_CASE("llama: folder to folder, bit for bit") {
  const auto oracles = test::require_oracles();
  if (!oracles) return;
  test::TempDir temporary;
  for (const std::string& name : llama_folders) {
    INFO(name);
    const HfLlamaFolder source = open_hf_llama(*oracles / "hf" / name);
    REQUIRE(hf_model_type(source.path) == "llama");
    REQUIRE(source.settings.dtype == (name == "llama_bf16" ? torch::kBFloat16 : torch::kFloat));
    save_hf_llama(temporary / name, *load_llama(source), source.settings);
    REQUIRE(test::fuzz_bytes(source.path / "model.safetensors") ==
            test::fuzz_bytes(temporary / name / "model.safetensors"));
    // Everything that theirs says, ours says too.
    const nlohmann::json theirs = test::folder_config(source.path);
    nlohmann::json ours = test::folder_config(temporary / name);
    for (const auto& [key, value] : theirs.items()) {
      if (key == "transformers_version" || key == "use_cache" || key == "pretraining_tp") continue;
      INFO(key);
      if (key == "dtype") {
        REQUIRE(ours.at("torch_dtype") == value);
      } else if (value.is_object()) {  // rope_scaling, where ours spells out defaults
        for (const auto& [inner, number] : value.items()) REQUIRE(ours.at(key).at(inner) == number);
      } else if (key != "attention_dropout") {
        REQUIRE(ours.at(key) == value);
      }
    }
  }
  // The other kind of file, in which the output map of a tied model is stored as well.
  const fs::path tied = *oracles / "hf" / "llama_mha_tied";
  for (const char* file : {"config.json", "pytorch_model.bin"}) fs::copy(tied / file, temporary / file);
  CausalLm pickled = load_llama(open_hf_llama(temporary.path())), plain = load_llama(open_hf_llama(tied));
  for (const auto& item : plain->named_parameters()) {
    REQUIRE(torch::equal(item.value(), pickled->named_parameters()[item.key()]));
  }
}

TEST_CASE("llama: models go out and come back equal") {
  test::TempDir folder;
  torch::NoGradGuard no_grad;
  const torch::Tensor tokens = torch::randint(19, {2, 12}, torch::kInt64);
  const torch::Tensor keep = torch::arange(12).ge(torch::tensor({{0}, {5}}));
  const std::vector<RotaryScaling> scalings{
      NoScaling{},
      LinearScaling{.factor = 3.0},
      DynamicNtkScaling{.factor = 2.5, .original_length = 8},
      YarnScaling{
          .factor = 4.0, .original_length = 16, .beta_fast = 24.0, .beta_slow = 2.0, .attention_factor = {}},
      YarnScaling{.factor = 4.0, .original_length = 16, .attention_factor = 1.25, .truncate = false},
      Llama3Scaling{.factor = 4.0, .low_freq_factor = 1.5, .high_freq_factor = 3.0, .original_length = 32}};
  for (size_t i = 0; i < scalings.size(); ++i) {
    CausalLmOptions options = llama_options(scalings[i]);
    options.bias = i % 2 == 0;
    options.tied = i % 3 == 0;
    options.activation = i == 1 ? Activation::gelu_tanh : Activation::silu;
    options.norm_eps = 1e-4;
    if (i == 2) options.kv_heads = 0;
    if (i == 3) options.head_dim = 0;
    INFO("scaling " << i << ", " << alternative_name(scalings[i]));
    CausalLm source = test::randomise(CausalLm(options));
    const HfLlamaSettings settings{
        .max_length = 48, .bos_token = {}, .eos_tokens = {7, 8}, .pad_token = int64_t{3}};
    save_hf_llama(folder.path(), *source, settings);
    const HfLlamaFolder read = open_hf_llama(folder.path());
    const auto* dynamic = std::get_if<DynamicNtkScaling>(&scalings[i]);
    REQUIRE(read.settings.max_length == (dynamic ? dynamic->original_length : 48));
    const auto* yarn = std::get_if<YarnScaling>(&llama_rotary(read.options).scaling);
    if (yarn) REQUIRE(yarn->truncate == std::get<YarnScaling>(scalings[i]).truncate);
    REQUIRE_FALSE(read.settings.bos_token.has_value());
    REQUIRE(read.settings.eos_tokens == std::vector<int64_t>{7, 8});
    REQUIRE(read.settings.pad_token == 3);
    REQUIRE(read.options.kv_heads == options.kv_heads);
    REQUIRE(read.options.head_dim == options.head_dim);
    REQUIRE(read.options.init_std == options.init_std);
    CausalLm copy = load_llama(read);
    copy->eval();
    REQUIRE(torch::equal(copy(tokens, keep), source(tokens, keep)));
  }
}

TEST_CASE("llama: interleaved pairs are written as halves") {
  test::TempDir folder;
  torch::NoGradGuard no_grad;
  for (const bool bias : {false, true}) {
    CausalLmOptions options =
        llama_options(YarnScaling{.factor = 2.0, .original_length = 8, .attention_factor = {}});
    std::get<RotaryOptions>(options.positions[0]).layout = RotaryLayout::interleaved;
    options.bias = bias;
    CausalLm source = test::randomise(CausalLm(options));
    save_hf_llama(folder.path(), *source);
    const HfLlamaFolder read = open_hf_llama(folder.path());
    REQUIRE(llama_rotary(read.options).layout == RotaryLayout::halves);
    CausalLm copy = load_llama(read);
    copy->eval();
    source->to(torch::kFloat64);
    copy->to(torch::kFloat64);
    const torch::Tensor tokens = torch::randint(19, {2, 30}, torch::kInt64);
    // The same sums in another order.
    REQUIRE(max_error(copy(tokens), source(tokens)) < 1e-12);
    auto weight = [](CausalLm& model, const char* name) { return model->named_parameters()[name]; };
    const torch::Tensor ours = weight(source, "layers.1.attention.key.weight");
    const torch::Tensor theirs = weight(copy, "layers.1.attention.key.weight");
    REQUIRE(torch::equal(theirs[6 + 1], ours[6 + 2]));  // of the second head, 6 wide: pair 1, both columns
    REQUIRE(torch::equal(theirs[6 + 4], ours[6 + 3]));
    REQUIRE(torch::equal(weight(source, "layers.1.attention.value.weight"),
                         weight(copy, "layers.1.attention.value.weight")));
  }
}

TEST_CASE("llama: theta and attention factor of every scaling are those of transformers") {
  const auto oracles = test::require_oracles();
  if (!oracles) return;
  test::TempDir folder;
  save_hf_llama(folder.path(), *CausalLm(llama_options()));
  const nlohmann::json cases = test::read_json(*oracles / "encodings" / "rope_scaling.json");
  std::map<std::string, int> compared;
  for (const nlohmann::json& each : cases.at("cases")) {
    const std::string type = each.at("rope_type");
    const nlohmann::json& config = each.at("config");
    INFO(each.dump());
    const int64_t heads = config.at("num_attention_heads"), dim = config.at("hidden_size");
    nlohmann::json change = config;
    // The folder's shapes; rotary numbers do not depend on them but for the width of a head.
    change.update({{"hidden_size", 16}, {"num_attention_heads", 4}});
    const int64_t width = config.value("head_dim", dim / heads);
    change["head_dim"] = width;
    if (config.contains("partial_rotary_factor") || type == "longrope") {
      test::fuzz_write(folder / "config.json", llama_config(change).dump());
      REQUIRE_THAT(test::open_error(open_hf_llama, folder.path()),
                   Catch::Contains(type == "longrope" ? "rotary scaling 'longrope' is not supported"
                                                      : "'partial_rotary_factor' is not 1"));
      ++compared["refused"];
      continue;
    }
    for (const bool parameters : {false, true}) {  // transformers 4, transformers 5
      nlohmann::json spelled = change;
      if (parameters) {
        spelled["rope_parameters"] =
            config.contains("rope_scaling") ? config.at("rope_scaling") : nlohmann::json::object();
        spelled["rope_parameters"]["rope_theta"] = config.at("rope_theta");
        spelled.erase("rope_theta");
        spelled.erase("rope_scaling");
      }
      nlohmann::json whole = llama_config(spelled);
      if (parameters) whole.erase("rope_theta");
      test::fuzz_write(folder / "config.json", whole.dump());
      const HfLlamaFolder read = open_hf_llama(folder.path());
      const int64_t length = each.at("seq_len").is_null() ? 1 : each.at("seq_len").get<int64_t>();
      const ScaledTheta ours = scaled_theta(llama_rotary(read.options), width, length);
      const torch::Tensor theirs =
          torch::tensor(each.at("inv_freq").get<std::vector<double>>(), torch::kFloat64);
      REQUIRE(max_error(ours.theta / theirs, torch::ones_like(theirs)) < 1e-6);
      REQUIRE(ours.amplitude == Approx(each.at("attention_factor").get<double>()).epsilon(1e-9));
    }
    ++compared[type];
  }
  for (const char* type : {"default", "linear", "dynamic", "yarn", "llama3", "refused"}) {
    INFO(type);
    REQUIRE(compared[type] > 0);
  }
}

TEST_CASE("llama: options of config.json, read and refused by name") {
  test::TempDir folder;
  save_hf_llama(folder.path(), *CausalLm(llama_options()));
  test::fuzz_write(folder / "config.json", llama_config().dump());
  auto error = [&](const nlohmann::json& change) {
    return test::config_error(open_hf_llama, folder.path(), change);
  };
  auto read = [&](const nlohmann::json& change) {
    test::fuzz_write(folder / "config.json", llama_config(change).dump());
    HfLlamaFolder result = open_hf_llama(folder.path());
    test::fuzz_write(folder / "config.json", llama_config().dump());
    return result;
  };
  const HfLlamaFolder plain = read(nlohmann::json::object());
  REQUIRE(plain.options.norm_eps == 1e-6);
  REQUIRE(plain.options.activation == Activation::silu);
  REQUIRE_FALSE(plain.options.tied);
  REQUIRE_FALSE(plain.options.bias);
  REQUIRE(plain.settings.bos_token == 1);
  REQUIRE(plain.settings.eos_tokens == std::vector<int64_t>{2});
  REQUIRE_FALSE(plain.settings.pad_token.has_value());
  REQUIRE(read({{"eos_token_id", {2, 5}}}).settings.eos_tokens == std::vector<int64_t>{2, 5});
  REQUIRE(read({{"eos_token_id", nullptr}}).settings.eos_tokens.empty());
  REQUIRE(read({{"attention_bias", true}, {"mlp_bias", true}}).options.bias);
  // "type" is the older name of "rope_type"; lengths fall back to max_position_embeddings.
  const auto scaled = [&](const nlohmann::json& scaling) {
    return llama_rotary(read({{"rope_scaling", scaling}}).options).scaling;
  };
  REQUIRE(llama_rotary(read({{"rope_theta", nullptr}, {"rope_parameters", {{"rope_theta", 300}}}}).options)
              .base == 300.0);
  REQUIRE(std::get<LinearScaling>(scaled({{"type", "linear"}, {"factor", 3}})).factor == 3.0);
  REQUIRE(std::get<DynamicNtkScaling>(scaled({{"type", "dynamic"}, {"factor", 2.0}})).original_length == 64);
  const auto yarn = std::get<YarnScaling>(scaled({{"rope_type", "yarn"}, {"type", "yarn"}, {"factor", 8.0}}));
  REQUIRE(yarn.original_length == 64);
  REQUIRE(yarn.beta_fast == 32.0);
  REQUIRE_FALSE(yarn.attention_factor.has_value());
  REQUIRE(std::holds_alternative<NoScaling>(scaled({{"rope_type", "default"}})));
  // mscale over mscale_all_dim, where both are there; attention_factor goes before them.
  nlohmann::json deep = {{"rope_type", "yarn"},
                         {"factor", 40.0},
                         {"mscale", 0.707},
                         {"mscale_all_dim", 1.0},
                         {"truncate", false}};
  REQUIRE(std::get<YarnScaling>(scaled(deep)).attention_factor.value() ==
          Approx((0.1 * 0.707 * std::log(40.0) + 1.0) / (0.1 * std::log(40.0) + 1.0)).epsilon(1e-14));
  REQUIRE_FALSE(std::get<YarnScaling>(scaled(deep)).truncate);
  deep["attention_factor"] = 1.5;
  REQUIRE(std::get<YarnScaling>(scaled(deep)).attention_factor == 1.5);
  deep.erase("attention_factor");
  deep.erase("mscale_all_dim");
  REQUIRE_FALSE(std::get<YarnScaling>(scaled(deep)).attention_factor.has_value());

  REQUIRE(error({{"model_type", "mistral"}}) ==
          "model_type 'mistral' is not supported; 'llama' is, of the language models");
  REQUIRE(error({{"attention_bias", true}}) ==
          "'attention_bias' and 'mlp_bias' differ, and this model has one option for both");
  REQUIRE_THAT(error({{"attention_dropout", 0.1}}), Catch::StartsWith("'attention_dropout' without"));
  REQUIRE(error({{"pretraining_tp", 2}}) == "'pretraining_tp' other than 1 is not supported");
  REQUIRE(error({{"sliding_window", 4}}) ==
          "option 'sliding_window' is not known here; remove it if the model computes the same without it");
  REQUIRE(error({{"sliding_window", nullptr}, {"use_cache", true}, {"pretraining_tp", 1}}) == "accepted");
  REQUIRE(error({{"partial_rotary_factor", 0.5}}) ==
          "'partial_rotary_factor' is not 1: LLaMA turns whole heads");
  REQUIRE_THAT(error({{"hidden_act", "relu2"}}), Catch::StartsWith("hidden_act 'relu2' is not supported"));
  REQUIRE_THAT(error({{"num_key_value_heads", 3}}), Catch::Contains("3"));
  REQUIRE_THAT(error({{"head_dim", 5}}), Catch::Contains("even"));
  REQUIRE_THAT(error({{"vocab_size", 1 << 24}, {"hidden_size", 65536}}),
               Catch::Contains("config.json describes a model of"));
  REQUIRE(error({{"eos_token_id", {"</s>"}}}) == "'eos_token_id' must be a token or a list of tokens");
  REQUIRE(error({{"rope_theta", 1}}) == "'rope_theta' must be a number from 1.000001 to 1000000000000000");
  auto scaling_error = [&](const nlohmann::json& scaling) { return error({{"rope_scaling", scaling}}); };
  REQUIRE(scaling_error(3) == "'rope_scaling' must be an object");
  REQUIRE(scaling_error({{"type", "su"}, {"factor", 2.0}}) ==
          "rotary scaling 'su' is not supported; default, linear, dynamic, yarn and llama3 are");
  REQUIRE(scaling_error({{"type", "linear"}, {"rope_type", "yarn"}, {"factor", 2.0}}) ==
          "'type' and 'rope_type' of the rotary scaling differ");
  REQUIRE(scaling_error({{"type", "linear"}}) == "'factor' is missing for linear scaling");
  REQUIRE(scaling_error({{"type", "linear"}, {"factor", 0.5}}) ==
          "'rope_scaling.factor' must be a number from 1 to 1000000");
  REQUIRE_THAT(scaling_error({{"type", "linear"}, {"factor", 2.0}, {"finetuned", true}}),
               Catch::StartsWith("option 'rope_scaling.finetuned' is not known here"));
  REQUIRE(
      scaling_error({{"rope_type", "dynamic"}, {"factor", 2.0}, {"original_max_position_embeddings", 16}}) ==
      "'original_max_position_embeddings' of dynamic scaling is not 'max_position_embeddings'");
  REQUIRE(scaling_error({{"rope_type", "llama3"}, {"factor", 2.0}}) ==
          "'original_max_position_embeddings' is missing for llama3 scaling");
  REQUIRE_THAT(scaling_error({{"rope_type", "yarn"}, {"factor", 2.0}, {"beta_fast", 0.5}}),
               Catch::Contains("'beta_fast' (0.5) is below 'beta_slow'"));
  REQUIRE(error({{"rope_scaling", {{"type", "linear"}, {"factor", 2.0}}}, {"rope_parameters", {{"a", 1}}}}) ==
          "'rope_scaling' and 'rope_parameters' are both there; keep one");
  REQUIRE(error({{"rope_parameters", {{"rope_theta", 400.0}}}}) ==
          "'rope_theta' is there twice, with two values");
}

TEST_CASE("llama: all that does not fit is listed at once, and nothing is loaded") {
  test::TempDir folder;
  CausalLmOptions tied = llama_options();
  tied.tied = true;
  save_hf_llama(folder.path(), *test::randomise(CausalLm(tied)));
  test::FolderTensors tensors;
  for (auto& [name, tensor] : test::folder_tensors(folder.path())) {
    if (name == "model.layers.1.mlp.up_proj.weight") continue;
    tensors.emplace_back(name, name == "model.norm.weight" ? torch::ones({17}) : tensor);
  }
  tensors.emplace_back("model.layers.0.self_attn.rotary_emb.inv_freq", torch::ones({3}));
  tensors.emplace_back("model.layers.0.self_attn.q_proj.bias", torch::ones({24}));
  tensors.emplace_back("lm_head.weight", torch::zeros({19, 16}));
  save_safetensors(folder / "model.safetensors", tensors);
  CausalLmOptions options = tied;
  options.norm_eps = 1e-3;
  options.activation = Activation::gelu;
  options.positions = {RotaryOptions{.base = 400.0, .values = true}};
  CausalLm model(options);
  const torch::Tensor before = model->named_parameters()["token.weight"].detach().clone();
  REQUIRE_THROWS_MATCHES(
      load_hf_llama(*model, open_hf_llama(folder.path())), Error,
      Catch::Matchers::Message(
          folder.path().string() +
          ": does not fit the model: model.norm_eps is 0.001, the folder's 1e-05; model.activation is gelu, "
          "the folder's silu; model.positions.layout is interleaved, the folder's halves; "
          "model.positions.base is 400, the folder's 500; model.positions.values is true, the folder's "
          "false; "
          "'model.norm.weight' is [17], not [16]; 'model.layers.1.mlp.up_proj.weight' is missing; "
          "'lm_head.weight' is not the embedding that 'tie_word_embeddings' says it is; "
          "'model.layers.0.self_attn.q_proj.bias' is unexpected"));
  REQUIRE(torch::equal(before, model->named_parameters()["token.weight"]));
  options = llama_options();
  options.positions = {LearnedOptions{}};
  REQUIRE_THROWS_WITH(load_hf_llama(*CausalLm(options), open_hf_llama(folder.path())),
                      Catch::Contains("model.tied is false, the folder's true") &&
                          Catch::Contains("model.positions is not rotary, the folder's is"));

  // Longer texts are the reader's choice: another scaling may be set before loading.
  save_hf_llama(folder.path(), *test::randomise(CausalLm(tied)));
  CausalLm longer(llama_options(LinearScaling{.factor = 2.0}));
  REQUIRE_THROWS_WITH(load_hf_llama(*longer, open_hf_llama(folder.path())), Catch::Contains("tied"));
  CausalLmOptions scaled = tied;
  std::get<RotaryOptions>(scaled.positions[0]).scaling = LinearScaling{.factor = 2.0};
  REQUIRE_NOTHROW(load_hf_llama(*CausalLm(scaled), open_hf_llama(folder.path())));

  // An untied model without an output map, and names without a prefix: LlamaModel alone.
  save_hf_llama(folder.path(), *CausalLm(llama_options()));
  test::FolderTensors bare;
  for (const auto& [name, tensor] : test::folder_tensors(folder.path())) {
    if (name != "lm_head.weight") bare.emplace_back(name.substr(6), tensor);
  }
  save_safetensors(folder / "model.safetensors", bare);
  REQUIRE_THROWS_WITH(load_llama(open_hf_llama(folder.path())),
                      Catch::EndsWith("does not fit the model: 'lm_head.weight' is missing"));
}

TEST_CASE("llama: what has no counterpart cannot be written") {
  test::TempDir folder;
  auto error = [&](const auto& change) {
    CausalLmOptions options = llama_options();
    change(options);
    return test::open_error([&](const fs::path& path) { save_hf_llama(path, *CausalLm(options)); },
                            folder / "x");
  };
  auto rotary_error = [&](const RotaryOptions& rotary) {
    return error([&](CausalLmOptions& o) { o.positions = {rotary}; });
  };
  const std::string has = "Hugging Face's LLaMA has ";
  REQUIRE(error([](CausalLmOptions& o) { o.norm = NormKind::layer; }) ==
          has + "RMSNorm; only model.norm: rms can be written");
  REQUIRE(error([](CausalLmOptions& o) { o.gated = false; }) ==
          has + "a gated feed-forward; only model.gated: true can be written");
  REQUIRE(error([](CausalLmOptions& o) { o.attention = LinearAttention{}; }) ==
          has + "softmax attention; model.attention: linear cannot be written");
  const std::string positions = has + "rotary positions, alone; no other can be written";
  REQUIRE(error([](CausalLmOptions& o) { o.positions = {AlibiOptions{}}; }) == positions);
  REQUIRE(error([](CausalLmOptions& o) { o.positions.push_back(SinusoidalOptions{}); }) == positions);
  for (const RotaryOptions& rotary :
       {RotaryOptions{.dim = 4}, {.trainable = true}, {.values = true}, RotaryOptions{.xpos = 512.0}}) {
    REQUIRE_THAT(rotary_error(rotary), Catch::StartsWith(has + "fixed theta for all columns"));
  }
  RotaryOptions ntk;
  ntk.scaling = NtkScaling{};
  REQUIRE_THAT(rotary_error(ntk), Catch::StartsWith(has + "no scaling 'ntk'"));
  CausalLm custom(llama_options(), make(SinusoidalOptions{}, llama_options().shape()));
  REQUIRE_THROWS_WITH(save_hf_llama(folder / "x", *custom), Catch::Contains("from outside"));
  REQUIRE_FALSE(fs::exists(folder / "x"));
}
