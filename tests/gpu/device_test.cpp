// What a GPU must compute as the CPU does, on the device that ROFORMER_TEST_DEVICE names. On the CPU, the
// default, these cases compare the CPU with itself and show little more than that they run: their names say
// so.
#include <fstream>

#include "roformer/models/heads.h"
#include "roformer/nn/kernels/rotary_cuda.h"
#include "roformer/nn/rotary.h"
#include "roformer/run.h"
#include "tests/tensors.h"

using namespace roformer;
using namespace roformer::test;
using torch::kFloat32;
using torch::kFloat64;

namespace {

EncoderOptions device_options(const PositionOptions& positions) {
  EncoderOptions options = test::small_encoder(64, 53, positions);
  options.init_std = 0.2;
  return options;
}

Batch device_batch(bool padded) {
  torch::manual_seed(5);
  Batch batch;
  batch.tokens = torch::randint(53, {3, 24}, torch::kInt64);
  batch.segments = torch::randint(2, {3, 24}, torch::kInt64);
  if (padded) {
    batch.keep = torch::ones({3, 24}, torch::kBool);
    batch.keep[1].slice(0, 14).fill_(false);
  }
  batch.targets = torch::tensor({0, 4, 11, 29, 33, 50, 71}, torch::kInt64);
  batch.labels = torch::randint(53, {7}, torch::kInt64);
  return batch;
}

MaskedLm device_model(const EncoderOptions& options, torch::Device device, torch::Dtype dtype) {
  torch::manual_seed(3);
  MaskedLm model(options);
  model->to(device, dtype);
  return model;
}

torch::Tensor device_loss(MaskedLm& model, const Batch& batch) {
  return at::cross_entropy_loss(model(batch), batch.labels, {}, at::Reduction::Sum) / batch.target_count();
}

double largest(const torch::Tensor& t) {
  return t.detach().abs().max().to(torch::kCPU, kFloat64).item<double>();
}

/// A tiny masked language model on a text of its own, in a folder of its own.
struct DeviceRun {
  explicit DeviceRun(const std::vector<std::string>& sets = {}) {
    std::ofstream text(folder / "text.txt");
    for (int i = 0; i < 4000; ++i) text << "line " << i << " of a plain text, " << i * i % 97 << " words\n";
    std::ofstream(folder / "run.yaml")
        << "data: {train: text.txt, valid_fraction: 0.3, length: 32}\n"
           "model: {dim: 32, layers: 2, heads: 2, ffn: 64, dropout: 0.0}\n"
           "trainer: {steps: 8, batch: 8, log_every: 1, evaluate_every: 4,\n"
           "          checkpoint_every: 4, optimizer: {type: adamw, lr: 1.0e-2}}\n";
    text.close();
    this->sets = sets;
  }

  /// Losses of the updates, after those that the folder holds already.
  std::vector<double> train(torch::Device device, int64_t steps) {
    RunOptions run = load_run(folder / "run.yaml", sets);
    run.trainer.steps = steps;
    World world;
    world.device = device;
    const std::unique_ptr<Task> task = make_task(run, world, folder / "cache");
    Trainer trainer(*task, run.trainer, world, folder.path());
    trainer.resume();
    std::vector<double> losses;
    trainer.fit([&](int64_t, double loss, double) { losses.push_back(loss); });
    for (const torch::Tensor& p : task->model().parameters()) REQUIRE(p.device() == device);
    return losses;
  }

  TempDir folder;
  std::vector<std::string> sets;
};

/// Sums on a GPU take another order each time, and Adam makes noise in tiny gradients visible.
void check_losses(const std::vector<double>& a, const std::vector<double>& b, double tolerance) {
  REQUIRE(a.size() == b.size());
  for (size_t i = 0; i < a.size(); ++i) CHECK(a[i] == Approx(b[i]).epsilon(0).margin(tolerance));
}

}  // namespace

