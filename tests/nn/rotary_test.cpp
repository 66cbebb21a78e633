#include "roformer/nn/rotary.h"

#include <ATen/Parallel.h>

#include <functional>

#include "tests/tensors.h"

using namespace roformer;
using namespace roformer::test;
using torch::kFloat32;
using torch::kFloat64;

namespace {

constexpr ModelShape rotary_shape{.dim = 24, .heads = 3, .head_dim = 8, .layers = 1};
const RotaryLayout both_layouts[] = {RotaryLayout::interleaved, RotaryLayout::halves};

PositionEncoding rotary(const RotaryOptions& options = {}, int64_t head_dim = 8) {
  return make(options, {.dim = 3 * head_dim, .heads = 3, .head_dim = head_dim, .layers = 1});
}

/// [1, L, dim / 2, 2], float32 as the encoding keeps it.
torch::Tensor rotary_table(int64_t length, int64_t dim, int64_t start = 0, torch::Dtype dtype = kFloat32) {
  const torch::Tensor angles = rotary_angles(start + length, dim).narrow(0, start, length);
  return torch::stack({angles.cos(), angles.sin()}, -1).unsqueeze(0).to(dtype);
}

/// The formula for every token of x [B, H, L, d] at ids [B or 1, L].
torch::Tensor rotated_by_formula(const torch::Tensor& x, const torch::Tensor& ids,
                                 const RotaryOptions& options) {
  torch::Tensor out = torch::empty(x.sizes(), kFloat64);
  for (int64_t b = 0; b < x.size(0); ++b) {
    const torch::Tensor places = ids[ids.size(0) == 1 ? 0 : b];
    for (int64_t h = 0; h < x.size(1); ++h) {
      formula::Matrix rows = matrix_of(x[b][h]);
      for (size_t l = 0; l < rows.size(); ++l) {
        const auto place = static_cast<double>(places[static_cast<int64_t>(l)].item<int64_t>());
        const auto dim = static_cast<size_t>(options.dim);
        rows[l] = options.layout == RotaryLayout::halves
                      ? formula::rotate_halves(rows[l], place, options.base, dim)
                      : formula::rotate(rows[l], place, options.base, dim);
      }
      out[b][h].copy_(tensor_of(rows));
    }
  }
  return out;
}

// A float32 product of entries below 5 with a float32 table: three roundings of values below 8.
constexpr double float_noise = 3 * 8 * 0x1p-24;

}  // namespace

TEST_CASE("the formulas agree among themselves") {
  const formula::Row q{0.3, -1.2, 0.7, 2.0, -0.4, 0.9}, k{1.1, 0.2, -0.6, 0.8, 1.5, -1.0};
  for (double m : {0.0, 1.0, 7.0, 300.0}) {
    const formula::Row a = formula::rotate(q, m), b = formula::rotate_fast(q, m);
    for (size_t i = 0; i < q.size(); ++i) CHECK(a[i] == Approx(b[i]).margin(1e-14));
    CHECK(formula::dot(a, formula::rotate(k, m + 3)) ==
          Approx(formula::rope_score(q, k, m, m + 3)).margin(1e-12));
  }
}

TEST_CASE("known values of both layouts") {
  const torch::Tensor x = torch::tensor({1.0f, 2.0f, 3.0f, 4.0f}).view({1, 1, 1, 4});
  const torch::Tensor pairs = torch::tensor({-1.142640, 1.922076, 2.959851, 4.029800}, kFloat64).view_as(x);
  const torch::Tensor halves = torch::tensor({-1.984111, 1.959901, 2.462378, 4.019800}, kFloat64).view_as(x);
  const torch::Tensor table = rotary_table(1, 4, 1);
  for (const auto& apply : {apply_rotary, apply_rotary_plain}) {
    CHECK(max_error(apply(x, table, RotaryLayout::interleaved), pairs) < 1e-6);
    CHECK(max_error(apply(x, table, RotaryLayout::halves), halves) < 1e-6);
  }
}

