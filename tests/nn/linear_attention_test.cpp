#include "roformer/nn/linear_attention.h"

#include <ATen/autocast_mode.h>

#include <chrono>
#include <cmath>
#include <functional>

#include "roformer/nn/feature_map.h"
#include "roformer/nn/rotary.h"
#include "tests/catch.h"
#include "tests/tensors.h"

using namespace roformer;
using namespace roformer::test;

namespace {

constexpr auto linear_double = torch::kFloat64;

/// Cosines and sines for apply_rotary, rows of the given positions: [1, L, width / 2, 2].
torch::Tensor linear_table(const torch::Tensor& positions, int64_t width,
                           torch::Dtype type = torch::kFloat64) {
  const torch::Tensor all = rotary_angles(positions.max().item<int64_t>() + 1, width);
  const torch::Tensor angles = all.index_select(0, positions);
  return torch::stack({angles.cos(), angles.sin()}, -1).unsqueeze(0).to(type);
}

torch::Tensor turned(const torch::Tensor& phi, const torch::Tensor& positions, int64_t width) {
  const auto type = phi.scalar_type() == linear_double ? linear_double : torch::kFloat32;
  return apply_rotary(phi, linear_table(positions, width, type), RotaryLayout::interleaved);
}

/// Positive features, some keys padded; the queries stand at the last positions.
LinearTerms linear_terms(int64_t batch, int64_t heads, int64_t queries, int64_t keys, int64_t width,
                         int64_t values, bool rotate, const torch::Tensor& keep = {},
                         torch::Dtype type = torch::kFloat64, uint64_t seed = 1) {
  LinearTerms t;
  t.q = random_tensor({batch, heads, queries, width}, seed, type).abs() + 0.05;
  t.k = random_tensor({batch, heads, keys, width}, seed + 1, type).abs() + 0.05;
  if (keep.defined()) t.k = t.k.masked_fill(keep.logical_not().unsqueeze(1).unsqueeze(-1), 0.0);
  t.v = random_tensor({batch, heads, keys, values}, seed + 2, type);
  if (rotate) {
    t.rotated_q = turned(t.q, torch::arange(keys - queries, keys), width);
    t.rotated_k = turned(t.k, torch::arange(keys), width);
  }
  return t;
}

LinearTerms narrowed(const LinearTerms& t, int64_t begin, int64_t length) {
  auto part = [&](const torch::Tensor& x) { return x.defined() ? x.narrow(2, begin, length) : x; };
  return {part(t.q), part(t.k), part(t.rotated_q), part(t.rotated_k), part(t.v)};
}

/// Eq. 18 and 19 for one head as they are read: features are rows, position of row m of q is m + keys -
/// queries. `turn`: eq. 19 over that many leading columns (0: eq. 18).
formula::Matrix linear_loops(const formula::Matrix& q, const formula::Matrix& k, const formula::Matrix& v,
                             size_t turn, bool causal, const std::vector<bool>& keep = {}) {
  const size_t shift = k.size() - q.size();
  formula::Matrix out;
  for (size_t m = 0; m < q.size(); ++m) {
    formula::Row numerator(v.front().size(), 0.0);
    double denominator = 0;
    for (size_t n = 0; n < k.size(); ++n) {
      if ((causal && n > m + shift) || (!keep.empty() && !keep[n])) continue;
      const double at_m = static_cast<double>(m + shift), at_n = static_cast<double>(n);
      const double weight = turn == 0 ? formula::dot(q[m], k[n])
                                      : formula::dot(formula::rotate(q[m], at_m, 10000.0, turn),
                                                     formula::rotate(k[n], at_n, 10000.0, turn));
      for (size_t c = 0; c < numerator.size(); ++c) numerator[c] += weight * v[n][c];
      denominator += formula::dot(q[m], k[n]);
    }
    for (double& x : numerator) x = denominator > 0 ? x / denominator : 0.0;
    out.push_back(numerator);
  }
  return out;
}

torch::Tensor linear_keep(int64_t length) {
  torch::Tensor keep = torch::ones({3, length}, torch::kBool);
  const int64_t some = length / 3;
  keep[0].slice(0, length - some, length).fill_(false);  // padding right
  keep[1].slice(0, 0, some).fill_(false);                // left
  keep[2].fill_(false);                                  // all
  return keep;
}

/// Leaves made from terms, so that gradients to each can be compared.
std::vector<torch::Tensor> linear_leaves(LinearTerms& t) {
  std::vector<torch::Tensor> leaves;
  for (torch::Tensor* x : {&t.q, &t.k, &t.rotated_q, &t.rotated_k, &t.v}) {
    if (!x->defined()) continue;
    *x = x->detach().clone().requires_grad_();
    leaves.push_back(*x);
  }
  return leaves;
}

/// Hands out 1 + max |x| relative errors.
double relative_error(const torch::Tensor& a, const torch::Tensor& b) {
  return max_error(a, b) / std::max(1.0, b.detach().abs().max().item<double>());
}

}  // namespace

