#include "roformer/core/error.h"
#include "roformer/nn/rotary.h"
#include "tests/nn/encoding_cases.h"
#include "tests/strict_device.h"

// Longrope is not among the scalings here; its reference values are left out.

using namespace roformer;
using namespace roformer::test;
using Catch::Matchers::Contains;
using torch::kFloat64;

namespace {

constexpr ModelShape scaling_shape{.dim = 24, .heads = 3, .head_dim = 8, .layers = 1, .causal = true};

torch::Tensor turned_range(PositionEncoding& encoding, const torch::Tensor& x, int64_t length) {
  return encoding->rotate(x, Side::query, Positions::range(length, torch::kCPU)).detach();
}

RotaryOptions scaled(const RotaryScaling& scaling) { return {.scaling = scaling}; }

/// YaRN's mscale(factor, m) = 0.1 m ln(factor) + 1.
double yarn_mscale(double factor, double m) { return factor <= 1.0 ? 1.0 : 0.1 * m * std::log(factor) + 1.0; }

std::optional<RotaryScaling> scaling_of(const nlohmann::json& config) {
  if (!config.contains("rope_scaling")) return NoScaling{};
  const auto& s = config.at("rope_scaling");
  const std::string type = s.at("rope_type");
  const double factor = s.at("factor");
  const int64_t longest = config.at("max_position_embeddings");
  const int64_t original = s.value("original_max_position_embeddings", longest);
  if (type == "linear") return LinearScaling{factor};
  if (type == "dynamic") return DynamicNtkScaling{factor, longest};
  if (type == "llama3") {
    return Llama3Scaling{factor, s.at("low_freq_factor"), s.at("high_freq_factor"), original};
  }
  if (type != "yarn") return std::nullopt;
  YarnScaling yarn;
  yarn.factor = factor;
  yarn.original_length = original;
  yarn.beta_fast = s.value("beta_fast", 32.0);
  yarn.beta_slow = s.value("beta_slow", 1.0);
  yarn.truncate = s.value("truncate", true);
  if (s.contains("attention_factor")) yarn.attention_factor = s.at("attention_factor").get<double>();
  if (s.contains("mscale"))
    yarn.attention_factor = yarn_mscale(factor, s.at("mscale")) / yarn_mscale(factor, s.at("mscale_all_dim"));
  return yarn;
}

}  // namespace

TEST_CASE("rotary scaling: theta and amplitude of the reference cases") {
  const auto oracles = require_oracles();
  if (!oracles) return;
  const auto facts = nlohmann::json::parse(std::ifstream(encodings_of(*oracles) / "rope_scaling.json"));
  int checked = 0;
  for (const auto& c : facts.at("cases")) {
    const auto& config = c.at("config");
    const auto scaling = scaling_of(config);
    if (!scaling) continue;
    CAPTURE(c.dump());
    const auto inv_freq = c.at("inv_freq").get<std::vector<double>>();
    RotaryOptions options = scaled(*scaling);
    options.base = config.at("rope_theta");
    const ScaledTheta got = scaled_theta(options, 2 * static_cast<int64_t>(inv_freq.size()),
                                         c.at("seq_len").is_null() ? 0 : c.at("seq_len").get<int64_t>());
    const torch::Tensor want = torch::tensor(inv_freq, kFloat64);
    CHECK(max_error(got.theta / want, torch::ones_like(want)) < 1e-6);
    CHECK(got.amplitude == Approx(c.at("attention_factor").get<double>()).epsilon(1e-12));
    ++checked;
  }
  CHECK(checked == 20);
}

