#include "roformer/nn/positions.h"

#include "tests/tensors.h"

using namespace roformer;
using namespace roformer::test;
using torch::kFloat64;

namespace {

constexpr ModelShape positions_shape{.dim = 16, .heads = 2, .head_dim = 8, .layers = 1};

}  // namespace

TEST_CASE("positions know what their tensors hold") {
  const Positions range = Positions::range(4, torch::kCPU, 3);
  CHECK(torch::equal(range.q, torch::tensor({{3, 4, 5, 6}})));
  CHECK(torch::equal(range.k, range.q));
  CHECK(range.length == 7);
  CHECK(range.contiguous);
  CHECK((range.q_start == 3 && range.k_start == 3));

  const Positions tail = Positions::tail(2, 5, torch::kCPU);
  CHECK(torch::equal(tail.q, torch::tensor({{3, 4}})));
  CHECK(torch::equal(tail.k, torch::tensor({{0, 1, 2, 3, 4}})));
  CHECK(tail.length == 5);
  CHECK(tail.contiguous);
  CHECK((tail.q_start == 3 && tail.k_start == 0));
  CHECK_THROWS_AS(Positions::tail(6, 5, torch::kCPU), c10::Error);

  const torch::Tensor ids = torch::tensor({{0, 2, 1}, {5, 5, 0}});
  const Positions given = Positions::of(ids, 6);
  CHECK((given.q.is_same(ids) && given.k.is_same(ids)));
  CHECK(given.length == 6);
  CHECK_FALSE(given.contiguous);
  CHECK_THROWS_AS(Positions::of(torch::tensor({0, 1}), 2), c10::Error);
  CHECK_THROWS_AS(Positions::of(torch::zeros({1, 2}), 2), c10::Error);
}

TEST_CASE("a single option makes that encoding, a list a chain of them") {
  CHECK(make_positions({NoneOptions{}}, positions_shape)->name() == "none");
  CHECK(make_positions({LearnedOptions{}}, positions_shape)->name() == "learned");
  CHECK(make_positions({SinusoidalOptions{}}, positions_shape)->name() == "sinusoidal");
  CHECK(make_positions({RotaryOptions{}}, positions_shape)->name() == "rotary");
  CHECK(make_positions({RotaryOptions{}}, positions_shape)->scale(16) == 0.25);

  const std::vector<PositionOptions> options{LearnedOptions{.max_length = 9},
                                             RotaryOptions{.trainable = true}, SinusoidalOptions{},
                                             LearnedOptions{.max_length = 7}};
  PositionEncoding chain = make_positions(options, positions_shape);
  CHECK(chain->name() == "learned + rotary + sinusoidal + learned");
  CHECK(chain->limit() == 7);
  CHECK(chain->scale(16) == 0.25);
  CHECK(chain->needs() == Needs::nothing);
  CHECK(chain->named_parameters().keys() == std::vector<std::string>{"0.table", "1.theta", "3.table"});

  const Positions positions = Positions::range(5, torch::kCPU, 1);
  auto tables = chain->named_parameters();
  const torch::Tensor x = random_tensor({2, 5, 16}, 1);
  PositionEncoding sinusoidal = make_positions({SinusoidalOptions{}}, positions_shape);
  const torch::Tensor expected =
      sinusoidal->embed(x, positions) + tables["0.table"].narrow(0, 1, 5) + tables["3.table"].narrow(0, 1, 5);
  CHECK(max_error(chain->embed(x, positions), expected) < 1e-6);

  const torch::Tensor heads = random_tensor({2, 2, 5, 8}, 2);
  PositionEncoding rotary = make_positions({RotaryOptions{.trainable = true}}, positions_shape);
  const torch::Tensor turned = chain->rotate(heads, Side::query, positions);
  CHECK(max_error(turned, heads) > 0.1);
  CHECK(torch::equal(turned, rotary->rotate(heads, Side::query, positions)));
}

TEST_CASE("a chain of added encodings leaves attention alone") {
  PositionEncoding chain = make_positions({SinusoidalOptions{}, LearnedOptions{}}, positions_shape);
  const torch::Tensor heads = random_tensor({2, 2, 5, 8}, 3);
  const Positions positions = Positions::range(5, torch::kCPU);
  CHECK(chain->rotate(heads, Side::key, positions).is_same(heads));
  CHECK_FALSE(chain->bias(positions).defined());
  const AttentionContext context{.positions = positions, .keep = {}};
  CHECK_FALSE(chain->logits(heads, heads, context).defined());
  CHECK_FALSE(chain->values(heads, context).defined());
}

TEST_CASE("encodings that do not fit are refused before anything is built") {
  auto refuse = [](const std::vector<PositionOptions>& options, const ModelShape& shape) -> std::string {
    try {
      validate(options, shape);
    } catch (const Error& error) {
      CHECK_THROWS_AS(make_positions(options, shape), Error);
      return error.what();
    }
    return "";
  };
  CHECK(refuse({SinusoidalOptions{}, RotaryOptions{}}, positions_shape).empty());
  CHECK(refuse({}, positions_shape) ==
        "positions: the list is empty; write 'none' for a model without positions");
  CHECK(refuse({RotaryOptions{}, NoneOptions{}, RotaryOptions{.base = 7}}, positions_shape) ==
        "positions: 'rotary' and 'rotary' both act inside attention; keep one of them");
  CHECK(refuse({SinusoidalOptions{}}, {.dim = 9, .heads = 3, .head_dim = 3}) ==
        "positions: sinusoidal needs an even model 'dim', got 9");
  CHECK(refuse({LearnedOptions{}, RotaryOptions{.dim = 7}}, positions_shape).find("must be even") !=
        std::string::npos);
}

TEST_CASE("an encoding of one's own fills the hooks it needs") {
  class Shift : public PositionEncodingImpl {
   public:
    explicit Shift(double by) : by_(by) {}
    torch::Tensor embed(const torch::Tensor& x, const Positions& p) override {
      return x + by_ * p.q.unsqueeze(-1);
    }

   private:
    double by_;
  };
  PositionEncoding encoding = new_encoding<Shift>(0.5);
  const torch::Tensor y = encoding->embed(torch::zeros({1, 3, 2}), Positions::range(3, torch::kCPU, 1));
  CHECK(torch::equal(y, torch::tensor({{{0.5f, 0.5f}, {1.0f, 1.0f}, {1.5f, 1.5f}}})));
  CHECK(encoding->name() == "custom");
}