TEST_CASE("linear attention of the two public examples") {
  const torch::Tensor q = torch::tensor({0.0, 1.0, 1.0, 0.0}, linear_double).view({1, 1, 2, 2});
  const torch::Tensor k = torch::tensor({1.0, 0.0, 0.0, -1.0}, linear_double).view({1, 1, 2, 2});
  const torch::Tensor v = torch::tensor({1.0, 2.0}, linear_double).view({1, 1, 2, 1});
  const torch::Tensor places = torch::arange(2);
  FeatureMap map = make(EluFeatures{}, 2, 0);
  auto check = [](const torch::Tensor& out, double first, double second) {
    CHECK(max_error(out.flatten(), torch::tensor({first, second}, linear_double)) < 5e-7);
  };
  LinearTerms t{map->query(q), map->key(k, {}, false), {}, {}, v};
  t.rotated_q = turned(t.q, places, 2);
  t.rotated_k = turned(t.k, places, 2);
  check(linear_attention(t), 1.503277, 1.009418);
  // Turned before phi: another result, which the toolkit offers too.
  const torch::Tensor before_q = map->query(turned(q, places, 2));
  const torch::Tensor before_k = map->key(turned(k, places, 2), {}, false);
  check(linear_attention({before_q, before_k, {}, {}, v}), 1.429111, 1.442655);

  // Padding leaves the denominator too, whatever its key and value.
  const torch::Tensor more_k = torch::cat({k, torch::full({1, 1, 3, 2}, 5.0, linear_double)}, 2);
  const torch::Tensor more_v = torch::cat({v, torch::full({1, 1, 3, 1}, 9.0, linear_double)}, 2);
  const torch::Tensor keep = torch::tensor({{1, 1, 0, 0, 0}}).to(torch::kBool);
  check(linear_attention({map->query(q), map->key(more_k, keep, false), {}, {}, more_v}), 1.302621, 1.321379);
  check(linear_attention({map->query(q), map->key(k, {}, false), {}, {}, v}), 1.302621, 1.321379);
}

TEST_CASE("linear attention follows eq. 18 and 19") {
  for (const bool rotate : {false, true})
    for (const bool masked : {false, true})
      for (const int64_t queries : {7, 4, 1}) {
        CAPTURE(rotate, masked, queries);
        const torch::Tensor keep = masked ? linear_keep(7) : torch::Tensor();
        const LinearTerms t = linear_terms(3, 2, queries, 7, 6, 5, rotate, keep);
        for (int64_t b = 0; b < 3; ++b)
          for (int64_t h = 0; h < 2; ++h) {
            std::vector<bool> kept;
            for (int64_t n = 0; masked && n < 7; ++n) kept.push_back(keep[b][n].item<bool>());
            for (const bool causal : {false, true}) {
              const torch::Tensor wanted =
                  tensor_of(linear_loops(matrix_of(t.q[b][h]), matrix_of(t.k[b][h]), matrix_of(t.v[b][h]),
                                         rotate ? 6 : 0, causal, kept));
              CHECK(max_error(linear_attention_plain(t, causal)[b][h], wanted) < 1e-12);
              if (!causal) CHECK(max_error(linear_attention(t)[b][h], wanted) < 1e-12);
              for (const int64_t chunk : {1, 2, 3, 64}) {
                if (causal)
                  CHECK(max_error(linear_attention_causal(t, nullptr, chunk)[b][h], wanted) < 1e-12);
              }
            }
          }
      }
}

