#include "roformer/nn/attention.h"

#include <cmath>

#include "roformer/nn/layers.h"
#include "tests/catch.h"

using namespace roformer;

namespace {

constexpr auto attention_double = torch::kFloat64;

/// One query row of eq. 2 in plain loops: softmax over the allowed keys of (scale q.k + extra), then the mean
/// of v. Zeros where nothing is allowed.
torch::Tensor attention_loops(const torch::Tensor& q, const torch::Tensor& k, const torch::Tensor& v,
                              const torch::Tensor& keep, const torch::Tensor& extra, bool causal,
                              double scale) {
  const int64_t B = q.size(0), H = q.size(1), Lq = q.size(2), Lk = k.size(2), d = q.size(3), dv = v.size(3);
  torch::Tensor out = torch::zeros({B, H, Lq, dv}, attention_double);
  const auto qa = q.accessor<double, 4>(), ka = k.accessor<double, 4>(), va = v.accessor<double, 4>();
  auto oa = out.accessor<double, 4>();
  const torch::Tensor e = extra.defined() ? extra.expand({B, H, Lq, Lk}).contiguous()
                                          : torch::zeros({B, H, Lq, Lk}, attention_double);
  const auto ea = e.accessor<double, 4>();
  for (int64_t b = 0; b < B; ++b)
    for (int64_t h = 0; h < H; ++h)
      for (int64_t i = 0; i < Lq; ++i) {
        std::vector<double> weight(Lk, 0.0);
        double sum = 0.0;
        for (int64_t j = 0; j < Lk; ++j) {
          if (keep.defined() && !keep[b][j].item<bool>()) continue;
          if (causal && j > i + Lk - Lq) continue;
          double score = 0.0;
          for (int64_t c = 0; c < d; ++c) score += qa[b][h][i][c] * ka[b][h][j][c];
          weight[j] = std::exp(scale * score + ea[b][h][i][j]);
          sum += weight[j];
        }
        for (int64_t j = 0; j < Lk && sum > 0.0; ++j)
          for (int64_t c = 0; c < dv; ++c) oa[b][h][i][c] += weight[j] / sum * va[b][h][j][c];
      }
  return out;
}

struct AttentionCase {
  torch::Tensor q, k, v, keep, extra;
  bool causal;
  std::string name;
};

std::vector<AttentionCase> attention_cases() {
  torch::manual_seed(5);
  std::vector<AttentionCase> cases;
  for (const bool masked : {false, true})
    for (const bool extra : {false, true})
      for (const bool causal : {false, true})
        for (const int64_t queries : {6, 4}) {
          AttentionCase c;
          c.q = torch::randn({3, 2, queries, 4}, attention_double);
          c.k = torch::randn({3, 2, 6, 4}, attention_double);
          c.v = torch::randn({3, 2, 6, 4}, attention_double);
          if (masked) {
            c.keep = torch::tensor({1, 1, 1, 1, 0, 0, /**/ 0, 0, 1, 1, 1, 1, /**/ 0, 0, 0, 0, 0, 0})
                         .view({3, 6})
                         .to(torch::kBool);
          }
          if (extra) c.extra = torch::randn({1, 2, queries, 6}, attention_double);
          c.causal = causal;
          c.name = std::string(masked ? "keep " : "") + (extra ? "extra " : "") + (causal ? "causal " : "") +
                   std::to_string(queries) + " queries";
          cases.push_back(c);
        }
  return cases;
}

using AttentionPath = torch::Tensor (*)(const AttentionCase&, double);
torch::Tensor plain_path(const AttentionCase& c, double dropout) {
  return attention_plain(c.q, c.k, c.v, c.keep, c.extra, c.causal, 0.7, dropout);
}
torch::Tensor fused_path(const AttentionCase& c, double dropout) {
  return attention_fused(c.q, c.k, c.v, c.keep, c.extra, c.causal, 0.7, dropout);
}

/// Fills every hook of the attention, by formulas that a double loop repeats.
class ToyEncoding : public PositionEncodingImpl {
 public:
  explicit ToyEncoding(Needs needs) : needs_(needs) {}
  torch::Tensor bias(const Positions& p) override {
    ++bias_calls;
    return 0.1 * distances(p).unsqueeze(0).unsqueeze(0);  // [1, 1, Lq, Lk]
  }
  torch::Tensor rotate(const torch::Tensor& heads, Side side, const Positions&) override {
    return side == Side::value ? heads * 2.0 : side == Side::key ? heads * 3.0 : heads;
  }
  torch::Tensor logits(const torch::Tensor& q, const torch::Tensor& k, const AttentionContext& c) override {
    return (q.sum(-1).unsqueeze(-1) + k.sum(-1).unsqueeze(-2)) * static_cast<double>(c.layer + 1);
  }
  torch::Tensor values(const torch::Tensor& probs, const AttentionContext& c) override {
    return torch::matmul(probs,
                         distances(c.positions).mean(0).unsqueeze(-1));  // [B, H, Lq, 1], for all columns
  }
  double scale(int64_t) const override { return 0.3; }
  Needs needs() const override { return needs_; }
  std::string_view name() const override { return "toy"; }

