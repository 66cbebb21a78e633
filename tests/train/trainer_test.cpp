#include "roformer/torch.h"

#include "roformer/train/trainer.h"

#include <cmath>
#include <fstream>
#include <limits>

#include <ATen/autocast_mode.h>

#include "roformer/core/metrics_log.h"
#include "roformer/hf/safetensors.h"
#include "tests/catch.h"
#include "tests/support.h"

using namespace roformer;
using roformer::test::TempDir;

namespace {

/// Batches that follow from the sample number alone. batch.tokens carries x, batch.labels y.
class ProbeStream : public BatchStream {
 public:
  ProbeStream(int64_t batch, int64_t limit) : batch_(batch), limit_(limit) {}
  std::optional<Batch> next() override {
    if (limit_ > 0 && samples_ >= limit_) return std::nullopt;
    Batch batch;
    const torch::Tensor index = torch::arange(samples_, samples_ + batch_, torch::kInt64);
    batch.tokens = index.remainder(7) - 3;
    // Uneven: only even samples count, but always one.
    const torch::Tensor counted = index.remainder(2).eq(0).nonzero().flatten();
    batch.targets = counted.numel() > 0 ? counted : torch::zeros({1}, torch::kInt64);
    batch.labels = batch.tokens.index_select(0, batch.targets) * 2 + 1;
    batch.token_count = batch_;
    samples_ += batch_;
    return batch;
  }
  StreamState state() const override { return {samples_}; }
  void restore(StreamState state) override { samples_ = state.samples; }

 private:
  int64_t batch_, limit_, samples_ = 0;
};

struct ProbeModelImpl : torch::nn::Module {
  ProbeModelImpl() {
    linear = register_module("linear", torch::nn::Linear(1, 1));
    const torch::NoGradGuard no_grad;
    linear->weight.fill_(0.5);
    linear->bias.fill_(-0.25);
  }
  torch::nn::Linear linear{nullptr};
};
TORCH_MODULE(ProbeModel);

/// Least squares with noise from the default generator, as dropout draws from it.
class ProbeTask : public Task {
 public:
  torch::nn::Module& model() override { return *probe; }
  std::unique_ptr<BatchStream> stream(Split split, const Stage& stage, Shard) override {
    if (split == Split::train) {
      lengths.push_back(stage.length);
      seeds.push_back(stage.seed);
    }
    return std::make_unique<ProbeStream>(stage.batch, split == Split::valid ? 8 : 0);
  }
  Loss loss(const Batch& batch) override {
    ++calls;
    torch::Tensor sum = errors(batch).square().sum() * factor;
    if (noise) sum = sum * (1.0 + 0.1 * torch::rand({}));
    if (calls == poison_at) sum = sum * std::numeric_limits<double>::quiet_NaN();
    return {sum, batch.target_count()};
  }
  void score(const Batch& batch, Evaluation& evaluation) override {
    evaluation.loss_sum += worsen ? static_cast<double>(calls) : errors(batch).square().sum().item<float>();
    evaluation.count += batch.target_count();
  }
  Headline headline() const override { return {"loss", higher_is_better}; }
  torch::Tensor errors(const Batch& batch) {
    const torch::Tensor x = batch.tokens.index_select(0, batch.targets).to(torch::kFloat32).unsqueeze(1);
    const torch::Tensor y = batch.labels.to(torch::kFloat32).unsqueeze(1);
    return probe->linear(x) - y;
  }

  ProbeModel probe;
  bool noise = false, worsen = false, higher_is_better = false;
  double factor = 1.0;  ///< of the loss
  int64_t calls = 0, poison_at = -1;
  std::vector<int64_t> lengths;  ///< of the stages whose data was asked for
  std::vector<uint64_t> seeds;
};

TrainerOptions probe_options() {
  TrainerOptions options;
  options.steps = 20;
  options.batch = 4;
  options.clip = 0.0;
  options.log_every = 3;
  options.evaluate_every = 5;
  options.checkpoint_every = 5;
  options.device = "cpu";
  return options;
}

std::string without_seconds(const std::filesystem::path& metrics) {
  std::string text;
  for (nlohmann::json record : MetricsLog::read(metrics)) {
    record.erase("seconds");
    text += record.dump() + "\n";
  }
  return text;
}

}  // namespace