TEST_CASE("every option against the formula") {
  const auto layout = GENERATE(RotaryLayout::interleaved, RotaryLayout::halves);
  const int64_t dim = GENERATE(0, 2, 6, 8);
  const double base = GENERATE(10000.0, 16.0);
  const auto dtype = GENERATE(torch::kFloat32, torch::kFloat64);
  const bool trainable = GENERATE(false, true);
  const RotaryOptions options{.layout = layout, .base = base, .dim = dim, .trainable = trainable};
  PositionEncoding encoding = rotary(options);
  if (dtype == kFloat64 && trainable) encoding->to(kFloat64);
  const torch::Tensor x = random_tensor({2, 3, 5, 8}, 1, dtype).clamp(-5, 5);
  // Learned theta is kept in float32: an error of 2^-25 relative, times the angle.
  const double tolerance = dtype == kFloat32 || trainable ? float_noise + (trainable ? 5e-6 : 0.0) : 1e-13;

  const Positions range = Positions::range(5, torch::kCPU, 4);
  CHECK(max_error(encoding->rotate(x, Side::query, range), rotated_by_formula(x, range.q, options)) <
        tolerance);
  CHECK(max_error(encoding->rotate(x, Side::key, range), rotated_by_formula(x, range.k, options)) <
        tolerance);
  CHECK(encoding->rotate(x, Side::value, range).is_same(x));

  const Positions ids = Positions::of(torch::tensor({{0, 3, 1, 1, 9}, {12, 0, 5, 4, 2}}), 13);
  CHECK(max_error(encoding->rotate(x, Side::query, ids), rotated_by_formula(x, ids.q, options)) < tolerance);
  const Positions shared = Positions::of(torch::tensor({{7, 3, 1, 1, 9}}), 10);
  CHECK(max_error(encoding->rotate(x, Side::key, shared), rotated_by_formula(x, shared.k, options)) <
        tolerance);

  const Positions tail = Positions::tail(2, 5, torch::kCPU);
  const torch::Tensor q = x.narrow(2, 3, 2);
  CHECK(max_error(encoding->rotate(q, Side::query, tail), rotated_by_formula(q, tail.q, options)) <
        tolerance);
  CHECK(max_error(encoding->rotate(x, Side::key, tail), rotated_by_formula(x, tail.k, options)) < tolerance);
}

TEST_CASE("the fused loop equals the plain product, forward and backward") {
  const auto layout = GENERATE(RotaryLayout::interleaved, RotaryLayout::halves);
  const int64_t dim = GENERATE(2, 10, 30, 64);
  const int64_t length = GENERATE(1, 7, 300);
  const bool per_batch = GENERATE(false, true);
  torch::Tensor table = rotary_table(2 * length, dim, 900);
  table = per_batch ? table.view({2, length, dim / 2, 2}) : table.narrow(1, 0, length);
  const std::vector<torch::Tensor> inputs{
      random_tensor({2, 3, length, 64}, 2),                  // as it is stored
      random_tensor({2, length, 3, 64}, 3).transpose(1, 2),  // a projection
      random_tensor({2, length, 3, 3 * 64}, 4)
          .narrow(-1, 64, 64)
          .transpose(1, 2),                                             // part of a joint projection
      random_tensor({64, 2, 3, length}, 5).permute({1, 2, 3, 0}),       // columns apart
      random_tensor({2, 1, length, 64}, 6).expand({2, 3, length, 64}),  // shared by the heads
  };
  for (size_t i = 0; i < inputs.size(); ++i) {
    CAPTURE(i);
    torch::Tensor a = inputs[i].detach().requires_grad_(), b = inputs[i].detach().requires_grad_();
    const torch::Tensor fused = apply_rotary(a, table, layout), plain = apply_rotary_plain(b, table, layout);
    CHECK(fused.is_contiguous());
    CHECK(max_error(fused, plain) <= float_noise);
    const torch::Tensor weight = random_tensor({2, length, 3, 64}, 7).transpose(1, 2);
    (fused * weight).sum().backward();
    (plain * weight).sum().backward();
    CHECK(max_error(a.grad(), b.grad()) <= float_noise);
  }
  torch::Tensor projected = inputs[1].detach().requires_grad_();
  const torch::Tensor grad = torch::autograd::grad({apply_rotary(projected, table, layout)}, {projected},
                                                   {inputs[0]}, true, false)[0];
  CHECK(grad.strides() == projected.strides());  // so that the projection's backward pass copies nothing
}

