#include "roformer/models/causal_lm.h"

#include "roformer/core/error.h"
#include "tests/catch.h"
#include "tests/models/causal_models.h"
#include "tests/strict_device.h"
#include "tests/tensors.h"

using namespace roformer;
using roformer::test::small_causal_lm;
using roformer::test::small_causal_vocab;

namespace {

CausalLm causal_model(const CausalLmOptions& options) {
  torch::manual_seed(11);
  CausalLm model(options);
  model->to(torch::kFloat64);
  model->eval();
  return model;
}

torch::Tensor causal_tokens(int64_t rows, int64_t length) {
  torch::manual_seed(5);
  return torch::randint(small_causal_vocab, {rows, length}, torch::kInt64);
}

RotaryOptions dynamic_rotary() {
  RotaryOptions o;
  o.scaling = DynamicNtkScaling{.factor = 2.0, .original_length = 4};
  return o;
}

RotaryOptions xpos_rotary() {
  RotaryOptions o;
  o.xpos = 32.0;
  return o;
}

std::vector<std::pair<std::string, CausalLmOptions>> causal_cases() {
  std::vector<std::pair<std::string, CausalLmOptions>> cases;
  const std::pair<std::string, std::vector<PositionOptions>> encodings[] = {
      {"none", {NoneOptions{}}},
      {"learned", {LearnedOptions{.max_length = 16}}},
      {"sinusoidal + rotary", {SinusoidalOptions{}, RotaryOptions{}}},
      {"halves", {RotaryOptions{.layout = RotaryLayout::halves}}},
      {"dynamic", {dynamic_rotary()}},
      {"xpos", {xpos_rotary()}},
      {"alibi", {AlibiOptions{}}},
      {"t5", {T5Options{.buckets = 8, .max_distance = 12, .init_std = 1.0}}},
      {"tupe", {TupeOptions{.max_length = 16, .buckets = 8, .max_distance = 12, .init_std = 1.0}}},
      {"shaw", {ShawOptions{.clip_min = -3, .clip_max = 3, .init_std = 1.0}}},
      {"nezha", {NezhaOptions{.max_distance = 3}}},
      {"transformer_xl", {TransformerXlOptions{.init_std = 0.5}}},
      {"deberta", {DebertaOptions{.max_distance = 4, .init_std = 1.0}}}};
  for (const auto& [name, positions] : encodings) cases.emplace_back(name, small_causal_lm(positions));
  // What a second layer keeps was computed under the theta of its time.
  cases[4].second.layers = 1;
  CausalLmOptions llama = small_causal_lm({RotaryOptions{.layout = RotaryLayout::halves}});
  llama.kv_heads = 1;
  llama.head_dim = 6;
  llama.gated = true;
  llama.norm = NormKind::rms;
  llama.activation = Activation::silu;
  llama.bias = false;
  llama.tied = true;
  cases.emplace_back("grouped-query, gated, RMSNorm, tied", llama);
  for (const RotaryOrder order : {RotaryOrder::after, RotaryOrder::before}) {
    const std::string name(enum_name(order));
    cases.emplace_back(
        "favor " + name,
        small_causal_lm({RotaryOptions{}},
                        LinearAttention{.features = FavorFeatures{.features = 10}, .rotary = order}));
    cases.emplace_back(
        "cosine " + name,
        small_causal_lm({RotaryOptions{}}, LinearAttention{.features = CosineFeatures{}, .rotary = order}));
    cases.emplace_back(
        "elu " + name,
        small_causal_lm({RotaryOptions{}}, LinearAttention{.features = EluFeatures{}, .rotary = order}));
  }
  return cases;
}

}  // namespace

TEST_CASE("causal model: in pieces, token by token and at once give the same") {
  const torch::NoGradGuard no_grad;
  const torch::Tensor tokens = causal_tokens(2, 11);
  for (const auto& [name, options] : causal_cases()) {
    INFO(name);
    CausalLm model = causal_model(options);
    // Theta of dynamic scaling follows the length, so the whole is read at each length.
    for (const std::vector<int64_t>& pieces : {std::vector<int64_t>{6, 1, 4}, std::vector<int64_t>(11, 1)}) {
      CausalState state;
      int64_t begin = 0;
      for (const int64_t piece : pieces) {
        const torch::Tensor part = model->forward(tokens.narrow(1, begin, piece), {}, &state);
        begin += piece;
        const torch::Tensor whole =
            model->forward(tokens.narrow(1, 0, begin)).narrow(1, begin - piece, piece);
        REQUIRE(test::max_error(part, whole) < 1e-9);
      }
      REQUIRE(state.length == 11);
    }
  }
}

