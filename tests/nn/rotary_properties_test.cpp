// What the paper proves of its rotation, checked on the product's own code in float64: eq. 11, 16 and 37.
#include <cmath>

#include "roformer/nn/rotary.h"
#include "tests/catch.h"
#include "tests/tensors.h"

using namespace roformer;
using namespace roformer::test;

namespace {

constexpr auto property_double = torch::kFloat64;
constexpr int64_t property_positions = 400;

/// Rows of x [N, d], each turned by its position [N] by the product's function.
torch::Tensor rotated_rows(const torch::Tensor& x, const torch::Tensor& positions, RotaryLayout layout) {
  const torch::Tensor angles =
      rotary_angles(positions.max().item<int64_t>() + 1, x.size(1)).index_select(0, positions);
  const torch::Tensor table = torch::stack({angles.cos(), angles.sin()}, -1).unsqueeze(0);
  return apply_rotary(x.unsqueeze(0).unsqueeze(0), table, layout)[0][0];
}

/// R_m as a matrix: column i is the turned unit vector i.
torch::Tensor rotation_matrix(int64_t m, int64_t dim, RotaryLayout layout) {
  const torch::Tensor at = torch::full({dim}, m, torch::kInt64);
  return rotated_rows(torch::eye(dim, property_double), at, layout).t();
}

torch::Tensor row_products(const torch::Tensor& a, const torch::Tensor& b) { return (a * b).sum(-1); }

}  // namespace

TEST_CASE("eq. 11: products of turned vectors depend on the distance alone") {
  for (const RotaryLayout layout : {RotaryLayout::interleaved, RotaryLayout::halves})
    for (const int64_t dim : {2, 8, 64, 128}) {
      CAPTURE(dim);
      const int64_t n = 300;
      const torch::Tensor q = random_tensor({n, dim}, 1, property_double);
      const torch::Tensor k = random_tensor({n, dim}, 2, property_double);
      const auto generator = at::make_generator<at::CPUGeneratorImpl>(3);
      const torch::Tensor m = torch::randint(property_positions, {n}, generator, torch::kInt64);
      const torch::Tensor other = torch::randint(property_positions, {n}, generator, torch::kInt64);
      const torch::Tensor shift = torch::randint(5000, {n}, generator, torch::kInt64);
      auto score = [&](const torch::Tensor& at_q, const torch::Tensor& at_k) {
        return row_products(rotated_rows(q, at_q, layout), rotated_rows(k, at_k, layout));
      };
      // Angles up to 5,400 are known to 5400 * 2^-53 = 6e-13, and products have a size of sqrt(dim).
      const double tolerance = 2e-12 * std::sqrt(static_cast<double>(dim));
      const torch::Tensor scores = score(m, other);
      CHECK(max_error(scores, score(m + shift, other + shift)) < tolerance);
      CHECK(max_error(scores, score(m + 1, other)) > 0.1);  // it does depend on the distance

      // <R_m q, R_n k> = <q, R_{n-m} k>, and R_m^T R_n = R_{n-m}.
      const torch::Tensor later = torch::maximum(m, other), earlier = torch::minimum(m, other);
      CHECK(max_error(score(earlier, later), row_products(q, rotated_rows(k, later - earlier, layout))) <
            tolerance);
    }
  for (const RotaryLayout layout : {RotaryLayout::interleaved, RotaryLayout::halves}) {
    const torch::Tensor r7 = rotation_matrix(7, 8, layout), r19 = rotation_matrix(19, 8, layout);
    CHECK(max_error(r7.t().matmul(r19), rotation_matrix(12, 8, layout)) < 1e-14);
    CHECK(max_error(r19.t().matmul(r7), rotation_matrix(12, 8, layout).t()) < 1e-14);  // n - m < 0
  }
}

TEST_CASE("eq. 16: a rotation is orthogonal") {
  for (const RotaryLayout layout : {RotaryLayout::interleaved, RotaryLayout::halves}) {
    for (const int64_t m : {0, 1, 17, 4095}) {
      CAPTURE(m);
      const torch::Tensor r = rotation_matrix(m, 64, layout);
      CHECK(max_error(r.t().matmul(r), torch::eye(64, property_double)) < 1e-14);
      CHECK(std::abs(at::linalg_det(r).item<double>() - 1.0) < 1e-12);
    }
    CHECK(torch::equal(rotation_matrix(0, 64, layout), torch::eye(64, property_double)));
    const torch::Tensor x = random_tensor({500, 64}, 4, property_double);
    const torch::Tensor turned = rotated_rows(x, torch::arange(500), layout);
    CHECK(max_error(turned.norm(2, -1), x.norm(2, -1)) < 1e-13);
    CHECK(max_error(turned, x) > 1.0);
  }
}

TEST_CASE("eq. 37: the Abel bound holds for every query, key and distance") {
  double tightest = 0.0;
  for (const int64_t dim : {2, 8, 64}) {
    const int64_t pairs = dim / 2;
    const torch::Tensor angles = rotary_angles(property_positions, dim);
    const torch::Tensor turns = torch::polar(torch::ones_like(angles), angles);  // exp(i m theta_i)
    const torch::Tensor partial = turns.cumsum(1);                               // S_1 ... S_{d/2}
    for (uint64_t seed = 0; seed < 20; ++seed) {
      CAPTURE(dim, seed);
      const torch::Tensor q = random_tensor({dim}, 10 + seed, property_double);
      const torch::Tensor k = random_tensor({dim}, 50 + seed, property_double);
      // h_i = q_[2i:2i+1] k*_[2i:2i+1], and h_{d/2} = 0.
      const torch::Tensor h =
          torch::view_as_complex(q.view({pairs, 2})) * torch::view_as_complex(k.view({pairs, 2})).conj();
      const torch::Tensor steps = torch::cat({h, torch::zeros({1}, h.options())}).diff();
      // Eq. 35: q^T R_m k of the product is the real part of the sum; here R turns q.
      const torch::Tensor product =
          row_products(rotated_rows(q.expand({property_positions, dim}), torch::arange(property_positions),
                                    RotaryLayout::interleaved),
                       k);
      const torch::Tensor sum = (h * turns).sum(1);
      CHECK(max_error(at::real(sum), product) < 1e-11);
      // Eq. 36, Abel's transformation: sum_i h_i e_i = - sum_i S_{i+1} (h_{i+1} - h_i), as S_0 = 0.
      CHECK(max_error(torch::view_as_real(sum), torch::view_as_real(-(partial * steps).sum(1))) < 1e-11);
      const torch::Tensor bound = steps.abs().max() * partial.abs().sum(1);
      CHECK((sum.abs() <= bound * (1 + 1e-12)).all().item<bool>());
      CHECK((product.abs() <= bound * (1 + 1e-12)).all().item<bool>());
      tightest = std::max(tightest, (sum.abs() / bound).max().item<double>());
    }
  }
  CHECK(tightest > 0.99);  // reached for one pair of columns, so a smaller bound would not do
}