TEST_CASE("the fused loop gives the same bits for any number of threads") {
  const torch::Tensor x = random_tensor({3, 500, 4, 64}, 8).transpose(1, 2);
  const torch::Tensor table = rotary_table(500, 64);
  const int before = at::get_num_threads();
  at::set_num_threads(1);
  const torch::Tensor one = apply_rotary(x, table, RotaryLayout::interleaved);
  for (int threads : {2, 3}) {
    at::set_num_threads(threads);
    CHECK(torch::equal(one, apply_rotary(x, table, RotaryLayout::interleaved)));
  }
  at::set_num_threads(before);
}

TEST_CASE("gradients against finite differences") {
  const auto layout = GENERATE(RotaryLayout::interleaved, RotaryLayout::halves);
  PositionEncoding encoding = rotary({.layout = layout, .dim = 6, .trainable = true});
  encoding->to(kFloat64);
  torch::Tensor theta = encoding->named_parameters()["theta"];
  torch::Tensor x = random_tensor({1, 2, 4, 8}, 9, kFloat64).requires_grad_();
  const torch::Tensor weight = random_tensor({1, 2, 4, 8}, 10, kFloat64);
  const Positions positions = Positions::range(4, torch::kCPU, 2);
  auto loss = [&] { return (encoding->rotate(x, Side::query, positions) * weight).pow(2).sum(); };
  loss().backward();
  for (torch::Tensor parameter : {x, theta}) {
    const torch::Tensor grad = parameter.grad().flatten();
    torch::Tensor flat = parameter.data().view(-1);
    for (int64_t i = 0; i < flat.numel(); ++i) {
      const double h = 1e-6, at = flat[i].item<double>();
      flat[i] = at + h;
      const double above = loss().item<double>();
      flat[i] = at - h;
      const double below = loss().item<double>();
      flat[i] = at;
      CHECK(grad[i].item<double>() == Approx((above - below) / (2 * h)).margin(1e-6));
    }
  }
}

TEST_CASE("the fused loop can be differentiated twice") {
  const torch::Tensor table = rotary_table(5, 8);
  auto second = [&](auto apply) {
    torch::Tensor x = random_tensor({2, 3, 5, 8}, 11).requires_grad_();
    const torch::Tensor y = apply(x, table, RotaryLayout::interleaved);
    const torch::Tensor first =
        torch::autograd::grad({y.pow(3).sum()}, {x}, {}, /*retain_graph=*/true, /*create_graph=*/true)[0];
    return torch::autograd::grad({first.pow(2).sum()}, {x})[0];
  };
  const torch::Tensor fused = second(apply_rotary);
  CHECK(fused.abs().max().item<double>() > 1.0);
  CHECK(max_error(fused, second(apply_rotary_plain)) < 1e-5 * fused.abs().max().item<double>());
}

TEST_CASE("a rotation keeps norms, and its inverse is the rotation by -m") {
  const auto layout = GENERATE(RotaryLayout::interleaved, RotaryLayout::halves);
  const torch::Tensor x = random_tensor({2, 3, 50, 64}, 12), table = rotary_table(50, 64, 3000);
  const torch::Tensor back = table * torch::tensor({1.0f, -1.0f});
  const torch::Tensor y = apply_rotary(x, table, layout);
  CHECK(max_error(y, x) > 1.0);
  CHECK(max_error(y.norm(2, -1), x.norm(2, -1)) < 1e-5);
  CHECK(max_error(apply_rotary(y, back, layout), x) < 2 * float_noise);
  // The backward pass of R is R^T, which is the inverse too.
  torch::Tensor z = x.clone().requires_grad_();
  const torch::Tensor grad = torch::autograd::grad({apply_rotary(z, table, layout)}, {z}, {x})[0];
  CHECK(max_error(grad, apply_rotary(x, back, layout)) < float_noise);
}

// --- Shift invariance
// ----------------------------------------------------------------------------------------------

namespace {

struct ShiftCase {
  torch::Tensor x = random_tensor({2, 6, 24}, 13, kFloat64);
  torch::Tensor wq = random_tensor({24, 24}, 14, kFloat64) / 5,
                wk = random_tensor({24, 24}, 15, kFloat64) / 5;

