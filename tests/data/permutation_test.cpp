#include "roformer/data/permutation.h"

#include <array>
#include <cmath>
#include <cstdlib>
#include <map>
#include <vector>

#include "tests/catch.h"

namespace roformer {

TEST_CASE("permutation: each element exactly once") {
  std::vector<int64_t> sizes = {255, 256, 257, 1000, 4095, 4096, 4097, 65537, 100'003};
  for (int64_t n = 1; n <= 70; ++n) sizes.push_back(n);
  for (const int64_t n : sizes) {
    for (const uint64_t key : {0u, 1u, 2u}) {
      const Permutation order(n, key);
      std::vector<char> seen(static_cast<size_t>(n));
      int64_t repeated = 0;
      for (int64_t i = 0; i < n; ++i) {
        const int64_t x = order(i);
        REQUIRE(x >= 0);
        REQUIRE(x < n);
        repeated += seen[static_cast<size_t>(x)]++;
      }
      INFO("n " << n << ", key " << key);
      CHECK(repeated == 0);
    }
  }
}

TEST_CASE("permutation: any size, no memory") {
  const int64_t n = (int64_t{1} << 61) + 1;
  const Permutation order(n, 3);
  for (int64_t i = 0; i < 1000; ++i) {
    CHECK(order(n - 1 - i) >= 0);
    CHECK(order(n - 1 - i) < n);
  }
}

TEST_CASE("permutation: all orders of four elements are equally likely") {
  constexpr int keys = 24'000;
  std::map<std::array<int64_t, 4>, int> counts;
  for (uint64_t key = 0; key < keys; ++key) {
    const Permutation order(4, mix(key));
    ++counts[{order(0), order(1), order(2), order(3)}];
  }
  REQUIRE(counts.size() == 24);
  double chi2 = 0;
  for (const auto& [order, count] : counts) chi2 += (count - 1000.0) * (count - 1000.0) / 1000.0;
  CHECK(chi2 < 60);  // 23 degrees of freedom: 1e-5 above 60
}

TEST_CASE("permutation: neighbours end up anywhere, and each key has its own order") {
  constexpr int64_t n = 10'000;
  const Permutation a(n, 1), b(n, 2);
  int64_t equal = 0, fixed = 0, rising = 0;
  double distance = 0;
  for (int64_t i = 0; i < n; ++i) {
    equal += a(i) == b(i);
    fixed += a(i) == i;
    if (i == 0) continue;
    rising += a(i) > a(i - 1);
    distance += static_cast<double>(std::abs(a(i) - a(i - 1)));
  }
  CHECK(equal <= 8);  // Poisson with mean 1: 1e-6 above 8
  CHECK(fixed <= 8);
  CHECK(std::abs(static_cast<double>(rising) - n / 2.0) < 5 * std::sqrt(n / 12.0));
  CHECK(distance / n == Approx(n / 3.0).epsilon(0.03));  // uniform pairs: n/3, sd of the mean 0.24 % of n
}

}  // namespace roformer
