#include "roformer/eval/search.h"

#include <cmath>
#include <limits>

#include "roformer/core/error.h"
#include "roformer/core/random.h"
#include "tests/catch.h"

using namespace roformer;

namespace {

constexpr double search_infinity = std::numeric_limits<double>::infinity();

/// Ids that may be drawn.
std::vector<size_t> drawable(const std::vector<double>& probabilities) {
  std::vector<size_t> ids;
  for (size_t i = 0; i < probabilities.size(); ++i) {
    if (probabilities[i] > 0) ids.push_back(i);
  }
  return ids;
}

std::vector<double> distribution(const std::vector<double>& logits, double temperature, int64_t top_k = 0,
                                 double top_p = 1.0) {
  return token_probabilities(logits, {.temperature = temperature, .top_k = top_k, .top_p = top_p});
}

using Ids = std::vector<size_t>;

/// logits of the next token from the last one: a Markov chain.
NextLogits markov(const torch::Tensor& table) {
  return [table](const torch::Tensor& tokens) { return table.index_select(0, tokens.select(1, -1)); };
}

}  // namespace

TEST_CASE("token probabilities: temperature, top-k and top-p in this order") {
  // e^logit: 1, 4, 2, 1, 8.
  const double two = std::log(2.0);
  const std::vector<double> logits = {0, 2 * two, two, 0, 3 * two};
  const auto check = [](const std::vector<double>& got, const std::vector<double>& wanted) {
    double sum = 0;
    for (const double each : wanted) sum += each;
    REQUIRE(got.size() == wanted.size());
    for (size_t i = 0; i < got.size(); ++i) CHECK(got[i] == Approx(wanted[i] / sum).epsilon(1e-14));
  };
  check(distribution(logits, 1.0), {1, 4, 2, 1, 8});
  check(distribution(logits, 0.5), {1, 16, 4, 1, 64});
  check(distribution(logits, 2.0), {1, 2, std::sqrt(2.0), 1, std::sqrt(8.0)});
  check(distribution(logits, 1.0, 3), {0, 4, 2, 0, 8});
  check(distribution(logits, 1.0, 99), {1, 4, 2, 1, 8});
  // Of 16: 8, 12, 14, 15, 16.
  check(distribution(logits, 1.0, 0, 0.49), {0, 0, 0, 0, 8});
  check(distribution(logits, 1.0, 0, 0.51), {0, 4, 0, 0, 8});
  check(distribution(logits, 1.0, 0, 0.76), {0, 4, 2, 0, 8});
  check(distribution(logits, 1.0, 0, 1e-300), {0, 0, 0, 0, 8});
  // Temperature first: of 86 the greatest two have 80, 93 %; without it 75 %.
  check(distribution(logits, 0.5, 0, 0.92), {0, 16, 0, 0, 64});
  CHECK(drawable(distribution(logits, 1.0, 0, 0.92)) == Ids{0, 1, 2, 4});
  // Top-p of what top-k leaves: 12 of 14 is 86 %, of 16 only 75 %.
  check(distribution(logits, 1.0, 3, 0.85), {0, 4, 0, 0, 8});
  CHECK(drawable(distribution(logits, 1.0, 0, 0.85)) == Ids{1, 2, 4});
  // Greedy, and what it is the limit of.
  check(distribution(logits, 0.0), {0, 0, 0, 0, 1});
  check(distribution(logits, 1e-320), {0, 0, 0, 0, 1});
  check(distribution({1e308, -1e308}, 0.5), {1, 0});
}

TEST_CASE("token probabilities: among equals the lower id comes first") {
  const std::vector<double> equal(4, -1.5);
  CHECK(drawable(distribution(equal, 1.0, 1)) == Ids{0});
  CHECK(drawable(distribution(equal, 1.0, 3)) == Ids{0, 1, 2});
  CHECK(drawable(distribution(equal, 1.0, 0, 0.5)) == Ids{0, 1});  // two reach it exactly
  CHECK(drawable(distribution(equal, 1.0, 0, 0.51)) == Ids{0, 1, 2});
  CHECK(drawable(distribution(equal, 0.0)) == Ids{0});
  CHECK(drawable(distribution({0, 1, 0, 1, 1}, 1.0, 2)) == Ids{1, 3});
  CHECK(drawable(distribution({0, 1, 0, 1, 1}, 0.0)) == Ids{1});
}

