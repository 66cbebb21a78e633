#include <map>
#include <set>

#include "roformer/hf/folder.h"
#include "roformer/nn/rotary.h"
#include "tests/hf/folders.h"

// Published-style folders of BERT, RoFormer and NEZHA, made and computed by transformers, against the models
// that open_hf and load_hf make of them: config.json, weights, inputs.json and expected values.

using namespace roformer;
using roformer::test::max_error;

namespace {

namespace fs = std::filesystem;

Batch parity_batch(const nlohmann::json& input) {
  Batch batch;
  batch.tokens = test::ids_of(input.at("input_ids"));
  batch.keep = test::ids_of(input.at("attention_mask")).to(torch::kBool);
  batch.segments = test::ids_of(input.at("token_type_ids"));
  if (input.contains("labels") && input.at("labels")[0].is_array()) {  // every label that counts is a target
    const torch::Tensor labels = test::ids_of(input.at("labels")).flatten();
    batch.targets = labels.ne(-100).nonzero().flatten();
    batch.labels = labels.index_select(0, batch.targets);
  }
  return batch;
}

/// The loss of transformers for these labels: mean cross-entropy, or squared error where there is one output.
torch::Tensor parity_loss(const torch::Tensor& logits, const Batch& batch, const nlohmann::json& input) {
  if (batch.labels.defined()) {
    const torch::Tensor flat = logits.flatten(0, -2);
    return at::cross_entropy_loss(
        flat.size(0) == batch.labels.size(0) ? flat : flat.index_select(0, batch.targets), batch.labels);
  }
  if (logits.size(-1) == 1) {
    const auto labels = input.at("labels").get<std::vector<float>>();
    return at::mse_loss(logits.flatten(), torch::tensor(labels));
  }
  return at::cross_entropy_loss(logits, torch::tensor(input.at("labels").get<std::vector<int64_t>>()));
}

/// Greatest difference where the mask is 1, or over all rows of what has no tokens.
double parity_error(const torch::Tensor& ours, const torch::Tensor& theirs, const torch::Tensor& keep) {
  if (theirs.dim() == 2) return max_error(ours, theirs);
  return max_error(ours.index({keep}), theirs.index({keep}));
}

/// RoFormer's rotation by the table of sines that a folder stores, rounded as it is.
class StoredRotary : public PositionEncodingImpl {
 public:
  explicit StoredRotary(const torch::Tensor& table) {
    const torch::Tensor wide = table.to(torch::kFloat32);
    const std::vector<torch::Tensor> halves = wide.chunk(2, 1);
    table_ = torch::stack({halves[1], halves[0]}, -1).unsqueeze(0);
  }
  torch::Tensor rotate(const torch::Tensor& heads, Side side, const Positions& positions) override {
    return side == Side::value
               ? heads
               : apply_rotary(heads, table_.slice(1, 0, positions.length), RotaryLayout::interleaved);
  }

