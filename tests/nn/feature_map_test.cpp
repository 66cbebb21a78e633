#include "roformer/nn/feature_map.h"

#include <ATen/autocast_mode.h>

#include <cmath>

#include "roformer/core/error.h"
#include "tests/catch.h"
#include "tests/tensors.h"

using namespace roformer;
using namespace roformer::test;

namespace {

constexpr auto feature_double = torch::kFloat64;
const double no_bound = 1e300;

/// phi as its formula is read: double loops over one [L, d] matrix.
formula::Row favor_row(const formula::Row& x, const formula::Matrix& w, bool relu) {
  const double d = static_cast<double>(x.size()), m = static_cast<double>(w.size());
  formula::Row out;
  for (const formula::Row& row : w) {
    const double y = formula::dot(row, x) / std::pow(d, 0.25);
    out.push_back(relu ? std::max(0.0, y)
                       : std::exp(y - formula::dot(x, x) / (2 * std::sqrt(d))) / std::sqrt(m));
  }
  return out;
}

torch::Tensor projection_of(const FeatureMap& map) { return map->named_buffers()["projection"]; }

void set_projection(const FeatureMap& map, const torch::Tensor& w) { projection_of(map).copy_(w); }

/// All weights sim(q_m, k_n) divided by their sum over n: what cannot depend on factors that cancel.
torch::Tensor normalised(const torch::Tensor& q, const torch::Tensor& k) {
  const torch::Tensor sims = q.matmul(k.transpose(-1, -2));
  return sims / sims.sum(-1, true);
}

torch::Tensor padded_keep() {
  return torch::tensor({0, 0, 1, 1, 1, 1, /**/ 1, 1, 1, 0, 0, 0}).view({2, 6}).to(torch::kBool);
}

struct NamedFeatures {
  std::string name;
  FeatureOptions options;
};
std::vector<NamedFeatures> all_features() {
  return {{"favor", FavorFeatures{}},
          {"favor relu", FavorFeatures{.kernel = FavorKernel::relu}},
          {"favor epsilon", FavorFeatures{.epsilon = 1e-4}},
          {"elu", EluFeatures{}},
          {"shen", ShenFeatures{}},
          {"cosine", CosineFeatures{}}};
}

}  // namespace

TEST_CASE("feature widths") {
  CHECK(feature_width(FavorFeatures{}, 64) == 266);
  CHECK(feature_width(FavorFeatures{}, 32) == 110);
  CHECK(feature_width(FavorFeatures{}, 1) == 2);
  CHECK(feature_width(FavorFeatures{.features = 8}, 64) == 8);
  CHECK(feature_width(EluFeatures{}, 64) == 64);
  CHECK(feature_width(CosineFeatures{}, 64) == 65);
  CHECK(feature_rotary_width(CosineFeatures{}, 64) == 64);
  CHECK(feature_rotary_width(FavorFeatures{}, 64) == 266);
  CHECK_THROWS_WITH(validate(FavorFeatures{.features = 7}, 8),
                    "features: 7 is odd, and a rotation turns pairs of features; use 6 or 8");
  CHECK_THROWS_AS(make(FavorFeatures{.features = 7}, 8, 0), Error);
  for (const auto& [name, options] : all_features()) {
    CAPTURE(name);
    FeatureMap map = make(options, 6, 0);
    const torch::Tensor x = random_tensor({2, 3, 5, 6}, 1);
    CHECK(map->width() == feature_width(options, 6));
    CHECK(map->query(x).size(3) == map->width());
    CHECK(map->key(x, {}, true).size(3) == map->width());
    CHECK(map->parameters().empty());
    CHECK(map->key(x.narrow(2, 0, 0), {}, false).numel() == 0);
    CHECK_THROWS_AS(map->query(x.narrow(3, 0, 4)), c10::Error);
    CHECK_THROWS_AS(map->key(x, torch::ones({2, 4}, torch::kBool), false), c10::Error);
  }
}