TEST_CASE("token probabilities: -infinity is never drawn, what is no number is refused") {
  const double no = -search_infinity;
  CHECK(drawable(distribution({no, 0, no, -2}, 1.0)) == Ids{1, 3});
  CHECK(drawable(distribution({no, 0, no, -2}, 1.0, 3)) == Ids{1, 3});
  CHECK(drawable(distribution({no, 0, no, -2}, 1.0, 0, 0.9999)) == Ids{1, 3});
  CHECK(drawable(distribution({no, no, 3}, 0.0)) == Ids{2});
  for (const double temperature : {0.0, 1.0}) {
    CHECK_THROWS_WITH(distribution({0, std::nan(""), 1}, temperature), Catch::Contains("token 1: nan"));
    CHECK_THROWS_WITH(distribution({std::nan("")}, temperature), Catch::Contains("diverged"));
    CHECK_THROWS_AS(distribution({0, search_infinity}, temperature), Error);
    CHECK_THROWS_WITH(distribution({no, no}, temperature), Catch::Contains("no token"));
    CHECK_THROWS_AS(distribution({}, temperature), Error);
  }
}

TEST_CASE("decoding: options out of range are refused") {
  CHECK_NOTHROW(validate(SamplingOptions{}));
  CHECK_THROWS_WITH(validate(SamplingOptions{.temperature = -0.1}), Catch::Contains("temperature"));
  CHECK_THROWS_AS(validate(SamplingOptions{.temperature = std::nan("")}), Error);
  CHECK_THROWS_AS(validate(SamplingOptions{.temperature = search_infinity}), Error);
  CHECK_THROWS_WITH(validate(SamplingOptions{.top_k = -1}), Catch::Contains("top-k"));
  CHECK_THROWS_WITH(validate(SamplingOptions{.top_p = 0.0}), Catch::Contains("top-p"));
  CHECK_THROWS_AS(validate(SamplingOptions{.top_p = 1.01}), Error);
  CHECK_THROWS_AS(validate(SamplingOptions{.top_p = std::nan("")}), Error);
  CHECK_THROWS_AS(validate(SamplingOptions{.max_new_tokens = -1}), Error);
}

TEST_CASE("decoding: a number picks the token that it falls on") {
  const std::vector<double> p = {0.0, 0.25, 0.0, 0.5, 0.25, 0.0};
  CHECK(token_at(p, 0.0) == 1);
  CHECK(token_at(p, 0.249) == 1);
  CHECK(token_at(p, 0.25) == 3);
  CHECK(token_at(p, 0.749) == 3);
  CHECK(token_at(p, 0.75) == 4);
  CHECK(token_at(p, std::nextafter(1.0, 0.0)) == 4);
  const std::vector<double> short_of_one = {0.5, 0.25, 0.0};
  CHECK(token_at(short_of_one, 0.9) == 1);
}

TEST_CASE("decoding: tokens come as often as their probabilities say") {
  const SamplingOptions options{
      .temperature = 0.8, .top_k = 6, .top_p = 0.95, .seed = 7, .max_new_tokens = 50};
  const torch::Tensor table = torch::tensor({{0.3, -1.0, 2.0, 0.0, 1.1, -0.4, 0.9, -3.0}}, torch::kFloat64);
  const std::vector<double> logits(table.const_data_ptr<double>(), table.const_data_ptr<double>() + 8);
  const std::vector<double> wanted = token_probabilities(logits, options);
  const int64_t rows = 400;
  const torch::Tensor drawn = generate_tokens(
      [&](const torch::Tensor& t) {
        return table.expand({t.size(0), 8});
      },
      torch::zeros({rows, 1}, torch::kInt64), options);
  REQUIRE(drawn.sizes() == torch::IntArrayRef({rows, 50}));
  const double n = static_cast<double>(drawn.numel());
  int possible = 0;
  for (int64_t id = 0; id < 8; ++id) {
    const double p = wanted[static_cast<size_t>(id)];
    const double count = static_cast<double>(drawn.eq(id).sum().item<int64_t>());
    INFO(id << ": " << count / n << ", wanted " << p);
    CHECK(std::abs(count - n * p) <= 5 * std::sqrt(n * p * (1 - p)));
    possible += p > 0;
  }
  CHECK(possible == 5);  // of six the last is beyond 0.95
  // Neither a row's neighbour nor the step before tells anything: pairs are as frequent as independent draws.
  const double p = wanted[2];
  const torch::Tensor hit = drawn.eq(2);
  auto both = [](const torch::Tensor& a, const torch::Tensor& b) {
    return static_cast<double>(a.logical_and(b).sum().item<int64_t>());
  };
  const double steps = both(hit.narrow(1, 1, 49), hit.narrow(1, 0, 49)) / (static_cast<double>(rows) * 49);
  const double neighbours =
      both(hit.narrow(0, 1, rows - 1), hit.narrow(0, 0, rows - 1)) / ((rows - 1.0) * 50);
  CHECK(std::abs(steps - p * p) < 5 * p / std::sqrt(n));
  CHECK(std::abs(neighbours - p * p) < 5 * p / std::sqrt(n));
}