TEST_CASE("chunked causal linear attention equals the quadratic form, with its gradients") {
  for (const bool rotate : {false, true})
    for (const int64_t length : {1, 63, 64, 65, 128, 300})
      for (const int64_t chunk : {1, 16, 64, 128}) {
        if (chunk == 1 && length > 129) continue;
        for (const int64_t prefix : {0, 5}) {
          CAPTURE(rotate, length, chunk, prefix);
          LinearTerms t =
              linear_terms(3, 2, length, length + prefix, 6, 3, rotate, linear_keep(length + prefix));
          const auto leaves = linear_leaves(t);
          const torch::Tensor weight = random_tensor({3, 2, length, 3}, 9, linear_double);
          const torch::Tensor a = linear_attention_causal(t, nullptr, chunk);
          const torch::Tensor b = linear_attention_plain(t, true);
          CHECK(relative_error(a, b) < 1e-11);
          CHECK(a[2].abs().max().item<double>() == 0.0);  // all padding
          const auto ga = torch::autograd::grad({(a * weight).sum()}, leaves);
          const auto gb = torch::autograd::grad({(b * weight).sum()}, leaves);
          for (size_t i = 0; i < leaves.size(); ++i) {
            CAPTURE(i);
            CHECK(ga[i].isfinite().all().item<bool>());
            CHECK(relative_error(ga[i], gb[i]) < 1e-9);
          }
        }
      }
}

TEST_CASE("causal sums of many heads over several chunks") {
  // 1,024 heads of 300 tokens in chunks of 32. The first two heads are compared.
  LinearTerms t = linear_terms(1, 1024, 300, 300, 2, 3, true);
  const auto leaves = linear_leaves(t);
  auto two = [](const torch::Tensor& x) { return x.narrow(1, 0, 2); };
  const LinearTerms few{two(t.q), two(t.k), two(t.rotated_q), two(t.rotated_k), two(t.v)};
  const torch::Tensor weight = random_tensor({1, 2, 300, 3}, 9, linear_double);
  const torch::Tensor a = two(linear_attention_causal(t, nullptr, 32)), b = linear_attention_plain(few, true);
  CHECK(relative_error(a, b) < 1e-11);
  const auto ga = torch::autograd::grad({(a * weight).sum()}, leaves);
  const auto gb = torch::autograd::grad({(b * weight).sum()}, leaves);
  for (size_t i = 0; i < leaves.size(); ++i) CHECK(relative_error(ga[i], gb[i]) < 1e-9);
}

TEST_CASE("gradients of causal linear attention by finite differences") {
  LinearTerms t = linear_terms(1, 2, 7, 9, 4, 3, true);
  const auto leaves = linear_leaves(t);
  const torch::Tensor weight = random_tensor({1, 2, 7, 3}, 10, linear_double);
  auto value = [&] { return (linear_attention_causal(t, nullptr, 3) * weight).sum(); };
  const auto gradients = torch::autograd::grad({value()}, leaves);
  const torch::NoGradGuard no_grad;
  constexpr double step = 1e-5;
  for (size_t i = 0; i < leaves.size(); ++i) {
    torch::Tensor flat = leaves[i].view(-1);
    double worst = 0;
    for (int64_t j = 0; j < flat.size(0); ++j) {
      const double x = flat[j].item<double>();
      flat[j] = x + step;
      const double up = value().item<double>();
      flat[j] = x - step;
      const double down = value().item<double>();
      flat[j] = x;
      worst = std::max(worst, std::abs((up - down) / (2 * step) - gradients[i].view(-1)[j].item<double>()));
    }
    CAPTURE(i);
    CHECK(worst < 1e-8);
  }
}

TEST_CASE("second derivatives of causal linear attention are refused") {
  LinearTerms t = linear_terms(1, 1, 4, 4, 4, 3, false);
  t.q.requires_grad_();
  const torch::Tensor sum = linear_attention_causal(t).square().sum();
  CHECK_THROWS_WITH(torch::autograd::grad({sum}, {t.q}, {}, true, /*create_graph=*/true),
                    Catch::Contains("linear_attention_plain"));
  CHECK(torch::autograd::grad({linear_attention_plain(t, true).square().sum()}, {t.q}, {}, true, true)[0]
            .requires_grad());
}

