#include "roformer/torch.h"

#include "roformer/train/optimizer.h"

#include <cmath>

#include "tests/catch.h"

using namespace roformer;

namespace {

struct OptimizerProbeImpl : torch::nn::Module {
  OptimizerProbeImpl() {
    torch::manual_seed(3);
    matrix = register_parameter("matrix", torch::randn({4, 5}));
    bias = register_parameter("bias", torch::randn({5}));
    idle = register_parameter("idle", torch::randn({2, 2}));
  }
  torch::Tensor matrix, bias, idle;
};
TORCH_MODULE(OptimizerProbe);

/// The paper's update in float64, one element at a time.
struct ScalarAdam {
  double w, m = 0, v = 0;
  int n = 0;
  void step(double g, double lr, double decay, bool decoupled) {
    const double b1 = 0.9, b2 = 0.999, eps = 1e-8;
    ++n;
    if (decoupled) w -= lr * decay * w;
    if (!decoupled) g += decay * w;
    m = b1 * m + (1 - b1) * g;
    v = b2 * v + (1 - b2) * g * g;
    w -= lr * (m / (1 - std::pow(b1, n))) / (std::sqrt(v / (1 - std::pow(b2, n))) + eps);
  }
};

void check_against_formula(const OptimizerOptions& options, bool decoupled, double decay) {
  OptimizerProbe probe;
  std::vector<ScalarAdam> matrix, bias;
  for (int64_t i = 0; i < 20; ++i) matrix.push_back({probe->matrix.view(-1)[i].item<float>()});
  for (int64_t i = 0; i < 5; ++i) bias.push_back({probe->bias[i].item<float>()});
  const torch::Tensor idle = probe->idle.detach().clone();
  Optimizer optimizer(options, *probe);
  for (int n = 1; n <= 50; ++n) {
    optimizer.zero_grad();
    probe->matrix.mutable_grad() = torch::randn({4, 5}) * 3;
    probe->bias.mutable_grad() = torch::randn({5}) * 3;
    const double lr = 0.01 / n, divisor = n % 2 ? 1.0 : 4.0;
    for (int64_t i = 0; i < 20; ++i) {
      matrix[i].step(probe->matrix.grad().reshape(-1)[i].item<float>() / divisor, lr, decay, decoupled);
    }
    for (int64_t i = 0; i < 5; ++i) bias[i].step(probe->bias.grad()[i].item<float>() / divisor, lr, 0.0, decoupled);
    optimizer.step(lr, divisor);
  }
  // 50 steps in float32: a few units in the last place each.
  for (int64_t i = 0; i < 20; ++i) CHECK(probe->matrix.view(-1)[i].item<float>() == Approx(matrix[i].w).margin(2e-6));
  for (int64_t i = 0; i < 5; ++i) CHECK(probe->bias[i].item<float>() == Approx(bias[i].w).margin(2e-6));
  CHECK(torch::equal(probe->idle, idle));  // no gradient: not even decayed
}

}  // namespace

TEST_CASE("AdamW equals its formula; biases are not decayed") {
  AdamWOptions options;
  options.weight_decay = 0.3;
  check_against_formula(options, true, 0.3);
}

TEST_CASE("Adam equals its formula") {
  AdamOptions options;
  options.weight_decay = 0.2;
  check_against_formula(options, false, 0.2);
}

TEST_CASE("a gradient with other strides is used in the right order") {
  torch::manual_seed(5);
  const torch::Tensor gradient = torch::randn({4, 5});
  OptimizerProbe plain, strided;
  for (OptimizerProbe* probe : {&plain, &strided}) {
    Optimizer optimizer(AdamWOptions{}, **probe);
    // The same values, laid out column by column.
    (*probe)->matrix.mutable_grad() = probe == &plain ? gradient.clone() : gradient.t().contiguous().t();
    optimizer.step(0.1);
  }
  CHECK_FALSE(strided->matrix.grad().is_contiguous());
  CHECK(torch::equal(plain->matrix, strided->matrix));
}

TEST_CASE("grad_norm is the L2 norm over all gradients") {
  OptimizerProbe probe;
  Optimizer optimizer(AdamWOptions{}, *probe);
  probe->matrix.mutable_grad() = torch::full({4, 5}, 2.0);
  probe->bias.mutable_grad() = torch::full({5}, 1.0);
  CHECK(optimizer.grad_norm().item<float>() == Approx(std::sqrt(20 * 4.0 + 5.0)));
  optimizer.zero_grad();
  CHECK_FALSE(probe->matrix.grad().defined());
  CHECK(optimizer.grad_norm().item<float>() == 0.0f);
}

TEST_CASE("optimizer state comes back bit for bit; another shape is refused") {
  OptimizerProbe first, second;
  Optimizer a(AdamWOptions{}, *first), b(AdamWOptions{}, *second);
  auto step = [](OptimizerProbe& probe, Optimizer& optimizer, double value) {
    probe->matrix.mutable_grad() = torch::full({4, 5}, value);
    probe->bias.mutable_grad() = torch::full({5}, -value);
    optimizer.step(0.01);
  };
  step(first, a, 0.7);
  {
    const torch::NoGradGuard no_grad;
    second->matrix.copy_(first->matrix);
    second->bias.copy_(first->bias);
  }
  std::map<std::string, torch::Tensor> stored;
  for (const auto& [name, tensor] : a.state()) stored[name] = tensor.clone();
  b.load_state([&](const std::string& name) { return stored.at(name); });
  step(first, a, -0.2);
  step(second, b, -0.2);
  CHECK(torch::equal(first->matrix, second->matrix));
  CHECK(torch::equal(first->bias, second->bias));
  CHECK_THROWS_AS(b.load_state([](const std::string&) { return torch::zeros({7}); }), Error);
}
