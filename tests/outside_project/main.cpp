// An encoder with a position encoding that roformer does not know: a bias that falls with the distance.
#include <iostream>

#include "roformer/models/encoder.h"

class DistanceImpl : public roformer::PositionEncodingImpl {
 public:
  torch::Tensor bias(const roformer::Positions& positions) override {
    const torch::Tensor distance = (positions.q.unsqueeze(-1) - positions.k.unsqueeze(-2)).abs();
    return -0.5 * distance.unsqueeze(1).to(torch::kFloat32);  // [1, 1, Lq, Lk]
  }
  roformer::Needs needs() const override { return roformer::Needs::bias; }
  std::string_view name() const override { return "distance"; }
};

// How far the outputs of one token at two places are apart: 0 for a model that is blind to order.
double order_sensitivity(const roformer::PositionEncoding& encoding) {
  torch::manual_seed(1);
  const roformer::EncoderOptions options{
      .dim = 32, .layers = 2, .heads = 4, .ffn = 64, .positions = {roformer::NoneOptions{}}, .vocab_size = 10};
  roformer::Encoder encoder(options, encoding);
  encoder->eval();
  torch::NoGradGuard no_grad;
  const torch::Tensor output = encoder(torch::tensor({{5, 6, 7, 5}}, torch::kInt64))[0];
  return (output[0] - output[3]).abs().max().item<double>();
}

int main() {
  const double none = order_sensitivity(nullptr);
  const std::shared_ptr<roformer::PositionEncodingImpl> distance = std::make_shared<DistanceImpl>();
  const double own = order_sensitivity(roformer::PositionEncoding(distance));
  std::cout << "without positions " << none << ", with an encoding of its own " << own << '\n';
  return none < 1e-5 && own > 1e-3 ? 0 : 1;
}
