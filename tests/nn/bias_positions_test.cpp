#include "roformer/core/error.h"
#include "roformer/nn/positions/relative.h"
#include "tests/nn/encoding_cases.h"
#include "tests/strict_device.h"

using namespace roformer;
using namespace roformer::test;
using Catch::Matchers::Contains;
using torch::kFloat64;

namespace {

constexpr ModelShape bias_shape{.dim = 12, .heads = 2, .head_dim = 6, .layers = 2};

const std::vector<PositionOptions>& bias_options() {
  static const std::vector<PositionOptions> all{
      T5Options{.buckets = 8, .max_distance = 10, .init_std = 0.5}, AlibiOptions{},
      TupeOptions{.max_length = 16, .buckets = 8, .max_distance = 10, .init_std = 0.5},
      TupeOptions{.max_length = 16, .buckets = 0, .untie_first = false, .init_std = 0.5}};
  return all;
}

/// T5's rule for one n - m.
int64_t bucket_by_rule(int64_t relative, bool bidirectional, int64_t buckets, int64_t max_distance) {
  int64_t first = 0, distance = std::max<int64_t>(-relative, 0);
  if (bidirectional) {
    buckets /= 2;
    if (relative > 0) first = buckets;
    distance = std::abs(relative);
  }
  const int64_t exact = buckets / 2;
  if (distance < exact) return first + distance;
  const double far = std::log(static_cast<double>(distance) / static_cast<double>(exact)) /
                     std::log(static_cast<double>(max_distance) / static_cast<double>(exact));
  return first +
         std::min(exact + static_cast<int64_t>(far * static_cast<double>(buckets - exact)), buckets - 1);
}

/// The bias of one pair, from the papers; differentiable.
torch::Tensor bias_by_formula(const PositionOptions& options, PositionEncoding& encoding, int64_t m,
                              int64_t n, int64_t head, bool causal) {
  auto parameters = encoding->named_parameters();
  if (std::holds_alternative<AlibiOptions>(options)) {
    return torch::tensor(
        -std::exp2(-4.0 * static_cast<double>(head + 1)) * static_cast<double>(std::abs(m - n)), kFloat64);
  }
  if (const auto* o = std::get_if<T5Options>(&options)) {
    return parameters["table"][bucket_by_rule(n - m, !causal, o->buckets, o->max_distance)][head];
  }
  const auto& o = std::get<TupeOptions>(options);
  if (o.untie_first && m == 0) return parameters["first"][0][head];
  if (o.untie_first && n == 0) return parameters["first"][1][head];
  const int64_t d = bias_shape.head_dim;
  auto side = [&](const char* name, int64_t position) {
    return torch::matmul(parameters[name].slice(0, head * d, (head + 1) * d), parameters["table"][position]);
  };
  torch::Tensor bias = side("query", m).dot(side("key", n)) / std::sqrt(2.0 * static_cast<double>(d));
  if (o.buckets > 0) {
    bias = bias + parameters["relative"][bucket_by_rule(n - m, !causal, o.buckets, o.max_distance)][head];
  }
  return bias;
}

}  // namespace

TEST_CASE("biases: values and gradients are the pair by pair formulas'") {
  const torch::Tensor ids = torch::tensor({4, 0, 9, 2, 3, 7, 1, 11, 5, 0}, torch::kInt64).view({2, 5});
  for (const PositionOptions& options : bias_options()) {
    for (bool causal : {false, true}) {
      ModelShape shape = bias_shape;
      shape.causal = causal;
      torch::manual_seed(3);
      PositionEncoding encoding = make_positions({options}, shape);
      encoding->to(kFloat64);
      CAPTURE(encoding->name(), causal);
      for (const Positions& at : {Positions::range(12, torch::kCPU), Positions::tail(3, 7, torch::kCPU),
                                  Positions::tail(1, 6, torch::kCPU), Positions::of(ids, 12)}) {
        const torch::Tensor got = encoding->bias(at);
        std::vector<torch::Tensor> pairs;
        for (int64_t b = 0; b < at.q.size(0); ++b) {
          for (int64_t h = 0; h < 2; ++h) {
            for (int64_t i = 0; i < at.q.size(1); ++i) {
              for (int64_t j = 0; j < at.k.size(1); ++j) {
                pairs.push_back(bias_by_formula(options, encoding, at.q[b][i].item<int64_t>(),
                                                at.k[b][j].item<int64_t>(), h, causal));
              }
            }
          }
        }
        const torch::Tensor want = torch::stack(pairs).view(got.sizes());
        CHECK(max_error(got, want) < 1e-12);
        if (encoding->parameters().empty()) continue;
        const torch::Tensor w = random_tensor(got.sizes(), 9, kFloat64);
        const auto a = torch::autograd::grad({(got * w).sum()}, encoding->parameters());
        const auto b = torch::autograd::grad({(want * w).sum()}, encoding->parameters());
        for (size_t i = 0; i < a.size(); ++i) CHECK(max_error(a[i], b[i]) < 1e-12);
      }
    }
  }
}