 private:
  torch::Tensor table_;
};

void parity_forward(const fs::path& folder, const std::vector<std::string>& unused = {}) {
  INFO(folder.filename().string());
  const nlohmann::json facts = test::read_json(folder / "case.json");
  const double tolerance = facts.at("tolerance_abs");
  const SafetensorsFile expected(folder / "expected.safetensors");
  const HfFolder source = open_hf(folder);
  PositionEncoding encoding = nullptr;
  if (source.dtype == torch::kHalf && source.family == HfFamily::roformer) {
    // transformers turns by the table as float16 has rounded it, this project by exact angles: the folder
    // agrees once the same table is used.
    encoding =
        new_encoding<StoredRotary>(source.weights.at("roformer.encoder.embed_positions.weight").read());
  }
  Pretrained model(source, encoding);
  const HfReport report = load_hf(*model, source);
  REQUIRE(report.fresh.empty());
  REQUIRE(report.unused == unused);
  model->eval();
  torch::NoGradGuard no_grad;
  size_t compared = 0;
  const nlohmann::json inputs = test::read_json(folder / "inputs.json");
  for (const auto& [name, input] : inputs.items()) {
    const Batch batch = parity_batch(input);
    std::vector<torch::Tensor> hidden;
    model->encoder(batch.tokens, batch.keep, batch.segments, nullptr, &hidden);
    const PretrainedImpl::Output out = model(batch.tokens, batch.keep, batch.segments);
    auto compare = [&](const std::string& what, const torch::Tensor& ours) {
      if (!expected.contains(name + "." + what)) return;
      INFO("batch " << name << ", " << what);
      REQUIRE(ours.defined());
      const double error = parity_error(ours, expected.tensor(name + "." + what), batch.keep);
      REQUIRE(error < tolerance);
      ++compared;
    };
    compare("last_hidden_state", out.last_hidden_state);
    for (size_t i = 0; i < hidden.size(); ++i) compare("hidden_state." + std::to_string(i), hidden[i]);
    compare("pooler_output", out.pooler_output);
    compare("logits", out.logits);
    if (facts.at("loss").contains(name)) {
      const double loss = parity_loss(out.logits, batch, input).item<double>();
      REQUIRE(loss == Approx(facts.at("loss").at(name).get<double>()).margin(tolerance).epsilon(0));
    }
  }
  REQUIRE(compared == expected.entries().size());
}

/// The folders of these families, but for the one in the old stream format.
std::vector<std::string> parity_names(const fs::path& oracles) {
  std::vector<std::string> names;
  const nlohmann::json index = test::read_json(oracles / "hf" / "index.json");
  for (const auto& entry : index.at("cases")) {
    const std::string name = entry.at("name");
    const bool ours =
        name.rfind("bert_", 0) == 0 || name.rfind("roformer_", 0) == 0 || name.rfind("nezha_", 0) == 0;
    if (ours && name != "bert_mlm_legacy_bin") names.push_back(name);
  }
  return names;
}

MaskedLm parity_mlm(const fs::path& path) {
  const HfFolder folder = open_hf(path);
  EncoderOptions options = folder.encoder;
  options.dropout = 0.0;
  options.attention_dropout.reset();
  MaskedLm model(options);
  load_hf(*model, folder);
  return model;
}

/// Compares the gradients that the folder stores; `head` is what the model's "head." is.
template <class Model>
void parity_gradients(Model& model, const fs::path& folder, HeadType head) {
  INFO(folder.filename().string());
  const nlohmann::json facts = test::read_json(folder / "case.json").at("gradients");
  const nlohmann::json input =
      test::read_json(folder / "inputs.json").at(facts.at("batch").get<std::string>());
  const Batch batch = parity_batch(input);
  parity_loss(model(batch), batch, input).backward();
  const SafetensorsFile expected(folder / "gradients.safetensors");
  const HfFamily family = open_hf(folder).family;
  size_t compared = 0;
  for (const auto& p : model->named_parameters()) {
    const std::string theirs = hf_name(p.key(), family, head);
    if (!expected.contains(theirs)) continue;
    INFO(theirs);
    // case.json: gradients.tolerance
    REQUIRE(torch::allclose(p.value().grad(), expected.tensor(theirs), 1e-3, 1e-5));
    ++compared;
  }
  REQUIRE(compared == expected.entries().size());
}

}  // namespace

TEST_CASE("transformers: hidden states, pooled outputs, logits and losses") {
  const auto oracles = test::require_oracles();
  if (!oracles) return;
  const std::map<std::string, std::vector<std::string>> unused{
      {"bert_pretraining_as_mlm", {"cls.seq_relationship.bias", "cls.seq_relationship.weight"}}};
  size_t folders = 0;
  for (const std::string& name : parity_names(*oracles)) {
    const auto found = unused.find(name);
    parity_forward(*oracles / "hf" / name,
                   found == unused.end() ? std::vector<std::string>{} : found->second);
    ++folders;
  }
  REQUIRE(folders == 18);
}

TEST_CASE("transformers: the full pretraining model has a pooler beside its head") {
  const auto oracles = test::require_oracles();
  if (!oracles) return;
  const fs::path folder = *oracles / "hf" / "bert_pretraining_as_mlm";
  Pretrained model = load_pretrained(open_hf(folder));
  model->eval();
  torch::NoGradGuard no_grad;
  const SafetensorsFile expected(folder / "expected_pretraining.safetensors");
  const SafetensorsFile weights(folder / "model.safetensors");
  const Batch batch = parity_batch(test::read_json(folder / "inputs.json").at("right_padded"));
  const PretrainedImpl::Output out = model(batch.tokens, batch.keep, batch.segments);
  // The next-sentence layer is not ours; on our pooled output it must give what theirs gives.
  const torch::Tensor next = torch::linear(out.pooler_output, weights.tensor("cls.seq_relationship.weight"),
                                           weights.tensor("cls.seq_relationship.bias"));
  size_t compared = 0;
  for (const SafetensorsEntry& entry : expected.entries()) {
    INFO(entry.name);
    if (entry.name.find("right_padded") == std::string::npos) continue;
    const bool is_next = entry.name.find("seq") != std::string::npos;
    REQUIRE(parity_error(is_next ? next : out.logits, expected.tensor(entry.name), batch.keep) < 5e-5);
    ++compared;
  }
  REQUIRE(compared == 2);
}