TEST_CASE("accumulation is exact: uneven micro-batches equal one large batch") {
  TempDir one, many;
  ProbeTask whole, parts;
  TrainerOptions options = probe_options();
  options.batch = 12;
  Trainer(whole, options, {}, one.path()).fit();
  options.batch = 3;  // 2, 1, 2, 1 targets in turn: a mean of means would differ
  options.accumulate = 4;
  Trainer(parts, options, {}, many.path()).fit();
  CHECK(whole.probe->linear->weight.item<float>() == Approx(parts.probe->linear->weight.item<float>()).epsilon(1e-6));
  CHECK(whole.probe->linear->bias.item<float>() == Approx(parts.probe->linear->bias.item<float>()).epsilon(1e-6));
  const auto a = MetricsLog::read(one / "metrics.jsonl"), b = MetricsLog::read(many / "metrics.jsonl");
  CHECK(a.back()["tokens"] == b.back()["tokens"]);
}

TEST_CASE("losses are sums and counts: {4}, {0, 0, 0} in two micro-batches make 1, not 2") {
  struct TwoBatches : ProbeTask {
    Loss loss(const Batch&) override {
      const bool first = calls++ % 2 == 0;
      return {probe->linear->weight.sum() * 0.0 + (first ? 4.0 : 0.0), first ? 1 : 3};
    }
  };
  struct TwoCounts : BatchStream {
    int64_t n = 0;
    std::optional<Batch> next() override {
      Batch batch;
      batch.targets = torch::arange(n++ % 2 == 0 ? 1 : 3, torch::kInt64);
      batch.labels = batch.targets;
      batch.tokens = batch.targets;
      batch.token_count = 1;
      return batch;
    }
    StreamState state() const override { return {n}; }
    void restore(StreamState state) override { n = state.samples; }
  };
  struct Task2 : TwoBatches {
    std::unique_ptr<BatchStream> stream(Split split, const Stage& stage, Shard shard) override {
      if (split == Split::valid) return ProbeTask::stream(split, stage, shard);
      return std::make_unique<TwoCounts>();
    }
  };
  TempDir folder;
  Task2 task;
  TrainerOptions options = probe_options();
  options.steps = 1;
  options.log_every = 1;
  options.accumulate = 2;
  Trainer(task, options, {}, folder.path()).fit();
  CHECK(MetricsLog::read(folder / "metrics.jsonl").front()["loss"] == 1.0);
}

TEST_CASE("a run that ends and resumes equals an uninterrupted one bit for bit") {
  TempDir whole_folder, cut_folder;
  TrainerOptions options = probe_options();
  options.accumulate = 2;
  options.ema = 0.9;
  ProbeTask whole;
  whole.noise = true;
  torch::manual_seed(11);
  Trainer(whole, options, {}, whole_folder.path()).fit();

  {
    ProbeTask first;
    first.noise = true;
    torch::manual_seed(11);
    TrainerOptions half = options;
    half.steps = 10;
    half.schedule = options.schedule;
    Trainer(first, half, {}, cut_folder.path()).fit();
    // What a killed process leaves beyond its checkpoint: another record, and half of one.
    std::ofstream(cut_folder / "metrics.jsonl", std::ios::app) << R"({"step":12,"split":"train","loss":9})" << "\n{\"st";
  }
  ProbeTask second;
  second.noise = true;
  torch::manual_seed(999);
  Trainer trainer(second, options, {}, cut_folder.path());
  REQUIRE(trainer.resume());
  CHECK(trainer.step() == 10);
  trainer.fit();

  CHECK(torch::equal(whole.probe->linear->weight, second.probe->linear->weight));
  CHECK(torch::equal(whole.probe->linear->bias, second.probe->linear->bias));
  const Checkpoint a = load_checkpoint(CheckpointFolder(whole_folder.path()).path(20));
  const Checkpoint b = load_checkpoint(CheckpointFolder(cut_folder.path()).path(20));
  REQUIRE(a.tensors.size() == b.tensors.size());
  for (size_t i = 0; i < a.tensors.size(); ++i) {
    INFO(a.tensors[i].first);
    CHECK(torch::equal(a.tensors[i].second, b.tensors[i].second));
  }
  // Updates 10 and 20 end a run here and there, so they are logged in both; otherwise the records are the same.
  std::string expected = without_seconds(whole_folder / "metrics.jsonl");
  std::string got = without_seconds(cut_folder / "metrics.jsonl");
  CHECK(got.find("\"step\":18") != std::string::npos);
  CHECK(expected.substr(expected.find("\"step\":15")) == got.substr(got.find("\"step\":15")));
}

