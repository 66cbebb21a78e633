#include "roformer/hf/folder.h"

#include <set>

#include "roformer/core/error.h"

#include "tests/tensors.h"

using namespace roformer;

namespace {

using NamesTensors = std::vector<std::pair<std::string, torch::Tensor>>;

NamesTensors names_tensors(MaskedLm& model, HfFamily family) {
  NamesTensors out;
  for (const auto& p : model->named_parameters())
    out.emplace_back(hf_name(p.key(), family), p.value().detach());
  return out;
}

}  // namespace

TEST_CASE("hf names: every parameter of the models has a name of its own") {
  // As RoFormerForMaskedLM and BertForMaskedLM of transformers name them.
  const std::vector<std::string> common{"embeddings.word_embeddings.weight",
                                        "embeddings.token_type_embeddings.weight",
                                        "embeddings.LayerNorm.weight", "embeddings.LayerNorm.bias"};
  const std::vector<std::string> block{"attention.self.query.weight",
                                       "attention.self.query.bias",
                                       "attention.self.key.weight",
                                       "attention.self.key.bias",
                                       "attention.self.value.weight",
                                       "attention.self.value.bias",
                                       "attention.output.dense.weight",
                                       "attention.output.dense.bias",
                                       "attention.output.LayerNorm.weight",
                                       "attention.output.LayerNorm.bias",
                                       "intermediate.dense.weight",
                                       "intermediate.dense.bias",
                                       "output.dense.weight",
                                       "output.dense.bias",
                                       "output.LayerNorm.weight",
                                       "output.LayerNorm.bias"};
  for (const HfFamily family : {HfFamily::bert, HfFamily::roformer}) {
    const std::string prefix = family == HfFamily::bert ? "bert." : "roformer.";
    std::set<std::string> expected{"cls.predictions.bias", "cls.predictions.transform.dense.weight",
                                   "cls.predictions.transform.dense.bias",
                                   "cls.predictions.transform.LayerNorm.weight",
                                   "cls.predictions.transform.LayerNorm.bias"};
    for (const std::string& name : common) expected.insert(prefix + name);
    for (const std::string& name : block) {
      expected.insert(prefix + "encoder.layer.0." + name);
      expected.insert(prefix + "encoder.layer.1." + name);
    }
    if (family == HfFamily::bert) expected.insert("bert.embeddings.position_embeddings.weight");
    MaskedLm model(test::small_encoder(
        8, 11, family == HfFamily::bert ? PositionOptions(LearnedOptions{}) : RotaryOptions{}));
    std::set<std::string> names;
    for (const auto& [name, tensor] : names_tensors(model, family)) names.insert(name);
    REQUIRE(names == expected);
  }
  REQUIRE(hf_name("encoder.positions.theta", HfFamily::roformer).empty());
  REQUIRE(hf_name("encoder.layers.0.gate.weight", HfFamily::bert).empty());
  REQUIRE(hf_name("encoder.layers.", HfFamily::bert).empty());
}

TEST_CASE("hf names: weights load, whatever else the file holds and whatever their dtype") {
  test::TempDir folder;
  for (const HfFamily family : {HfFamily::bert, HfFamily::roformer}) {
    const PositionOptions positions =
        family == HfFamily::bert ? PositionOptions(LearnedOptions{}) : RotaryOptions{};
    MaskedLm source(test::small_encoder(8, 11, positions)), model(test::small_encoder(8, 11, positions));
    NamesTensors tensors = names_tensors(source, family);
    for (auto& [name, tensor] : tensors) tensor = torch::randn_like(tensor).to(torch::kBFloat16);
    const NamesTensors wanted = tensors;
    tensors.emplace_back("cls.seq_relationship.weight", torch::ones({2, 8}));
    tensors.emplace_back("cls.predictions.decoder.weight", torch::ones({11, 8}));
    save_safetensors(folder / "model.safetensors", tensors);
    load_hf_mlm(*model, SafetensorsFile(folder / "model.safetensors"));
    const auto parameters = model->named_parameters();
    for (size_t i = 0; i < wanted.size(); ++i) {
      INFO(wanted[i].first);
      REQUIRE(parameters[i].value().scalar_type() == torch::kFloat32);
      REQUIRE(parameters[i].value().requires_grad());
      REQUIRE(torch::equal(parameters[i].value(), wanted[i].second.to(torch::kFloat32)));
    }
  }
}

TEST_CASE("hf names: all that does not fit is listed at once, and nothing is loaded") {
  test::TempDir folder;
  MaskedLm source(test::small_encoder(8, 11, RotaryOptions{})),
      model(test::small_encoder(8, 11, RotaryOptions{}));
  NamesTensors tensors;
  for (auto& [name, tensor] : names_tensors(source, HfFamily::roformer)) {
    if (name == "roformer.encoder.layer.1.output.dense.bias" || name == "cls.predictions.bias") continue;
    tensors.emplace_back(name, name == "roformer.embeddings.LayerNorm.weight" ? torch::ones({9}) : tensor);
  }
  save_safetensors(folder / "model.safetensors", tensors);
  const torch::Tensor before = model->encoder->token_weight().detach().clone();
  REQUIRE_THROWS_MATCHES(load_hf_mlm(*model, SafetensorsFile(folder / "model.safetensors")), Error,
                         Catch::Matchers::Message("the file of weights: does not fit the model: "
                                                  "'roformer.embeddings.LayerNorm.weight' is [9], not [8]; "
                                                  "'roformer.encoder.layer.1.output.dense.bias' is missing; "
                                                  "'cls.predictions.bias' is missing"));
  REQUIRE(torch::equal(before, model->encoder->token_weight()));

  // RoFormer's file has no table of positions.
  MaskedLm bert(test::small_encoder(8, 11, LearnedOptions{}));
  REQUIRE_THROWS_WITH(load_hf_mlm(*bert, SafetensorsFile(folder / "model.safetensors")),
                      Catch::Contains("'roformer.embeddings.position_embeddings.weight' is missing"));
  save_safetensors(folder / "other.safetensors", {{"x", torch::ones({1})}});
  REQUIRE_THROWS_AS(load_hf_mlm(*bert, SafetensorsFile(folder / "other.safetensors")), Error);
}