TEST_CASE("rotary scaling: the folders") {
  const auto oracles = require_oracles();
  if (!oracles) return;
  const auto root = encodings_of(*oracles);
  auto check = [&](const OracleCase& c, const RotaryOptions& options, const Positions& at,
                   const std::string& prefix = "") {
    PositionEncoding encoding =
        make(options,
             {.dim = 24, .heads = 3, .head_dim = c.inputs.tensor("q").size(-1), .layers = 1, .causal = true});
    const torch::Tensor q = encoding->rotate(c.inputs.tensor("q"), Side::query, at);
    const torch::Tensor k = encoding->rotate(c.inputs.tensor("k"), Side::key, at);
    CHECK(max_error(q, c.expected.tensor(prefix + "q")) < c.tolerance());
    CHECK(max_error(k, c.expected.tensor(prefix + "k")) < c.tolerance());
  };
  const Positions seven = Positions::range(7, torch::kCPU);
  const auto halves = RotaryLayout::halves;
  for (const char* name : {"rope_half", "rope_half_base_500000", "rope_half_long", "rope_half_offset",
                           "rope_interleaved", "rope_interleaved_long", "rope_interleaved_offset"}) {
    CAPTURE(name);
    const OracleCase c(root / name);
    RotaryOptions options;
    if (std::string(name).find("half") != std::string::npos) options.layout = halves;
    options.base = c.facts.value("base", 10000.0);
    Positions at;
    at.q = c.inputs.tensor("positions_q").unsqueeze(0);
    at.k = c.inputs.tensor("positions_k").unsqueeze(0);
    at.length = std::max(at.q.max().item<int64_t>(), at.k.max().item<int64_t>()) + 1;
    check(c, options, at);
  }
  for (const char* name : {"rope_interpolated_2", "rope_interpolated_3.5"}) {
    const OracleCase c(root / name);
    check(c, scaled(LinearScaling{c.facts.at("factor")}), seven);
  }
  check(OracleCase(root / "rope_ntk_4"), scaled(NtkScaling{4.0}), seven);
  for (const auto layout : {RotaryLayout::interleaved, halves}) {
    const std::string prefix = layout == halves ? "half." : "interleaved.";
    check(OracleCase(root / "rope_partial"), {.layout = layout, .dim = 4}, seven, prefix);
    const OracleCase ids(root / "rope_position_ids");
    const torch::Tensor positions = ids.inputs.tensor("positions");
    check(ids, {.layout = layout}, Positions::of(positions, positions.max().item<int64_t>() + 1), prefix);
  }
  for (const char* name : {"rope_xpos_base_16", "rope_xpos_base_512"}) {
    const OracleCase c(root / name);
    check(c, {.xpos = c.facts.at("scale_base")}, seven);
  }
  for (const char* name : {"formula_rope_eq16", "formula_rope_eq16_offset"}) {
    const FormulaCase c(root / name);
    PositionEncoding encoding = make(RotaryOptions{}, c.shape());
    c.check(encoding);
  }
  const OracleCase c(root / "rope_trainable_theta");
  PositionEncoding encoding = make(RotaryOptions{.trainable = true}, scaling_shape);
  set_parameter(*encoding, "theta", c.inputs.tensor("theta"));
  const torch::Tensor q = c.inputs.tensor("q").requires_grad_(), k = c.inputs.tensor("k").requires_grad_();
  const torch::Tensor scores = torch::matmul(encoding->rotate(q, Side::query, seven),
                                             encoding->rotate(k, Side::key, seven).transpose(-2, -1)) /
                               std::sqrt(8.0);
  const torch::Tensor loss = (torch::softmax(scores, -1) * c.inputs.tensor("w")).sum();
  loss.backward();
  CHECK(max_error(loss.view({1}), c.expected.tensor("loss")) < c.tolerance());
  CHECK(max_error(q.grad(), c.expected.tensor("grad_q")) < c.tolerance());
  CHECK(max_error(k.grad(), c.expected.tensor("grad_k")) < c.tolerance());
  CHECK(max_error(encoding->parameters()[0].grad(), c.expected.tensor("grad_theta")) < c.tolerance());
}

TEST_CASE("dynamic scaling follows the length both ways") {
  PositionEncoding plain = make(RotaryOptions{}, scaling_shape);
  PositionEncoding dynamic = make(scaled(DynamicNtkScaling{2.0, 8}), scaling_shape);
  CHECK_FALSE(dynamic->cache_rotated());
  CHECK(plain->cache_rotated());
  const torch::Tensor x = random_tensor({1, 3, 20, 8}, 1);
  auto first = [&](int64_t n) { return x.slice(2, 0, n); };
  for (int64_t n : {4, 8, 16, 20, 8, 16}) {
    CAPTURE(n);
    // (2 n / 8 - 1) times the base beyond 8 tokens.
    const double base =
        10000.0 * std::pow(n <= 8 ? 1.0 : 2.0 * static_cast<double>(n) / 8.0 - 1.0, 8.0 / 6.0);
    PositionEncoding want = make(RotaryOptions{.base = base}, scaling_shape);
    CHECK(max_error(turned_range(dynamic, first(n), n), turned_range(want, first(n), n)) < 1e-5);
    CHECK((max_error(turned_range(dynamic, first(n), n), turned_range(plain, first(n), n)) > 1e-3) ==
          (n > 8));
  }
}