TEST_CASE("damaged checkpoints are skipped; none usable is an error; none at all starts afresh") {
  TempDir folder;
  ProbeTask task;
  TrainerOptions options = probe_options();
  options.keep = 3;
  CHECK_FALSE(Trainer(task, options, {}, folder.path()).resume());
  Trainer(task, options, {}, folder.path()).fit();
  const CheckpointFolder checkpoints(folder.path());
  REQUIRE(checkpoints.steps() == std::vector<int64_t>{20, 15, 10});

  std::filesystem::resize_file(checkpoints.path(20), std::filesystem::file_size(checkpoints.path(20)) - 1);
  save_safetensors(checkpoints.path(15), {{"model.linear.weight", torch::zeros({1, 1})}});  // a foreign file
  ProbeTask again;
  Trainer trainer(again, options, {}, folder.path());
  REQUIRE(trainer.resume());
  CHECK(trainer.step() == 10);

  std::ofstream(checkpoints.path(10), std::ios::trunc) << "nonsense";
  ProbeTask third;
  CHECK_THROWS_AS(Trainer(third, options, {}, folder.path()).resume(), Error);
}

TEST_CASE("a non-finite loss names the update and overwrites nothing") {
  TempDir folder;
  ProbeTask task;
  task.poison_at = 14;
  Trainer trainer(task, probe_options(), {}, folder.path());
  try {
    trainer.fit();
    FAIL("no error");
  } catch (const Error& error) {
    CHECK(std::string(error.what()).find("update 14: the loss is not finite") != std::string::npos);
    CHECK(std::string(error.what()).find("step-00000010") != std::string::npos);
  }
  CHECK(CheckpointFolder(folder.path()).steps() == std::vector<int64_t>{10, 5});
  for (const auto& [name, tensor] : load_checkpoint(CheckpointFolder(folder.path()).path(10)).tensors) {
    if (tensor.is_floating_point()) CHECK(tensor.isfinite().all().item<bool>());
  }
}

TEST_CASE("clipping looks at the true norm, whatever the loss scale") {
  // One parameter group, gradient g: with clip 1 and |g| = 0.5 nothing changes; with |g| > 1 the first SGD-like
  // quantity Adam sees is g / |g|. Adam's moments after one update show it: exp_avg = 0.1 * clipped gradient.
  for (const double clip : {1e6, 1.0}) {
    TempDir folder;
    ProbeTask task;
    TrainerOptions options = probe_options();
    options.steps = 1;
    options.clip = clip;
    Trainer(task, options, {}, folder.path()).fit();
    const auto records = MetricsLog::read(folder / "metrics.jsonl");
    const double norm = records.front()["grad_norm"];
    double moment = 0;
    for (const auto& [name, tensor] : load_checkpoint(CheckpointFolder(folder.path()).path(1)).tensors) {
      if (name.ends_with(".exp_avg")) moment += tensor.square().sum().item<double>();
    }
    REQUIRE(norm > 1.5);
    CHECK(std::sqrt(moment) / 0.1 == Approx(std::min(norm, clip)).epsilon(1e-5));
  }
}

TEST_CASE("stages change batch and length, keep moments, and go on exactly after a stop anywhere") {
  TrainerOptions options = probe_options();
  options.stages = {{8, 4, 7}, {16, 2, 5}, {8, 4, 6}};
  options.evaluate_every = 0;
  TempDir whole_folder;
  ProbeTask whole;
  {
    const TrainerOptions resolved = resolve(options, whole, {});
    CHECK(resolved.steps == 18);
    const Trainer::Result result = Trainer(whole, resolved, {}, whole_folder.path()).fit();
    CHECK(result.finished);
    CHECK(result.tokens == 7 * 4 + 5 * 2 + 6 * 4);
  }
  CHECK(whole.lengths == std::vector<int64_t>{8, 16, 8});
  // The last stage reads in an order of its own.
  CHECK(whole.seeds.front() != whole.seeds.back());
  std::vector<int64_t> evaluated;
  for (const auto& record : MetricsLog::read(whole_folder / "metrics.jsonl")) {
    if (record["split"] == "valid") evaluated.push_back(record["step"]);
  }
  CHECK(evaluated == std::vector<int64_t>{7, 12, 18});

  for (const int64_t stop : {3, 7, 9, 12, 17}) {
    TempDir folder;
    TrainerOptions cut = resolve(options, whole, {});
    cut.checkpoint_every = stop;
    ProbeTask first;
    CHECK_THROWS_WITH(Trainer(first, cut, {}, folder.path()).fit([&](int64_t step, double, double) {
                        if (step == stop + 1) throw std::runtime_error("killed");
                      }),
                      "killed");
    ProbeTask second;
    Trainer trainer(second, cut, {}, folder.path());
    REQUIRE(trainer.resume());
    REQUIRE(trainer.step() == stop);
    trainer.fit();
    CHECK(torch::equal(whole.probe->linear->weight, second.probe->linear->weight));
    CHECK(torch::equal(whole.probe->linear->bias, second.probe->linear->bias));
  }
}