TEST_CASE(
    "test device against the CPU in float64 (CPU by default: weak): forward and backward of every encoding") {
  RotaryOptions halves, trainable;
  halves.layout = RotaryLayout::halves;
  halves.dim = 8;
  trainable.trainable = true;
  const std::vector<PositionOptions> encodings{
      LearnedOptions{}, SinusoidalOptions{}, NoneOptions{}, RotaryOptions{}, halves, trainable};
  for (const PositionOptions& positions : encodings) {
    for (const NormPlacement norm : {NormPlacement::post, NormPlacement::pre}) {
      for (const bool padded : {false, true}) {
        EncoderOptions options = device_options(positions);
        options.norm = norm;
        const Batch batch = device_batch(padded);
        MaskedLm exact = device_model(options, torch::kCPU, kFloat64);
        MaskedLm on_cpu = device_model(options, torch::kCPU, kFloat32);
        MaskedLm on_device = device_model(options, test_device(), kFloat32);
        const torch::Tensor exact_loss = device_loss(exact, batch), cpu_loss = device_loss(on_cpu, batch);
        const torch::Tensor loss = device_loss(on_device, batch.to(test_device()));
        REQUIRE(loss.device() == test_device());
        exact_loss.backward();
        cpu_loss.backward();
        loss.backward();
        CHECK(max_error(loss, exact_loss) <=
              4 * max_error(cpu_loss, exact_loss) + 1e-6 * largest(exact_loss));

        const auto exact_items = exact->named_parameters(), cpu_items = on_cpu->named_parameters();
        const auto items = on_device->named_parameters();
        // What float32 on the CPU loses, and as much again for another order of sums.
        double scale = 0.0, noise = 0.0;
        for (size_t i = 0; i < items.size(); ++i) {
          scale = std::max(scale, largest(exact_items[i].value().grad()));
          noise = std::max(noise, max_error(cpu_items[i].value().grad(), exact_items[i].value().grad()));
        }
        CHECK(noise < 1e-5 * scale);
        for (size_t i = 0; i < items.size(); ++i) {
          INFO(items[i].key());
          REQUIRE(items[i].value().grad().device() == test_device());
          CHECK(max_error(items[i].value().grad(), exact_items[i].value().grad()) <=
                4 * noise + 1e-6 * scale);
        }
      }
    }
  }
}

TEST_CASE("test device against the CPU in float64 (CPU by default: weak): updates of both optimizers") {
  const double lr = 1e-2;
  for (const OptimizerOptions& options :
       {OptimizerOptions(AdamWOptions{}), OptimizerOptions(AdamOptions{})}) {
    MaskedLm exact = device_model(device_options(RotaryOptions{}), torch::kCPU, kFloat64);
    MaskedLm on_device = device_model(device_options(RotaryOptions{}), test_device(), kFloat32);
    Optimizer exact_optimizer(options, *exact), optimizer(options, *on_device);
    const auto expected = exact->parameters(), parameters = on_device->parameters();
    for (uint64_t step = 0; step < 3; ++step) {
      // The same gradients on both sides: Adam divides by their size, so noise around zero would count in
      // full.
      for (size_t i = 0; i < parameters.size(); ++i) {
        const torch::Tensor grad = random_tensor(parameters[i].sizes(), 100 * step + i);
        expected[i].mutable_grad() = grad.to(kFloat64);
        parameters[i].mutable_grad() = grad.to(test_device());
      }
      CHECK(max_error(optimizer.grad_norm(), exact_optimizer.grad_norm()) <
            1e-5 * largest(optimizer.grad_norm()));
      exact_optimizer.step(lr, 4.0);
      optimizer.step(lr, 4.0);
      for (size_t i = 0; i < parameters.size(); ++i) {
        // One rounding of the weight for each step; 1 - 0.999^n may be off by 6e-5 in float32, its root by
        // half of that.
        const double noise = static_cast<double>(step + 1) * (largest(expected[i]) * 0x1p-24 + lr * 6e-5);
        CHECK(max_error(parameters[i], expected[i]) <= noise);
      }
    }
  }
}

TEST_CASE(
    "test device (CPU by default: float32 fused, else the twin with itself): RoPE against plain in float64") {
  if (test_device().is_cuda()) REQUIRE(kernels::rotary_cuda);
  struct Case {
    int64_t width, dim;
  };
  for (const torch::Dtype type : {kFloat32, torch::kFloat16, torch::kBFloat16, kFloat64}) {
    for (const RotaryLayout layout : {RotaryLayout::interleaved, RotaryLayout::halves}) {
      for (const Case c : {Case{64, 64}, {64, 32}, {16, 12}, {10, 6}, {7, 4}, {2, 2}, {300, 256}}) {
        for (const int view : {0, 1, 2}) {
          for (const bool own_rows : {false, true}) {
            CAPTURE(type, static_cast<int>(layout), c.width, c.dim, view, own_rows);
            const int64_t batch = 3, heads = 5, length = 21;
            // As the projections leave it; contiguous; off by one value in memory, where no wide load is
            // allowed.
            torch::Tensor x = random_tensor({batch, length, heads, c.width + 1}, 1, type).to(test_device());
            x = x.narrow(3, view == 2 ? 1 : 0, c.width).transpose(1, 2);
            if (view == 0) x = x.transpose(1, 2).contiguous().transpose(1, 2);
            if (view == 1) x = x.contiguous();
            const torch::Tensor weight =
                random_tensor({batch, heads, length, c.width}, 2, type).to(test_device());
            const int64_t tables = own_rows ? batch : 1;
            const torch::Tensor angles = rotary_angles(500 + tables * length, c.dim)
                                             .narrow(0, 500, tables * length)
                                             .unflatten(0, {tables, length});
            const torch::Tensor table = torch::stack({angles.cos(), angles.sin()}, -1).to(kFloat32);

            auto run = [&](const auto& apply, const torch::Tensor& in, const torch::Tensor& rows,
                           const torch::Tensor& factor) {
              const torch::Tensor leaf = in.detach().requires_grad_();
              const torch::Tensor out = apply(leaf, rows, layout);
              (out * factor).sum().backward();
              return std::vector<torch::Tensor>{out, leaf.grad()};
            };
            auto exactly = [](const torch::Tensor& t) { return t.to(torch::kCPU, kFloat64); };
            const auto exact = run(apply_rotary_plain, exactly(x), table.to(kFloat64), exactly(weight));
            const auto fused = run(apply_rotary, x, table.to(test_device()), weight);
            const auto plain = run(apply_rotary_plain, x, table.to(test_device()), weight);
            // One rounding to the type, after three in float32, of values below 8.
            const double epsilon = type == torch::kBFloat16  ? 0x1p-8
                                   : type == torch::kFloat16 ? 0x1p-11
                                                             : 0.0;
            const double noise = type == kFloat64 ? 4 * 8 * 0x1p-53 : 8 * epsilon + 3 * 8 * 0x1p-24;
            for (size_t i = 0; i < exact.size(); ++i) {
              CHECK(fused[i].scalar_type() == type);
              CHECK(max_error(fused[i], exact[i]) <= noise);
              CHECK(max_error(plain[i], exact[i]) <= noise);
            }
            const bool kernel = type == kFloat32 || (test_device().is_cuda() && type != kFloat64);
            CHECK((fused[0].grad_fn()->name().find("FusedRotary") != std::string::npos) == kernel);
          }
        }
      }
    }
  }
}

