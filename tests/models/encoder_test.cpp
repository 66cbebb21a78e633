#include "roformer/models/encoder.h"

#include <algorithm>
#include <set>

#include "roformer/core/error.h"
#include "tests/tensors.h"

using namespace roformer;
using roformer::test::max_error;

namespace {

EncoderOptions encoder_options(const PositionOptions& positions = RotaryOptions{}) {
  EncoderOptions options = test::small_encoder(16, 31, positions);
  options.init_std = 0.2;
  return options;
}

Encoder double_encoder(const EncoderOptions& options, PositionEncoding encoding = nullptr) {
  torch::manual_seed(6);
  Encoder encoder(options, encoding);
  encoder->to(torch::kFloat64);
  return encoder;
}

torch::Tensor encoder_tokens(int64_t batch, int64_t length) {
  torch::manual_seed(2);
  return torch::randint(31, {batch, length}, torch::kInt64);
}

std::vector<PositionOptions> every_encoding() {
  return {LearnedOptions{}, RotaryOptions{}, SinusoidalOptions{}, NoneOptions{}};
}

/// Counts what the encoder asks of it.
class CountingEncoding : public PositionEncodingImpl {
 public:
  torch::Tensor embed(const torch::Tensor& x, const Positions&) override {
    ++embed_calls;
    return x + 1.0;
  }
  torch::Tensor bias(const Positions& p) override {
    ++bias_calls;
    return torch::zeros({1, 1, p.q.size(1), p.k.size(1)}, torch::kFloat64);
  }
  torch::Tensor logits(const torch::Tensor&, const torch::Tensor&, const AttentionContext& context) override {
    layers.push_back(context.layer);
    buffers.push_back(context.positions.q.data_ptr());
    return {};
  }
  Needs needs() const override { return Needs::scores; }
  int64_t limit() const override { return 9; }
  std::string_view name() const override { return "counting"; }

  int embed_calls = 0, bias_calls = 0;
  std::vector<int64_t> layers;
  std::vector<void*> buffers;
};

/// Fills a table of its own.
class TableEncoding : public PositionEncodingImpl {
 public:
  TableEncoding() : table(register_module("table", torch::nn::Embedding(4, 16))) {
    torch::NoGradGuard no_grad;
    table->weight.fill_(7.0);
  }
  torch::nn::Embedding table;
};

}  // namespace

TEST_CASE("encoder: names of the parameters") {
  Encoder encoder(encoder_options(LearnedOptions{}));
  std::vector<std::string> names;
  for (const auto& p : encoder->named_parameters()) names.push_back(p.key());
  std::vector<std::string> expected{"token.weight", "segment.weight", "positions.table", "norm.weight",
                                    "norm.bias"};
  for (const char* layer : {"layers.0.", "layers.1."}) {
    for (const char* module : {"attention.query", "attention.key", "attention.value", "attention.output",
                               "attention_norm", "ffn.up", "ffn.down", "ffn_norm"}) {
      for (const char* leaf : {".weight", ".bias"}) expected.push_back(std::string(layer) + module + leaf);
    }
  }
  std::sort(names.begin(), names.end());
  std::sort(expected.begin(), expected.end());
  REQUIRE(names == expected);
}