  int bias_calls = 0;

 private:
  static torch::Tensor distances(const Positions& p) {
    return (p.k.unsqueeze(1) - p.q.unsqueeze(2)).to(attention_double)[0];
  }
  Needs needs_;
};

torch::Tensor weight_of(const Attention& attention, const std::string& name) {
  return attention->named_parameters()[name];
}

}  // namespace

TEST_CASE("attention: both paths are eq. 2 in double loops") {
  for (const AttentionCase& c : attention_cases()) {
    INFO(c.name);
    const torch::Tensor expected = attention_loops(c.q, c.k, c.v, c.keep, c.extra, c.causal, 0.7);
    REQUIRE(torch::allclose(plain_path(c, 0.0), expected, 0, 1e-14));
    REQUIRE(torch::allclose(fused_path(c, 0.0), expected, 0, 1e-14));
  }
}

TEST_CASE("attention: both paths have the same gradients, and finite ones for rows without keys") {
  for (AttentionCase c : attention_cases()) {
    INFO(c.name);
    std::vector<torch::Tensor> leaves{c.q, c.k, c.v};
    if (c.extra.defined()) leaves.push_back(c.extra);
    for (torch::Tensor& t : leaves) t.requires_grad_();
    const torch::Tensor weight = torch::randn_like(c.q.detach());
    const auto plain = torch::autograd::grad({(plain_path(c, 0.0) * weight).sum()}, leaves);
    const auto fused = torch::autograd::grad({(fused_path(c, 0.0) * weight).sum()}, leaves);
    for (size_t i = 0; i < leaves.size(); ++i) {
      REQUIRE(torch::isfinite(plain[i]).all().item<bool>());
      REQUIRE(torch::allclose(plain[i], fused[i], 0, 1e-14));
    }
    if (c.keep.defined()) {  // the third sequence is all padding
      for (size_t i = 0; i < 3; ++i) REQUIRE(plain[i][2].abs().max().item<double>() == 0.0);
    }
  }
}

TEST_CASE("attention: gradients of the plain path by differences") {
  for (AttentionCase c : attention_cases()) {
    if (c.causal || c.q.size(2) != 6) continue;
    c.q.requires_grad_();
    const torch::Tensor direction = torch::randn_like(c.q.detach()), weight = torch::randn_like(c.q.detach());
    const torch::Tensor grad = torch::autograd::grad({(plain_path(c, 0.0) * weight).sum()}, {c.q})[0];
    auto at_offset = [&](double h) {
      return (attention_loops(c.q.detach() + h * direction, c.k, c.v, c.keep, c.extra, c.causal, 0.7) *
              weight)
          .sum()
          .item<double>();
    };
    const double h = 1e-5;
    REQUIRE((grad * direction).sum().item<double>() ==
            Approx((at_offset(h) - at_offset(-h)) / (2 * h)).epsilon(1e-7));
  }
}

TEST_CASE("attention: rows of padding alone give zeros in every dtype") {
  for (const auto type : {torch::kFloat32, torch::kBFloat16, torch::kHalf}) {
    for (const bool with_extra : {false, true}) {
      for (const AttentionPath path : {plain_path, fused_path}) {
        AttentionCase c = attention_cases().back();
        c.q = (50 * torch::ones({2, 2, 6, 4})).to(type).requires_grad_();
        c.k = (-50 * torch::ones({2, 2, 6, 4}))
                  .to(type);  // scores far below zero: the sum of two lowest is -inf
        c.v = torch::ones({2, 2, 6, 4}).to(type);
        c.keep = torch::tensor({1, 1, 1, 1, 0, 0, /**/ 0, 0, 0, 0, 0, 0}).view({2, 6}).to(torch::kBool);
        c.extra = with_extra ? torch::full({1, 2, 6, 6}, -20.0) : torch::Tensor();
        c.causal = false;
        const torch::Tensor out = path(c, 0.0);
        REQUIRE(out.scalar_type() == type);
        REQUIRE(torch::allclose(out[0], torch::ones_like(out[0]), 0, 0.01));
        REQUIRE(out[1].abs().max().item<float>() == 0.0f);
        out.sum().backward();
        REQUIRE(torch::isfinite(c.q.grad()).all().item<bool>());
        torch::Tensor probs;  // the values hook of an encoding reads them
        attention_plain(c.q, c.k, c.v, c.keep, c.extra, false, 0.7, 0.0, &probs);
        REQUIRE(torch::isfinite(probs).all().item<bool>());
      }
    }
  }
}