TEST_CASE("causal model: later tokens change nothing before them") {
  const torch::NoGradGuard no_grad;
  const torch::Tensor tokens = causal_tokens(1, 11);
  torch::Tensor changed = tokens.clone();
  changed[0][7] = (tokens[0][7].item<int64_t>() + 1) % small_causal_vocab;
  for (const auto& [name, options] : causal_cases()) {
    INFO(name);
    CausalLm model = causal_model(options);
    const torch::Tensor before = model->forward(tokens), after = model->forward(changed);
    REQUIRE(test::max_error(before.narrow(1, 0, 7), after.narrow(1, 0, 7)) < 1e-12);
    REQUIRE(test::max_error(before.narrow(1, 7, 4), after.narrow(1, 7, 4)) > 1e-4);
  }
}

TEST_CASE("causal model: padding on the left changes nothing, with and without a state") {
  const torch::NoGradGuard no_grad;
  const torch::Tensor tokens = causal_tokens(1, 7);
  const torch::Tensor padded = torch::cat({torch::full({1, 3}, 4, torch::kInt64), tokens}, 1);
  torch::Tensor keep = torch::ones({1, 10}, torch::kBool);
  keep.narrow(1, 0, 3).fill_(false);
  for (const auto& [name, options] : causal_cases()) {
    if (name == "dynamic") continue;  // its theta counts columns
    INFO(name);
    CausalLm model = causal_model(options);
    const torch::Tensor alone = model->forward(tokens);
    REQUIRE(test::max_error(model->forward(padded, keep).narrow(1, 3, 7), alone) < 1e-9);
    CausalState state;
    model->forward(padded.narrow(1, 0, 8), keep.narrow(1, 0, 8), &state);
    REQUIRE(test::max_error(model->forward(padded.narrow(1, 8, 2), {}, &state), alone.narrow(1, 5, 2)) <
            1e-9);
  }
}

TEST_CASE("causal model: forward, backward and update stay on a device, and are those of the CPU") {
  for (const auto& [name, options] : causal_cases()) {
    INFO(name);
    auto logits_after_update = [&, &options = options](torch::Device device) {
      torch::manual_seed(2);
      CausalLm model(options);
      model->to(device);
      const torch::Tensor tokens = causal_tokens(2, 9).to(device);
      const torch::Tensor before = model->forward(tokens);
      torch::optim::SGD optimizer(model->parameters(), 0.05);
      before.square().mean().backward();
      for (const torch::Tensor& p : model->parameters()) {
        if (p.grad().defined()) REQUIRE(p.grad().device() == device);
      }
      optimizer.step();
      return std::pair(before.detach().cpu(), model->forward(tokens).detach().cpu());
    };
    const auto [want, want_after] = logits_after_update(torch::kCPU);
    const auto [got, got_after] = logits_after_update(test::strict_device());
    REQUIRE(test::max_error(got, want) < 1e-5);
    REQUIRE(test::max_error(got_after, want_after) < 1e-4);
    REQUIRE(test::max_error(want_after, want) > 1e-3);  // the update did something
  }
}

TEST_CASE("causal model: initial weights") {
  CausalLmOptions o = small_causal_lm({RotaryOptions{}});
  o.dim = 256;
  o.ffn = 512;
  o.vocab_size = 1000;
  o.init_std = 0.02;
  o.embedding_std = 0.7;
  CausalLm normal(o);
  CHECK(normal->named_parameters()["token.weight"].std().item<double>() == Approx(0.7).epsilon(0.02));
  CHECK(normal->named_parameters()["output.weight"].std().item<double>() == Approx(0.02).epsilon(0.02));
  o.init_std.reset();
  CausalLm uniform(o);
  // LibTorch: +-1/sqrt(inputs).
  const torch::Tensor up = uniform->named_parameters()["layers.0.ffn.up.weight"];
  CHECK(up.abs().max().item<double>() == Approx(1.0 / 16).epsilon(0.01));
  CHECK(up.abs().max().item<double>() <= 1.0 / 16);
  CHECK_FALSE(uniform->named_parameters().contains("output.bias"));
  o.tied = true;
  CHECK_FALSE(CausalLm(o)->named_parameters().contains("output.weight"));
}

TEST_CASE("causal model: what does not fit is refused before anything is built") {
  auto refuse = [](const CausalLmOptions& options) -> std::string {
    try {
      validate(options);
    } catch (const Error& error) {
      return error.what();
    }
    return "";
  };
  for (const auto& [name, options] : causal_cases()) CHECK(refuse(options).empty());
  CausalLmOptions o = small_causal_lm({RotaryOptions{}});
  o.heads = 3;
  CHECK(refuse(o).find("3 heads do not divide a width of 16") != std::string::npos);
  o.heads = 4;
  o.kv_heads = 3;
  CHECK(refuse(o).find("change model.kv_heads or model.heads") != std::string::npos);
  const std::string linear = refuse(small_causal_lm({AlibiOptions{}}, LinearAttention{}));
  CHECK(linear.find("'alibi'") != std::string::npos);
  CHECK(linear.find("model.attention is linear") != std::string::npos);
  const std::string odd =
      refuse(small_causal_lm({RotaryOptions{}}, LinearAttention{.features = FavorFeatures{.features = 7}}));
  CHECK(odd.find("features: 7 is odd") != std::string::npos);
}
