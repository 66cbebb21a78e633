#include <map>
#include <set>

#include "roformer/hf/names.h"
#include "tests/tensors.h"

// BertForMaskedLM and RoFormerForMaskedLM of transformers against MaskedLm with the same weights: folders
// with config.json, model.safetensors, inputs.json and expected values.

using namespace roformer;
using roformer::test::max_error;

namespace {

nlohmann::json parity_json(const std::filesystem::path& file) {
  return nlohmann::json::parse(std::ifstream(file));
}

torch::Tensor parity_ids(const nlohmann::json& rows) {
  std::vector<int64_t> flat;
  for (const auto& row : rows) {
    for (int64_t id : row) flat.push_back(id);
  }
  return torch::tensor(flat, torch::kInt64).view({static_cast<int64_t>(rows.size()), -1});
}

EncoderOptions parity_options(const nlohmann::json& config) {
  static const std::map<std::string, Activation> activations{
      {"gelu", Activation::gelu}, {"gelu_new", Activation::gelu_tanh}, {"relu", Activation::relu}};
  EncoderOptions o;
  o.dim = config.at("hidden_size");
  o.layers = config.at("num_hidden_layers");
  o.heads = config.at("num_attention_heads");
  o.ffn = config.at("intermediate_size");
  o.dropout = 0.0;
  o.activation = activations.at(config.at("hidden_act"));
  o.norm_eps = config.at("layer_norm_eps");
  o.segments = config.at("type_vocab_size");
  o.vocab_size = config.at("vocab_size");
  if (config.at("model_type") == "bert") {
    o.positions = {LearnedOptions{.max_length = config.at("max_position_embeddings")}};
  } else {
    o.positions = {RotaryOptions{.values = config.at("rotary_value")}};
  }
  return o;
}

/// Every label that counts becomes a target.
Batch parity_batch(const nlohmann::json& input) {
  Batch batch;
  batch.tokens = parity_ids(input.at("input_ids"));
  batch.keep = parity_ids(input.at("attention_mask")).to(torch::kBool);
  batch.segments = parity_ids(input.at("token_type_ids"));
  const torch::Tensor labels = parity_ids(input.at("labels")).flatten();
  batch.targets = labels.ne(-100).nonzero().flatten();
  batch.labels = labels.index_select(0, batch.targets);
  return batch;
}

torch::Tensor parity_loss(MaskedLm& model, const Batch& batch) {
  return at::cross_entropy_loss(model(batch), batch.labels);
}

/// Greatest difference where the mask is 1.
double parity_error(const torch::Tensor& ours, const torch::Tensor& theirs, const torch::Tensor& keep) {
  return max_error(ours.index({keep}), theirs.index({keep}));
}

MaskedLm parity_model(const std::filesystem::path& folder) {
  MaskedLm model(parity_options(parity_json(folder / "config.json")));
  load_hf_mlm(*model, SafetensorsFile(folder / "model.safetensors"));
  return model;
}

void parity_forward(const std::filesystem::path& folder) {
  const nlohmann::json facts = parity_json(folder / "case.json");
  const double tolerance = facts.at("tolerance_abs");
  const SafetensorsFile expected(folder / "expected.safetensors");
  MaskedLm model = parity_model(folder);
  model->eval();
  torch::NoGradGuard no_grad;
  size_t compared = 0;
  const nlohmann::json inputs = parity_json(folder / "inputs.json");
  for (const auto& [name, input] : inputs.items()) {
    INFO(folder.filename().string() << ", batch " << name);
    const Batch batch = parity_batch(input);
    std::vector<torch::Tensor> hidden;
    const torch::Tensor last = model->encoder(batch.tokens, batch.keep, batch.segments, nullptr, &hidden);
    auto compare = [&](const std::string& what, const torch::Tensor& ours) {
      if (!expected.contains(name + "." + what)) return;
      REQUIRE(parity_error(ours, expected.tensor(name + "." + what), batch.keep) < tolerance);
      ++compared;
    };
    compare("last_hidden_state", last);
    for (size_t i = 0; i < hidden.size(); ++i) compare("hidden_state." + std::to_string(i), hidden[i]);
    compare("logits", model->head(last, model->encoder->token_weight()));
    REQUIRE(parity_loss(model, batch).item<double>() ==
            Approx(facts.at("loss").at(name).get<double>()).margin(tolerance).epsilon(0));
  }
  REQUIRE(compared == expected.entries().size());
}

}  // namespace