TEST_CASE("transformers: models of other families are refused by name") {
  const auto oracles = test::require_oracles();
  if (!oracles) return;
  const fs::path llama = *oracles / "hf" / "llama_gqa";
  REQUIRE_THROWS_MATCHES(
      open_hf(llama), Error,
      Catch::Matchers::Message((llama / "config.json").string() +
                               ": model_type 'llama' is a language model, and an encoder is needed here"));
  REQUIRE_THROWS_WITH(open_hf(*oracles / "hf" / "bert_mlm_legacy_bin"), Catch::Contains("save it anew"));
}

TEST_CASE("transformers: gradients of the first batch") {
  const auto oracles = test::require_oracles();
  if (!oracles) return;
  for (const char* name : {"bert_mlm", "roformer_mlm"}) {
    MaskedLm model = parity_mlm(*oracles / "hf" / name);
    parity_gradients(model, *oracles / "hf" / name, HeadType::mlm);
  }
  const HfFolder folder = open_hf(*oracles / "hf" / "bert_classifier");
  SequenceClassifier model(folder.encoder, folder.classifier);
  REQUIRE(load_hf(*model, folder).fresh.empty());
  model->eval();
  parity_gradients(model, folder.path, HeadType::classifier);
}

TEST_CASE("transformers: twenty updates of AdamW") {
  const auto oracles = test::require_oracles();
  if (!oracles) return;
  for (const auto& [name, family] :
       {std::pair("bert_mlm", HfFamily::bert), {"roformer_mlm", HfFamily::roformer}}) {
    const fs::path folder = *oracles / "hf" / name;
    MaskedLm model = parity_mlm(folder);
    const nlohmann::json facts = test::read_json(folder / "case.json").at("training");
    const nlohmann::json batches = test::read_json(folder / "training_batches.json");
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

    auto loss_of = [&](const nlohmann::json& input) {
      const Batch batch = parity_batch(input);
      return parity_loss(model(batch), batch, input);
    };
    for (size_t step = 0; step < facts.at("losses").size(); ++step) {
      INFO(name << ", step " << step);
      optimizer.zero_grad();
      const torch::Tensor loss = loss_of(batches[step % batches.size()]);
      REQUIRE(loss.item<double>() == Approx(facts.at("losses")[step].get<double>()).margin(2e-5).epsilon(0));
      loss.backward();
      const double norm = torch::nn::utils::clip_grad_norm_(
          model->parameters(), clip ? facts.at("clip_grad_norm").get<double>() : 1e9);
      REQUIRE(norm == Approx(facts.at("gradient_norms")[step].get<double>()).epsilon(1e-5));
      optimizer.step();
    }
    REQUIRE(loss_of(batches[0]).item<double>() ==
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

TEST_CASE("transformers: folder to folder, bit for bit") {
  const auto oracles = test::require_oracles();
  if (!oracles) return;
  test::TempDir temporary;
  size_t identical_files = 0;
  for (const std::string& name : parity_names(*oracles)) {
    INFO(name);
    const HfFolder source = open_hf(*oracles / "hf" / name);
    Pretrained model = load_pretrained(source);
    save_hf(temporary / name, *model,
            {.dtype = source.dtype,
             .label_names = source.label_names,
             .problem_type = source.problem_type,
             .max_length = source.max_length,
             .pad_token = source.pad_token});
    const HfFolder copy = open_hf(temporary / name);
    REQUIRE(copy.family == source.family);
    REQUIRE(copy.head == source.head);
    REQUIRE(copy.label_names == source.label_names);
    REQUIRE(copy.problem_type == source.problem_type);
    REQUIRE(copy.max_length == source.max_length);
    REQUIRE(copy.dtype == source.dtype);
    std::set<std::string> dropped;
    for (const auto& [key, tensor] : source.weights) {
      const auto found = copy.weights.find(key);
      if (found == copy.weights.end()) {
        dropped.insert(key);
        continue;
      }
      INFO(key);
      REQUIRE(found->second.dtype == tensor.dtype);
      REQUIRE(torch::equal(found->second.read(), tensor.read()));
    }
    const bool tied_decoder =
        dropped.erase("cls.predictions.decoder.weight") + dropped.erase("cls.predictions.decoder.bias") > 0;
    if (name == "bert_pretraining_as_mlm") {
      REQUIRE(dropped == std::set<std::string>{"bert.pooler.dense.bias", "bert.pooler.dense.weight",
                                               "cls.seq_relationship.bias", "cls.seq_relationship.weight"});
    } else if (name == "bert_mlm_gamma_beta_bin") {
      REQUIRE(dropped == std::set<std::string>{"bert.embeddings.position_ids"});
    } else {
      REQUIRE(dropped.empty());
      // Nothing is added: the very file.
      const fs::path original = source.path / "model.safetensors";
      if (fs::exists(original) && !tied_decoder) {
        REQUIRE(test::fuzz_bytes(original) == test::fuzz_bytes(temporary / name / "model.safetensors"));
        ++identical_files;
      }
    }
  }
  REQUIRE(identical_files == 13);
}

TEST_CASE("transformers: a real checkpoint, MiniLM") {
  const auto oracles = test::require_oracles();
  if (!oracles) return;
  const fs::path path = test::source_dir() / "build" / "models" / "minilm";
  if (!fs::exists(path / "config.json")) {
    WARN(path.string() << " is absent (make models fetches it): nothing checked here");
    return;
  }
  const nlohmann::json facts = test::read_json(*oracles / "minilm" / "last_hidden_state.json");
  const double tolerance = facts.at("tolerance_abs");
  const HfFolder folder = open_hf(path);
  REQUIRE(folder.pooler);
  REQUIRE(folder.head == HeadType::none);
  HfReport report;
  Pretrained model = load_pretrained(folder, &report);
  REQUIRE(report.fresh.empty());
  REQUIRE(report.unused.empty());
  model->eval();
  torch::NoGradGuard no_grad;

  // One right-padded batch, as the values were computed.
  const nlohmann::json& sentences = facts.at("sentences");
  size_t longest = 0;
  for (const auto& s : sentences) longest = std::max(longest, s.at("input_ids").size());
  const auto count = static_cast<int64_t>(sentences.size());
  torch::Tensor tokens = torch::zeros({count, static_cast<int64_t>(longest)}, torch::kInt64);
  for (int64_t i = 0; i < count; ++i) {
    const auto ids = sentences[static_cast<size_t>(i)].at("input_ids").get<std::vector<int64_t>>();
    tokens[i].slice(0, 0, static_cast<int64_t>(ids.size())).copy_(torch::tensor(ids));
  }
  const PretrainedImpl::Output out = model(tokens, tokens.ne(0));
  for (int64_t i = 0; i < count; ++i) {
    const nlohmann::json& s = sentences[static_cast<size_t>(i)];
    const auto length = static_cast<int64_t>(s.at("input_ids").size());
    const torch::Tensor hidden = out.last_hidden_state[i].slice(0, 0, length);
    auto doubles = [&](const char* key) {
      return torch::tensor(s.at(key).get<std::vector<double>>(), torch::kFloat64);
    };
    std::vector<torch::Tensor> first;
    for (const auto& row : s.at("first_8_of_each_token")) {
      first.push_back(torch::tensor(row.get<std::vector<double>>(), torch::kFloat64));
    }
    REQUIRE(max_error(hidden.slice(1, 0, 8), torch::stack(first)) < tolerance);
    REQUIRE(max_error(hidden.to(torch::kFloat64).norm(2, 1), doubles("norm_of_each_token")) < 10 * tolerance);
    REQUIRE(hidden.to(torch::kFloat64).sum().item<double>() ==
            Approx(s.at("sum_of_all").get<double>())
                .margin(facts.at("sum_tolerance_abs").get<double>())
                .epsilon(0));
    REQUIRE(max_error(out.pooler_output[i].slice(0, 0, 8), doubles("pooler_output_first_8")) < tolerance);
    const torch::Tensor mean = hidden.mean(0);
    REQUIRE(max_error((mean / mean.norm()).slice(0, 0, 8), doubles("mean_pooled_unit_first_8")) < tolerance);
  }
}
