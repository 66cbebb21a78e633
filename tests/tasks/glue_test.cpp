#include "roformer/tasks/glue.h"

#include <fstream>

#include "roformer/train/trainer.h"
#include "tests/tensors.h"
// after torch
#include "tests/catch.h"

namespace roformer {
namespace {

using test::TempDir;

void write_lines(const std::filesystem::path& file, const std::string& text) {
  std::filesystem::create_directories(file.parent_path());
  std::ofstream(file, std::ios::binary) << text;
}

/// Sentences of a's (1) or b's (0): easy to tell apart. Dev is train.
void write_sst2(const std::filesystem::path& folder, int64_t rows) {
  std::string text = "sentence\tlabel\n";
  for (int64_t i = 0; i < rows; ++i) {
    text +=
        std::string(static_cast<size_t>(2 + i % 5), i % 2 ? 'a' : 'b') + "\t" + (i % 2 ? "1" : "0") + "\n";
  }
  write_lines(folder / "train.tsv", text);
  write_lines(folder / "dev.tsv", text);
}

void write_stsb(const std::filesystem::path& folder) {
  std::string text =
      "index\tgenre\tfilename\tyear\told_index\tsource1\tsource2\tsentence1\tsentence2\tscore\n";
  for (int i = 0; i < 12; ++i) {
    text += std::to_string(i) + "\tg\tf\ty\t0\ts\ts\tone\t" + std::string(static_cast<size_t>(i + 1), 'x') +
            "\t" + std::to_string(i % 6) + ".000\n";
  }
  write_lines(folder / "train.tsv", text);
  write_lines(folder / "dev.tsv", text);
}

GlueOptions options_of(GlueTask name, const std::filesystem::path& folder) {
  GlueOptions options;
  options.name = name;
  options.folder = folder;
  options.length = 32;
  return options;
}

Metrics scored(FineTuneTask& task) {
  const Evaluation evaluation = evaluate_task(task, {8, 1}, Precision::fp32, {});
  return task.metrics(evaluation);
}

}  // namespace

TEST_CASE("fine-tuning learns a small task by heart, with either head") {
  TempDir data;
  write_sst2(data.path(), 24);
  const auto tokenizer = make_tokenizer(BytesOptions{});
  for (const HeadKind head : {HeadKind::roformer, HeadKind::bert}) {
    TempDir folder;
    torch::manual_seed(3);
    GlueOptions options = options_of(GlueTask::sst2, data.path());
    options.head = head;
    FineTuneTask task(options, test::small_encoder(32, 261), *tokenizer);
    CHECK(scored(task).at("accuracy") < 0.9);
    TrainerOptions trainer;
    trainer.batch = 8;
    trainer.epochs = 10;
    trainer.evaluate_every = 0;
    trainer.optimizer = AdamWOptions{};
    std::get<AdamWOptions>(trainer.optimizer).lr = 3e-3;
    trainer.device = "cpu";
    const TrainerOptions resolved = resolve(trainer, task, {});
    CHECK(resolved.steps == 30);
    CHECK(resolved.evaluate_every == 3);
    const Trainer::Result result = Trainer(task, resolved, {}, folder.path()).fit();
    CHECK(result.metrics.at("accuracy") == 1.0);
    REQUIRE(result.evaluation.predictions.size() == 24);
    std::vector<int64_t> seen;
    for (const Prediction& each : result.evaluation.predictions) {
      CHECK(each.value == each.label);
      CHECK(each.label == static_cast<double>(each.example % 2));
      seen.push_back(each.example);
    }
    std::sort(seen.begin(), seen.end());
    for (int64_t i = 0; i < 24; ++i) CHECK(seen[static_cast<size_t>(i)] == i);
  }
}

TEST_CASE("scores: squared error as they are, no broadcasting of [N, 1] against [N]") {
  TempDir data;
  write_stsb(data.path());
  const auto tokenizer = make_tokenizer(BytesOptions{});
  torch::manual_seed(4);
  FineTuneTask task(options_of(GlueTask::stsb, data.path()), test::small_encoder(32, 261), *tokenizer);
  task.model().eval();
  const Batch batch = task.stream(Split::valid, {12, 1}, {})->next().value();
  CHECK(batch.labels.scalar_type() == torch::kFloat32);
  auto* model = dynamic_cast<SequenceClassifierImpl*>(&task.model());
  REQUIRE(model != nullptr);
  const torch::Tensor predicted = model->forward(batch).flatten();
  double expected = 0;
  for (int64_t i = 0; i < 12; ++i) {
    expected += std::pow(predicted[i].item<double>() - batch.labels[i].item<double>(), 2);
  }
  const Loss loss = task.loss(batch);
  CHECK(loss.count == 12);
  CHECK(loss.sum.item<double>() == Approx(expected).epsilon(1e-5));
}

TEST_CASE("a metric that is undefined is left out, and training goes on") {
  TempDir data, folder;
  write_stsb(data.path());
  const auto tokenizer = make_tokenizer(BytesOptions{});
  FineTuneTask task(options_of(GlueTask::stsb, data.path()), test::small_encoder(32, 261), *tokenizer);
  {
    const torch::NoGradGuard no_grad;
    for (torch::Tensor& parameter : task.model().parameters()) parameter.zero_();
  }
  CHECK_FALSE(scored(task).contains(std::string(task.headline().metric)));
  TrainerOptions trainer;
  trainer.steps = 2;
  trainer.batch = 4;
  trainer.device = "cpu";
  std::get<AdamWOptions>(trainer.optimizer).lr = 0.0;
  CHECK(Trainer(task, resolve(trainer, task, {}), {}, folder.path()).fit().finished);
}

TEST_CASE("the best checkpoint is the one with the highest headline") {
  TempDir data;
  write_sst2(data.path(), 8);
  FineTuneTask task(options_of(GlueTask::sst2, data.path()), test::small_encoder(32, 261),
                    *make_tokenizer(BytesOptions{}));
  CHECK(task.headline().metric == "accuracy");
  CHECK(task.headline().higher_is_better);
}

TEST_CASE("a pair's texts are told apart by segments, and train_rows cuts the training set alone") {
  TempDir data;
  write_stsb(data.path());
  GlueOptions options = options_of(GlueTask::stsb, data.path());
  options.train_rows = 5;
  FineTuneTask task(options, test::small_encoder(32, 261), *make_tokenizer(BytesOptions{}));
  CHECK(task.batches_per_epoch({2, 1}, {}) == 3);
  const Batch batch = task.stream(Split::valid, {12, 1}, {})->next().value();
  CHECK(batch.tokens.size(0) == 12);
  for (int64_t row = 0; row < 12; ++row) {
    const int64_t second = batch.examples[static_cast<size_t>(row)] + 1;  // x's
    CHECK(batch.segments[row].sum().item<int64_t>() == second + 1);       // and their [SEP]
    CHECK(batch.tokens[row].eq(259).sum().item<int64_t>() == 2);
  }
}

TEST_CASE("padding changes no logit") {
  TempDir data;
  write_sst2(data.path(), 12);
  FineTuneTask task(options_of(GlueTask::sst2, data.path()), test::small_encoder(32, 261),
                    *make_tokenizer(BytesOptions{}));
  task.model().eval();
  const torch::NoGradGuard no_grad;
  auto* model = dynamic_cast<SequenceClassifierImpl*>(&task.model());
  REQUIRE(model != nullptr);
  const Batch together = task.stream(Split::valid, {12, 1}, {})->next().value();
  REQUIRE(together.keep.defined());
  const torch::Tensor logits = model->forward(together);
  const auto alone = task.stream(Split::valid, {1, 1}, {});
  while (const auto single = alone->next()) {
    for (size_t row = 0; row < together.examples.size(); ++row) {
      if (together.examples[row] != single->examples.front()) continue;
      CHECK(test::max_error(model->forward(*single)[0], logits[static_cast<int64_t>(row)]) < 1e-6);
    }
  }
}

}  // namespace roformer
