#include "roformer/nn/layers.h"

#include "tests/tensors.h"

using namespace roformer;
using roformer::test::max_error;
using roformer::test::random_tensor;

namespace {

using formula::Matrix;
using formula::Row;

double layer_relu(double x) { return x > 0 ? x : 0.0; }

/// Parameters of a module as rows.
struct LayerWeights {
  const torch::nn::Module& module;
  Matrix matrix(const std::string& name) const { return test::matrix_of(module.named_parameters()[name]); }
  Row row(const std::string& name) const {
    return test::matrix_of(module.named_parameters()[name].unsqueeze(0))[0];
  }
  Matrix linear(const Matrix& x, const std::string& name) const {
    return formula::linear(x, matrix(name + ".weight"), row(name + ".bias"));
  }
  Matrix norm(const Matrix& x, const std::string& name, double eps) const {
    return formula::layer_norm(x, row(name + ".weight"), row(name + ".bias"), eps);
  }
};

Matrix layer_columns(const Matrix& x, size_t from, size_t to) {
  Matrix out;
  for (const Row& row : x)
    out.emplace_back(row.begin() + static_cast<long>(from), row.begin() + static_cast<long>(to));
  return out;
}

/// One sequence through a block without positions: every head by eq. 2, then the feed-forward network.
Matrix layer_loops(const Layer& layer, const LayerOptions& o, const Matrix& x) {
  const LayerWeights w{*layer};
  auto attend = [&](const Matrix& in) {
    const Matrix q = w.linear(in, "attention.query"), k = w.linear(in, "attention.key"),
                 v = w.linear(in, "attention.value");
    const size_t d = static_cast<size_t>(o.attention.dim / o.attention.heads);
    Matrix joined(in.size());
    for (size_t h = 0; h < static_cast<size_t>(o.attention.heads); ++h) {
      const Matrix scores = formula::scores(layer_columns(q, h * d, h * d + d),
                                            layer_columns(k, h * d, h * d + d), 1.0 / std::sqrt(d));
      const Matrix mixed = formula::attention(scores, layer_columns(v, h * d, h * d + d));
      for (size_t i = 0; i < in.size(); ++i)
        joined[i].insert(joined[i].end(), mixed[i].begin(), mixed[i].end());
    }
    return w.linear(joined, "attention.output");
  };
  auto feed = [&](const Matrix& in) {
    Matrix h = w.linear(in, "ffn.up");
    for (Row& row : h)
      for (double& value : row) {
        value = o.ffn.activation == Activation::gelu        ? formula::gelu(value)
                : o.ffn.activation == Activation::gelu_tanh ? formula::gelu_tanh(value)
                                                            : layer_relu(value);
      }
    return w.linear(h, "ffn.down");
  };
  if (o.norm == NormPlacement::post) {
    const Matrix h = w.norm(formula::sum(x, attend(x)), "attention_norm", o.norm_eps);
    return w.norm(formula::sum(h, feed(h)), "ffn_norm", o.norm_eps);
  }
  const Matrix h = formula::sum(x, attend(w.norm(x, "attention_norm", o.norm_eps)));
  return formula::sum(h, feed(w.norm(h, "ffn_norm", o.norm_eps)));
}

LayerOptions layer_options() {
  LayerOptions o;
  o.attention = {.dim = 8, .heads = 2};
  o.ffn = {.dim = 8, .hidden = 12};
  o.dropout = 0.0;
  return o;
}

}  // namespace

TEST_CASE("layers: activations") {
  const torch::Tensor x = torch::linspace(-6, 6, 241, torch::kFloat64);
  for (int64_t i = 0; i < x.numel(); ++i) {
    const double at = x[i].item<double>();
    REQUIRE(activate(Activation::gelu, x)[i].item<double>() == Approx(formula::gelu(at)).margin(1e-14));
    REQUIRE(activate(Activation::gelu_tanh, x)[i].item<double>() ==
            Approx(formula::gelu_tanh(at)).margin(1e-14));
    REQUIRE(activate(Activation::relu, x)[i].item<double>() == layer_relu(at));
  }
}