TEST_CASE("feature options in YAML") {
  FeatureOptions options;
  read(parse_config("{type: favor, kernel: relu, scaling: sqrt_d, epsilon: 1e-3}", "test"), options);
  const auto& favor = std::get<FavorFeatures>(options);
  CHECK((favor.kernel == FavorKernel::relu && favor.scaling == FavorScaling::sqrt_d));
  CHECK(favor.epsilon == 1e-3);
  read(parse_config("type: cosine", "test"), options);
  CHECK(std::holds_alternative<CosineFeatures>(options));
  CHECK_THROWS_AS(read(parse_config("{type: favor, redraw_every: -1}", "test"), options), Error);
}

TEST_CASE("features follow their formulas") {
  const torch::Tensor x = random_tensor({1, 1, 5, 6}, 2, feature_double);
  const formula::Matrix rows = matrix_of(x[0][0]);
  for (const auto& [name, options] : all_features()) {
    CAPTURE(name);
    FeatureMap map = make(options, 6, 3);
    const torch::Tensor q = map->query(x)[0][0], k = map->key(x, {}, true)[0][0];
    for (size_t i = 0; i < rows.size(); ++i) {
      const formula::Row& row = rows[i];
      formula::Row wanted_q, wanted_k;
      if (const auto* favor = std::get_if<FavorFeatures>(&options)) {
        const bool relu = favor->kernel == FavorKernel::relu;
        wanted_q = wanted_k = favor_row(row, matrix_of(projection_of(map)), relu);
        if (!relu) {  // up to a factor of the query's row: the largest exponent is 0
          double top = 0, highest = -no_bound;
          const double scale = std::sqrt(static_cast<double>(wanted_q.size()));
          for (double value : wanted_q) top = std::max(top, value);
          for (const formula::Row& w : matrix_of(projection_of(map)))
            highest = std::max(highest, formula::dot(w, row) / std::pow(6.0, 0.25));
          const double factor = favor->epsilon > 0 ? std::exp(-highest) : 1 / (top * scale);
          for (double& value : wanted_q) value = value * factor + favor->epsilon / scale;
          for (double& value : wanted_k) value += favor->epsilon / scale;
        }
      } else if (name == "elu") {
        for (double value : row) wanted_q.push_back(value > 0 ? value + 1 : std::exp(value));
        wanted_k = wanted_q;
      } else if (name == "shen") {
        double sum = 0;
        for (double value : row) sum += std::exp(value);
        for (double value : row) {
          wanted_q.push_back(std::exp(value) / sum);
          wanted_k.push_back(std::exp(value));
        }
      } else {
        for (double value : row) wanted_q.push_back(value / std::sqrt(formula::dot(row, row)));
        wanted_q.push_back(1.0);
        wanted_k = wanted_q;
      }
      const auto at = static_cast<int64_t>(i);
      CHECK(max_error(q[at], torch::tensor(wanted_q, feature_double)) < 1e-12);
      CHECK(max_error(k[at], torch::tensor(wanted_k, feature_double)) < 1e-12);
    }
  }
}

TEST_CASE("factors of features cancel, in values and gradients") {
  const torch::Tensor keep = padded_keep();
  for (const bool shen : {false, true}) {
    FeatureMap map = make(shen ? FeatureOptions(ShenFeatures{}) : FeatureOptions(FavorFeatures{}), 6, 0);
    torch::Tensor q = random_tensor({2, 2, 5, 6}, 3, feature_double).requires_grad_();
    torch::Tensor k = random_tensor({2, 2, 6, 6}, 4, feature_double).requires_grad_();
    const torch::Tensor weight = random_tensor({2, 2, 5, 6}, 5, feature_double);
    const torch::Tensor a = normalised(map->query(q), map->key(k, keep, false));
    const torch::Tensor b = normalised(map->query(q), map->key(k, keep, true));
    CHECK(max_error(a, b) < 1e-14);
    const auto ga = torch::autograd::grad({(a * weight).sum()}, {q, k});
    const auto gb = torch::autograd::grad({(b * weight).sum()}, {q, k});
    CHECK(max_error(ga[0], gb[0]) < 1e-13);
    CHECK(max_error(ga[1], gb[1]) < 1e-13);
    if (shen) continue;
    // Nothing is detached here, and the query keeps its |y|^2 / 2.
    const torch::Tensor w = projection_of(map).to(feature_double) * std::pow(6.0, -0.25);
    auto phi = [&](const torch::Tensor& x) {
      return torch::exp(x.matmul(w.t()) - x.square().sum(-1, true) / (2 * std::sqrt(6.0)));
    };
    const torch::Tensor c = normalised(phi(q), phi(k) * keep.unsqueeze(1).unsqueeze(-1));
    CHECK(max_error(a, c) < 1e-14);
    const auto gc = torch::autograd::grad({(c * weight).sum()}, {q, k});
    CHECK(max_error(ga[0], gc[0]) < 1e-13);
    CHECK(max_error(ga[1], gc[1]) < 1e-13);
  }
}

