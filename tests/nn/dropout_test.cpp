#include "roformer/nn/dropout.h"

#include <ATen/Parallel.h>

#include "roformer/nn/kernels/dropout.h"
#include "tests/tensors.h"

using namespace roformer;
using namespace roformer::test;
using torch::kFloat64;

namespace {

constexpr int64_t many = 1 << 20;

/// 1 where an element was kept.
torch::Tensor kept(double p, uint64_t seed, int64_t count = many) {
  return hashed_dropout(torch::ones({count}), p, seed).ne(0).to(kFloat64);
}

/// Correlation of two 0/1 vectors that are one with probability 1 - p, in units of its standard deviation
/// under independence: normal with deviation 1.
double correlation_sigmas(const torch::Tensor& a, const torch::Tensor& b, double p) {
  const double n = static_cast<double>(a.numel());
  return ((a - (1 - p)) * (b - (1 - p))).sum().item<double>() / (p * (1 - p) * std::sqrt(n));
}

}  // namespace

TEST_CASE("the share of dropped elements is p, for many seeds and in every part") {
  const double p = GENERATE(0.1, 0.5, 0.9, 0.001);
  for (uint64_t seed : {0ULL, 1ULL, 2ULL, 1ULL << 32, 0xffffffffffffffffULL, 1234567890123ULL}) {
    CAPTURE(p, seed);
    const torch::Tensor keep = kept(p, seed);
    const double sigma = std::sqrt(p * (1 - p) / static_cast<double>(many));
    CHECK(std::abs(keep.mean().item<double>() - (1 - p)) < 4 * sigma);
    // 64 parts by place and 64 by the low bits of the index: the greatest of 128 normal numbers stays
    // below 4.5.
    const double part_sigma = sigma * 8;
    CHECK((keep.view({64, -1}).mean(1) - (1 - p)).abs().max().item<double>() < 4.5 * part_sigma);
    CHECK((keep.view({-1, 64}).mean(0) - (1 - p)).abs().max().item<double>() < 4.5 * part_sigma);
  }
}

TEST_CASE("kept elements are divided by 1 - p, dropped ones are 0") {
  torch::Tensor x = random_tensor({1000}, 1);
  x[0] = std::numeric_limits<float>::infinity();
  x[1] = -std::numeric_limits<float>::infinity();
  x[2] = std::numeric_limits<float>::quiet_NaN();
  for (uint64_t seed = 0; seed < 20; ++seed) {
    const torch::Tensor keep = kept(0.4, seed, 1000).to(torch::kBool);
    const torch::Tensor expected = torch::where(keep, x * static_cast<float>(1 / 0.6), torch::zeros_like(x));
    CHECK(hashed_dropout(x, 0.4, seed).equal(expected) != keep[2].item<bool>());  // NaN equals nothing
    CHECK(torch::equal(hashed_dropout(x, 0.4, seed).slice(0, 3), expected.slice(0, 3)));
    CHECK(torch::equal(hashed_dropout(x, 0.4, seed).slice(0, 0, 2), expected.slice(0, 0, 2)));
  }
  // The mean stays: 2^20 values of deviation sqrt(p / (1 - p)).
  const double mean = hashed_dropout(torch::ones({many}), 0.1, 5).mean().item<double>();
  CHECK(std::abs(mean - 1.0) < 4 * std::sqrt(0.1 / 0.9 / static_cast<double>(many)));
}

TEST_CASE("p = 0 and p = 1") {
  const torch::Tensor x = random_tensor({100}, 2);
  CHECK(torch::equal(hashed_dropout(x, 0.0, 3), x));
  CHECK(torch::equal(hashed_dropout(x, 1.0, 3), torch::zeros_like(x)));
  CHECK(hashed_dropout(torch::ones({many}), 1.0 - 1e-12, 3).count_nonzero().item<int64_t>() == 0);
  CHECK(roformer::dropout(x, 0.0, true).is_same(x));
  CHECK(roformer::dropout(x, 0.5, false).is_same(x));
  CHECK_THROWS_AS(hashed_dropout(x, 1.5, 3), c10::Error);
  CHECK_THROWS_AS(hashed_dropout(x.to(kFloat64), 0.5, 3), c10::Error);
  CHECK(hashed_dropout(torch::empty({0, 3}), 0.5, 3).sizes() == at::IntArrayRef({0, 3}));
}

TEST_CASE("elements are independent of their neighbours") {
  const double p = GENERATE(0.1, 0.5);
  for (uint64_t seed : {3ULL, 77ULL}) {
    const torch::Tensor keep = kept(p, seed);
    // Distances that rows, heads and vector registers have; 22 draws of a normal number.
    for (int64_t distance :
         {1, 2, 3, 4, 7, 8, 16, 32, 64, 65, 128, 512, 1024, 4096, 65536, 131072, 262144, 524288}) {
      CAPTURE(p, seed, distance);
      CHECK(std::abs(correlation_sigmas(keep.slice(0, distance), keep.slice(0, 0, many - distance), p)) <
            4.2);
    }
    // Triples: no parity hides in neighbours that are independent in pairs.
    const torch::Tensor centred = keep - (1 - p);
    const torch::Tensor triple =
        centred.slice(0, 0, many - 2) * centred.slice(0, 1, many - 1) * centred.slice(0, 2);
    CHECK(std::abs(triple.sum().item<double>()) < 4.2 * std::pow(p * (1 - p), 1.5) * std::sqrt(many));
  }
}

