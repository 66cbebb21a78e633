#include "roformer/nn/positions/relative.h"

#include "roformer/core/error.h"
#include "tests/nn/encoding_cases.h"
#include "tests/strict_device.h"

// The oracles bert_relative_key_query and deberta_v1_c2p alone are variants that the library does not offer.

using namespace roformer;
using namespace roformer::test;
using torch::kFloat64;

namespace {

constexpr ModelShape relative_shape{.dim = 12, .heads = 2, .head_dim = 6, .layers = 2};

const std::vector<PositionOptions>& relative_options() {
  static const std::vector<PositionOptions> all{
      ShawOptions{.clip_min = -3, .clip_max = 2, .init_std = 0.5},
      ShawOptions{.clip_min = -2, .clip_max = 4, .as_printed = true, .init_std = 0.5},
      ShawOptions{.clip_min = -2, .clip_max = 2, .values = false, .init_std = 0.5},
      NezhaOptions{.max_distance = 3},
      TransformerXlOptions{.init_std = 0.5},
      TransformerXlOptions{.layout = SinusoidLayout::interleaved, .as_printed = true, .init_std = 0.5},
      DebertaOptions{.max_distance = 3, .init_std = 0.5},
      DebertaOptions{.max_distance = 3, .own_projections = true, .init_std = 0.5}};
  return all;
}

torch::Tensor parameter_of(PositionEncoding& encoding, const std::string& name) {
  return encoding->named_parameters()[name];
}

/// The sinusoids of eq. 4 for a signed distance, float64 [d].
torch::Tensor sinusoid_row(int64_t distance, int64_t d, SinusoidLayout layout) {
  const formula::Row p = formula::sinusoid(static_cast<double>(distance), static_cast<size_t>(d));
  const torch::Tensor row = torch::tensor(p, kFloat64);
  if (layout == SinusoidLayout::interleaved) return row;
  return torch::cat({row.slice(0, 0, d, 2), row.slice(0, 1, d, 2)});
}

/// Eq. 5, 7 and 10 pair by pair, from the papers; q, k, v: [B, H, L, d] float64. Differentiable. Returns
/// output.
struct PairLoop {
  const PositionOptions& options;
  PositionEncoding& encoding;
  const AttentionContext& context;

