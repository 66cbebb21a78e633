// The README's three edits, as one who adds a position encoding makes them: `positions.h` comes with the
// edits of CMakeLists.txt, the class and make() are below (in the project a file of roformer/nn/positions/),
// and main() compares with the formula, a bias of -slope |m - n|, and reads the encoding from YAML.
#include <cmath>
#include <iostream>

#include "roformer/nn/attention.h"

namespace roformer {
namespace {

class ToyImpl : public PositionEncodingImpl {
 public:
  explicit ToyImpl(double slope) : slope_(slope) {}
  torch::Tensor bias(const Positions& positions) override {
    const torch::Tensor distance = (positions.q.unsqueeze(-1) - positions.k.unsqueeze(-2)).abs();
    return -slope_ * distance.unsqueeze(1).to(torch::kFloat32);  // [1, 1, Lq, Lk]
  }
  Needs needs() const override { return Needs::bias; }
  std::string_view name() const override { return ToyOptions::type; }

 private:
  double slope_;
};

}  // namespace

PositionEncoding make(const ToyOptions& options, const ModelShape&) {
  return new_encoding<ToyImpl>(options.slope);
}

}  // namespace roformer

#include "roformer/nn/positions/make.cpp"

namespace {

struct ToyModel {
  std::vector<roformer::PositionOptions> positions;
};
template <class V>
void fields(V& v, ToyModel& o) {
  v("positions", o.positions, "position encoding, or a list of them");
}

}  // namespace

int main() {
  using namespace roformer;
  ToyModel model;
  read(parse_config("positions: [{type: sinusoidal}, {type: toy, slope: 0.25}]", "toy.yaml"), model);
  PositionEncoding encoding =
      make_positions(model.positions, {.dim = 4, .heads = 1, .head_dim = 4, .layers = 1});

  const torch::Tensor q = torch::randn({1, 1, 5, 4}), k = torch::randn({1, 1, 5, 4});
  const Positions positions = Positions::range(5, torch::kCPU);
  const torch::Tensor weights = torch::eye(5).view({1, 1, 5, 5});  // as values: the output is the weights
  const torch::Tensor got =
      attention_plain(q, k, weights, {}, encoding->bias(positions), false, encoding->scale(4), 0.0);
  double worst = 0.0;
  for (int64_t m = 0; m < 5; ++m) {
    double exponentials[5], sum = 0.0;
    for (int64_t n = 0; n < 5; ++n) {
      double score = 0.0;
      for (int64_t i = 0; i < 4; ++i) score += q[0][0][m][i].item<double>() * k[0][0][n][i].item<double>();
      exponentials[n] = std::exp(score / 2.0 - 0.25 * std::abs(static_cast<double>(m - n)));
      sum += exponentials[n];
    }
    for (int64_t n = 0; n < 5; ++n)
      worst = std::max(worst, std::abs(got[0][0][m][n].item<double>() - exponentials[n] / sum));
  }
  std::cout << encoding->name() << ": largest error " << worst << "\n";
  return worst < 1e-6 ? 0 : 1;
}