TEST_CASE("a state of fixed size stands for all tokens read") {
  for (const bool rotate : {false, true}) {
    const torch::Tensor keep = linear_keep(40);
    for (const auto type : {torch::kFloat32, torch::kFloat64}) {
      const double tolerance = type == torch::kFloat32 ? 2e-5 : 1e-12;
      const LinearTerms t = linear_terms(3, 2, 40, 40, 6, 5, rotate, keep, type);
      const torch::Tensor full = linear_attention_causal(t, nullptr, 16);
      CHECK(relative_error(full, linear_attention_plain(t, true)) < tolerance);
      for (const std::vector<int64_t>& pieces : std::vector<std::vector<int64_t>>{
               std::vector<int64_t>(40, 1), {40}, {17, 1, 22}, {1, 16, 16, 7}, {39, 0, 1}}) {
        LinearState state;
        std::vector<torch::Tensor> outputs;
        int64_t begin = 0;
        for (const int64_t length : pieces) {
          outputs.push_back(linear_attention_causal(narrowed(t, begin, length), &state, 16));
          begin += length;
        }
        CHECK(relative_error(torch::cat(outputs, 2), full) < tolerance);
        CHECK(state.sum.sizes() == at::IntArrayRef({3, 2, 6, 5}));
        CHECK(state.norm.sizes() == at::IntArrayRef({3, 2, 6}));
        const torch::Tensor& k = rotate ? t.rotated_k : t.k;
        CHECK(relative_error(state.sum, k.transpose(2, 3).matmul(t.v)) < tolerance);
        CHECK(relative_error(state.norm, t.k.sum(2)) < tolerance);
        CHECK_FALSE(state.sum.requires_grad());
      }
    }
  }
  // Training in pieces, by chunks and by the recurrent step: the state is a constant of the next piece.
  for (const int64_t first : {1, 4}) {
    LinearTerms t = linear_terms(1, 1, 8, 8, 4, 3, true);
    linear_leaves(t);
    LinearState state;
    linear_attention_causal(narrowed(t, 0, first), &state);
    CHECK_FALSE(state.sum.requires_grad());
    CHECK_FALSE(state.norm.requires_grad());
    linear_attention_causal(narrowed(t, first, 8 - first), &state).sum().backward();
    CHECK(t.v.grad().narrow(2, 0, first).abs().max().item<double>() == 0.0);
    CHECK(t.v.grad().narrow(2, first, 8 - first).abs().max().item<double>() > 0.0);
  }
}

TEST_CASE("no output of causal linear attention knows a later key") {
  for (const bool rotate : {false, true}) {
    const LinearTerms t = linear_terms(1, 2, 300, 300, 6, 5, rotate, {}, torch::kFloat32);
    for (const int64_t place : {299, 128, 127, 64, 63, 1}) {
      LinearTerms other = t;
      for (torch::Tensor* x : {&other.k, &other.rotated_k, &other.v}) {
        if (!x->defined()) continue;
        *x = x->clone();
        x->narrow(2, place, 300 - place).mul_(100.0);
      }
      const torch::Tensor a = linear_attention_causal(t), b = linear_attention_causal(other);
      CHECK(max_error(a.narrow(2, 0, place), b.narrow(2, 0, place)) <= 1e-6);
      CHECK(max_error(a.narrow(2, place, 1), b.narrow(2, place, 1)) > 1e-3);
      LinearState state, other_state;
      for (int64_t i = 0; i < place; ++i) {  // the recurrent form, to the bit
        if (!torch::equal(linear_attention_causal(narrowed(t, i, 1), &state),
                          linear_attention_causal(narrowed(other, i, 1), &other_state)))
          FAIL("token " << i << " knows token " << place);
      }
    }
  }
}