  torch::Tensor row(const torch::nn::Linear& linear, const torch::Tensor& x, int64_t head, int64_t d) const {
    return torch::matmul(linear->weight.slice(0, head * d, (head + 1) * d), x);
  }
  torch::Tensor biased(const torch::nn::Linear& linear, const torch::Tensor& x, int64_t head,
                       int64_t d) const {
    const torch::Tensor y = row(linear, x, head, d);
    return linear->bias.defined() ? y + linear->bias.slice(0, head * d, (head + 1) * d) : y;
  }
  torch::Tensor shaw_row(const ShawOptions& o, const char* table, const torch::nn::Linear& linear,
                         int64_t distance, int64_t head, int64_t d) const {
    const int64_t r = std::min(std::max(distance, o.clip_min), o.clip_max) - o.clip_min;
    const torch::Tensor p = parameter_of(encoding, table + std::to_string(context.layer))[r];
    return o.as_printed ? row(linear, p, head, d) : p;
  }
  torch::Tensor score(const torch::Tensor& q, const torch::Tensor& k, int64_t m, int64_t n,
                      int64_t head) const {
    const int64_t d = q.size(0);
    const double root = std::sqrt(static_cast<double>(d));
    if (const auto* o = std::get_if<ShawOptions>(&options)) {
      return q.dot(k + shaw_row(*o, "keys", context.key, m - n, head, d)) / root;
    }
    if (const auto* o = std::get_if<NezhaOptions>(&options)) {
      const int64_t r = std::min(std::max(n - m, -o->max_distance), o->max_distance) + o->max_distance;
      return q.dot(k + sinusoid_row(r, d, SinusoidLayout::interleaved)) / root;
    }
    if (const auto* o = std::get_if<TransformerXlOptions>(&options)) {
      torch::Tensor u = parameter_of(encoding, "u")[head], v = parameter_of(encoding, "v")[head];
      if (o->as_printed) {
        u = row(context.query, u, head, d);
        v = row(context.query, v, head, d);
      }
      const torch::Tensor w = parameter_of(encoding, "relative" + std::to_string(context.layer));
      const torch::Tensor r =
          torch::matmul(w.slice(0, head * d, (head + 1) * d), sinusoid_row(m - n, w.size(1), o->layout));
      return (q.dot(k) + q.dot(r) + u.dot(k) + v.dot(r)) / root;
    }
    const auto& o = std::get<DebertaOptions>(options);
    const int64_t r = std::min(std::max(m - n + o.max_distance, int64_t{0}), 2 * o.max_distance - 1);
    const torch::Tensor p = parameter_of(encoding, "table")[r];
    torch::Tensor kp, qp;
    if (o.own_projections) {
      const std::string i = std::to_string(context.layer);
      kp = torch::matmul(parameter_of(encoding, "key" + i + ".weight").slice(0, head * d, (head + 1) * d), p);
      qp = torch::matmul(parameter_of(encoding, "query" + i + ".weight").slice(0, head * d, (head + 1) * d),
                         p) +
           parameter_of(encoding, "query" + i + ".bias").slice(0, head * d, (head + 1) * d);
    } else {
      kp = biased(context.key, p, head, d);
      qp = biased(context.query, p, head, d);
    }
    return (q.dot(k) + q.dot(kp) + k.dot(qp)) / (root * std::sqrt(3.0));
  }
  torch::Tensor value(const torch::Tensor& v, int64_t m, int64_t n, int64_t head) const {
    const int64_t d = v.size(0);
    if (const auto* o = std::get_if<ShawOptions>(&options)) {
      return o->values ? v + shaw_row(*o, "values", context.value, m - n, head, d) : v;
    }
    if (const auto* o = std::get_if<NezhaOptions>(&options)) {
      const int64_t r = std::min(std::max(n - m, -o->max_distance), o->max_distance) + o->max_distance;
      return v + sinusoid_row(r, d, SinusoidLayout::interleaved);
    }
    return v;
  }
  torch::Tensor output(const torch::Tensor& q, const torch::Tensor& k, const torch::Tensor& v) const {
    std::vector<torch::Tensor> rows;
    const Positions& at = context.positions;
    for (int64_t b = 0; b < q.size(0); ++b) {
      const torch::Tensor ms = at.q[at.q.size(0) == 1 ? 0 : b], ns = at.k[at.k.size(0) == 1 ? 0 : b];
      for (int64_t h = 0; h < q.size(1); ++h) {
        for (int64_t i = 0; i < q.size(2); ++i) {
          const int64_t m = ms[i].item<int64_t>();
          std::vector<torch::Tensor> scores, values;
          for (int64_t j = 0; j < k.size(2); ++j) {
            const int64_t n = ns[j].item<int64_t>();
            const bool seen = (!context.keep.defined() || context.keep[b][j].item<bool>()) &&
                              (!context.causal || j <= i + k.size(2) - q.size(2));
            if (!seen) continue;
            scores.push_back(score(q[b][h][i], k[b][h][j], m, n, h));
            values.push_back(value(v[b][h][j], m, n, h));
          }
          rows.push_back(scores.empty()
                             ? torch::zeros({v.size(3)}, kFloat64)
                             : torch::matmul(torch::softmax(torch::stack(scores), 0), torch::stack(values)));
        }
      }
    }
    return torch::stack(rows).view({q.size(0), q.size(1), q.size(2), v.size(3)});
  }
};

/// Output and gradients of everything: the hooks against the loop.
void check_against_loop(const PositionOptions& options, const Positions& positions, uint64_t seed) {
  torch::manual_seed(seed);
  PositionEncoding encoding = make_positions({options}, relative_shape);
  encoding->to(kFloat64);
  const int64_t batch = std::max<int64_t>(positions.q.size(0), 2), d = relative_shape.head_dim;
  AttentionContext context{.positions = positions, .keep = {}, .layer = 1};
  auto linear = [&](uint64_t s) {
    return linear_of(random_tensor({12, 12}, s, kFloat64), random_tensor({12}, s + 1, kFloat64));
  };
  context.query = linear(seed + 10);
  context.key = linear(seed + 20);
  context.value = linear(seed + 30);
  std::vector<torch::Tensor> leaves;
  for (uint64_t i = 0; i < 3; ++i) {
    const int64_t length = i == 0 ? positions.q.size(1) : positions.k.size(1);
    leaves.push_back(random_tensor({batch, 2, length, d}, seed + i, kFloat64).requires_grad_());
  }
  for (const torch::Tensor& p : encoding->parameters()) leaves.push_back(p);
  for (torch::nn::Linear* each : {&context.query, &context.key, &context.value})
    leaves.push_back((*each)->weight);
  const torch::Tensor got = run_hooks(encoding, leaves[0], leaves[1], leaves[2], context).output;
  const torch::Tensor want = PairLoop{options, encoding, context}.output(leaves[0], leaves[1], leaves[2]);
  CHECK(max_error(got, want) < 1e-12);
  const torch::Tensor weights = random_tensor(got.sizes(), seed + 40, kFloat64);
  auto grads = [&](const torch::Tensor& out) {
    return torch::autograd::grad({(out * weights).sum()}, leaves, {}, true, false, /*allow_unused=*/true);
  };
  const auto a = grads(got), b = grads(want);
  for (size_t i = 0; i < leaves.size(); ++i) {
    CAPTURE(i);
    REQUIRE(a[i].defined() == b[i].defined());
    if (a[i].defined()) CHECK(max_error(a[i], b[i]) < 1e-11);
  }
}

}  // namespace