TEST_CASE("the best checkpoint is the lowest or the highest headline, as the task says") {
  for (const bool higher : {false, true}) {
    TempDir folder;
    ProbeTask task;  // its loss falls
    task.higher_is_better = higher;
    Trainer(task, probe_options(), {}, folder.path()).fit();
    CHECK(load_checkpoint_state(CheckpointFolder(folder.path()).best())["step"] == (higher ? 5 : 20));
  }
}

TEST_CASE("patience ends a run; the best weights are kept") {
  TempDir folder;
  ProbeTask task;
  task.worsen = true;  // every evaluation is worse than the one before
  TrainerOptions options = probe_options();
  options.patience = 2;
  const Trainer::Result result = Trainer(task, options, {}, folder.path()).fit();
  CHECK(result.finished);
  CHECK(result.step == 15);
  CHECK(load_checkpoint_state(CheckpointFolder(folder.path()).best())["step"] == 5);
  CHECK(find_checkpoint(folder.path()) == CheckpointFolder(folder.path()).best());
}

TEST_CASE("the moving average is what evaluation uses, and training goes on from the weights") {
  TempDir plain_folder, averaged_folder;
  ProbeTask plain, averaged;
  TrainerOptions options = probe_options();
  Trainer(plain, options, {}, plain_folder.path()).fit();
  options.ema = 0.5;
  Trainer(averaged, options, {}, averaged_folder.path()).fit();
  CHECK(torch::equal(plain.probe->linear->weight, averaged.probe->linear->weight));
  torch::Tensor average;
  for (const auto& [name, tensor] : load_checkpoint(CheckpointFolder(averaged_folder.path()).path(20)).tensors) {
    if (name == "ema.linear.weight") average = tensor;
  }
  REQUIRE(average.defined());
  CHECK_FALSE(torch::equal(average, plain.probe->linear->weight));
  const auto a = MetricsLog::read(plain_folder / "metrics.jsonl"), b = MetricsLog::read(averaged_folder / "metrics.jsonl");
  CHECK(a.back()["split"] == "valid");
  CHECK(a.back()["loss"] != b.back()["loss"]);
}

TEST_CASE("the loss scaler doubles after 2,000 good updates and halves on overflow") {
  LossScaler scaler(Precision::fp16);
  CHECK(scaler.scale() == 65536.0);
  for (int i = 0; i < 1999; ++i) CHECK(scaler.update(true));
  CHECK(scaler.scale() == 65536.0);
  scaler.update(true);
  CHECK(scaler.scale() == 131072.0);
  CHECK_FALSE(scaler.update(false));
  CHECK(scaler.scale() == 65536.0);
  LossScaler none(Precision::fp32);
  CHECK(none.scale() == 1.0);
  CHECK_FALSE(none.update(false));
}

TEST_CASE("with a loss scale the update is the same: unscaled before it is clipped") {
  // fp16 autocast works on the CPU too, only slowly. The factor keeps scaled gradients below half precision's 65,504.
  std::map<Precision, std::vector<double>> moments;
  for (const Precision precision : {Precision::fp32, Precision::fp16}) {
    TempDir folder;
    ProbeTask task;
    TrainerOptions options = probe_options();
    task.factor = 0.01;
    options.steps = 1;
    options.precision = precision;
    options.clip = 1.0;  // above the true norm, far below the scaled one
    Trainer(task, options, {}, folder.path()).fit();
    for (const auto& [name, tensor] : load_checkpoint(CheckpointFolder(folder.path()).path(1)).tensors) {
      if (name.ends_with(".exp_avg")) moments[precision].push_back(tensor.sum().item<double>());
    }
  }
  REQUIRE(moments[Precision::fp32].size() == 2);
  for (size_t i = 0; i < 2; ++i) {
    CHECK(moments[Precision::fp16][i] == Approx(moments[Precision::fp32][i]).epsilon(2e-3));
  }
}

