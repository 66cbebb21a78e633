#include "roformer/models/heads.h"

#include "tests/tensors.h"

using namespace roformer;
using roformer::test::max_error;
using roformer::test::random_tensor;

namespace {

EncoderOptions heads_options(const PositionOptions& positions = RotaryOptions{}) {
  return test::small_encoder(32, 20, positions);
}

Batch heads_batch() {
  torch::manual_seed(8);
  Batch batch;
  batch.tokens = torch::randint(20, {4, 12}, torch::kInt64);
  batch.targets = torch::arange(1, 48, 3);
  batch.labels = torch::randint(20, {batch.targets.size(0)}, torch::kInt64);
  return batch;
}

torch::Tensor heads_loss(MaskedLm& model, const Batch& batch) {
  return at::cross_entropy_loss(model(batch), batch.labels, {}, at::Reduction::Sum) / batch.target_count();
}

}  // namespace

TEST_CASE("MLM head: dense, activation, LayerNorm, tied decoder, bias") {
  for (const Activation activation : {Activation::gelu, Activation::gelu_tanh}) {
    EncoderOptions options = heads_options();
    options.activation = activation;
    options.norm_eps = 0.03;
    MlmHead head(options);
    head->to(torch::kFloat64);
    uint64_t seed = 0;
    torch::NoGradGuard no_grad;
    for (torch::Tensor p : head->parameters()) p.copy_(random_tensor(p.sizes(), ++seed, torch::kFloat64));
    const torch::Tensor hidden = random_tensor({5, 32}, 50, torch::kFloat64),
                        tokens = random_tensor({20, 32}, 51, torch::kFloat64);
    auto matrix = [&](const char* name) { return test::matrix_of(head->named_parameters()[name]); };
    auto row = [&](const char* name) {
      return test::matrix_of(head->named_parameters()[name].unsqueeze(0))[0];
    };
    formula::Matrix h = formula::linear(test::matrix_of(hidden), matrix("dense.weight"), row("dense.bias"));
    for (formula::Row& values : h)
      for (double& x : values) x = activation == Activation::gelu ? formula::gelu(x) : formula::gelu_tanh(x);
    h = formula::layer_norm(h, row("norm.weight"), row("norm.bias"), 0.03);
    const formula::Matrix expected = formula::linear(h, test::matrix_of(tokens), row("bias"));
    REQUIRE(max_error(head(hidden, tokens), test::tensor_of(expected)) < 1e-12);
  }
}

TEST_CASE("MLM head: embeddings of another width, and a decoder of its own") {
  EncoderOptions options = heads_options();
  options.embedding = 24;
  torch::NoGradGuard no_grad;
  const torch::Tensor hidden = random_tensor({5, 32}, 50), tokens = random_tensor({20, 24}, 51);
  MlmHead tied(options), untied(options, /*tied=*/false);
  REQUIRE(tied(hidden, tokens).sizes() == torch::IntArrayRef({5, 20}));
  REQUIRE_FALSE(tied->named_parameters().contains("decoder"));
  const auto from = untied->named_parameters();
  for (auto& p : tied->named_parameters()) p.value().copy_(from[p.key()]);
  REQUIRE(torch::equal(untied(hidden, tokens), tied(hidden, from["decoder"])));
  REQUIRE(torch::equal(untied(hidden, tokens), untied(hidden, tokens + 1)));
}