TEST_CASE("relative positions: output and gradients are the pair by pair formulas'") {
  for (size_t i = 0; i < relative_options().size(); ++i) {
    CAPTURE(i);
    check_against_loop(relative_options()[i], Positions::range(6, torch::kCPU), 1 + i);
    check_against_loop(relative_options()[i], Positions::tail(2, 6, torch::kCPU), 101 + i);
    check_against_loop(relative_options()[i], Positions::tail(1, 5, torch::kCPU), 201 + i);
    const torch::Tensor ids = torch::tensor({4, 0, 9, 2, 3, 7, 1, 11, 5, 6}, torch::kInt64).view({2, 5});
    check_against_loop(relative_options()[i], Positions::of(ids, 12), 301 + i);
  }
}

TEST_CASE("relative positions: one layer of attention with padding is the formula's") {
  for (size_t i = 0; i < relative_options().size(); ++i) {
    for (bool causal : {false, true}) {
      CAPTURE(i, causal);
      torch::manual_seed(7);
      PositionEncoding encoding = make_positions({relative_options()[i]}, relative_shape);
      encoding->to(kFloat64);
      Attention attention(AttentionOptions{.dim = 12, .heads = 2});
      attention->to(kFloat64);
      auto module = attention->named_children();
      auto child = [&](const char* name) {
        return torch::nn::Linear(std::dynamic_pointer_cast<torch::nn::LinearImpl>(module[name]));
      };
      const Positions positions = Positions::range(5, torch::kCPU);
      AttentionContext context{
          .positions = positions, .keep = torch::ones({4, 5}, torch::kBool), .causal = causal};
      context.keep[1].slice(0, 3).fill_(false);
      context.keep[2].slice(0, 0, 2).fill_(false);
      context.keep[3].fill_(false);
      const torch::Tensor x = random_tensor({4, 5, 12}, 3, kFloat64).requires_grad_();
      const torch::Tensor got = attention(x, encoding, context);
      context.query = child("query");
      context.key = child("key");
      context.value = child("value");
      const torch::Tensor heads = PairLoop{relative_options()[i], encoding, context}.output(
          heads_of(x, context.query, 2), heads_of(x, context.key, 2), heads_of(x, context.value, 2));
      CHECK(max_error(got, child("output")(heads.transpose(1, 2).flatten(2))) < 1e-12);
      got.square().sum().backward();
      CHECK(all_finite(x.grad()));
    }
  }
}