TEST_CASE("features of padding are zero and count for no maximum") {
  const torch::Tensor keep = padded_keep();
  for (const auto& [name, options] : all_features()) {
    CAPTURE(name);
    FeatureMap map = make(options, 6, 0);
    torch::Tensor k = random_tensor({2, 2, 6, 6}, 6);
    torch::Tensor loud = k.masked_fill(keep.logical_not().unsqueeze(1).unsqueeze(-1), 50.0).requires_grad_();
    for (const bool causal : {false, true}) {
      const torch::Tensor phi = map->key(loud, keep, causal);
      CHECK(torch::equal(phi.detach(), map->key(k, keep, causal)));
      CHECK(phi.detach().masked_fill(keep.unsqueeze(1).unsqueeze(-1), 0.0).abs().max().item<float>() == 0.0f);
      const torch::Tensor gradient = torch::autograd::grad({phi.sum()}, {loud})[0];
      CHECK(gradient.isfinite().all().item<bool>());
      CHECK(gradient.masked_fill(keep.unsqueeze(1).unsqueeze(-1), 0.0).abs().max().item<float>() == 0.0f);
      const torch::Tensor none = map->key(loud, torch::zeros_like(keep), causal);
      CHECK(none.detach().abs().max().item<float>() == 0.0f);
      CHECK(torch::autograd::grad({none.sum()}, {loud})[0].isfinite().all().item<bool>());
    }
  }
}

TEST_CASE("causal features of a key are its own") {
  for (const auto& [name, options] : all_features()) {
    CAPTURE(name);
    FeatureMap map = make(options, 6, 0);
    const torch::Tensor k = random_tensor({1, 2, 6, 6}, 7);
    torch::Tensor other = k.clone();
    other.select(2, 5).mul_(4.0);
    CHECK(torch::equal(map->key(k, {}, true).narrow(2, 0, 5), map->key(other, {}, true).narrow(2, 0, 5)));
  }
}

TEST_CASE("features of long and of zero vectors stay finite") {
  for (const auto& [name, options] : all_features()) {
    CAPTURE(name);
    FeatureMap map = make(options, 8, 0);
    for (const double length : {0.0, 60.0}) {
      torch::Tensor x = (random_tensor({1, 1, 4, 8}, 8) * length).requires_grad_();
      const torch::Tensor phi = map->query(x), keys = map->key(x, {}, false);
      CHECK(phi.isfinite().all().item<bool>());
      CHECK(keys.isfinite().all().item<bool>());
      CHECK(torch::autograd::grad({phi.sum() + keys.sum()}, {x})[0].isfinite().all().item<bool>());
    }
  }
}

TEST_CASE("features of half precision are computed in float32") {
  for (const auto& [name, options] : all_features()) {
    CAPTURE(name);
    FeatureMap map = make(options, 8, 0);
    for (const auto type : {torch::kHalf, torch::kBFloat16}) {
      const torch::Tensor x = random_tensor({1, 2, 4, 8}, 9, type);
      CHECK(map->query(x).scalar_type() == torch::kFloat32);
      CHECK(torch::equal(map->query(x), map->query(x.to(torch::kFloat32))));
      CHECK(torch::equal(map->key(x, {}, false), map->key(x.to(torch::kFloat32), {}, false)));
    }
    const torch::Tensor x = random_tensor({1, 2, 4, 8}, 9);
    CHECK(map->query(x.to(feature_double)).scalar_type() == feature_double);
    const torch::Tensor wanted = map->query(x);
    at::autocast::set_autocast_enabled(at::kCPU, true);
    const torch::Tensor inside = map->query(x);
    at::autocast::set_autocast_enabled(at::kCPU, false);
    CHECK(torch::equal(inside, wanted));
  }
}