TEST_CASE("classifier: the formulas of both heads on the first token") {
  for (const HeadKind kind : {HeadKind::roformer, HeadKind::bert}) {
    for (const Activation activation :
         {Activation::gelu, Activation::gelu_tanh, Activation::relu, Activation::silu, Activation::tanh}) {
      EncoderOptions options = heads_options();
      options.activation = activation;
      ClassifierHead head(options, ClassifierOptions{.kind = kind, .labels = 3});
      head->to(torch::kFloat64);
      uint64_t seed = 0;
      torch::NoGradGuard no_grad;
      for (torch::Tensor p : head->parameters()) p.copy_(random_tensor(p.sizes(), ++seed, torch::kFloat64));
      const torch::Tensor hidden = random_tensor({4, 6, 32}, 50, torch::kFloat64);
      auto matrix = [&](const char* name) { return test::matrix_of(head->named_parameters()[name]); };
      auto row = [&](const char* name) {
        return test::matrix_of(head->named_parameters()[name].unsqueeze(0))[0];
      };
      formula::Matrix h =
          formula::linear(test::matrix_of(hidden.select(1, 0)), matrix("dense.weight"), row("dense.bias"));
      for (formula::Row& values : h) {
        for (double& x : values) {
          x = kind == HeadKind::bert || activation == Activation::tanh ? std::tanh(x)
              : activation == Activation::gelu                         ? formula::gelu(x)
              : activation == Activation::gelu_tanh                    ? formula::gelu_tanh(x)
              : activation == Activation::silu                         ? x / (1.0 + std::exp(-x))
                                                                       : std::max(x, 0.0);
        }
      }
      const formula::Matrix expected = formula::linear(h, matrix("output.weight"), row("output.bias"));
      REQUIRE(max_error(head(hidden), test::tensor_of(expected)) < 1e-12);
    }
  }
}

TEST_CASE("classifier: dropout is the encoder's or its own, before one layer (bert) or both (roformer)") {
  EncoderOptions options = heads_options();
  options.dropout = 0.5;
  torch::NoGradGuard no_grad;
  const torch::Tensor hidden = torch::ones({2000, 1, 32});
  for (const HeadKind kind : {HeadKind::roformer, HeadKind::bert}) {
    ClassifierHead head(options, ClassifierOptions{.kind = kind, .labels = 1});
    // dense is the identity, output the sum: what comes out counts what was kept, twice over or four times.
    auto parameters = head->named_parameters();
    parameters["dense.weight"].copy_(torch::eye(32));
    parameters["output.weight"].fill_(1.0);
    head->eval();
    const double all = head(hidden).mean().item<double>();
    REQUIRE(max_error(head(hidden), torch::full({2000, 1}, all)) < 1e-4);
    head->train();
    torch::manual_seed(4);
    const torch::Tensor out = head(hidden);
    // Zero where nothing was kept; else multiples of one kept unit, which the first dropout doubles.
    const double unit = kind == HeadKind::bert ? 2.0 * std::tanh(1.0) : 2.0 * formula::gelu(2.0);
    const torch::Tensor kept = out / unit;
    REQUIRE(max_error(kept, kept.round()) < 1e-3);
    const double share = kept.mean().item<double>() / 32.0;
    REQUIRE(share ==
            Approx(kind == HeadKind::bert ? 0.5 : 0.25).margin(0.01));  // 5 deviations of 64,000 draws
    ClassifierHead none(options, ClassifierOptions{.kind = kind, .labels = 1, .dropout = 0.0});
    REQUIRE(torch::equal(none(hidden), none(hidden)));
  }
}

TEST_CASE("sequence classifier: the encoder's states of kept tokens, then the head") {
  SequenceClassifier model(heads_options(), ClassifierOptions{.labels = 3});
  Batch batch;
  batch.tokens = torch::tensor({{1, 5, 9, 2, 0, 0}, {3, 10, 4, 4, 7, 8}}, torch::kInt64);
  batch.keep = batch.tokens.ne(0);
  batch.segments = torch::tensor({{0, 0, 1, 1, 0, 0}, {0, 1, 1, 1, 1, 1}}, torch::kInt64);
  const torch::Tensor logits = model(batch);
  REQUIRE(logits.sizes() == torch::IntArrayRef({2, 3}));
  REQUIRE(torch::equal(logits, model->head(model->encoder(batch.tokens, batch.keep, batch.segments))));
  Batch other = batch;
  other.tokens = batch.tokens.clone();
  other.tokens[0][5] = 11;  // padding: nobody looks
  REQUIRE(max_error(model(other), logits) < 1e-6);
  other.keep = torch::Tensor();
  REQUIRE(max_error(model(other), logits) > 1e-6);
}