TEST_CASE("relative positions: forward and backward on the strict device, and half precision") {
  for (size_t i = 0; i < relative_options().size(); ++i) {
    CAPTURE(i);
    torch::manual_seed(5);
    PositionEncoding encoding = make_positions({relative_options()[i]}, relative_shape);
    Attention attention(AttentionOptions{.dim = 12, .heads = 2});
    const torch::Tensor x = random_tensor({2, 5, 12}, 3);
    auto run = [&](torch::Device device, torch::Dtype dtype) {
      encoding->to(device, dtype);
      attention->to(device, dtype);
      const Positions positions = Positions::range(5, device);
      const AttentionContext context{.positions = positions, .keep = {}};
      return attention(x.to(device, dtype), encoding, context);
    };
    const torch::Tensor want = run(torch::kCPU, torch::kFloat32).detach();
    const torch::Tensor moved = run(strict_device(), torch::kFloat32);
    CHECK(moved.device() == strict_device());
    CHECK(max_error(moved.detach().cpu(), want) < 1e-5);
    moved.square().sum().backward();
    for (const torch::Tensor& p : encoding->parameters()) {
      if (p.grad().defined()) CHECK(p.grad().device() == strict_device());
    }
    encoding->zero_grad();
    attention->zero_grad();
    // Weights, tokens, scores and outputs below 4 rounded to 8 bits (11 for float16).
    CHECK(max_error(run(torch::kCPU, torch::kBFloat16), want) < 8 * 4 * 0x1p-8);
    CHECK(max_error(run(torch::kCPU, torch::kHalf), want) < 8 * 4 * 0x1p-11);
  }
}

TEST_CASE("transformer_xl: given ids that are a range gather what the shift reads") {
  PositionEncoding encoding = make(TransformerXlOptions{.init_std = 0.5}, relative_shape);
  const torch::NoGradGuard no_grad;
  const Positions range = Positions::range(6, torch::kCPU, 3);
  const Positions given = Positions::of(range.q, 9);
  const torch::Tensor q = random_tensor({2, 2, 6, 6}, 1), k = random_tensor({2, 2, 6, 6}, 2);
  CHECK(max_error(encoding->logits(q, k, {.positions = range, .keep = {}}),
                  encoding->logits(q, k, {.positions = given, .keep = {}})) < 1e-5);
}

TEST_CASE("relative_shift reads each row one column later than the next") {
  for (int64_t queries : {5, 3, 1}) {
    const int64_t keys = 5;
    const torch::Tensor scores = random_tensor({2, 3, queries, queries + keys - 1}, 4);
    const torch::Tensor shifted = relative_shift(scores, keys);
    REQUIRE(shifted.sizes() == torch::IntArrayRef({2, 3, queries, keys}));
    for (int64_t i = 0; i < queries; ++i) {
      for (int64_t j = 0; j < keys; ++j) {
        CHECK(torch::equal(shifted.select(2, i).select(2, j),
                           scores.select(2, i).select(2, queries - 1 - i + j)));
      }
    }
  }
}

TEST_CASE("relative positions: linear attention refuses them by name") {
  ModelShape shape = relative_shape;
  shape.linear = true;
  for (const PositionOptions& options : relative_options()) {
    const std::string name(std::visit([](const auto& o) { return o.type; }, options));
    CHECK_THROWS_WITH(make_positions({options}, shape), Catch::Matchers::Contains("'" + name + "'"));
  }
  CHECK(make(DebertaOptions{}, relative_shape)->scale(12) == Approx(1.0 / 6.0));
}