  static torch::Tensor heads(const torch::Tensor& y) { return y.unflatten(-1, {3, 8}).transpose(1, 2); }
};

using Scorer = std::function<torch::Tensor(const ShiftCase&, const Positions&)>;  // [B, heads, L, L]

/// By how much scores change when all positions move by `shift`: nothing, for a relative encoding (eq. 11).
double shift_error(const Scorer& scores, int64_t shift) {
  const ShiftCase c;
  return max_error(scores(c, Positions::range(6, torch::kCPU)),
                   scores(c, Positions::range(6, torch::kCPU, shift)));
}

}  // namespace

TEST_CASE("scores depend on distances alone, and rotating the layer's input instead is caught") {
  const auto layout = GENERATE(RotaryLayout::interleaved, RotaryLayout::halves);
  const int64_t dim = GENERATE(0, 4);
  const bool trainable = GENERATE(false, true);
  PositionEncoding encoding = rotary({.layout = layout, .dim = dim, .trainable = trainable});
  encoding->to(kFloat64);
  const Scorer right = [&](const ShiftCase& c, const Positions& p) {
    const torch::Tensor q = encoding->rotate(c.heads(c.x.matmul(c.wq)), Side::query, p);
    const torch::Tensor k = encoding->rotate(c.heads(c.x.matmul(c.wk)), Side::key, p);
    return q.matmul(k.transpose(-1, -2));
  };
  const Scorer wrong = [&](const ShiftCase& c, const Positions& p) {
    const torch::Tensor turned = encoding->rotate(c.heads(c.x), Side::query, p).transpose(1, 2).flatten(-2);
    return c.heads(turned.matmul(c.wq)).matmul(c.heads(turned.matmul(c.wk)).transpose(-1, -2));
  };
  for (int64_t shift : {1, 17, 3000}) {
    CAPTURE(shift);
    CHECK(shift_error(right, shift) < 1e-11);
    CHECK(shift_error(wrong, shift) > 0.1);
  }
}

TEST_CASE("score(m, n) is q R_(n-m) k of eq. 16") {
  PositionEncoding encoding = rotary();
  const torch::Tensor q = random_tensor({1, 1, 1, 8}, 16, kFloat64),
                      k = random_tensor({1, 1, 1, 8}, 17, kFloat64);
  auto at = [&](const torch::Tensor& x, int64_t m) {
    return encoding->rotate(x, Side::query, Positions::range(1, torch::kCPU, m));
  };
  for (const auto& [m, n] :
       std::vector<std::pair<int64_t, int64_t>>{{0, 0}, {3, 8}, {8, 3}, {511, 2}, {0, 4000}}) {
    const double expected = formula::rope_score(matrix_of(q[0][0])[0], matrix_of(k[0][0])[0],
                                                static_cast<double>(m), static_cast<double>(n));
    CHECK((at(q, m) * at(k, n)).sum().item<double>() == Approx(expected).margin(1e-11));
    CHECK((at(q, m + 70) * at(k, n + 70)).sum().item<double>() == Approx(expected).margin(1e-11));
  }
}

// --- The encoding as a module
// --------------------------------------------------------------------------------------

TEST_CASE("angles stay exact whatever the module is cast to") {
  CHECK(rotary_angles(1858, 32)[1857][1].item<double>() == Approx(1044.2678).margin(5e-5));
  const Positions far = Positions::range(1, torch::kCPU, 1857);
  const torch::Tensor x = random_tensor({1, 1, 1, 32}, 18);
  const torch::Tensor expected = rotated_by_formula(x, far.q, {});
  for (const auto dtype : {torch::kBFloat16, torch::kFloat16, torch::kFloat64, torch::kFloat32}) {
    CAPTURE(dtype);
    PositionEncoding encoding = rotary({}, 32);
    if (GENERATE(false, true)) encoding->rotate(x, Side::query, far);  // the table may exist before the cast
    encoding->to(dtype);
    CHECK(max_error(encoding->rotate(x, Side::query, far), expected) < float_noise);
  }
}

