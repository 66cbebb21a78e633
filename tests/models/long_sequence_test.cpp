#include <fstream>

#include "roformer/models/causal_lm.h"
#include "tests/catch.h"

using namespace roformer;

namespace {

double peak_gigabytes() {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with("VmHWM:")) return std::stod(line.substr(6)) / 1e6;  // of kB
  }
  FAIL("/proc/self/status has no VmHWM");
  return 0.0;
}

}  // namespace

// A file of its own: what is measured is the peak of this process. Scores of 16,384 x 16,384 for 4 heads
// would take 4.3 GB a layer.
TEST_CASE("linear attention trains on 16,384 tokens in memory for 16,384 tokens") {
  torch::manual_seed(1);
  CausalLmOptions options;
  options.dim = 128;
  options.layers = 2;
  options.heads = 4;
  options.ffn = 512;
  options.vocab_size = 256;
  options.attention =
      LinearAttention{.features = FavorFeatures{.features = 64}, .rotary = RotaryOrder::after};
  CausalLm model(options);
  const torch::Tensor tokens = torch::randint(256, {1, 16385}, torch::kInt64);
  const torch::Tensor logits = model->forward(tokens.narrow(1, 0, 16384)).flatten(0, 1);
  const torch::Tensor loss = at::cross_entropy_loss(logits, tokens.narrow(1, 1, 16384).flatten());
  CHECK(loss.item<float>() == Approx(std::log(256.0)).margin(0.3));
  loss.backward();
  for (const auto& parameter : model->named_parameters()) {
    INFO(parameter.key());
    CHECK(parameter.value().grad().isfinite().all().item<bool>());
    CHECK(parameter.value().grad().abs().max().item<float>() > 0.0f);
  }
  CHECK(peak_gigabytes() < 2.0);
}