TEST_CASE("biases: attention with padding is the formula's, trained or not, fused or plain") {
  for (const PositionOptions& options : bias_options()) {
    for (bool causal : {false, true}) {
      ModelShape shape = bias_shape;
      shape.causal = causal;
      torch::manual_seed(3);
      PositionEncoding encoding = make_positions({options}, shape);
      Attention attention(AttentionOptions{.dim = 12, .heads = 2});
      encoding->to(kFloat64);
      attention->to(kFloat64);
      CAPTURE(encoding->name(), causal);
      const Positions at = Positions::range(5, torch::kCPU);
      AttentionContext context{.positions = at, .keep = torch::ones({4, 5}, torch::kBool), .causal = causal};
      context.keep[1].slice(0, 3).fill_(false);
      context.keep[2].slice(0, 0, 2).fill_(false);
      context.keep[3].fill_(false);
      const torch::Tensor x = random_tensor({4, 5, 12}, 5, kFloat64).requires_grad_();
      context.bias = encoding->bias(at);
      const torch::Tensor trained = attention(x, encoding, context);
      auto parameters = attention->named_parameters();
      auto child = [&](const std::string& name) {
        return linear_of(parameters[name + ".weight"].detach(), parameters[name + ".bias"].detach());
      };
      const torch::Tensor q = heads_of(x, child("query"), 2), k = heads_of(x, child("key"), 2),
                          v = heads_of(x, child("value"), 2);
      torch::Tensor heads = torch::empty(q.sizes(), kFloat64);
      for (int64_t b = 0; b < 4; ++b) {
        std::vector<bool> keep;
        for (int64_t j = 0; j < 5; ++j) keep.push_back(context.keep[b][j].item<bool>());
        for (int64_t h = 0; h < 2; ++h) {
          formula::Matrix scores =
              formula::scores(matrix_of(q[b][h]), matrix_of(k[b][h]), encoding->scale(6));
          for (int64_t i = 0; i < 5; ++i) {
            for (int64_t j = 0; j < 5; ++j) {
              scores[static_cast<size_t>(i)][static_cast<size_t>(j)] +=
                  bias_by_formula(options, encoding, i, j, h, causal).item<double>();
            }
          }
          heads[b][h].copy_(tensor_of(formula::attention(scores, matrix_of(v[b][h]), keep, causal)).detach());
        }
      }
      const torch::Tensor want = child("output")(heads.detach().transpose(1, 2).flatten(2));
      CHECK(max_error(trained, want) < 1e-12);
      trained.square().sum().backward();
      CHECK(all_finite(x.grad()));
      for (const auto& p : encoding->named_parameters()) {
        CAPTURE(p.key());
        REQUIRE(p.value().grad().defined());
        CHECK(all_finite(p.value().grad()));
        CHECK(p.value().grad().abs().max().item<double>() > 1e-6);
      }
      const torch::NoGradGuard no_grad;  // the fused path
      context.bias = encoding->bias(at);
      CHECK(max_error(attention(x, encoding, context), want) < 1e-12);
    }
  }
}