TEST_CASE("encoder: embeddings are token + segment + position, then LayerNorm") {
  Encoder encoder = double_encoder(encoder_options(LearnedOptions{}));
  const auto weight = [&](const std::string& name) { return encoder->named_parameters()[name].detach(); };
  const torch::Tensor tokens = encoder_tokens(2, 5),
                      segments = torch::tensor({0, 0, 1, 1, 1, 1, 0, 1, 0, 1}).view({2, 5});
  std::vector<torch::Tensor> hidden;
  const torch::Tensor out = encoder(tokens, torch::Tensor(), segments, nullptr, &hidden);
  REQUIRE(hidden.size() == 3);
  REQUIRE(torch::equal(hidden[2], out));
  for (int64_t b = 0; b < 2; ++b) {
    formula::Matrix rows;
    for (int64_t i = 0; i < 5; ++i) {
      const torch::Tensor sum = weight("token.weight")[tokens[b][i].item<int64_t>()] +
                                weight("segment.weight")[segments[b][i].item<int64_t>()] +
                                weight("positions.table")[i];
      rows.push_back(test::matrix_of(sum.unsqueeze(0))[0]);
    }
    const formula::Matrix expected =
        formula::layer_norm(rows, formula::Row(16, 1.0), formula::Row(16, 0.0), 1e-12);
    REQUIRE(max_error(hidden[0][b], test::tensor_of(expected)) < 1e-12);
  }
  // No segments are segment 0.
  REQUIRE(max_error(encoder(tokens), encoder(tokens, torch::Tensor(), torch::zeros_like(tokens))) < 1e-13);
  REQUIRE(max_error(encoder(tokens), out) > 1e-3);
}

TEST_CASE("encoder: without a segment embedding segments are refused") {
  EncoderOptions options = encoder_options();
  options.segments = 0;
  Encoder encoder(options);
  const torch::Tensor tokens = encoder_tokens(1, 4);
  REQUIRE_NOTHROW(encoder(tokens));
  REQUIRE_THROWS_WITH(encoder(tokens, torch::Tensor(), torch::zeros_like(tokens)),
                      Catch::Contains("segment"));
}

TEST_CASE("encoder: pre-norm ends in a LayerNorm, post-norm begins with one") {
  EncoderOptions options = encoder_options();
  for (const NormPlacement norm : {NormPlacement::post, NormPlacement::pre}) {
    options.norm = norm;
    Encoder encoder = double_encoder(options);
    std::vector<torch::Tensor> hidden;
    const torch::Tensor out =
        encoder(encoder_tokens(2, 6), torch::Tensor(), torch::Tensor(), nullptr, &hidden);
    auto normal = [](const torch::Tensor& x) {
      return x.mean(-1).abs().max().item<double>() < 1e-9 &&
             (x.var(-1, false) - 1).abs().max().item<double>() < 1e-9;
    };
    REQUIRE(normal(out));
    REQUIRE(torch::equal(hidden.back(), out));
    REQUIRE(normal(hidden[0]) == (norm == NormPlacement::post));
  }
}

TEST_CASE("encoder: what stands in padding changes nothing, and would without the mask") {
  for (const PositionOptions& positions : every_encoding()) {
    for (const NormPlacement norm : {NormPlacement::post, NormPlacement::pre}) {
      EncoderOptions options = encoder_options(positions);
      options.norm = norm;
      Encoder encoder = double_encoder(options);
      const torch::Tensor tokens = encoder_tokens(2, 8);
      torch::Tensor changed = tokens.clone(), keep = torch::ones({2, 8}, torch::kBool);
      keep[0].slice(0, 5).fill_(false);
      changed[0].slice(0, 5) = (changed[0].slice(0, 5) + 1).remainder(31);
      const torch::Tensor with = encoder(tokens, keep), without = encoder(tokens);
      REQUIRE(torch::equal(with[0].slice(0, 0, 5), encoder(changed, keep)[0].slice(0, 0, 5)));
      REQUIRE(max_error(without[0].slice(0, 0, 5), encoder(changed)[0].slice(0, 0, 5)) > 1e-3);
      REQUIRE(max_error(with[1], without[1]) < 1e-12);
      // A shorter batch without padding reads the same.
      REQUIRE(max_error(with[0].slice(0, 0, 5), encoder(tokens.slice(0, 0, 1).slice(1, 0, 5))[0]) < 1e-12);
    }
  }
}

TEST_CASE("encoder: a sequence of padding alone is finite, forward and backward") {
  Encoder encoder = double_encoder(encoder_options());
  torch::Tensor keep = torch::ones({2, 4}, torch::kBool);
  keep[1].fill_(false);
  const torch::Tensor out = encoder(encoder_tokens(2, 4), keep);
  REQUIRE(torch::isfinite(out).all().item<bool>());
  out.square().sum().backward();
  for (const torch::Tensor& p : encoder->parameters()) REQUIRE(torch::isfinite(p.grad()).all().item<bool>());
}