TEST_CASE("an overflow skips the update, halves the scale, and the run goes on") {
  struct Overflow : ProbeTask {
    Loss loss(const Batch& batch) override {
      Loss loss = ProbeTask::loss(batch);
      // The value stays finite, the gradient does not.
      if (calls == 3) loss.sum = loss.sum + (errors(batch).sum() * 0.0).sqrt();
      return loss;
    }
  };
  TempDir folder;
  Overflow task;
  TrainerOptions options = probe_options();
  task.factor = 0.01;
  options.precision = Precision::fp16;
  options.steps = 5;
  const Trainer::Result result = Trainer(task, options, {}, folder.path()).fit();
  CHECK(result.step == 5);
  const Checkpoint checkpoint = load_checkpoint(CheckpointFolder(folder.path()).path(5));
  CHECK(checkpoint.state["scaler"][0] == 32768.0);
  CHECK(checkpoint.state["scaler"][1] == 2);
  for (const auto& [name, tensor] : checkpoint.tensors) {
    if (name.starts_with("model.")) CHECK(tensor.isfinite().all().item<bool>());
    if (name.ends_with(".step")) CHECK(tensor.item<float>() == 4.0f);
  }
}

TEST_CASE("precisions that this machine cannot run well are refused with the reason") {
  CHECK_NOTHROW(require_precision(Precision::fp32, torch::kCPU));
  CHECK_THROWS_WITH(require_precision(Precision::fp16, torch::kCPU), Catch::Contains("needs a GPU"));
  if (__builtin_cpu_supports("avx512bf16")) {
    CHECK_NOTHROW(require_precision(Precision::bf16, torch::kCPU));
  } else {
    CHECK_THROWS_WITH(require_precision(Precision::bf16, torch::kCPU), Catch::Contains("avx512_bf16"));
  }
}

TEST_CASE("the check of the matrix product catches a route that is too coarse") {
  CHECK_NOTHROW(set_matmul_precision(MatmulPrecision::medium, torch::kCPU));
  CHECK_THROWS_WITH(set_matmul_precision(MatmulPrecision::medium, torch::kCPU, 1e-12), Catch::Contains("highest"));
  CHECK_NOTHROW(set_matmul_precision(MatmulPrecision::highest, torch::kCPU));
}

TEST_CASE("autocast guards restore what was before") {
  const bool before = at::autocast::is_autocast_enabled(at::kCPU);
  {
    const AutocastGuard guard(Precision::bf16, torch::kCPU);
    CHECK(at::autocast::is_autocast_enabled(at::kCPU));
    CHECK(torch::mm(torch::randn({4, 4}), torch::randn({4, 4})).scalar_type() == at::kBFloat16);
  }
  CHECK(at::autocast::is_autocast_enabled(at::kCPU) == before);
}

TEST_CASE("load_weights lists what does not fit") {
  ProbeModel probe;
  const LoadReport report = load_weights(
      *probe, {{"model.linear.weight", torch::ones({1, 1})}, {"model.linear.bias", torch::ones({2})}, {"model.x", torch::ones({1})}},
      "model.");
  CHECK(report.missing.empty());
  CHECK(report.unexpected == std::vector<std::string>{"x"});
  REQUIRE(report.misshapen.size() == 1);
  CHECK(report.misshapen[0] == "linear.bias: [2] in the checkpoint, [1] here");
  CHECK(probe->linear->weight.item<float>() == 1.0f);
}

TEST_CASE("devices are named strictly, and one that cannot be had says why") {
  for (const char* bad : {"gpu", "cuda:", "cuda:x", "CPU", "cuda:-1", ""}) CHECK_THROWS_AS(validate_device(bad), Error);
  for (const char* good : {"auto", "cpu", "cuda", "cuda:3"}) CHECK_NOTHROW(validate_device(good));
  CHECK(World::open("cpu", 0).device.is_cpu());
}