TEST_CASE("biases: forward and backward on the strict device, and half precision") {
  for (const PositionOptions& options : bias_options()) {
    torch::manual_seed(3);
    PositionEncoding encoding = make_positions({options}, bias_shape);
    Attention attention(AttentionOptions{.dim = 12, .heads = 2});
    CAPTURE(encoding->name());
    const torch::Tensor x = random_tensor({2, 5, 12}, 5);
    auto run = [&](torch::Device device, torch::Dtype dtype) {
      encoding->to(device, dtype);
      attention->to(device, dtype);
      const Positions at = Positions::range(5, device);
      const AttentionContext context{.positions = at, .keep = {}, .bias = encoding->bias(at).to(dtype)};
      return attention(x.to(device, dtype), encoding, context);
    };
    const torch::Tensor want = run(torch::kCPU, torch::kFloat32).detach();
    const torch::Tensor moved = run(strict_device(), torch::kFloat32);
    CHECK(moved.device() == strict_device());
    CHECK(max_error(moved.detach().cpu(), want) < 1e-5);
    moved.square().sum().backward();
    for (const torch::Tensor& p : encoding->parameters()) CHECK(p.grad().device() == strict_device());
    encoding->zero_grad();
    attention->zero_grad();
    // Weights, tokens, scores and outputs below 4 rounded to 8 bits (11 for float16).
    CHECK(max_error(run(torch::kCPU, torch::kBFloat16), want) < 8 * 4 * 0x1p-8);
    CHECK(max_error(run(torch::kCPU, torch::kHalf), want) < 8 * 4 * 0x1p-11);
  }
}

TEST_CASE("tupe: the token at position 0 is untied wherever it stands") {
  PositionEncoding encoding = make(TupeOptions{.max_length = 8, .init_std = 0.5}, bias_shape);
  const torch::Tensor first = torch::tensor({{1.5, 2.5}, {-3.5, 4.5}});
  set_parameter(*encoding, "first", first);
  const torch::Tensor bias =
      encoding->bias(Positions::of(torch::tensor({{3, 0, 1}}, torch::kInt64), 4)).detach();
  for (int64_t h = 0; h < 2; ++h) {
    for (int64_t j : {0, 1, 2}) CHECK(bias[0][h][1][j].item<float>() == first[0][h].item<float>());
    for (int64_t i : {0, 2}) CHECK(bias[0][h][i][1].item<float>() == first[1][h].item<float>());
    CHECK(bias[0][h][0][0].item<float>() != first[0][h].item<float>());
  }
  CHECK(encoding->limit() == 8);
}

TEST_CASE("biases: scales, refusals and a chain") {
  CHECK(make(T5Options{}, bias_shape)->scale(64) == 1.0);
  CHECK(make(AlibiOptions{}, bias_shape)->scale(64) == 0.125);
  CHECK(make(TupeOptions{}, bias_shape)->scale(32) == 0.125);
  ModelShape linear = bias_shape, causal = bias_shape;
  linear.linear = true;
  causal.causal = true;
  for (const PositionOptions& options : bias_options()) {
    const std::string name(std::visit([](const auto& o) { return o.type; }, options));
    CHECK_THROWS_WITH(make_positions({options}, linear), Contains("'" + name + "'"));
  }
  CHECK_THROWS_WITH(make_positions({T5Options{.buckets = 6}}, bias_shape),
                    Contains("'buckets' must be a multiple of 4"));
  CHECK_NOTHROW(make_positions({T5Options{.buckets = 6}}, causal));
  CHECK_THROWS_WITH(make_positions({T5Options{.buckets = 7}}, causal),
                    Contains("'buckets' must be a multiple of 2"));
  CHECK_THROWS_WITH(make_positions({T5Options{.max_distance = 8}}, bias_shape),
                    Contains("must be more than 8"));
  CHECK_NOTHROW(make_positions({T5Options{.max_distance = 9}}, bias_shape));
  PositionEncoding chain = make_positions({SinusoidalOptions{}, T5Options{}}, bias_shape);
  const Positions at = Positions::range(4, torch::kCPU);
  CHECK(chain->bias(at).sizes() == torch::IntArrayRef({1, 2, 4, 4}));
  CHECK(chain->scale(64) == 1.0);
  CHECK(chain->needs() == Needs::bias);
  CHECK(max_error(chain->embed(torch::zeros({1, 4, 12}), at),
                  make(SinusoidalOptions{}, bias_shape)->embed(torch::zeros({1, 4, 12}), at)) == 0.0);
}