TEST_CASE(
    "test device (CPU by default: bf16 where it can, fp16 refused): autocast training lowers the loss") {
  for (const Precision precision : {Precision::fp32, Precision::bf16, Precision::fp16}) {
    const std::string name = precision == Precision::fp32   ? "fp32"
                             : precision == Precision::bf16 ? "bf16"
                                                            : "fp16";
    CAPTURE(name);
    DeviceRun run({"trainer.precision=" + name});
    bool possible = true;
    try {
      require_precision(precision, test_device());
    } catch (const Error&) {
      possible = false;
    }
    if (!possible) {
      CHECK_THROWS_AS(run.train(test_device(), 60), Error);
      continue;
    }
    const std::vector<double> losses = run.train(test_device(), 60);
    REQUIRE(losses.size() == 60);
    // From about ln 259; half precision alone would lose far less than this.
    CHECK(losses.front() > 5.0);
    CHECK(losses.back() < 3.5);
  }
}

TEST_CASE("test device (CPU by default: bit for bit): a resumed run draws the same dropout") {
  const double tolerance = test_device().is_cpu() ? 0.0 : 1e-3;
  DeviceRun whole({"model.dropout=0.5"}), parts({"model.dropout=0.5"}), other({"model.dropout=0.4"});
  const std::vector<double> expected = whole.train(test_device(), 8);
  std::vector<double> losses = parts.train(test_device(), 4);
  torch::manual_seed(99);  // what the checkpoint holds must count, not what the process left behind
  for (const double loss : parts.train(test_device(), 8)) losses.push_back(loss);
  check_losses(losses, expected, tolerance);
  // Other masks show far above the tolerance.
  CHECK(std::abs(other.train(test_device(), 8).back() - expected.back()) > 5e-3);
}

TEST_CASE("test device (CPU by default: weak): a checkpoint goes from device to CPU and back") {
  const double tolerance = test_device().is_cpu() ? 0.0 : 1e-3;
  DeviceRun away, home, stay;
  std::vector<double> from_device = away.train(test_device(), 4), from_cpu = home.train(torch::kCPU, 4);
  for (const double loss : away.train(torch::kCPU, 8)) from_device.push_back(loss);
  for (const double loss : home.train(test_device(), 8)) from_cpu.push_back(loss);
  const std::vector<double> expected = stay.train(torch::kCPU, 8);
  check_losses(from_device, expected, tolerance);
  check_losses(from_cpu, expected, tolerance);

  const Checkpoint stored = load_checkpoint(CheckpointFolder(home.folder.path()).path(8));
  for (const auto& [name, tensor] : stored.tensors) {
    INFO(name);
    CHECK(tensor.is_cpu());
  }
}

TEST_CASE("a GPU that is not there is refused in one line, and the CPU goes on") {
  std::string reason;
  try {
    World::open("cuda:99", 0);
  } catch (const Error& error) {
    reason = error.what();
  }
  CHECK(reason.find("device cuda:99: ") != std::string::npos);
  CHECK(reason.find('\n') == std::string::npos);
  const World world = World::open("auto", 0);
  if (test_device().is_cuda()) CHECK(world.device.is_cuda());
  CHECK(torch::ones({2}).to(world.device).sum().item<float>() == 2.0f);
  CHECK(World::open("cpu", 0).device.is_cpu());
}