TEST_CASE("attention: half precision sums its softmax in float32") {
  // 4096 equal keys: a sum kept in bfloat16 would stop growing at 256.
  const auto options = torch::TensorOptions().dtype(torch::kBFloat16);
  const torch::Tensor q = torch::ones({1, 1, 1, 8}, options), k = torch::ones({1, 1, 4096, 8}, options);
  const torch::Tensor v = torch::ones({1, 1, 4096, 8}, options);
  const float out = attention_plain(q, k, v, {}, {}, false, 0.3, 0.0).max().item<float>();
  REQUIRE(out == Approx(1.0f).epsilon(0.01));
}

TEST_CASE("attention: dropout acts on the weights, and the seed repeats it") {
  AttentionCase c = attention_cases()[0];
  c.q = torch::randn({2, 2, 64, 4});
  c.k = torch::randn({2, 2, 64, 4});
  c.v = torch::ones({2, 2, 64, 4});
  torch::manual_seed(1);
  torch::Tensor probs;
  const torch::Tensor out = attention_plain(c.q, c.k, c.v, {}, {}, false, 0.5, 0.25, &probs);
  REQUIRE(probs.eq(0).to(torch::kFloat32).mean().item<float>() ==
          Approx(0.25).margin(0.02));  // 5 sigma of 8192
  REQUIRE(torch::allclose(out, probs.sum(-1, true).expand_as(out), 1e-5, 1e-6));
  const torch::Tensor full = torch::softmax(torch::matmul(c.q, c.k.transpose(-2, -1)) * 0.5, -1);
  REQUIRE(torch::allclose(probs, torch::where(probs.eq(0), torch::zeros({}), full / 0.75), 1e-5, 1e-8));
  torch::manual_seed(1);
  REQUIRE(torch::equal(out, attention_plain(c.q, c.k, c.v, {}, {}, false, 0.5, 0.25)));
  REQUIRE_FALSE(torch::equal(out, attention_plain(c.q, c.k, c.v, {}, {}, false, 0.5, 0.25)));
}

TEST_CASE("attention: shapes that do not fit are refused") {
  const torch::Tensor q = torch::zeros({1, 1, 3, 4});
  REQUIRE_THROWS_WITH(attention_plain(q, torch::zeros({1, 1, 3, 2}), q, {}, {}, false, 1.0, 0.0),
                      Catch::Contains("do not fit"));
  REQUIRE_THROWS_WITH(attention_fused(q, q, q, torch::ones({1, 3}), {}, false, 1.0, 0.0),
                      Catch::Contains("keep"));
  REQUIRE_THROWS_WITH(attention_fused(q, q, q, torch::ones({1, 2}, torch::kBool), {}, false, 1.0, 0.0),
                      Catch::Contains("keep"));
  REQUIRE_THROWS_WITH(Attention(AttentionOptions{.dim = 10, .heads = 4}), Catch::Contains("divide"));
}