TEST_CASE("runs of dropped elements are as long as chance makes them") {
  const double p = GENERATE(0.1, 0.5);
  const torch::Tensor dropped = 1 - kept(p, 11);
  const double* at = dropped.const_data_ptr<double>();
  std::vector<int64_t> runs(64, 0);
  for (int64_t i = 0, run = 0; i < many; ++i) {
    if (at[i] > 0) {
      ++run;
    } else if (run > 0) {
      ++runs[static_cast<size_t>(std::min<int64_t>(run, 63))];
      run = 0;
    }
  }
  for (int64_t length = 1; length <= 4; ++length) {
    // A run of exactly `length` starts at a given place with this probability.
    const double expected =
        static_cast<double>(many) * (1 - p) * (1 - p) * std::pow(p, static_cast<double>(length));
    CAPTURE(p, length, expected);
    CHECK(std::abs(static_cast<double>(runs[static_cast<size_t>(length)]) - expected) <
          4.2 * std::sqrt(expected));
  }
}

TEST_CASE("seeds give independent masks, not shifted or shuffled copies of one") {
  const double p = 0.3;
  const torch::Tensor keep = kept(p, 1000);
  for (uint64_t other : {1001ULL, 1002ULL, 1000ULL + (1ULL << 32), 1000ULL ^ (1ULL << 63), 0ULL}) {
    const torch::Tensor next = kept(p, other);
    CAPTURE(other);
    CHECK(std::abs(correlation_sigmas(keep, next, p)) < 4.2);
    for (int64_t shift : {1, 2, 64}) {
      CHECK(std::abs(correlation_sigmas(keep.slice(0, shift), next.slice(0, 0, many - shift), p)) < 4.2);
    }
  }
  CHECK(torch::equal(keep, kept(p, 1000)));
  // One element over many seeds is a fair draw too.
  int64_t count = 0;
  const float one = 1.0f;
  for (uint64_t seed = 0; seed < 100000; ++seed) {
    float out = 0;
    kernels::dropout(&one, &out, 0, 1, p, seed);
    count += out != 0 ? 1 : 0;
  }
  CHECK(std::abs(static_cast<double>(count) / 1e5 - (1 - p)) < 4 * std::sqrt(p * (1 - p) / 1e5));
}

TEST_CASE("the mask goes by index alone: the same for any split over threads") {
  const torch::Tensor x = random_tensor({300001}, 4);
  const int before = at::get_num_threads();
  at::set_num_threads(1);
  const torch::Tensor whole = hashed_dropout(x, 0.1, 9);
  for (int threads : {2, 3}) {
    at::set_num_threads(threads);
    CHECK(torch::equal(whole, hashed_dropout(x, 0.1, 9)));
  }
  at::set_num_threads(before);
  torch::Tensor pieces = torch::empty_like(x);
  for (int64_t begin = 0; begin < x.numel(); begin += 777) {
    kernels::dropout(x.const_data_ptr<float>(), pieces.mutable_data_ptr<float>(), begin,
                     std::min<int64_t>(begin + 777, x.numel()), 0.1, 9);
  }
  CHECK(torch::equal(whole, pieces));
}

TEST_CASE("the backward pass finds the mask of the forward pass again, in any memory order") {
  torch::Tensor x = random_tensor({40, 50, 6}, 5).transpose(0, 2).detach().requires_grad_();
  const torch::Tensor y = hashed_dropout(x, 0.3, 12);
  CHECK(torch::equal(y, hashed_dropout(x.detach().contiguous(), 0.3, 12)));
  const torch::Tensor weight = random_tensor({50, 6, 40}, 6).transpose(0, 1);
  const torch::Tensor grad = torch::autograd::grad({y}, {x}, {weight}, true, true)[0];
  CHECK(torch::equal(grad, hashed_dropout(weight, 0.3, 12)));
  CHECK(torch::equal(grad.ne(0), y.ne(0)));
}

TEST_CASE("a saved state of the default generator reproduces the mask") {
  at::Generator generator = at::detail::getDefaultCPUGenerator();
  torch::manual_seed(3);
  const torch::Tensor x = torch::ones({1000}), state = generator.get_state();
  const torch::Tensor first = roformer::dropout(x, 0.5, true), second = roformer::dropout(x, 0.5, true);
  CHECK_FALSE(torch::equal(first, second));
  generator.set_state(state);
  CHECK(torch::equal(roformer::dropout(x, 0.5, true), first));
  CHECK(torch::equal(roformer::dropout(x, 0.5, true), second));
  // Other types take the library's dropout.
  const torch::Tensor wide = roformer::dropout(torch::ones({100000}, kFloat64), 0.5, true);
  CHECK(wide.scalar_type() == kFloat64);
  CHECK(wide.mean().item<double>() == Approx(1.0).margin(4 / std::sqrt(100000.0)));
}