TEST_CASE("masked language model: logits of the targets alone, as the head gives them for all") {
  MaskedLm model(heads_options());
  const Batch batch = heads_batch();
  const torch::Tensor logits = model(batch);
  REQUIRE(logits.sizes() == torch::IntArrayRef({16, 20}));
  const torch::Tensor all =
      model->head(model->encoder(batch.tokens), model->encoder->token_weight()).flatten(0, 1);
  REQUIRE(max_error(logits, all.index_select(0, batch.targets)) < 1e-6);
  Batch without;
  without.tokens = batch.tokens;
  REQUIRE_THROWS_WITH(model(without), Catch::Contains("targets"));
  // A batch in which nothing was masked.
  without.targets = torch::empty({0}, torch::kInt64);
  REQUIRE(model(without).sizes() == torch::IntArrayRef({0, 20}));
}

TEST_CASE("masked language model: the decoder is the token embedding, registered once") {
  MaskedLm model(heads_options());
  int64_t tables = 0;
  for (const torch::Tensor& p : model->parameters()) tables += p.sizes() == torch::IntArrayRef({20, 32});
  REQUIRE(tables == 1);
  // Token 19 is not read, so its gradient comes through the decoder.
  Batch batch = heads_batch();
  batch.tokens.clamp_(0, 18);
  heads_loss(model, batch).backward();
  REQUIRE(model->encoder->token_weight().grad()[19].abs().max().item<float>() > 0.0f);
}

TEST_CASE("masked language model: the first loss is that of guessing, and gradients reach all weights") {
  for (const PositionOptions& positions :
       {PositionOptions(RotaryOptions{}), PositionOptions(LearnedOptions{}),
        PositionOptions(NoneOptions{})}) {
    torch::manual_seed(1);
    MaskedLm model(heads_options(positions));
    const torch::Tensor loss = heads_loss(model, heads_batch());
    REQUIRE(loss.item<double>() == Approx(std::log(20.0)).margin(0.3));
    loss.backward();
    for (const auto& p : model->named_parameters()) {
      INFO(p.key());
      REQUIRE(p.value().grad().defined());
      // softmax cannot see a key bias unless keys turn
      const bool blind =
          p.key().find("key.bias") != std::string::npos && !std::holds_alternative<RotaryOptions>(positions);
      if (!blind) REQUIRE(p.value().grad().abs().max().item<float>() > 0.0f);
    }
  }
}

TEST_CASE("masked language model: it learns one batch by heart") {
  for (const NormPlacement norm : {NormPlacement::post, NormPlacement::pre}) {
    for (const PositionOptions& positions :
         {PositionOptions(RotaryOptions{}), PositionOptions(LearnedOptions{})}) {
      torch::manual_seed(1);
      EncoderOptions options = heads_options(positions);
      options.norm = norm;
      MaskedLm model(options);
      Batch batch = heads_batch();
      batch.tokens.view({-1}).index_fill_(0, batch.targets, 0);
      torch::optim::AdamW optimizer(model->parameters(), torch::optim::AdamWOptions(3e-3));
      for (int step = 0; step < 300; ++step) {
        optimizer.zero_grad();
        heads_loss(model, batch).backward();
        optimizer.step();
      }
      REQUIRE(heads_loss(model, batch).item<double>() < 0.05);
      REQUIRE(model(batch).argmax(-1).eq(batch.labels).all().item<bool>());
    }
  }
}

TEST_CASE("masked language model: one seed, one model; one seed, one training step with dropout") {
  EncoderOptions options = heads_options();
  options.dropout = 0.2;
  std::vector<torch::Tensor> first;
  for (int run = 0; run < 2; ++run) {
    torch::manual_seed(5);
    MaskedLm model(options);
    torch::manual_seed(7);  // heads_batch sets it too
    const Batch batch = heads_batch();
    heads_loss(model, batch).backward();
    const auto parameters = model->parameters();
    for (size_t i = 0; i < parameters.size(); ++i) {
      if (run == 0) {
        first.push_back(parameters[i].grad());
      } else {
        REQUIRE(torch::equal(first[i], parameters[i].grad()));
      }
    }
  }
}