TEST_CASE("linear attention without any key, and without a feature in common") {
  LinearTerms t = linear_terms(1, 1, 3, 3, 4, 2, true);
  t.k = torch::zeros_like(t.k);
  t.rotated_k = torch::zeros_like(t.k);
  const auto leaves = linear_leaves(t);
  for (const auto& form : std::vector<std::function<torch::Tensor()>>{
           [&] { return linear_attention(t); }, [&] { return linear_attention_causal(t); },
           [&] { return linear_attention_plain(t, true); }}) {
    const torch::Tensor out = form();
    CHECK(out.abs().max().item<double>() == 0.0);
    for (const torch::Tensor& g : torch::autograd::grad({out.sum()}, leaves))
      CHECK(g.abs().max().item<double>() == 0.0);
  }
  // relu features may have rows of zeros
  FeatureMap map = make(FavorFeatures{.features = 2, .kernel = FavorKernel::relu}, 4, 0);
  torch::Tensor x = random_tensor({1, 1, 60, 4}, 3).requires_grad_();
  const torch::Tensor phi = map->query(x), keys = map->key(x, {}, true);
  CHECK((phi.sum(-1) == 0).any().item<bool>());
  const torch::Tensor places = torch::arange(60);
  const torch::Tensor out = linear_attention_causal(
      {phi, keys, turned(phi, places, 2), turned(keys, places, 2), random_tensor({1, 1, 60, 3}, 4)});
  CHECK(out.isfinite().all().item<bool>());
  CHECK(torch::autograd::grad({out.sum()}, {x})[0].isfinite().all().item<bool>());
}

TEST_CASE("linear attention sums in float32 for half precision") {
  for (const auto type : {torch::kHalf, torch::kBFloat16}) {
    LinearTerms t = linear_terms(1, 2, 300, 300, 6, 5, true, {}, torch::kFloat32);
    LinearTerms narrow = t;
    narrow.v = t.v.to(type);
    LinearTerms wide = narrow;
    wide.v = narrow.v.to(torch::kFloat32);
    const torch::Tensor a = linear_attention_causal(narrow), b = linear_attention_causal(wide);
    CHECK(a.scalar_type() == type);
    CHECK(torch::equal(a, b.to(type)));
    CHECK(torch::equal(linear_attention(narrow), linear_attention(wide).to(type)));
    narrow.v.requires_grad_();
    linear_attention_causal(narrow).sum().backward();
    CHECK(narrow.v.grad().scalar_type() == type);
    at::autocast::set_autocast_enabled(at::kCPU, true);
    const torch::Tensor inside = linear_attention_causal(wide);
    at::autocast::set_autocast_enabled(at::kCPU, false);
    CHECK(torch::equal(inside, b));
  }
}

TEST_CASE("what does not fit together in linear attention") {
  const LinearTerms t = linear_terms(1, 2, 4, 4, 6, 5, true);
  LinearTerms one_side = t;
  one_side.rotated_k = torch::Tensor();
  CHECK_THROWS_AS(linear_attention(one_side), c10::Error);
  LinearTerms short_v = t;
  short_v.v = t.v.narrow(2, 0, 3);
  CHECK_THROWS_AS(linear_attention_causal(short_v), c10::Error);
  const LinearTerms late = linear_terms(1, 2, 3, 4, 6, 5, true);
  LinearState state;
  CHECK_THROWS_AS(linear_attention_causal(late, &state), c10::Error);
  state.sum = torch::zeros({1, 2, 6, 4}, linear_double);
  CHECK_THROWS_AS(linear_attention_causal(t, &state), c10::Error);
  CHECK_THROWS_AS(linear_attention_causal(t, nullptr, 0), c10::Error);
  const LinearTerms none = narrowed(t, 0, 0);
  CHECK(linear_attention_causal(none).sizes() == at::IntArrayRef({1, 2, 0, 5}));
}

TEST_CASE("linear attention grows with the length, not its square") {
  // 65,536^2 weights would take 16 GB and minutes.
  const LinearTerms t = linear_terms(1, 1, 65536, 65536, 16, 8, true, {}, torch::kFloat32);
  LinearTerms part = narrowed(t, 0, 8192);
  auto seconds = [](LinearTerms terms) {
    const auto leaves = linear_leaves(terms);
    const auto start = std::chrono::steady_clock::now();
    linear_attention_causal(terms).sum().backward();
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  };
  seconds(part);
  const double small = std::min(seconds(part), seconds(part));
  CHECK(seconds(t) < 40 * small);  // 8 by count, 64 if it were quadratic
  const torch::Tensor tail = linear_attention_causal(t).narrow(2, 65536 - 4, 4);
  LinearTerms last{t.q.narrow(2, 65532, 4), t.k, t.rotated_q.narrow(2, 65532, 4), t.rotated_k, t.v};
  for (torch::Tensor* x : {&last.q, &last.k, &last.rotated_q, &last.rotated_k, &last.v})
    *x = x->to(linear_double);
  CHECK(max_error(tail, linear_attention_plain(last, true)) < 1e-5);
}