TEST_CASE("half precision rotates in float32 and rounds once, also beyond position 2048") {
  const auto dtype = GENERATE(torch::kBFloat16, torch::kFloat16);
  const bool trainable = GENERATE(false, true);
  // Positions that bfloat16 (257 reads 256, 5001 reads 4992) or float16 (2049 reads 2048) cannot hold.
  const Positions ids = Positions::of(torch::tensor({{257, 2049, 5001, 30001}}), 30002);
  PositionEncoding encoding = rotary({.trainable = trainable}, 64);
  encoding->to(dtype);
  const torch::Tensor x = random_tensor({1, 2, 4, 64}, 19, dtype);
  const torch::Tensor y = encoding->rotate(x, Side::query, ids);
  CHECK(y.scalar_type() == dtype);
  const torch::Tensor exact = rotated_by_formula(x, ids.q, {});
  const double half_ulp = dtype == torch::kBFloat16 ? 0x1p-8 : 0x1p-11;
  // A learned theta has the error of float32 times the position.
  const double angle_error = trainable ? 30001 * 0x1p-24 : 0.0;
  CAPTURE(dtype, trainable);
  const torch::Tensor excess = (y.to(kFloat64) - exact).abs() - exact.abs() * half_ulp;
  CHECK(excess.max().item<double>() < 5 * angle_error + 1e-5);
}

TEST_CASE("a fixed rotation holds no parameters or buffers, a learned theta one that no cast rounds") {
  PositionEncoding fixed = rotary();
  fixed->rotate(torch::zeros({1, 1, 3, 8}), Side::query, Positions::range(3, torch::kCPU));
  CHECK(fixed->parameters().empty());
  CHECK(fixed->buffers().empty());

  PositionEncoding learned = rotary({.base = 100.0, .trainable = true});
  auto parameters = learned->named_parameters();
  REQUIRE(parameters.keys() == std::vector<std::string>{"theta"});
  const torch::Tensor theta = parameters["theta"];
  CHECK(max_error(theta, torch::tensor({1.0, 0.31622776601683794, 0.1, 0.031622776601683794}, kFloat64)) <
        2e-8);
  torch::nn::Module parent;
  parent.register_module("positions", learned);
  for (const auto dtype : {torch::kBFloat16, torch::kFloat16}) {
    parent.to(dtype);
    CHECK(theta.scalar_type() == kFloat32);
    parent.to(torch::Device(torch::kCPU), dtype);
    CHECK(theta.scalar_type() == kFloat32);
  }
  parent.to(kFloat64);
  CHECK(theta.scalar_type() == kFloat64);
}

TEST_CASE("two training steps go through one cached table") {
  const bool trainable = GENERATE(false, true);
  PositionEncoding encoding = rotary({.trainable = trainable});
  const Positions positions = Positions::range(6, torch::kCPU);
  {
    // First used in evaluation: the table made there must not be an inference tensor.
    const torch::InferenceMode inference;
    encoding->rotate(torch::ones({2, 3, 6, 8}), Side::query, positions);
  }
  torch::Tensor w = random_tensor({8, 8}, 20).requires_grad_();
  std::vector<torch::Tensor> parameters{w};
  for (const torch::Tensor& p : encoding->parameters()) parameters.push_back(p);
  torch::optim::SGD optimizer(parameters, 0.01);
  const torch::Tensor x = random_tensor({2, 3, 6, 8}, 21), before = w.detach().clone();
  const torch::Tensor theta_before = trainable ? parameters[1].detach().clone() : torch::Tensor();
  double last = 1e9;
  for (int step = 0; step < 3; ++step) {
    optimizer.zero_grad();
    const torch::Tensor q = encoding->rotate(x.matmul(w), Side::query, positions);
    const torch::Tensor k = encoding->rotate(x, Side::key, positions);
    const torch::Tensor loss = (q.matmul(k.transpose(-1, -2)) / 8 - 1).pow(2).mean();
    loss.backward();
    optimizer.step();
    CHECK(loss.item<double>() < last);
    last = loss.item<double>();
  }
  CHECK(max_error(w, before) > 1e-4);
  if (trainable) CHECK((parameters[1] - theta_before).abs().min().item<double>() > 0);
}

TEST_CASE("the table grows, and graphs made before stay valid") {
  PositionEncoding encoding = rotary();
  torch::Tensor x = random_tensor({1, 3, 4, 8}, 22).requires_grad_();
  const torch::Tensor early = encoding->rotate(x, Side::query, Positions::range(4, torch::kCPU));
  for (int64_t start : {252, 253, 509, 1021, 70000}) {
    const Positions positions = Positions::range(4, torch::kCPU, start);
    const torch::Tensor y = encoding->rotate(x, Side::query, positions);
    CHECK(max_error(y, rotated_by_formula(x, positions.q, {})) < float_noise);
  }
  const torch::Tensor back = torch::autograd::grad({early}, {x}, {early})[0];
  CHECK(max_error(back, x) < 2 * float_noise);
}