TEST_CASE("layers: a block is its formula in double loops") {
  for (const Activation activation : {Activation::gelu, Activation::gelu_tanh, Activation::relu}) {
    for (const NormPlacement norm : {NormPlacement::post, NormPlacement::pre}) {
      LayerOptions o = layer_options();
      o.ffn.activation = activation;
      o.norm = norm;
      o.norm_eps = 0.03;  // large enough to show
      Layer layer(o);
      layer->to(torch::kFloat64);
      uint64_t seed = 0;
      torch::NoGradGuard no_grad;
      for (torch::Tensor p : layer->parameters()) p.copy_(random_tensor(p.sizes(), ++seed, torch::kFloat64));
      PositionEncoding none = make(NoneOptions{}, ModelShape{8, 2, 4, 1});
      const Positions positions = Positions::range(5, torch::kCPU);
      const torch::Tensor x = random_tensor({2, 5, 8}, 99, torch::kFloat64);
      const torch::Tensor out = layer(x, none, AttentionContext{positions, {}});
      for (int64_t b = 0; b < 2; ++b) {
        REQUIRE(max_error(out[b], test::tensor_of(layer_loops(layer, o, test::matrix_of(x[b])))) < 1e-12);
      }
    }
  }
}

TEST_CASE("layers: a block without positions does not see order") {
  Layer layer(layer_options());
  layer->to(torch::kFloat64);
  const Positions positions = Positions::range(6, torch::kCPU);
  const torch::Tensor x = random_tensor({1, 6, 8}, 1, torch::kFloat64),
                      order = torch::tensor({3, 1, 5, 0, 2, 4});
  const AttentionContext context{positions, {}};
  PositionEncoding none = make(NoneOptions{}, ModelShape{8, 2, 4, 1});
  REQUIRE(max_error(layer(x.index_select(1, order), none, context),
                    layer(x, none, context).index_select(1, order)) < 1e-13);
  PositionEncoding rotary = make(RotaryOptions{}, ModelShape{8, 2, 4, 1});
  REQUIRE(max_error(layer(x.index_select(1, order), rotary, context),
                    layer(x, rotary, context).index_select(1, order)) > 1e-3);
}

TEST_CASE("layers: dropout acts in training alone, in each of its places, and repeats with the seed") {
  PositionEncoding none = make(NoneOptions{}, ModelShape{8, 2, 4, 1});
  const Positions positions = Positions::range(6, torch::kCPU);
  const AttentionContext context{positions, {}};
  const torch::Tensor x = random_tensor({2, 6, 8}, 1);
  for (const bool on_weights : {false, true}) {
    LayerOptions o = layer_options();
    (on_weights ? o.attention.dropout : o.dropout) = 0.3;
    Layer layer(o);
    torch::manual_seed(4);
    const torch::Tensor first = layer(x, none, context), second = layer(x, none, context);
    REQUIRE(max_error(first, second) > 1e-3);
    torch::manual_seed(4);
    REQUIRE(torch::equal(layer(x, none, context), first));
    layer->eval();
    REQUIRE(torch::equal(layer(x, none, context), layer(x, none, context)));
  }
}

TEST_CASE("layers: initial weights") {
  LayerOptions o;
  o.attention = {.dim = 256, .heads = 4};
  o.ffn = {.dim = 256, .hidden = 512};
  Layer layer(o);
  torch::manual_seed(3);
  initialise(*layer, 0.02);
  std::vector<torch::Tensor> first;
  for (const auto& p : layer->named_parameters()) {
    INFO(p.key());
    const torch::Tensor value = p.value().detach();
    first.push_back(value.clone());
    if (value.dim() == 2) {  // 65,536 normal numbers or more: mean within 5 sigma, deviation within 2 %
      REQUIRE(std::abs(value.mean().item<double>()) < 5 * 0.02 / 256);
      REQUIRE(value.std().item<double>() == Approx(0.02).epsilon(0.02));
    } else if (p.key().find("norm.weight") != std::string::npos) {
      REQUIRE(torch::equal(value, torch::ones_like(value)));
    } else {
      REQUIRE(torch::equal(value, torch::zeros_like(value)));
    }
  }
  torch::manual_seed(3);
  initialise(*layer, 0.02);
  for (size_t i = 0; i < first.size(); ++i) REQUIRE(torch::equal(first[i], layer->parameters()[i]));
}