TEST_CASE("reference values of linear attention by the formulas") {
  const auto oracles = require_oracles();
  if (!oracles) return;
  for (const std::string name : {"formula_linear_attention", "formula_linear_attention_offset"}) {
    CAPTURE(name);
    const OracleCase c(*oracles / "encodings" / name);
    torch::Tensor q = c.inputs.tensor("q").requires_grad_(), k = c.inputs.tensor("k").requires_grad_();
    torch::Tensor v = c.inputs.tensor("v").requires_grad_();
    const torch::Tensor at_q = c.inputs.tensor("positions_q"), at_k = c.inputs.tensor("positions_k");
    const torch::Tensor keep = c.inputs.tensor("keep").to(torch::kBool);
    auto check = [&](const torch::Tensor& out, const std::string& key) {
      CAPTURE(key);
      const torch::Tensor wanted = c.expected.tensor(key);
      CHECK(relative_error(out, wanted) < 1e-4);
    };
    for (const std::string kind : {"elu", "shen"}) {
      FeatureMap map =
          make(kind == "elu" ? FeatureOptions(EluFeatures{}) : FeatureOptions(ShenFeatures{}), q.size(3), 0);
      auto terms = [&](bool rotate, const torch::Tensor& mask, bool causal) {
        LinearTerms t{map->query(q), map->key(k, mask, causal), {}, {}, v};
        if (rotate) {
          t.rotated_q = turned(t.q, at_q, map->rotary_width());
          t.rotated_k = turned(t.k, at_k, map->rotary_width());
        }
        return t;
      };
      for (const bool rotate : {false, true}) {
        const std::string prefix = (rotate ? "eq19." : "eq18.") + kind;
        check(linear_attention(terms(rotate, {}, false)), prefix + ".full");
        check(linear_attention(terms(rotate, keep, false)), prefix + ".padded");
        check(linear_attention_causal(terms(rotate, {}, true), nullptr, 3), prefix + ".causal");
        check(linear_attention_plain(terms(rotate, {}, true), true), prefix + ".causal");
      }
      if (kind == "shen") continue;
      const torch::Tensor out = linear_attention_causal(terms(true, {}, true), nullptr, 3);
      const auto g = torch::autograd::grad({out}, {q, k, v}, {c.inputs.tensor("grad_output")});
      check(g[0], "eq19.elu.causal.grad_q");
      check(g[1], "eq19.elu.causal.grad_k");
      check(g[2], "eq19.elu.causal.grad_v");
    }
    // The post's form turns numerator and denominator: rotation before the features, or of their leading
    // columns.
    FeatureMap map = make(CosineFeatures{}, q.size(3), 0);
    const torch::Tensor rq = turned(q, at_q, q.size(3)), rk = turned(k, at_k, q.size(3));
    auto cosine = [&](const torch::Tensor& a, const torch::Tensor& b) {
      return LinearTerms{map->query(a), map->key(b, {}, false), {}, {}, v};
    };
    check(linear_attention(cosine(q, k)), "cosine.plain.full");
    check(linear_attention_causal(cosine(q, k)), "cosine.plain.causal");
    check(linear_attention(cosine(rq, rk)), "cosine.rope.full");
    check(linear_attention_causal(cosine(rq, rk)), "cosine.rope.causal");
    const LinearTerms plain = cosine(q, k), before = cosine(rq, rk);
    CHECK(max_error(turned(plain.q, at_q, map->rotary_width()), before.q) < 1e-6);
    CHECK(max_error(turned(plain.k, at_k, map->rotary_width()), before.k) < 1e-6);
  }
}