TEST_CASE("values turn only when asked") {
  // Uniform attention over values gives their plain mean by default.
  const torch::Tensor v = random_tensor({1, 3, 5, 8}, 23);
  const Positions positions = Positions::range(5, torch::kCPU);
  CHECK(torch::equal(rotary()->rotate(v, Side::value, positions).mean(2), v.mean(2)));
  PositionEncoding turning = rotary({.values = true});
  CHECK(torch::equal(turning->rotate(v, Side::value, positions), turning->rotate(v, Side::key, positions)));
}

TEST_CASE("mistakes in the options are named") {
  auto message = [](const RotaryOptions& options, const ModelShape& shape) -> std::string {
    try {
      validate(options, shape);
    } catch (const Error& error) {
      CHECK_THROWS_AS(make(options, shape), Error);
      return error.what();
    }
    return "";
  };
  CHECK(message({}, rotary_shape).empty());
  CHECK(message({.dim = 8}, rotary_shape).empty());
  CHECK(message({.dim = 2}, {.dim = 9, .heads = 3, .head_dim = 3}).empty());
  CHECK(message({.dim = 3}, rotary_shape) ==
        "positions: rotary 'dim' must be even because columns turn in pairs, got 3");
  CHECK(message({.dim = 10}, rotary_shape) ==
        "positions: rotary 'dim' is 10, but a head has 8 columns only; 0 turns all");
  CHECK(message({}, {.dim = 9, .heads = 3, .head_dim = 3})
            .find("even head width, got 3 (dim 9 over 3 heads)") != std::string::npos);
  // Contracts of the function.
  const torch::Tensor x = torch::zeros({2, 3, 4, 8});
  CHECK_THROWS_AS(apply_rotary(x, rotary_table(5, 8), RotaryLayout::halves), c10::Error);
  CHECK_THROWS_AS(apply_rotary(x, rotary_table(4, 10), RotaryLayout::halves), c10::Error);
  CHECK_THROWS_AS(apply_rotary(x[0], rotary_table(4, 8), RotaryLayout::halves), c10::Error);
}

TEST_CASE("an id beyond the declared length is refused, not read from other memory") {
  const Positions ids = Positions::of(torch::tensor({{0, 1, 5000}}), 3);
  CHECK_THROWS_AS(rotary()->rotate(torch::zeros({1, 3, 3, 8}), Side::query, ids), c10::Error);
}

// --- Other implementations
// -----------------------------------------------------------------------------------------