TEST_CASE("encoder: order shows with every encoding but 'none'") {
  const torch::Tensor tokens = encoder_tokens(1, 7), order = torch::tensor({4, 2, 6, 0, 1, 5, 3});
  for (const PositionOptions& positions : every_encoding()) {
    Encoder encoder = double_encoder(encoder_options(positions));
    const double difference =
        max_error(encoder(tokens.index_select(1, order)), encoder(tokens).index_select(1, order));
    if (std::holds_alternative<NoneOptions>(positions)) {
      REQUIRE(difference < 1e-12);
    } else {
      REQUIRE(difference > 1e-3);
    }
  }
}

TEST_CASE("encoder: rotary positions see distances alone, learned ones places") {
  const torch::Tensor tokens = encoder_tokens(2, 6);
  for (const PositionOptions& positions :
       {PositionOptions(RotaryOptions{}), PositionOptions(LearnedOptions{})}) {
    Encoder encoder = double_encoder(encoder_options(positions));
    const Positions shifted = Positions::range(6, torch::kCPU, 40);
    const Positions ids = Positions::of(torch::arange(40, 46).unsqueeze(0), 46);
    const torch::Tensor plain = encoder(tokens);
    const torch::Tensor moved = encoder(tokens, torch::Tensor(), torch::Tensor(), &shifted);
    REQUIRE(max_error(moved, encoder(tokens, torch::Tensor(), torch::Tensor(), &ids)) < 1e-12);
    if (std::holds_alternative<RotaryOptions>(positions)) {
      REQUIRE(max_error(plain, moved) < 1e-5);  // tables are float32
    } else {
      REQUIRE(max_error(plain, moved) > 1e-3);
    }
  }
}

TEST_CASE("encoder: a length beyond the table is refused with its limit") {
  Encoder encoder(encoder_options(LearnedOptions{}));
  REQUIRE_NOTHROW(encoder(encoder_tokens(1, 512)));
  REQUIRE_THROWS_MATCHES(
      encoder(encoder_tokens(1, 600)), Error,
      Catch::Matchers::Message(
          "a sequence of 600 tokens is longer than 'learned' positions can place (512); raise "
          "model.positions.max_length or shorten data.length"));
  const Positions shifted = Positions::range(4, torch::kCPU, 510);
  REQUIRE_THROWS_AS(encoder(encoder_tokens(1, 4), torch::Tensor(), torch::Tensor(), &shifted), Error);
  for (const PositionOptions& positions :
       {PositionOptions(RotaryOptions{}), PositionOptions(SinusoidalOptions{})}) {
    REQUIRE_NOTHROW(Encoder(encoder_options(positions))(encoder_tokens(1, 2100)));
  }
}

TEST_CASE("encoder: an encoding from outside is asked once per pass, or once per layer") {
  PositionEncoding encoding = new_encoding<CountingEncoding>();
  auto& counts = *encoding->as<CountingEncoding>();
  Encoder encoder = double_encoder(encoder_options(), encoding);
  encoder(encoder_tokens(1, 5));
  encoder(encoder_tokens(2, 5));
  REQUIRE(counts.embed_calls == 2);
  REQUIRE(counts.bias_calls == 2);
  REQUIRE(counts.layers == std::vector<int64_t>{0, 1, 0, 1});
  // Positions are made once for a length.
  REQUIRE(std::set<void*>(counts.buffers.begin(), counts.buffers.end()).size() == 1);
  REQUIRE_THROWS_WITH(encoder(encoder_tokens(1, 10)), Catch::Contains("'counting' positions can place (9)"));
}