TEST_CASE("decoding: a seed gives the same tokens, whatever other rows there are") {
  torch::manual_seed(3);
  const torch::Tensor table = torch::randn({11, 11});
  const torch::Tensor prompt = torch::tensor({{1, 2}, {3, 4}, {1, 2}}, torch::kInt64);
  SamplingOptions options{.seed = 5, .max_new_tokens = 40};
  const torch::Tensor drawn = generate_tokens(markov(table), prompt, options);
  CHECK(drawn.sizes() == torch::IntArrayRef({3, 40}));
  CHECK(torch::equal(drawn, generate_tokens(markov(table), prompt, options)));
  CHECK(torch::equal(drawn.narrow(0, 0, 2), generate_tokens(markov(table), prompt.narrow(0, 0, 2), options)));
  CHECK_FALSE(torch::equal(drawn[0], drawn[2]));
  torch::manual_seed(99);  // the generator of LibTorch has no part in it
  const int threads = at::get_num_threads();
  at::set_num_threads(threads + 2);
  CHECK(torch::equal(drawn, generate_tokens(markov(table), prompt, options)));
  at::set_num_threads(threads);
  options.seed = 6;
  CHECK_FALSE(torch::equal(drawn, generate_tokens(markov(table), prompt, options)));
}

TEST_CASE("decoding: greedy follows the likeliest, rows end at their end, a caller stops it") {
  // 0 -> 1 -> 2 -> 3 -> 0, and 4 to itself.
  torch::Tensor table = torch::zeros({5, 5});
  for (const auto& [from, to] :
       {std::pair(0, 1), std::pair(1, 2), std::pair(2, 3), std::pair(3, 0), std::pair(4, 4)})
    table[from][to] = 1;
  const torch::Tensor prompt = torch::tensor({{3, 0}, {0, 2}, {1, 4}}, torch::kInt64);
  SamplingOptions options{.temperature = 0.0, .max_new_tokens = 5};
  std::vector<std::pair<int64_t, int64_t>> shapes;
  const NextLogits chain = markov(table);
  const NextLogits watched = [&](const torch::Tensor& tokens) {
    shapes.emplace_back(tokens.size(0), tokens.size(1));
    return chain(tokens);
  };
  const auto wanted = torch::tensor({{1, 2, 3, 0, 1}, {3, 0, 1, 2, 3}, {4, 4, 4, 4, 4}}, torch::kInt64);
  CHECK(torch::equal(generate_tokens(watched, prompt, options), wanted));
  // The prompt once, then one token at a time, and none after the last.
  CHECK(shapes == std::vector<std::pair<int64_t, int64_t>>{{3, 2}, {3, 1}, {3, 1}, {3, 1}, {3, 1}});

  options.end = 3;
  CHECK(torch::equal(generate_tokens(chain, prompt, options),
                     torch::tensor({{1, 2, 3, 3, 3}, {3, 3, 3, 3, 3}, {4, 4, 4, 4, 4}}, torch::kInt64)));
  CHECK(torch::equal(generate_tokens(chain, prompt.narrow(0, 0, 2), options),
                     torch::tensor({{1, 2, 3}, {3, 3, 3}}, torch::kInt64)));

  options.end.reset();
  std::vector<int64_t> seen;
  const torch::Tensor stopped = generate_tokens(chain, prompt, options, [&](std::span<const int64_t> tokens) {
    seen.insert(seen.end(), tokens.begin(), tokens.end());
    return seen.size() < 6;
  });
  CHECK(seen == std::vector<int64_t>{1, 3, 4, 2, 0, 4});
  CHECK(torch::equal(stopped, wanted.narrow(1, 0, 2)));

  options.max_new_tokens = 0;
  CHECK(generate_tokens(chain, prompt, options).sizes() == torch::IntArrayRef({3, 0}));
  CHECK_THROWS_AS(generate_tokens(chain, prompt.narrow(1, 0, 0), options), c10::Error);
}
