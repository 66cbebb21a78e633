#include "roformer/report/decay.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <complex>
#include <numbers>
#include <numeric>

#include "roformer/core/error.h"
#include "roformer/core/random.h"

namespace roformer {
namespace {

using Complex = std::complex<double>;

void check_decay(int64_t dim, int64_t max) {
  if (dim < 2 || dim % 2 != 0)
    fail("decay: a rotation turns pairs of columns, so their number must be even, not {}", dim);
  if (max < 0) fail("decay: the largest distance must not be negative, like {}", max);
}

std::vector<double> decay_angles(int64_t dim) {
  std::vector<double> theta;
  for (int64_t i = 0; i < dim / 2; ++i)
    theta.push_back(std::pow(10000.0, -2.0 * static_cast<double>(i) / static_cast<double>(dim)));
  return theta;
}

/// Two independent standard normal numbers (Box and Muller 1958).
Complex next_normal_pair(Random& random) {
  const double radius = std::sqrt(-2.0 * std::log(1.0 - random.uniform()));
  return std::polar(radius, 2.0 * std::numbers::pi * random.uniform());
}

}  // namespace

std::vector<double> decay_bound(int64_t dim, int64_t max) {
  check_decay(dim, max);
  const std::vector<double> theta = decay_angles(dim);
  std::vector<double> bound;
  for (int64_t m = 0; m <= max; ++m) {
    Complex partial = 0.0;
    double sum = 0.0;
    for (const double t : theta) {
      partial += std::polar(1.0, static_cast<double>(m) * t);
      sum += std::abs(partial);
    }
    bound.push_back(sum / static_cast<double>(dim / 2));
  }
  return bound;
}

CurveShape shape_of(const std::vector<double>& curve) {
  CurveShape shape;
  if (curve.empty()) return shape;
  constexpr double rounding = 1.0 + 1e-12;
  shape.steps = static_cast<int64_t>(curve.size()) - 1;
  for (size_t m = 0; m + 1 < curve.size(); ++m) {
    shape.rising += curve[m + 1] > curve[m] * rounding;
    shape.falling += curve[m] > curve[m + 1] * rounding;
  }
  shape.minimum = *std::min_element(curve.begin(), curve.end());
  shape.lowest = std::find_if(curve.begin(), curve.end(),
                              [&](double value) { return value <= shape.minimum * rounding; }) -
                 curve.begin();
  const auto half = static_cast<std::ptrdiff_t>(curve.size() / 2);
  const double first = std::accumulate(curve.begin(), curve.begin() + half, 0.0);
  const double second = std::accumulate(curve.end() - half, curve.end(), 0.0);
  shape.lower_later = second < 0.9 * first;
  return shape;
}

std::string shape_text(const CurveShape& shape) {
  if (shape.rising == 0) return shape.falling == 0 ? "is constant" : "falls";
  return fmt::format("{}is not monotone: {} of {} steps rise", shape.lower_later ? "trends down but " : "",
                     shape.rising, shape.steps);
}

std::vector<double> mean_product(int64_t dim, int64_t max, int64_t pairs, bool same, uint64_t seed) {
  check_decay(dim, max);
  const std::vector<double> theta = decay_angles(dim);
  // Re and -Im of h_i = q_i k_i* (eq. 35), pair after pair: Re(h_i exp(i m theta_i)) is a product with cos
  // and sin.
  std::vector<double> products;
  Random random(mix(seed, static_cast<uint64_t>(dim)));
  for (int64_t pair = 0; pair < pairs; ++pair) {
    for (size_t i = 0; i < theta.size(); ++i) {
      const Complex q = next_normal_pair(random), k = same ? q : next_normal_pair(random);
      const Complex h = q * std::conj(k);
      products.insert(products.end(), {h.real(), -h.imag()});
    }
  }
  std::vector<double> means, turn(2 * theta.size());
  for (int64_t m = 0; m <= max; ++m) {
    for (size_t i = 0; i < theta.size(); ++i) {
      turn[2 * i] = std::cos(static_cast<double>(m) * theta[i]);
      turn[2 * i + 1] = std::sin(static_cast<double>(m) * theta[i]);
    }
    double sum = 0.0;
    for (int64_t pair = 0; pair < pairs; ++pair) {
      const double* h = products.data() + pair * dim;
      sum += std::abs(std::inner_product(turn.begin(), turn.end(), h, 0.0));
    }
    means.push_back(sum / static_cast<double>(pairs));
  }
  return means;
}

std::vector<double> relative_to_start(std::vector<double> curve) {
  for (size_t m = curve.size(); m-- > 0;) curve[m] /= curve[0];
  return curve;
}

}  // namespace roformer
