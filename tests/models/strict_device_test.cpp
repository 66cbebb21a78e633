#include "tests/strict_device.h"
#include "tests/tensors.h"

#include "roformer/models/heads.h"
#include "tests/catch.h"

using namespace roformer;
using roformer::test::strict_device;
using roformer::test::strict_device_reads;

namespace {

EncoderOptions strict_options(const PositionOptions& positions) {
  EncoderOptions options = test::small_encoder(16, 31, positions);
  options.init_std = 0.2;
  return options;
}

Batch strict_batch(bool padded) {
  Batch batch;
  batch.tokens = torch::randint(31, {3, 10}, torch::kInt64);
  batch.segments = torch::randint(2, {3, 10}, torch::kInt64);
  if (padded) {
    batch.keep = torch::ones({3, 10}, torch::kBool);
    batch.keep[1].slice(0, 6).fill_(false);
  }
  batch.targets = torch::tensor({0, 4, 11, 21, 29}, torch::kInt64);
  batch.labels = torch::randint(31, {5}, torch::kInt64);
  return batch;
}

torch::Tensor strict_loss(MaskedLm& model, const Batch& batch) {
  return at::cross_entropy_loss(model(batch), batch.labels, {}, at::Reduction::Sum) / batch.target_count();
}

/// One update by the fused kernel, all state on the device of the parameters.
void strict_update(const std::vector<torch::Tensor>& parameters) {
  torch::NoGradGuard no_grad;
  std::vector<torch::Tensor> grads, first, second, steps;
  for (const torch::Tensor& p : parameters) {
    grads.push_back(p.grad());
    first.push_back(torch::zeros_like(p));
    second.push_back(torch::zeros_like(p));
    steps.push_back(torch::ones({}, p.options()));
  }
  at::_fused_adamw_(parameters, grads, first, second, {}, steps, 1e-3, 0.9, 0.999, 0.01, 1e-8, false, false);
}

/// Keeps a tensor that Module::to does not know of.
class ForgottenTable : public PositionEncodingImpl {
 public:
  torch::Tensor embed(const torch::Tensor& x, const Positions&) override { return x + table_; }
  std::string_view name() const override { return "forgotten"; }

 private:
  torch::Tensor table_ = torch::ones({16});
};

}  // namespace

TEST_CASE("strict device: it computes what the CPU computes") {
  const torch::Tensor a = torch::randn({4, 5}), b = torch::randn({5, 3});
  const torch::Tensor x = a.to(strict_device()), y = b.to(strict_device());
  REQUIRE(x.device() == strict_device());
  const torch::Tensor product = torch::matmul(x, y);
  REQUIRE(product.device() == strict_device());
  REQUIRE(torch::equal(product.cpu(), torch::matmul(a, b)));
  torch::Tensor z = x.t().contiguous();
  z.mul_(2.0).select(0, 1).zero_();
  torch::Tensor expected = (a.t() * 2.0).contiguous();
  expected.select(0, 1).zero_();
  REQUIRE(torch::equal(z.cpu(), expected));
  REQUIRE(torch::equal((x * torch::tensor(3.0)).cpu(), a * 3.0));  // a number may come from the CPU
}

TEST_CASE("strict device: it refuses tensors of the CPU") {
  const torch::Tensor cpu = torch::randn({4, 4}), x = cpu.to(strict_device());
  REQUIRE_THROWS_WITH(x + cpu, Catch::Contains("same device"));  // ATen notices by itself
  REQUIRE_THROWS_WITH(torch::matmul(cpu, x), Catch::Contains("aten::mm") && Catch::Contains("[4, 4] on cpu"));
  REQUIRE_THROWS(torch::linear(x, cpu));
  REQUIRE_THROWS(torch::cat({x, cpu}));
  REQUIRE_THROWS(x.masked_fill(cpu > 0, 0));
  REQUIRE_THROWS(x.index_select(0, torch::tensor({1})));
  REQUIRE_THROWS(x.gather(0, torch::zeros({1, 4}, torch::kInt64)));
  REQUIRE_THROWS(x.index({torch::tensor({1})}));
  REQUIRE_THROWS(at::cross_entropy_loss(x, torch::tensor({0, 1, 2, 3})));
  REQUIRE_THROWS(at::scaled_dot_product_attention(x.view({1, 1, 4, 4}), x.view({1, 1, 4, 4}),
                                                  x.view({1, 1, 4, 4}), cpu.view({1, 1, 4, 4})));
  // The step counters of a fused optimizer are no numbers.
  REQUIRE_THROWS(at::_fused_adamw_({x}, {x.clone()}, {x.clone()}, {x.clone()}, {}, {torch::ones({})}, 1e-3,
                                   0.9, 0.999, 0.0, 1e-8, false, false));
}