TEST_CASE("transformers: hidden states, logits and losses") {
  const auto oracles = test::require_oracles();
  if (!oracles) return;
  // The folders of these two families that have one model.safetensors and no projection of the embeddings.
  for (const char* name : {"bert_mlm", "bert_mlm_bf16", "roformer_mlm", "roformer_mlm_rotary_value"}) {
    parity_forward(*oracles / "hf" / name);
  }
}

TEST_CASE("transformers: gradients of the first batch") {
  const auto oracles = test::require_oracles();
  if (!oracles) return;
  for (const auto& [name, family] :
       {std::pair("bert_mlm", HfFamily::bert), {"roformer_mlm", HfFamily::roformer}}) {
    const std::filesystem::path folder = *oracles / "hf" / name;
    MaskedLm model = parity_model(folder);
    const nlohmann::json facts = parity_json(folder / "case.json").at("gradients");
    parity_loss(model,
                parity_batch(parity_json(folder / "inputs.json").at(facts.at("batch").get<std::string>())))
        .backward();
    const SafetensorsFile expected(folder / "gradients.safetensors");
    size_t compared = 0;
    for (const auto& p : model->named_parameters()) {
      const std::string theirs = hf_name(p.key(), family);
      if (!expected.contains(theirs)) continue;
      INFO(theirs);
      REQUIRE(torch::allclose(p.value().grad(), expected.tensor(theirs), 1e-3,
                              1e-5));  // case.json: gradients.tolerance
      ++compared;
    }
    REQUIRE(compared == expected.entries().size());
  }
}

TEST_CASE("transformers: twenty updates of AdamW") {
  const auto oracles = test::require_oracles();
  if (!oracles) return;
  for (const auto& [name, family] :
       {std::pair("bert_mlm", HfFamily::bert), {"roformer_mlm", HfFamily::roformer}}) {
    const std::filesystem::path folder = *oracles / "hf" / name;
    MaskedLm model = parity_model(folder);
    const nlohmann::json facts = parity_json(folder / "case.json").at("training");
    const nlohmann::json batches = parity_json(folder / "training_batches.json");
    const bool decay_all = facts.at("groups") == "weight decay on every parameter";
    const bool clip = !facts.at("clip_grad_norm").is_null();

    std::vector<torch::Tensor> decayed, others;
    for (const torch::Tensor& p : model->parameters())
      (decay_all || p.dim() >= 2 ? decayed : others).push_back(p);
    auto options = [](double decay) {
      return std::make_unique<torch::optim::AdamWOptions>(
          torch::optim::AdamWOptions(1e-3).betas({0.9, 0.999}).eps(1e-8).weight_decay(decay));
    };
    std::vector<torch::optim::OptimizerParamGroup> groups;
    groups.emplace_back(decayed, options(0.01));
    groups.emplace_back(others, options(0.0));
    torch::optim::AdamW optimizer(groups, torch::optim::AdamWOptions(1e-3));

    for (size_t step = 0; step < facts.at("losses").size(); ++step) {
      INFO(name << ", step " << step);
      optimizer.zero_grad();
      const torch::Tensor loss = parity_loss(model, parity_batch(batches[step % batches.size()]));
      REQUIRE(loss.item<double>() == Approx(facts.at("losses")[step].get<double>()).margin(2e-5).epsilon(0));
      loss.backward();
      const double norm = torch::nn::utils::clip_grad_norm_(
          model->parameters(), clip ? facts.at("clip_grad_norm").get<double>() : 1e9);
      REQUIRE(norm == Approx(facts.at("gradient_norms")[step].get<double>()).epsilon(1e-5));
      optimizer.step();
    }
    REQUIRE(parity_loss(model, parity_batch(batches[0])).item<double>() ==
            Approx(facts.at("loss_of_batch_0_after_last_step").get<double>()).margin(2e-5).epsilon(0));
    const SafetensorsFile expected(folder / "training_final.safetensors");
    size_t compared = 0;
    for (const auto& p : model->named_parameters()) {
      const std::string theirs = hf_name(p.key(), family);
      if (!expected.contains(theirs)) continue;
      INFO(theirs);
      REQUIRE(max_error(p.value(), expected.tensor(theirs)) < 2e-5);
      ++compared;
    }
    REQUIRE(compared == expected.entries().size());
  }
}