TEST_CASE("encoder: an encoding's own initial weights stay") {
  PositionEncoding encoding = new_encoding<TableEncoding>();
  Encoder encoder(encoder_options(), encoding);
  const torch::Tensor table = encoder->named_parameters()["positions.table.weight"];
  REQUIRE(torch::equal(table, torch::full_like(table, 7.0)));
}

TEST_CASE("encoder: half precision") {
  for (const auto type : {torch::kBFloat16, torch::kHalf}) {
    for (const PositionOptions& positions : every_encoding()) {
      torch::manual_seed(6);
      Encoder wide(encoder_options(positions));
      torch::manual_seed(6);
      Encoder narrow(encoder_options(positions));
      narrow->to(type);
      torch::Tensor keep = torch::ones({2, 40}, torch::kBool);
      keep[1].slice(0, 20).fill_(false);
      const torch::Tensor tokens = encoder_tokens(2, 40), out = narrow(tokens, keep);
      REQUIRE(out.scalar_type() == type);
      REQUIRE(max_error(out, wide(tokens, keep)) < (type == torch::kHalf ? 0.02 : 0.15));
    }
  }
}

TEST_CASE("encoder: options that do not fit are refused before anything is built") {
  EncoderOptions options = encoder_options();
  options.heads = 3;
  REQUIRE_THROWS_MATCHES(
      validate(options), Error,
      Catch::Matchers::Message("3 heads do not divide a width of 16; change model.heads or model.dim"));
  REQUIRE_THROWS_AS(Encoder(options), Error);
  options.heads = 16;  // heads of width 1 cannot turn
  REQUIRE_THROWS_AS(validate(options), Error);
  options.positions = {NoneOptions{}};
  REQUIRE_NOTHROW(validate(options));
  options.positions = {SinusoidalOptions{}, LearnedOptions{}};
  REQUIRE_NOTHROW(validate(options));
  options.heads = 2;
  options.positions = {RotaryOptions{}, RotaryOptions{}};
  REQUIRE_THROWS_AS(validate(options), Error);
}

TEST_CASE("encoder: a chain of encodings adds up") {
  EncoderOptions options = encoder_options();
  options.positions = {SinusoidalOptions{}, RotaryOptions{}};
  Encoder both = double_encoder(options), rotary = double_encoder(encoder_options());
  const torch::Tensor tokens = encoder_tokens(1, 6);
  REQUIRE(max_error(both(tokens), rotary(tokens)) > 1e-3);
}

TEST_CASE("encoder: embeddings of another width are mapped to the model's before the first block") {
  for (const NormPlacement norm : {NormPlacement::post, NormPlacement::pre}) {
    EncoderOptions options = encoder_options(LearnedOptions{});
    REQUIRE_FALSE(double_encoder(options)->named_parameters().contains("project.weight"));
    options.embedding = 16;  // the model's own
    REQUIRE_FALSE(double_encoder(options)->named_parameters().contains("project.weight"));
    options.embedding = 10;
    options.norm = norm;
    Encoder encoder = double_encoder(options);
    const auto p = encoder->named_parameters();
    REQUIRE(p["token.weight"].size(1) == 10);
    REQUIRE(p["segment.weight"].size(1) == 10);
    REQUIRE(p["positions.table"].size(1) == 10);
    REQUIRE(p["norm.weight"].size(0) == (norm == NormPlacement::pre ? 16 : 10));
    const torch::Tensor tokens = encoder_tokens(2, 7);
    std::vector<torch::Tensor> hidden;
    REQUIRE(encoder->forward(tokens, {}, {}, nullptr, &hidden).sizes() == torch::IntArrayRef({2, 7, 16}));
    torch::Tensor x = p["token.weight"].index({tokens}) + p["segment.weight"][0] + p["positions.table"].slice(0, 0, 7);
    if (norm == NormPlacement::post) x = torch::layer_norm(x, {10}, p["norm.weight"], p["norm.bias"], options.norm_eps);
    REQUIRE(max_error(hidden[0], torch::linear(x, p["project.weight"], p["project.bias"])) < 1e-12);
  }
}
