#include "roformer/models/causal_lm.h"

#include "tests/catch.h"
#include "tests/models/causal_models.h"
#include "tests/tensors.h"

using namespace roformer;
using roformer::test::small_causal_lm;
using roformer::test::small_causal_vocab;

namespace {

/// Models that keep what the text so far comes to in different ways.
std::vector<std::pair<std::string, CausalLmOptions>> generation_cases() {
  std::vector<std::pair<std::string, CausalLmOptions>> cases = {
      {"rotary", small_causal_lm({RotaryOptions{}})},
      {"alibi", small_causal_lm({AlibiOptions{}})},
      {"t5", small_causal_lm({T5Options{.buckets = 8, .max_distance = 12, .init_std = 1.0}})},
      {"learned", small_causal_lm({LearnedOptions{.max_length = 64}})},
      {"dynamic NTK",
       small_causal_lm({RotaryOptions{.scaling = DynamicNtkScaling{.factor = 2.0, .original_length = 4}}})}};
  cases.back().second.layers = 1;  // what a second layer keeps was computed under the theta of its time
  for (const RotaryOrder order : {RotaryOrder::after, RotaryOrder::before}) {
    const std::string name(enum_name(order));
    cases.emplace_back(
        "favor " + name,
        small_causal_lm({RotaryOptions{}},
                        LinearAttention{.features = FavorFeatures{.features = 10}, .rotary = order}));
    cases.emplace_back("elu " + name,
                       small_causal_lm({SinusoidalOptions{}, RotaryOptions{}},
                                       LinearAttention{.features = EluFeatures{}, .rotary = order}));
  }
  return cases;
}

CausalLm generation_model(const CausalLmOptions& options) {
  torch::manual_seed(21);
  CausalLm model(options);
  model->eval();
  return model;
}

torch::Tensor generation_prompt(int64_t rows) {
  torch::manual_seed(8);
  return torch::randint(small_causal_vocab, {rows, 7}, torch::kInt64);
}

}  // namespace

TEST_CASE("generation: with a state and reading everything anew give the same logits and tokens") {
  for (const auto& [name, options] : generation_cases()) {
    INFO(name);
    CausalLm model = generation_model(options);
    const torch::Tensor prompt = generation_prompt(3);
    // The logits that a step saw, kept as they come.
    auto watched = [&](bool cached, std::vector<torch::Tensor>& logits) -> NextLogits {
      return [next = next_logits(model, cached), &logits](const torch::Tensor& tokens) {
        logits.push_back(next(tokens));
        return logits.back();
      };
    };
    for (const double temperature : {0.0, 1.0}) {
      const SamplingOptions sampling{.temperature = temperature, .seed = 4, .max_new_tokens = 40};
      std::vector<torch::Tensor> with, without;
      const torch::Tensor a = generate_tokens(watched(true, with), prompt, sampling);
      const torch::Tensor b = generate_tokens(watched(false, without), prompt, sampling);
      REQUIRE(torch::equal(a, b));
      REQUIRE(with.size() == 40);
      for (size_t i = 0; i < with.size(); ++i) REQUIRE(test::max_error(with[i], without[i]) < 1e-4);
      CHECK_FALSE(with[0].requires_grad());
      // What was written says itself again: the whole text at once has these logits at the ends.
      if (name == "dynamic NTK") continue;  // its theta follows the length
      const torch::NoGradGuard no_grad;
      const torch::Tensor whole = model->forward(torch::cat({prompt, a}, 1)).narrow(1, 6, 40);
      REQUIRE(test::max_error(whole, torch::stack(with, 1)) < 1e-4);
      if (temperature == 0.0) REQUIRE(torch::equal(whole.argmax(-1), a));
    }
  }
}

TEST_CASE("generation: a step reads its own token alone, and two texts do not mix") {
  for (const auto& [name, options] : generation_cases()) {
    INFO(name);
    CausalLm model = generation_model(options);
    const NextLogits fresh = next_logits(model);
    NextLogits first = fresh, second = fresh;
    const torch::Tensor prompt = generation_prompt(1), token = prompt.narrow(1, 0, 1);
    first(prompt);
    const torch::Tensor after = first(token);
    CHECK(test::max_error(second(token), next_logits(model)(token)) == 0.0);
    CHECK(test::max_error(after, next_logits(model)(torch::cat({prompt, token}, 1))) < 1e-4);
    CHECK(test::max_error(after, next_logits(model)(token)) > 1e-2);
  }
}
