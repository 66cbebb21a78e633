#pragma once

#include <cstdint>
#include <string>
#include <vector>

// The long-term decay of the paper's section 3.4.3 and Figure 2, in double.

namespace roformer {

/// Eq. 37's factor that depends on the distance m alone, over d/2:
///   B(m) = 1/(d/2) sum_{j=1}^{d/2} |S_j|,  S_j = sum_{i=0}^{j-1} exp(i m theta_i),  theta_i = 10000^(-2i/d),
/// for m = 0 .. max. B(0) = (d/2 + 1) / 2. |q^T R_m k| <= (d/2) B(m) max_i |h_{i+1} - h_i|. It trends down
/// but is not monotone (d = 2: constant), and says nothing of how attention is spread. Error when dim is odd
/// or less than 2, or max negative.
std::vector<double> decay_bound(int64_t dim, int64_t max);

/// The shape of a positive curve over m = 0, 1, ...; what rounding alone may do does not count.
struct CurveShape {
  int64_t steps = 0;    ///< m -> m + 1
  int64_t rising = 0;   ///< of them
  int64_t falling = 0;  ///< of them
  int64_t lowest = 0;   ///< where it is least, the first such m
  double minimum = 0.0;
  bool lower_later = false;  ///< the mean of the second half is more than a tenth below that of the first
};
CurveShape shape_of(const std::vector<double>& curve);

/// What such a bound does: "falls", "is constant", or "trends down but is not monotone: 115 of 256 steps
/// rise".
std::string shape_text(const CurveShape& shape);

/// Mean of |q^T R_m k| for m = 0 .. max over `pairs` pairs of vectors with independent standard normal
/// entries, a function of its arguments alone. `same`: k = q. Without, the mean is the same for every m, as
/// R_m keeps the distribution of k (eq. 16).
std::vector<double> mean_product(int64_t dim, int64_t max, int64_t pairs, bool same, uint64_t seed);

/// Divided by its first value, so that curves share an axis.
std::vector<double> relative_to_start(std::vector<double> curve);

}  // namespace roformer