TEST_CASE("yarn's amplitude is left out of linear attention") {
  YarnScaling yarn;
  yarn.factor = 4.0;
  yarn.original_length = 64;
  const RotaryOptions options = scaled(yarn);
  ModelShape linear = scaling_shape;
  linear.linear = true;
  const torch::Tensor x = random_tensor({1, 3, 6, 8}, 1);
  PositionEncoding softmax_form = make(options, scaling_shape), linear_form = make(options, linear);
  const torch::Tensor a = turned_range(softmax_form, x, 6), b = turned_range(linear_form, x, 6);
  CHECK(max_error(a, b * (0.1 * std::log(4.0) + 1.0)) < 1e-5);
  CHECK(max_error(b.norm(2, -1), x.norm(2, -1)) < 1e-5);
}

TEST_CASE("xpos: scores depend on the distance and fade with it") {
  PositionEncoding encoding = make(RotaryOptions{.xpos = 4.0}, scaling_shape);
  CHECK_FALSE(encoding->cache_rotated());
  const torch::Tensor token = random_tensor({1, 3, 1, 8}, 1, kFloat64).expand({1, 3, 30, 8});
  auto scores = [&](int64_t start) {
    const Positions at = Positions::range(30, torch::kCPU, start);
    return torch::matmul(encoding->rotate(token, Side::query, at),
                         encoding->rotate(token, Side::key, at).transpose(-2, -1));
  };
  const torch::Tensor here = scores(0), there = scores(17);
  CHECK(max_error(here.tril(), there.tril()) < 1e-9);
  for (int64_t i = 1; i < 30; ++i) {
    CHECK(max_error(here.select(2, i).slice(-1, 0, i), here.select(2, 29).slice(-1, 29 - i, 29)) < 1e-9);
  }
  // The slowest pair fades to (0.8214)^(29 / 4) = 0.2402 of its part.
  const torch::Tensor last = here.select(2, 29);
  CHECK((last.select(-1, 0).abs() < 0.25 * last.select(-1, 29)).all().item<bool>());
  ModelShape encoder = scaling_shape, linear = scaling_shape;
  encoder.causal = false;
  linear.linear = true;
  CHECK_THROWS_WITH(make(RotaryOptions{.xpos = 512.0}, encoder), Contains("'xpos'"));
  CHECK_THROWS_WITH(make(RotaryOptions{.xpos = 512.0}, linear), Contains("'xpos'"));
  CHECK_THROWS_WITH(make(RotaryOptions{.values = true}, linear), Contains("'values'"));
}

TEST_CASE("rotary scaling: every form on the strict device") {
  const torch::Tensor x = random_tensor({2, 3, 6, 8}, 1);
  for (const RotaryOptions& options :
       {scaled(LinearScaling{2.0}), scaled(NtkScaling{2.0}), scaled(DynamicNtkScaling{2.0, 4}),
        scaled(YarnScaling{}), scaled(Llama3Scaling{}), RotaryOptions{.xpos = 8.0},
        RotaryOptions{.trainable = true}}) {
    PositionEncoding encoding = make(options, scaling_shape);
    const torch::Tensor want = turned_range(encoding, x, 6);
    encoding->to(strict_device());
    const torch::Tensor leaf = x.to(strict_device()).requires_grad_();
    const torch::Tensor got = encoding->rotate(leaf, Side::query, Positions::range(6, strict_device()));
    CHECK(max_error(got.detach().cpu(), want) < 1e-5);
    got.square().sum().backward();
    CHECK(leaf.grad().device() == strict_device());
  }
}