TEST_CASE("relative positions: the formula folders") {
  const auto oracles = require_oracles();
  if (!oracles) return;
  for (const std::string offset : {"", "_offset"}) {
    CAPTURE(offset);
    auto folder = [&](const std::string& name) {
      return encodings_of(*oracles) / ("formula_" + name + offset);
    };
    for (bool printed : {true, false}) {
      CAPTURE(printed);
      const FormulaCase shaw(folder(printed ? "shaw_eq5_printed" : "shaw_eq5_shaw"));
      PositionEncoding encoding =
          make(ShawOptions{.clip_min = -3, .clip_max = 2, .as_printed = printed}, shaw.shape());
      set_parameter(*encoding, "keys0", shaw.input("p_k"));
      set_parameter(*encoding, "values0", shaw.input("p_v"));
      shaw.check(encoding);
      const FormulaCase xl(folder(printed ? "xl_eq7_printed" : "xl_eq7_transformer_xl"));
      encoding = make(TransformerXlOptions{.layout = SinusoidLayout::interleaved, .as_printed = printed},
                      xl.shape());
      set_parameter(*encoding, "relative0", xl.input("Wr").flatten(0, 1));
      set_parameter(*encoding, "u", xl.input("u"));
      set_parameter(*encoding, "v", xl.input("v"));
      xl.check(encoding);
    }
    const FormulaCase deberta(folder("deberta_eq10"));
    PositionEncoding encoding = make(DebertaOptions{.max_distance = 4}, deberta.shape());
    set_parameter(*encoding, "table", deberta.input("p"));
    deberta.check(encoding, "_scale_3d");
  }
}

