#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <utility>
#include <vector>

// The paper's formulas (RoFormer, arXiv 2104.09864) as double loops in double precision, with nothing shared
// with the code under test. One head at a time; rows are tokens.

namespace roformer::formula {

using Row = std::vector<double>;
using Matrix = std::vector<Row>;

inline double dot(const Row& a, const Row& b) {
  double sum = 0;
  for (size_t i = 0; i < a.size(); ++i) sum += a[i] * b[i];
  return sum;
}

/// theta_i of eq. 15, counted from 0: base^(-2i/d).
inline double theta(size_t i, size_t d, double base = 10000.0) {
  return std::pow(base, -2.0 * static_cast<double>(i) / static_cast<double>(d));
}

/// Eq. 4 for position i, with k read as i.
inline Row sinusoid(double i, size_t d, double base = 10000.0) {
  Row p(d);
  for (size_t t = 0; t < d / 2; ++t) {
    const double angle = i / std::pow(base, 2.0 * static_cast<double>(t) / static_cast<double>(d));
    p[2 * t] = std::sin(angle);
    p[2 * t + 1] = std::cos(angle);
  }
  return p;
}

/// R of eq. 15 for position m.
inline Matrix rotation(double m, size_t d, double base = 10000.0) {
  Matrix r(d, Row(d, 0.0));
  for (size_t i = 0; i < d / 2; ++i) {
    const double angle = m * theta(i, d, base);
    r[2 * i][2 * i] = std::cos(angle);
    r[2 * i][2 * i + 1] = -std::sin(angle);
    r[2 * i + 1][2 * i] = std::sin(angle);
    r[2 * i + 1][2 * i + 1] = std::cos(angle);
  }
  return r;
}

inline Row times(const Matrix& a, const Row& x) {
  Row y;
  for (const Row& row : a) y.push_back(dot(row, x));
  return y;
}

/// Eq. 14: the first `d` entries of x turned by R for position m; the others stay (d = 0: all turn).
inline Row rotate(const Row& x, double m, double base = 10000.0, size_t d = 0) {
  if (d == 0) d = x.size();
  Row y = times(rotation(m, d, base), Row(x.begin(), x.begin() + static_cast<std::ptrdiff_t>(d)));
  y.insert(y.end(), x.begin() + static_cast<std::ptrdiff_t>(d), x.end());
  return y;
}

/// Eq. 34, x * cos + (-x2, x1, -x4, x3, ...) * sin: the same values by another way.
inline Row rotate_fast(const Row& x, double m, double base = 10000.0) {
  const size_t d = x.size();
  Row y(d);
  for (size_t j = 0; j < d; ++j) {
    const double angle = m * theta(j / 2, d, base);
    const double other = j % 2 == 0 ? -x[j + 1] : x[j - 1];
    y[j] = x[j] * std::cos(angle) + other * std::sin(angle);
  }
  return y;
}

/// The half-split layout of GPT-NeoX and LLaMA: column i pairs with i + d/2. Not in the paper; a permutation
/// of eq. 14.
inline Row rotate_halves(const Row& x, double m, double base = 10000.0, size_t d = 0) {
  if (d == 0) d = x.size();
  Row y = x;
  for (size_t i = 0; i < d / 2; ++i) {
    const double angle = m * theta(i, d, base);
    y[i] = x[i] * std::cos(angle) - x[i + d / 2] * std::sin(angle);
    y[i + d / 2] = x[i + d / 2] * std::cos(angle) + x[i] * std::sin(angle);
  }
  return y;
}

/// Eq. 16: the score of q at position m and k at position n, q^T R_{n-m} k.
inline double rope_score(const Row& q, const Row& k, double m, double n, double base = 10000.0) {
  return dot(q, times(rotation(n - m, q.size(), base), k));
}

/// Eq. 2 for one head with the given scores [Lq][Lk], already scaled: softmax over the keys that `keep`
/// (empty: all) admits and, if causal, that stand no later than the query (queries are the last of the keys).
/// No key: zeros.
inline Matrix attention(const Matrix& scores, const Matrix& v, const std::vector<bool>& keep = {},
                        bool causal = false) {
  const size_t queries = scores.size(), keys = v.size(), width = v.front().size();
  Matrix out(queries, Row(width, 0.0));
  for (size_t m = 0; m < queries; ++m) {
    auto admitted = [&](size_t n) {
      return (keep.empty() || keep[n]) && (!causal || n <= m + keys - queries);
    };
    double highest = -std::numeric_limits<double>::infinity(), sum = 0;
    for (size_t n = 0; n < keys; ++n) {
      if (admitted(n)) highest = std::max(highest, scores[m][n]);
    }
    for (size_t n = 0; n < keys; ++n) {
      if (!admitted(n)) continue;
      const double weight = std::exp(scores[m][n] - highest);
      sum += weight;
      for (size_t c = 0; c < width; ++c) out[m][c] += weight * v[n][c];
    }
    for (double& x : out[m]) x = sum > 0 ? x / sum : 0.0;
  }
  return out;
}

/// scale * q_m . k_n for all m, n.
inline Matrix scores(const Matrix& q, const Matrix& k, double scale) {
  Matrix s;
  for (const Row& a : q) {
    s.emplace_back();
    for (const Row& b : k) s.back().push_back(scale * dot(a, b));
  }
  return s;
}

inline double gelu(double x) { return 0.5 * x * (1.0 + std::erf(x / std::sqrt(2.0))); }

inline double gelu_tanh(double x) {
  return 0.5 * x * (1.0 + std::tanh(std::sqrt(2.0 / 3.14159265358979323846) * (x + 0.044715 * x * x * x)));
}

/// x W^T + b.
inline Matrix linear(const Matrix& x, const Matrix& weight, const Row& bias) {
  Matrix out;
  for (const Row& row : x) {
    Row y = bias;
    for (size_t o = 0; o < weight.size(); ++o) y[o] += dot(row, weight[o]);
    out.push_back(y);
  }
  return out;
}

/// (x - mean) / sqrt(variance + eps) * weight + bias, row by row.
inline Matrix layer_norm(Matrix x, const Row& weight, const Row& bias, double eps) {
  for (Row& row : x) {
    double mean = 0, variance = 0;
    for (double value : row) mean += value / static_cast<double>(row.size());
    for (double value : row) variance += (value - mean) * (value - mean) / static_cast<double>(row.size());
    for (size_t i = 0; i < row.size(); ++i)
      row[i] = (row[i] - mean) / std::sqrt(variance + eps) * weight[i] + bias[i];
  }
  return x;
}

inline Matrix sum(Matrix a, const Matrix& b) {
  for (size_t i = 0; i < a.size(); ++i) {
    for (size_t j = 0; j < a[i].size(); ++j) a[i][j] += b[i][j];
  }
  return a;
}

}  // namespace roformer::formula