TEST_CASE("attention: the hooks of an encoding from outside enter as documented") {
  const int64_t B = 2, L = 5, dim = 6, heads = 2, d = 3;
  const Positions positions = Positions::range(L, torch::kCPU);
  const torch::Tensor keep = torch::tensor({1, 1, 1, 1, 0, /**/ 1, 1, 1, 1, 1}).view({B, L}).to(torch::kBool);
  for (const Needs needs : {Needs::bias, Needs::scores, Needs::probabilities}) {
    torch::manual_seed(9);
    Attention attention(AttentionOptions{.dim = dim, .heads = heads, .dropout = 0.0});
    attention->to(attention_double);
    PositionEncoding encoding = new_encoding<ToyEncoding>(needs);
    const torch::Tensor x = torch::randn({B, L, dim}, attention_double);
    AttentionContext context{positions, keep, false, 2, encoding->bias(positions)};
    const torch::Tensor out = attention(x, encoding, context);

    auto heads_of = [&](const std::string& name) {
      return (torch::matmul(x, weight_of(attention, name + ".weight").t()) +
              weight_of(attention, name + ".bias"))
          .view({B, L, heads, d})
          .transpose(1, 2)
          .contiguous()
          .detach();
    };
    const torch::Tensor q = heads_of("query"), k = 3.0 * heads_of("key"), v = 2.0 * heads_of("value");
    torch::Tensor extra = torch::zeros({B, heads, L, L}, attention_double),
                  more = torch::zeros({B, heads, L, d}, attention_double);
    torch::Tensor shift = torch::zeros({L, 1}, attention_double);
    for (int64_t j = 0; j < L; ++j)
      for (int64_t i = 0; i < L; ++i) {
        extra.select(3, j).select(2, i) += 0.1 * static_cast<double>(j - i);
        shift[j] += static_cast<double>(i - j) / static_cast<double>(L) * -1.0;
      }
    if (needs > Needs::bias) {
      extra += 3.0 * (q.sum(-1).unsqueeze(-1) + k.sum(-1).unsqueeze(-2));
      // values: sum_j p_ij * mean_i (j - i), which is attention to a further value.
      more = attention_loops(q, k, shift.expand({B, heads, L, 1}).contiguous(), keep, extra, false, 0.3)
                 .expand({B, heads, L, d});
    }
    const torch::Tensor mixed =
        (attention_loops(q, k, v, keep, extra, false, 0.3) + more).transpose(1, 2).reshape({B, L, dim});
    const torch::Tensor expected =
        torch::matmul(mixed, weight_of(attention, "output.weight").t()) + weight_of(attention, "output.bias");
    REQUIRE(torch::allclose(out, expected, 0, 1e-12));
  }
}

TEST_CASE("attention: hooks keep rows without keys at zero") {
  Attention attention(AttentionOptions{.dim = 6, .heads = 2, .dropout = 0.0, .bias = false});
  attention->to(attention_double);
  const Positions positions = Positions::range(5, torch::kCPU);
  PositionEncoding encoding = new_encoding<ToyEncoding>(Needs::probabilities);
  const torch::Tensor keep = torch::tensor({1, 1, 1, 1, 0, /**/ 0, 0, 0, 0, 0}).view({2, 5}).to(torch::kBool);
  const torch::Tensor x = torch::randn({2, 5, 6}, attention_double).requires_grad_();
  const torch::Tensor out = attention(x, encoding, AttentionContext{positions, keep});
  REQUIRE(out[1].abs().max().item<double>() == 0.0);
  REQUIRE(out[0].abs().min().item<double>() > 0.0);
  out.sum().backward();
  REQUIRE(torch::isfinite(x.grad()).all().item<bool>());
}

TEST_CASE("attention: a causal row sees nothing of what follows") {
  Attention attention(AttentionOptions{.dim = 8, .heads = 2, .dropout = 0.0});
  const Positions positions = Positions::range(6, torch::kCPU);
  for (const Needs needs : {Needs::nothing, Needs::probabilities}) {
    PositionEncoding encoding = make(NoneOptions{}, ModelShape{8, 2, 4, 1, true});
    if (needs != Needs::nothing) encoding = new_encoding<ToyEncoding>(needs);
    attention->to(needs == Needs::nothing ? torch::kFloat32 : torch::kFloat64);
    torch::Tensor x = torch::randn({1, 6, 8}, needs == Needs::nothing ? torch::kFloat32 : torch::kFloat64);
    AttentionContext context{positions, {}, /*causal=*/true};
    const torch::Tensor before = attention(x, encoding, context);
    x = x.clone();
    x[0][4] += 1.0;
    const torch::Tensor after = attention(x, encoding, context);
    REQUIRE(torch::equal(before.slice(1, 0, 4), after.slice(1, 0, 4)));
    REQUIRE_FALSE(torch::allclose(before.slice(1, 4), after.slice(1, 4)));
  }
}

TEST_CASE("attention: which path pays") {
  const torch::Tensor q = torch::zeros({1, 1, 4, 4});
  REQUIRE_FALSE(fused_attention_pays(q, 0.1));  // LibTorch's own dropout on the CPU is slow
  REQUIRE(fused_attention_pays(q, 0.0));
}