TEST_CASE("random features: orthogonal blocks and lengths of rows") {
  const torch::Tensor chi = favor_projection(20, 8, FavorScaling::chi, 11).to(feature_double);
  const torch::Tensor even = favor_projection(20, 8, FavorScaling::sqrt_d, 11).to(feature_double);
  for (const torch::Tensor& w : {chi, even}) {
    for (int64_t begin = 0; begin < 20; begin += 8) {
      const torch::Tensor block = w.slice(0, begin, std::min<int64_t>(20, begin + 8));
      const torch::Tensor gram = block.matmul(block.t());
      CHECK((gram - gram.diag().diag()).abs().max().item<double>() < 1e-5);
    }
    CHECK(w[0].dot(w[8]).abs().item<double>() > 1e-3);  // blocks are independent of each other
  }
  CHECK(max_error(even.norm(2, {1}), torch::full({20}, std::sqrt(8.0), feature_double)) < 1e-6);
  // E |g|^2 = d with variance 2d: 4,096 rows, five standard errors.
  const torch::Tensor squares = favor_projection(4096, 8, FavorScaling::chi, 12).square().sum(1);
  CHECK(squares.mean().item<double>() == Approx(8.0).margin(5 * 4.0 / 64));
  CHECK(squares.var().item<double>() == Approx(16.0).margin(3.0));
  // Directions: no column or row of the first block is preferred.
  torch::Tensor sum = torch::zeros({8, 8}, feature_double);
  for (uint64_t key = 0; key < 2000; ++key)
    sum += favor_projection(8, 8, FavorScaling::sqrt_d, 1000 + key).to(feature_double);
  CHECK((sum / 2000).abs().max().item<double>() < 5.0 / std::sqrt(2000.0));
}

TEST_CASE("random features are unbiased") {
  const torch::Tensor q = random_tensor({1, 1, 3, 4}, 13, feature_double) * 0.7;
  const torch::Tensor k = random_tensor({1, 1, 3, 4}, 14, feature_double) * 0.7;
  const torch::Tensor wanted = torch::exp(q.matmul(k.transpose(2, 3)) / 2.0);
  // chi rows: exactly the kernel in the mean. With lengths sqrt(d) it is another kernel, close for large d.
  for (const auto scaling : {FavorScaling::chi, FavorScaling::sqrt_d}) {
    FeatureMap map = make(FavorFeatures{.features = 64, .scaling = scaling, .redraw_every = 1}, 4, 0);
    torch::Tensor sum = torch::zeros_like(wanted), squares = torch::zeros_like(wanted);
    constexpr int draws = 2000;
    for (int i = 0; i < draws; ++i) {
      map->at_update(i);
      // key() without its maximum is the exact feature of queries too
      const torch::Tensor sims = map->key(q, {}, true).matmul(map->key(k, {}, true).transpose(2, 3));
      sum += sims;
      squares += sims.square();
    }
    const torch::Tensor mean = sum / draws;
    const torch::Tensor error = ((squares / draws - mean.square()) / draws).sqrt();
    const double worst = ((mean - wanted).abs() / error).max().item<double>();
    CAPTURE(worst);
    if (scaling == FavorScaling::chi) {
      CHECK(worst < 4.5);
    } else {
      CHECK(worst > 4.5);  // the test would see a bias
    }
  }
}

