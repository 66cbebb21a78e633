#include "roformer/nn/positions.h"

#include "tests/tensors.h"

using namespace roformer;
using namespace roformer::test;
using torch::kFloat32;
using torch::kFloat64;

namespace {

PositionEncoding absolute(const PositionOptions& options, int64_t dim = 8) {
  return make_positions({options}, {.dim = dim, .heads = 2, .head_dim = dim / 2, .layers = 1});
}

/// What embed adds for the positions [B or 1, L].
torch::Tensor added(PositionEncoding& encoding, const Positions& positions, int64_t dim = 8,
                    torch::Dtype dtype = kFloat64) {
  return encoding->embed(torch::zeros({positions.q.size(0), positions.q.size(1), dim}, dtype), positions);
}

torch::Tensor sinusoids(const torch::Tensor& ids, int64_t dim, const SinusoidalOptions& options) {
  formula::Matrix rows;
  for (int64_t i = 0; i < ids.numel(); ++i) {
    const int64_t place = ids.view(-1)[i].item<int64_t>() + options.offset;
    formula::Row row = formula::sinusoid(static_cast<double>(place), static_cast<size_t>(dim), options.base),
                 out;
    if (options.layout == SinusoidLayout::interleaved) {
      out = row;
    } else {
      for (size_t parity : {0U, 1U}) {
        for (size_t t = parity; t < row.size(); t += 2) out.push_back(row[t]);
      }
    }
    for (double& x : out) x *= options.scale;
    rows.push_back(out);
  }
  return tensor_of(rows).view({ids.size(0), ids.size(1), dim});
}

}  // namespace

TEST_CASE("sinusoids against eq. 4") {
  const SinusoidalOptions options{
      .layout = GENERATE(SinusoidLayout::interleaved, SinusoidLayout::halves),
      .base = GENERATE(10000.0, 50.0),
      .offset = GENERATE(0, 2),
      .scale = GENERATE(1.0, 0.02),
  };
  PositionEncoding encoding = absolute(options);
  const Positions range = Positions::range(6, torch::kCPU, 3);
  const Positions ids = Positions::of(torch::tensor({{5, 0, 5}, {1, 900, 2}}), 901);
  for (const Positions& positions : {range, ids}) {
    const torch::Tensor expected = sinusoids(positions.q, 8, options);
    CHECK(max_error(added(encoding, positions), expected) < 1e-12);  // angles to 900: 900 * 2^-53
    CHECK(max_error(added(encoding, positions, 8, kFloat32), expected) <= 0x1p-24);
  }
  CHECK(encoding->limit() == -1);
  CHECK(encoding->parameters().empty());
  CHECK(encoding->buffers().empty());
}

TEST_CASE("sinusoids are added to the vectors, row for row, and serve training after evaluation") {
  PositionEncoding encoding = absolute(SinusoidalOptions{});
  const Positions positions = Positions::range(6, torch::kCPU);
  {
    const torch::InferenceMode inference;
    added(encoding, positions);
  }
  torch::Tensor x = random_tensor({2, 6, 8}, 1, kFloat64).requires_grad_();
  const torch::Tensor y = encoding->embed(x, positions);
  CHECK(max_error(y, x + sinusoids(positions.q, 8, {})) < 1e-14);
  y.sum().backward();
  CHECK(torch::equal(x.grad(), torch::ones_like(x)));
}

TEST_CASE("sinusoids survive casts and grow past any length") {
  PositionEncoding encoding = absolute(SinusoidalOptions{});
  added(encoding, Positions::range(2, torch::kCPU));
  encoding->to(torch::kBFloat16);
  for (int64_t start : {255, 256, 5000}) {
    const Positions positions = Positions::range(3, torch::kCPU, start);
    CHECK(max_error(added(encoding, positions, 8, kFloat32), sinusoids(positions.q, 8, {})) <= 0x1p-24);
    // In bfloat16 the sum is rounded once.
    const torch::Tensor x = random_tensor({1, 3, 8}, 2, torch::kBFloat16);
    const torch::Tensor exact = x.to(kFloat64) + sinusoids(positions.q, 8, {});
    const torch::Tensor y = encoding->embed(x, positions);
    CHECK(y.scalar_type() == torch::kBFloat16);
    CHECK(((y.to(kFloat64) - exact).abs() <= exact.abs() * 0x1p-8 + 1e-6).all().item<bool>());
  }
}

