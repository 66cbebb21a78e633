#include "roformer/report/decay.h"

#include <cmath>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>

#include "roformer/core/error.h"
#include "tests/catch.h"
#include "tests/support.h"

using roformer::decay_bound;

TEST_CASE("the bound of eq. 37 has the values of Figure 2") {
  const std::vector<size_t> distances = {0, 1, 2, 4, 8, 16, 32, 64, 100, 128, 200, 256, 512, 1024};
  const std::map<int64_t, std::vector<double>> values = {
      {128,
       {32.5, 31.5382, 28.9560, 22.6040, 19.8174, 15.7750, 13.3843, 10.0899, 10.2273, 9.2729, 7.2448, 6.5431,
        5.3114, 4.0241}},
      {64,
       {16.5, 15.9478, 14.4845, 11.1427, 9.9236, 7.6497, 7.6529, 5.6999, 7.4653, 4.7487, 3.8605, 3.8436,
        2.9859, 3.0651}}};
  for (const auto& [dim, wanted] : values) {
    CAPTURE(dim);
    const std::vector<double> bound = decay_bound(dim, 1024);
    CHECK(bound.size() == 1025);
    for (size_t i = 0; i < distances.size(); ++i) {
      CAPTURE(distances[i]);
      CHECK(std::abs(bound[distances[i]] - wanted[i]) < 1e-4);
    }
  }
  for (const int64_t dim : {2, 6, 64, 128}) CHECK(decay_bound(dim, 0)[0] == (dim / 2 + 1) / 2.0);
  // A single pair: |exp(i m)| = 1. Two pairs: (1 + |exp(i m) + exp(i m / 100)|) / 2 = (1 + 2 |cos(0.495 m)|)
  // / 2.
  const std::vector<double> one = decay_bound(2, 9), two = decay_bound(4, 9);
  for (size_t m = 0; m < one.size(); ++m) {
    CHECK(one[m] == Approx(1.0).margin(1e-14));
    CHECK(two[m] == Approx(0.5 + std::abs(std::cos(0.495 * static_cast<double>(m)))).margin(1e-14));
  }
}

TEST_CASE("the bound of eq. 37 trends down, but is not monotone") {
  const std::vector<double> bound = decay_bound(128, 256);
  const roformer::CurveShape shape = roformer::shape_of(bound);
  CHECK(shape.rising == 115);
  CHECK(shape.lowest == 236);
  CHECK(shape.minimum == Approx(6.414997).margin(1e-6));
  CHECK(roformer::shape_text(shape) == "trends down but is not monotone: 115 of 256 steps rise");
  CHECK(roformer::shape_of({3, 1, 1, 2}).rising == 1);
  CHECK(roformer::shape_of({3, 1, 1, 2}).lowest == 1);
}

TEST_CASE("the shape of a bound is said in words that are so") {
  const auto text = [](int64_t dim, int64_t max) {
    return roformer::shape_text(roformer::shape_of(decay_bound(dim, max)));
  };
  CHECK(text(128, 5) == "falls");
  CHECK(text(2, 1) == "is constant");
  CHECK(text(2, 2048) == "is constant");  // |exp(i m)| differs from 1 by rounding
  CHECK(roformer::shape_of(decay_bound(2, 2048)).lowest == 0);
  CHECK(text(4, 256) == "is not monotone: 126 of 256 steps rise");  // (1 + 2 |cos(0.495 m)|) / 2
  CHECK(text(64, 30) == "trends down but is not monotone: 10 of 30 steps rise");
  CHECK(roformer::shape_text(roformer::shape_of({3, 1, 1})) == "falls");
  CHECK(roformer::shape_of({}).steps == 0);
}

TEST_CASE("reference values of eq. 37") {
  const auto oracles = roformer::test::require_oracles();
  if (!oracles) return;
  std::ifstream in(*oracles / "encodings" / "decay_eq37.json");
  const nlohmann::json file = nlohmann::json::parse(in);
  REQUIRE(file.at("cases").size() == 2);
  for (const auto& each : file.at("cases")) {
    const std::vector<double> bound = decay_bound(each.at("d"), file.at("distance").back());
    for (size_t i = 0; i < each.at("value").size(); ++i) {
      const size_t m = file.at("distance").at(i);
      CAPTURE(each.at("d"), m);
      CHECK(std::abs(bound[m] - each.at("value").at(i).get<double>()) < 1e-9);
    }
  }
}

TEST_CASE("mean products of random vectors at a distance") {
  const std::vector<double> any = roformer::mean_product(64, 100, 1000, false, 1);
  CHECK(roformer::mean_product(64, 3, 9, false, 1) == roformer::mean_product(64, 3, 9, false, 1));
  CHECK(roformer::mean_product(64, 3, 9, false, 1) != roformer::mean_product(64, 3, 9, false, 2));
  // q . k is a sum of 64 products of deviation 1: nearly normal, |.| has the mean 8 sqrt(2 / pi) = 6.38 and
  // the deviation 4.8; five standard errors are 0.76. Independent vectors do not decay.
  for (const double mean : any) CHECK(std::abs(mean - 8 * std::sqrt(2 / 3.14159265358979)) < 0.76);
  // k = q: |q|^2 has the mean 64 and the deviation 11.3.
  const std::vector<double> same = roformer::mean_product(64, 100, 1000, true, 1);
  CHECK(std::abs(same[0] - 64) < 1.8);
  CHECK(same[100] < 0.6 * same[0]);
  // E q^T R_m q = 2 sum_i cos(m theta_i), and at small m all are positive.
  double expected = 0;
  for (int i = 0; i < 32; ++i) expected += 2 * std::cos(std::pow(10000.0, -i / 32.0));
  CHECK(std::abs(same[1] - expected) < 1.8);

  CHECK(roformer::relative_to_start({4, 2, 8}) == std::vector<double>{1, 0.5, 2});
}

TEST_CASE("decay of what has no pairs is refused") {
  for (const int64_t dim : {7, 0, -2}) CHECK_THROWS_AS(decay_bound(dim, 4), roformer::Error);
  CHECK_THROWS_AS(decay_bound(8, -1), roformer::Error);
  CHECK_THROWS_AS(roformer::mean_product(7, 4, 2, false, 1), roformer::Error);
}