TEST_CASE("draws of random features") {
  const FavorFeatures options{.features = 10, .redraw_every = 100, .seed = 5};
  torch::manual_seed(1);
  const torch::Tensor before = torch::rand({1});
  torch::manual_seed(1);
  FeatureMap map = make(options, 4, 0);
  const torch::Tensor first = projection_of(map).clone();
  map->at_update(100);
  CHECK(torch::equal(torch::rand({1}), before));  // the default generator was not asked
  const torch::Tensor second = projection_of(map).clone();
  CHECK_FALSE(torch::equal(first, second));
  torch::manual_seed(2);
  FeatureMap again = make(options, 4, 0);
  CHECK(torch::equal(projection_of(again), first));
  CHECK_FALSE(torch::equal(projection_of(make(options, 4, 1)), first));
  FavorFeatures other = options;
  other.seed = 6;
  CHECK_FALSE(torch::equal(projection_of(make(other, 4, 0)), first));

  for (const int64_t update : {0, 1, 99}) {
    again->at_update(update);
    CHECK(torch::equal(projection_of(again), first));
  }
  again->at_update(199);
  CHECK(torch::equal(projection_of(again), second));
  again->at_update(1234);
  for (const int64_t update : {300, 700, 1200}) map->at_update(update);
  CHECK(torch::equal(projection_of(again), projection_of(map)));

  // A checkpoint of update 1234: the buffer comes with the file, the number of the draw from the update.
  FeatureMap loaded = make(options, 4, 0);
  set_projection(loaded, projection_of(map));
  loaded->at_update(1234);
  CHECK(torch::equal(projection_of(loaded), projection_of(map)));
  loaded->at_update(1300);
  map->at_update(1300);
  CHECK(torch::equal(projection_of(loaded), projection_of(map)));

  FavorFeatures fixed = options;
  fixed.redraw_every = 0;
  FeatureMap still = make(fixed, 4, 0);
  still->at_update(1 << 20);
  CHECK(torch::equal(projection_of(still), first));

  // The walk over a model; layers stay different.
  torch::nn::Sequential inner;
  torch::nn::Module model;
  model.register_module("a", make(options, 4, 0).ptr());
  model.register_module("inner", inner.ptr());
  inner->register_module("b", make(options, 4, 1).ptr());
  redraw_features(model, 100);
  const auto buffers = model.named_buffers();
  CHECK(torch::equal(buffers["a.projection"], second));
  FeatureMap layer = make(options, 4, 1);
  layer->at_update(100);
  CHECK(torch::equal(buffers["inner.b.projection"], projection_of(layer)));
}

TEST_CASE("a redraw between forward and backward pass leaves the gradient alone") {
  FeatureMap map = make(FavorFeatures{.features = 8, .redraw_every = 1}, 4, 0);
  torch::Tensor x = random_tensor({1, 1, 3, 4}, 15).requires_grad_();
  const torch::Tensor wanted = torch::autograd::grad({map->query(x).sum()}, {x})[0];
  const torch::Tensor out = map->query(x).sum();
  map->at_update(1);
  CHECK(torch::equal(torch::autograd::grad({out}, {x})[0], wanted));
}

TEST_CASE("reference values of performer-pytorch's features") {
  const auto oracles = require_oracles();
  if (!oracles) return;
  for (const std::string name : {"kernels_0", "kernels_1", "kernels_2"}) {
    CAPTURE(name);
    const OracleCase c(*oracles / "performer" / name);
    const torch::Tensor q = c.inputs.tensor("q"), k = c.inputs.tensor("k"), w = c.inputs.tensor("projection");
    const int64_t d = q.size(3), m = w.size(0);
    for (const bool relu : {false, true}) {
      FeatureMap map = make(FavorFeatures{.features = m,
                                          .kernel = relu ? FavorKernel::relu : FavorKernel::softmax,
                                          .epsilon = relu ? 1e-3 : 1e-4},
                            d, 0);
      set_projection(map, w);
      const std::string kernel = relu ? "relu" : "softmax";
      CHECK(max_error(map->query(q), c.expected.tensor(kernel + ".phi_q")) < c.tolerance());
      CHECK(max_error(map->key(k, {}, false), c.expected.tensor(kernel + ".phi_k")) < c.tolerance());
    }
    // The stored matrices have our structure: blocks of d orthogonal rows, lengths sqrt(d) with scaling 1.
    const torch::Tensor even = c.inputs.tensor("projection_scaling_1");
    CHECK(max_error(even.norm(2, {1}), favor_projection(m, d, FavorScaling::sqrt_d, 1).norm(2, {1})) < 1e-5);
  }
}