TEST_CASE("relative positions: the attention modules of other implementations") {
  const auto oracles = require_oracles();
  if (!oracles) return;
  const torch::NoGradGuard no_grad;
  const Positions positions = Positions::range(7, torch::kCPU);
  // context [B, L, H * d] and weights, rows that are tokens.
  auto check = [&](const OracleCase& oracle, PositionEncoding encoding, const torch::Tensor& x,
                   torch::nn::Linear q, torch::nn::Linear k, torch::nn::Linear v, const std::string& name,
                   bool causal = false, const std::optional<Positions>& at = std::nullopt,
                   int64_t queries = 7) {
    const int64_t heads = oracle.facts.at("heads");
    const Positions& where = at ? *at : positions;
    AttentionContext context{
        .positions = where, .keep = {}, .causal = causal, .query = q, .key = k, .value = v};
    torch::Tensor keep = torch::ones({2, 7}, torch::kBool);
    if (oracle.facts.at("inputs").contains("keep"))
      context.keep = keep = oracle.inputs.tensor("keep").to(torch::kBool);
    const HookResult got = run_hooks(encoding, heads_of(x.slice(1, x.size(1) - queries), q, heads),
                                     heads_of(x, k, heads), heads_of(x, v, heads), context);
    const torch::Tensor rows = keep.unsqueeze(1).unsqueeze(-1);
    CHECK(max_error(got.probs * rows, oracle.expected.tensor("probs") * rows) < oracle.tolerance());
    const torch::Tensor merged = got.output.transpose(1, 2).flatten(2);
    if (!name.empty()) {
      CHECK(max_error(merged * keep.unsqueeze(-1), oracle.expected.tensor(name) * keep.unsqueeze(-1)) <
            oracle.tolerance());
    }
    return merged;
  };
  auto load = [](const OracleCase& c, const std::string& name) { return c.inputs.tensor("weight." + name); };
  auto linear = [&](const OracleCase& c, const std::string& name) {
    return linear_of(load(c, name + ".weight"), load(c, name + ".bias"));
  };
  const ModelShape wide{.dim = 24, .heads = 3, .head_dim = 8, .layers = 1};
  const auto folder = [&](const char* name) { return OracleCase(encodings_of(*oracles) / name); };
  {
    INFO("nezha");
    const OracleCase c = folder("nezha_attention");
    check(c, make(NezhaOptions{.max_distance = c.facts.at("max_relative_position")}, wide),
          c.inputs.tensor("x"), linear(c, "query"), linear(c, "key"), linear(c, "value"), "context");
  }
  {
    INFO("bert_relative_key");
    const OracleCase c = folder("bert_relative_key");
    PositionEncoding encoding = make(ShawOptions{.clip_min = -15, .clip_max = 15, .values = false}, wide);
    set_parameter(*encoding, "keys0", load(c, "distance_embedding.weight"));
    check(c, encoding, c.inputs.tensor("x"), linear(c, "query"), linear(c, "key"), linear(c, "value"),
          "context");
  }
  {
    INFO("shaw_keys_clipped");
    const OracleCase c = folder("shaw_keys_clipped");
    PositionEncoding encoding = make(ShawOptions{.clip_min = -3, .clip_max = 2, .values = false}, wide);
    set_parameter(*encoding, "keys0", c.inputs.tensor("table"));
    const torch::Tensor merged = check(c, encoding, c.inputs.tensor("x"), linear(c, "q_proj"),
                                       linear(c, "k_proj"), linear(c, "v_proj"), "");
    CHECK(max_error(linear(c, "out_proj")(merged), c.expected.tensor("output")) < c.tolerance());
  }
  for (const char* name : {"transformer_xl", "transformer_xl_memory"}) {
    INFO(name);
    const OracleCase c = folder(name);
    PositionEncoding encoding =
        make(TransformerXlOptions{}, {.dim = 24, .heads = 3, .head_dim = 6, .layers = 1});
    set_parameter(*encoding, "relative0", load(c, "r_net.weight"));
    set_parameter(*encoding, "u", load(c, "r_w_bias"));
    set_parameter(*encoding, "v", load(c, "r_r_bias"));
    torch::Tensor x = c.inputs.tensor("x");
    if (c.facts.at("inputs").contains("memory")) x = torch::cat({c.inputs.tensor("memory"), x}, 1);
    const auto parts = load(c, "qkv_net.weight").chunk(3);
    check(c, encoding, x, linear_of(parts[0]), linear_of(parts[1]), linear_of(parts[2]),
          "context_before_o_net", true, Positions::tail(7, x.size(1), torch::kCPU));
  }
  {
    INFO("xlnet");
    const OracleCase c = folder("xlnet_bidirectional");
    PositionEncoding encoding = make(TransformerXlOptions{}, wide);
    auto flat = [&](const char* which) { return load(c, which).flatten(1).t().contiguous(); };
    set_parameter(*encoding, "relative0", flat("r"));
    set_parameter(*encoding, "u", load(c, "r_w_bias"));
    set_parameter(*encoding, "v", load(c, "r_r_bias"));
    check(c, encoding, c.inputs.tensor("x"), linear_of(flat("q")), linear_of(flat("k")), linear_of(flat("v")),
          "");
  }
  {
    INFO("deberta_v1");
    const OracleCase c = folder("deberta_v1_c2p_p2c");
    PositionEncoding encoding = make(DebertaOptions{.max_distance = 4, .own_projections = true}, wide);
    set_parameter(*encoding, "table", c.inputs.tensor("rel_embeddings"));
    set_parameter(*encoding, "key0.weight", load(c, "pos_proj.weight"));
    set_parameter(*encoding, "query0.weight", load(c, "pos_q_proj.weight"));
    set_parameter(*encoding, "query0.bias", load(c, "pos_q_proj.bias"));
    const torch::Tensor in = load(c, "in_proj.weight").view({3, 3, 8, 24});  // head, q k v, row
    auto part = [&](int64_t i) { return in.select(1, i).reshape({24, 24}); };
    check(c, encoding, c.inputs.tensor("x"), linear_of(part(0), load(c, "q_bias")), linear_of(part(1)),
          linear_of(part(2), load(c, "v_bias")), "context");
  }
}