TEST_CASE("reference values of rotary implementations") {
  const auto oracles = require_oracles();
  if (!oracles) return;
  for (const std::string name :
       {"rope_interleaved", "rope_interleaved_long", "rope_interleaved_offset", "rope_half",
        "rope_half_base_500000", "rope_half_long", "rope_half_offset"}) {
    CAPTURE(name);
    const OracleCase c(*oracles / "encodings" / name);
    // That implementation forms its angles in float32, which costs up to 1e-4 at position 510.
    const double tolerance = name == "rope_half_long" ? 1e-4 : c.tolerance();
    RotaryOptions options{.base = c.facts.value("base", 10000.0), .values = true};
    if (name.find("half") != std::string::npos) options.layout = RotaryLayout::halves;
    const torch::Tensor q = c.inputs.tensor("q"), k = c.inputs.tensor("k"), v = c.inputs.tensor("v");
    PositionEncoding encoding = rotary(options, q.size(-1));
    const torch::Tensor q_ids = c.inputs.tensor("positions_q").unsqueeze(0);
    const torch::Tensor k_ids = c.inputs.tensor("positions_k").unsqueeze(0);
    const int64_t length = k_ids.max().item<int64_t>() + 1;
    const Positions gathered{.q = q_ids, .k = k_ids, .length = length};
    const Positions ranges{.q = q_ids,
                           .k = k_ids,
                           .length = length,
                           .contiguous = true,
                           .q_start = q_ids[0][0].item<int64_t>(),
                           .k_start = k_ids[0][0].item<int64_t>()};
    for (const Positions& positions : {gathered, ranges}) {
      const torch::Tensor a = encoding->rotate(q, Side::query, positions);
      const torch::Tensor b = encoding->rotate(k, Side::key, positions);
      CHECK(max_error(a, c.expected.tensor("q")) < tolerance);
      CHECK(max_error(b, c.expected.tensor("k")) < tolerance);
      const torch::Tensor scores = a.matmul(b.transpose(-1, -2));
      CHECK(max_error(scores, c.expected.tensor("scores_unscaled")) < tolerance);
      const torch::Tensor probs = torch::softmax(scores * encoding->scale(q.size(-1)), -1);
      CHECK(max_error(probs, c.expected.tensor("probs")) < tolerance);
      CHECK(max_error(probs.matmul(v), c.expected.tensor("output")) < tolerance);
      if (c.expected.contains("v_when_rotary_value")) {
        CHECK(max_error(encoding->rotate(v, Side::value, positions),
                        c.expected.tensor("v_when_rotary_value")) < tolerance);
      }
    }
  }
  for (const auto layout : both_layouts) {
    const std::string prefix = layout == RotaryLayout::halves ? "half." : "interleaved.";
    CAPTURE(prefix);
    const OracleCase by_id(*oracles / "encodings" / "rope_position_ids");
    const torch::Tensor ids = by_id.inputs.tensor("positions");
    const Positions positions = Positions::of(ids, ids.max().item<int64_t>() + 1);
    PositionEncoding encoding = rotary({.layout = layout});
    const OracleCase part(*oracles / "encodings" / "rope_partial");
    PositionEncoding partial = rotary({.layout = layout, .dim = part.facts.at("rotary_dim")});
    for (const char* side : {"q", "k"}) {
      CHECK(max_error(encoding->rotate(by_id.inputs.tensor(side), Side::query, positions),
                      by_id.expected.tensor(prefix + side)) < by_id.tolerance());
      CHECK(max_error(partial->rotate(part.inputs.tensor(side), Side::key, Positions::range(7, torch::kCPU)),
                      part.expected.tensor(prefix + side)) < part.tolerance());
    }
  }
}

TEST_CASE("reference gradients of a learned theta") {
  const auto oracles = require_oracles();
  if (!oracles) return;
  const OracleCase c(*oracles / "encodings" / "rope_trainable_theta");
  PositionEncoding encoding = rotary({.trainable = true});
  torch::Tensor theta = encoding->named_parameters()["theta"];
  theta.data().copy_(c.inputs.tensor("theta"));
  torch::Tensor q = c.inputs.tensor("q").requires_grad_(), k = c.inputs.tensor("k").requires_grad_();
  const Positions positions = Positions::range(7, torch::kCPU);
  const torch::Tensor scores = encoding->rotate(q, Side::query, positions)
                                   .matmul(encoding->rotate(k, Side::key, positions).transpose(-1, -2));
  const torch::Tensor loss = (c.inputs.tensor("w") * torch::softmax(scores * encoding->scale(8), -1)).sum();
  loss.backward();
  CHECK(max_error(loss.view({1}), c.expected.tensor("loss")) < c.tolerance());
  CHECK(max_error(q.grad(), c.expected.tensor("grad_q")) < c.tolerance());
  CHECK(max_error(k.grad(), c.expected.tensor("grad_k")) < c.tolerance());
  CHECK(max_error(theta.grad(), c.expected.tensor("grad_theta")) < c.tolerance());
}

TEST_CASE("published values of the Hugging Face RoFormer test") {
  const auto data = require_data();
  if (!data) return;
  const auto file = nlohmann::json::parse(std::ifstream(*data / "oracles" / "values" / "hf_roformer.json"));
  const auto& values = file.at("apply_rotary");
  const torch::Tensor q = torch::arange(2 * 12 * 16 * 64, kFloat32).view({2, 12, 16, 64}) / 100;
  PositionEncoding encoding = rotary({}, 64);
  const torch::Tensor y = encoding->rotate(q, Side::query, Positions::range(16, torch::kCPU));
  const formula::Matrix rows = values.at("q_0_0_rows_0_5_cols_0_7");
  CHECK(max_error(y[0][0].slice(0, 0, 6).slice(1, 0, 8), tensor_of(rows)) < values.at("atol").get<double>());
  CHECK(torch::equal(encoding->rotate(-q, Side::key, Positions::range(16, torch::kCPU)), -y));
}