TEST_CASE("reference values of performer-pytorch's attention") {
  const auto oracles = require_oracles();
  if (!oracles) return;
  for (const std::string name : {"kernels_0", "kernels_1", "kernels_2"}) {
    CAPTURE(name);
    const OracleCase c(*oracles / "performer" / name);
    const torch::Tensor q = c.inputs.tensor("q"), k = c.inputs.tensor("k"), v = c.inputs.tensor("v");
    const torch::Tensor w = c.inputs.tensor("projection"), places = torch::arange(q.size(2));
    const int64_t d = q.size(3), m = w.size(0);
    auto favor = [&](FavorFeatures options) {
      options.features = m;
      FeatureMap map = make(options, d, 0);
      map->named_buffers()["projection"].copy_(w);
      return map;
    };
    auto check = [&](const torch::Tensor& out, const std::string& key) {
      CAPTURE(key);
      CHECK(relative_error(out, c.expected.tensor(key)) < c.tolerance());
    };
    auto terms = [&](FeatureMap& map, const torch::Tensor& a, const torch::Tensor& b, bool causal,
                     bool rotate) {
      LinearTerms t{map->query(a), map->key(b, {}, causal), {}, {}, v};
      if (rotate) {
        t.rotated_q = turned(t.q, places, m);
        t.rotated_k = turned(t.k, places, m);
      }
      return t;
    };
    // The library adds 1e-6 to the summed keys of its causal denominator.
    auto library_causal = [](const LinearTerms& t) {
      const torch::Tensor denominator = (t.q * t.k.cumsum(2)).sum(-1, true);
      return linear_attention_causal(t) * denominator / (denominator + 1e-6 * t.q.sum(-1, true));
    };
    FeatureMap exact = favor({});
    check(linear_attention(terms(exact, q, k, false, false)), "no_eps.softmax.full");
    check(linear_attention_causal(terms(exact, q, k, true, false)), "no_eps.softmax.causal");

    const torch::Tensor rq = turned(q, places, d), rk = turned(k, places, d);
    CHECK(max_error(rq, c.expected.tensor("rotary.q")) < c.tolerance());
    CHECK(max_error(rk, c.expected.tensor("rotary.k")) < c.tolerance());
    FeatureMap softmax = favor({.epsilon = 1e-4});
    FeatureMap relu = favor({.kernel = FavorKernel::relu, .epsilon = 1e-3});
    for (FeatureMap* map : {&softmax, &relu}) {
      const std::string kernel = map == &relu ? "relu" : "softmax";
      // The library's causal form takes the maximum over all keys as well: causal = false.
      check(linear_attention(terms(*map, q, k, false, false)), kernel + ".full");
      check(library_causal(terms(*map, q, k, false, false)), kernel + ".causal");
      check(linear_attention(terms(*map, rq, rk, false, false)), "rotary_then_" + kernel + ".full");
      check(library_causal(terms(*map, rq, rk, false, false)), "rotary_then_" + kernel + ".causal");
      check(linear_attention(terms(*map, q, k, false, true)), "eq19." + kernel + ".full");
      check(linear_attention_causal(terms(*map, q, k, false, true)), "eq19." + kernel + ".causal");
    }
    // Shen's full form there normalises each key channel over the tokens, and divides by nothing.
    FeatureMap shen = make(ShenFeatures{}, d, 0);
    const torch::Tensor phi_q = shen->query(q), phi_k = shen->key(k, {}, false);
    check(phi_q.matmul((phi_k / phi_k.sum(2, true)).transpose(2, 3).matmul(v)), "shen.full");
    check(linear_attention_causal({phi_q, shen->key(k, {}, true), {}, {}, v}), "shen.causal");

    // Softmax attention is the limit of many features: reached soon where q . k is small, so by a share of
    // the inputs; the stored values say what "softmax attention" is.
    auto softmax_attention = [&](double share) {
      return torch::softmax((share * q).matmul(share * k.transpose(2, 3)) / std::sqrt(d), -1).matmul(v);
    };
    check(softmax_attention(1.0), "exact_softmax.full");
    auto error_of = [&](int64_t features) {
      FeatureMap map = make(FavorFeatures{.features = features}, d, 0);
      return max_error(linear_attention({map->query(0.4 * q), map->key(0.4 * k, {}, false), {}, {}, v}),
                       softmax_attention(0.4));
    };
    const double error = error_of(40000);
    CHECK(error < 0.02);
    CHECK(error_of(40) > 4 * error);  // the error falls with 1 / sqrt(M), here by 32
  }
}