TEST_CASE("biases: the oracles") {
  const auto oracles = require_oracles();
  if (!oracles) return;
  const torch::NoGradGuard no_grad;
  const auto root = encodings_of(*oracles);
  {
    const auto facts = nlohmann::json::parse(std::ifstream(root / "alibi_slopes.json"));
    for (const auto& c : facts.at("cases")) {
      const torch::Tensor slopes = alibi_slopes(c.at("heads"));
      const torch::Tensor want = torch::tensor(c.at("slopes").get<std::vector<double>>(), kFloat64);
      CHECK(max_error(slopes / want, torch::ones_like(want)) < facts.at("tolerance_rel").get<double>());
    }
  }
  {
    const auto facts = nlohmann::json::parse(std::ifstream(root / "t5_buckets.json"));
    const torch::Tensor relative = torch::tensor(facts.at("relative").get<std::vector<int64_t>>());
    for (const auto& c : facts.at("cases")) {
      CHECK(
          torch::equal(t5_buckets(relative, c.at("bidirectional"), c.at("num_buckets"), c.at("max_distance")),
                       torch::tensor(c.at("bucket").get<std::vector<int64_t>>())));
    }
  }
  {
    const OracleCase c(root / "alibi");
    PositionEncoding encoding = make(AlibiOptions{}, {.dim = 96, .heads = 12, .head_dim = 8, .layers = 1});
    const Positions at = Positions::range(6, torch::kCPU);
    CHECK(max_error(encoding->bias(at)[0], c.expected.tensor("bidirectional.bias")) < c.tolerance());
    for (const std::string name : {"causal", "bidirectional"}) {
      const HookResult got =
          run_hooks(encoding, c.inputs.tensor("q"), c.inputs.tensor("k"), c.inputs.tensor("v"),
                    {.positions = at, .keep = {}, .causal = name == "causal"});
      CHECK(max_error(got.probs, c.expected.tensor(name + ".probs")) < c.tolerance());
      CHECK(max_error(got.output, c.expected.tensor(name + ".output")) < c.tolerance());
    }
  }
  for (const bool causal : {false, true}) {
    const OracleCase c(root / (causal ? "t5_attention_causal" : "t5_attention_bidirectional"));
    PositionEncoding encoding = make(T5Options{.buckets = 8, .max_distance = 12},
                                     {.dim = 16, .heads = 3, .head_dim = 6, .layers = 1, .causal = causal});
    auto load = [&](const std::string& name) { return c.inputs.tensor("weight." + name + ".weight"); };
    set_parameter(*encoding, "table", load("relative_attention_bias"));
    Attention attention(AttentionOptions{.dim = 16, .heads = 3, .head_dim = 6, .bias = false});
    set_parameter(*attention, "query.weight", load("q"));
    set_parameter(*attention, "key.weight", load("k"));
    set_parameter(*attention, "value.weight", load("v"));
    set_parameter(*attention, "output.weight", load("o"));
    const Positions at = Positions::range(14, torch::kCPU);
    const AttentionContext context{.positions = at, .keep = {}, .causal = causal, .bias = encoding->bias(at)};
    CHECK(max_error(attention(c.inputs.tensor("x"), encoding, context), c.expected.tensor("output")) <
          c.tolerance());
    torch::Tensor bias = c.expected.tensor("bias"), got = context.bias;
    if (causal) bias = bias.tril(), got = got.tril();
    CHECK(max_error(got, bias) < c.tolerance());
  }
  for (const std::string offset : {"", "_offset"}) {
    for (const bool causal : {false, true}) {
      const FormulaCase c(root / ("formula_t5_eq8" + std::string(causal ? "_causal_buckets" : "") + offset));
      PositionEncoding encoding = make(T5Options{.buckets = 8, .max_distance = 10}, c.shape(causal));
      set_parameter(*encoding, "table", c.input("table"));
      c.check(encoding, "_scale_1");
    }
    for (const bool after :
         {false, true}) {  // b scaled with the products, as eq. 9 may be read, or added after
      const FormulaCase c(root /
                          ("formula_tupe_eq9" + std::string(after ? "_bias_after_scale" : "") + offset));
      PositionEncoding encoding = make(
          TupeOptions{.max_length = 7, .buckets = 32, .max_distance = 128, .untie_first = false}, c.shape());
      set_parameter(*encoding, "table", c.input("p"));
      set_parameter(*encoding, "query", c.input("Uq").flatten(0, 1));
      set_parameter(*encoding, "key", c.input("Uk").flatten(0, 1));
      torch::Tensor relative = torch::zeros({32, c.heads});
      for (int64_t r = -6; r <= 6; ++r) {  // distances below 8 have a bucket each; n > m from 16 on
        relative[r > 0 ? 16 + r : -r].copy_(c.input("b").select(1, r + 6) *
                                            (after ? 1.0 : encoding->scale(c.head_dim)));
      }
      set_parameter(*encoding, "relative", relative);
      c.check(encoding, "_scale_2d");
    }
  }
}