TEST_CASE("learned positions are rows of a trained table") {
  torch::manual_seed(7);
  PositionEncoding encoding = absolute(LearnedOptions{.max_length = 400, .init_std = 0.02}, 64);
  auto parameters = encoding->named_parameters();
  REQUIRE(parameters.keys() == std::vector<std::string>{"table"});
  torch::Tensor table = parameters["table"];
  REQUIRE(table.sizes() == at::IntArrayRef({400, 64}));
  // 25,600 draws: the deviation is known to 0.02 / sqrt(51200), the mean to 0.02 / 160; four of each.
  CHECK(table.std().item<double>() == Approx(0.02).margin(4 * 0.02 / 226));
  CHECK(std::abs(table.mean().item<double>()) < 4 * 0.02 / 160);

  const Positions range = Positions::range(5, torch::kCPU, 2);
  CHECK(torch::equal(added(encoding, range, 64, kFloat32)[0], table.narrow(0, 2, 5)));
  const Positions ids = Positions::of(torch::tensor({{0, 399, 3}, {3, 3, 1}}), 400);
  const torch::Tensor rows = added(encoding, ids, 64, kFloat32);
  for (int64_t b = 0; b < 2; ++b) {
    for (int64_t l = 0; l < 3; ++l) CHECK(torch::equal(rows[b][l], table[ids.q[b][l].item<int64_t>()]));
  }
  rows.sum().backward();
  const torch::Tensor hits = table.grad().select(1, 0);
  CHECK(hits[3].item<float>() == 3.0f);
  CHECK(hits[399].item<float>() == 1.0f);
  CHECK(hits[2].item<float>() == 0.0f);
}

TEST_CASE("a learned table names its limit") {
  PositionEncoding encoding = absolute(LearnedOptions{.max_length = 4});
  CHECK(encoding->limit() == 4);
  CHECK(added(encoding, Positions::range(4, torch::kCPU), 8, kFloat32).size(1) == 4);
  for (const Positions& positions : {Positions::range(5, torch::kCPU), Positions::range(2, torch::kCPU, 3)}) {
    CHECK_THROWS_WITH(
        added(encoding, positions, 8, kFloat32),
        "learned positions end at 4, but the sequence needs 5; shorten it or raise 'max_length'");
  }
}

TEST_CASE("none adds nothing and turns nothing") {
  PositionEncoding encoding = absolute(NoneOptions{});
  const torch::Tensor x = random_tensor({2, 5, 8}, 3);
  const Positions positions = Positions::range(5, torch::kCPU);
  CHECK(encoding->embed(x, positions).is_same(x));
  CHECK(encoding->rotate(x, Side::query, positions).is_same(x));
  CHECK_FALSE(encoding->bias(positions).defined());
  CHECK(encoding->limit() == -1);
}

TEST_CASE("reference sinusoids") {
  const auto oracles = require_oracles();
  if (!oracles) return;
  const OracleCase c(*oracles / "encodings" / "sinusoidal");
  const Positions positions = Positions::of(c.inputs.tensor("positions").unsqueeze(0), 12);
  PositionEncoding interleaved = absolute(SinusoidalOptions{});
  PositionEncoding halves = absolute(SinusoidalOptions{.layout = SinusoidLayout::halves});
  CHECK(max_error(added(interleaved, positions)[0], c.expected.tensor("equation_4")) < c.tolerance());
  CHECK(max_error(added(halves, positions)[0], c.expected.tensor("halves")) < c.tolerance());
}

TEST_CASE("published sinusoids of the Hugging Face RoFormer test") {
  const auto data = require_data();
  if (!data) return;
  const auto file = nlohmann::json::parse(std::ifstream(*data / "oracles" / "values" / "hf_roformer.json"));
  const auto& values = file.at("sinusoidal_table");
  const double atol = values.at("atol");
  const SinusoidalOptions halves{.layout = SinusoidLayout::halves};
  PositionEncoding small = absolute(halves, 6), large = absolute(halves, 512);
  const formula::Matrix two = values.at("num_positions_6_dim_6_rows_0_1");
  CHECK(max_error(added(small, Positions::range(2, torch::kCPU), 6)[0], tensor_of(two)) < atol);
  const formula::Matrix three = values.at("num_positions_512_dim_512_rows_0_2_cols_0_4");
  CHECK(max_error(added(large, Positions::range(3, torch::kCPU), 512)[0].narrow(1, 0, 5), tensor_of(three)) <
        atol);
}