TEST_CASE("strict device: it counts what is read back") {
  const torch::Tensor x = torch::ones({3}).to(strict_device());
  const int64_t before = strict_device_reads();
  x.sum();
  REQUIRE(strict_device_reads() == before);
  x.sum().item<float>();
  REQUIRE(strict_device_reads() == before + 1);
  x.cpu();
  REQUIRE(strict_device_reads() == before + 2);
  x.masked_select(x > 0);
  REQUIRE(strict_device_reads() == before + 3);
}

TEST_CASE("strict device: forward, backward and update of every masked language model") {
  RotaryOptions trainable;
  trainable.trainable = true;
  const std::vector<PositionOptions> encodings{LearnedOptions{}, RotaryOptions{}, trainable,
                                               SinusoidalOptions{}, NoneOptions{}};
  for (const PositionOptions& positions : encodings) {
    for (const NormPlacement norm : {NormPlacement::post, NormPlacement::pre}) {
      for (const bool padded : {false, true}) {
        torch::manual_seed(3);
        EncoderOptions options = strict_options(positions);
        options.norm = norm;
        MaskedLm on_cpu(options), on_strict(options);
        const auto cpu_parameters = on_cpu->parameters();
        {
          torch::NoGradGuard no_grad;
          for (size_t i = 0; i < cpu_parameters.size(); ++i)
            on_strict->parameters()[i].copy_(cpu_parameters[i]);
        }
        on_strict->to(strict_device());
        const Batch batch = strict_batch(padded), moved = batch.to(strict_device());
        const torch::Tensor expected = strict_loss(on_cpu, batch);
        expected.backward();
        strict_update(cpu_parameters);

        const int64_t reads = strict_device_reads();
        const torch::Tensor loss = strict_loss(on_strict, moved);
        REQUIRE(loss.device() == strict_device());
        loss.backward();
        const auto parameters = on_strict->parameters();
        strict_update(parameters);
        REQUIRE(strict_device_reads() == reads);  // nothing made the device wait

        // Fused attention of the CPU against its formula, all else the same kernels.
        REQUIRE(loss.item<float>() == Approx(expected.item<float>()).epsilon(1e-6));
        for (size_t i = 0; i < parameters.size(); ++i) {
          INFO(on_cpu->named_parameters()[i].key());
          REQUIRE(parameters[i].device() == strict_device());
          REQUIRE(torch::allclose(parameters[i].grad().cpu(), cpu_parameters[i].grad(), 1e-4, 2e-6));
        }
      }
    }
  }
}

TEST_CASE("strict device: dropout, and the unfused optimizer of LibTorch") {
  EncoderOptions options = strict_options(RotaryOptions{});
  options.dropout = 0.5;
  MaskedLm model(options);
  model->to(strict_device());
  const Batch batch = strict_batch(true).to(strict_device());
  torch::optim::AdamW optimizer(model->parameters(), 1e-2);
  const torch::Tensor before = model->head->parameters()[0].detach().clone();
  strict_loss(model, batch).backward();
  torch::nn::utils::clip_grad_norm_(model->parameters(), 1.0);
  optimizer.step();
  REQUIRE_FALSE(torch::equal(before, model->head->parameters()[0]));
}

TEST_CASE("strict device: a tensor left on the CPU is caught") {
  MaskedLm model(strict_options(RotaryOptions{}));
  model->to(strict_device());
  const Batch host = strict_batch(true);
  Batch batch = host.to(strict_device());
  REQUIRE_NOTHROW(strict_loss(model, batch));
  SECTION("tokens") { batch.tokens = host.tokens; }
  SECTION("keep") { batch.keep = host.keep; }
  SECTION("segments") { batch.segments = host.segments; }
  SECTION("targets") { batch.targets = host.targets; }
  SECTION("labels") { batch.labels = host.labels; }
  SECTION("one weight") { model->head->to(torch::kCPU); }
  SECTION("a table that is no buffer") {
    model = MaskedLm(strict_options(NoneOptions{}), new_encoding<ForgottenTable>());
    model->to(strict_device());
  }
  REQUIRE_THROWS_WITH(strict_loss(model, batch), Catch::Contains("on cpu") || Catch::Contains("and cpu"));
}
