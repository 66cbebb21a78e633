#include "roformer/tasks/byte_lm.h"

#include <cmath>
#include <fstream>

#include "roformer/train/trainer.h"
#include "tests/catch.h"
#include "tests/support.h"

using namespace roformer;

namespace {

std::filesystem::path periodic_bytes(const test::TempDir& folder) {
  std::string bytes;
  for (int i = 0; i < 4000; ++i) bytes += "abcdefgh"[i % 8];
  std::ofstream(folder / "text", std::ios::binary) << bytes;
  return folder / "text";
}

CausalLmOptions byte_model(RotaryOrder order) {
  CausalLmOptions o;
  o.dim = 16;
  o.layers = 1;
  o.heads = 2;
  o.ffn = 32;
  o.vocab_size = 256;
  o.attention = LinearAttention{.features = FavorFeatures{.features = 8, .redraw_every = 5}, .rotary = order};
  return o;
}

}  // namespace

TEST_CASE("byte_lm: metrics are nats and bits per byte and perplexity") {
  test::TempDir folder;
  ByteLmTask task({.file = periodic_bytes(folder), .length = 16}, byte_model(RotaryOrder::after));
  Evaluation evaluation;
  evaluation.loss_sum = 30.0;
  evaluation.correct = 4;
  evaluation.count = 20;
  const Metrics metrics = task.metrics(evaluation);
  CHECK(metrics.at("loss") == 1.5);
  CHECK(metrics.at("bits_per_byte") == Approx(1.5 / std::log(2.0)));
  CHECK(metrics.at("perplexity") == Approx(std::exp(1.5)));
  CHECK(metrics.at("accuracy") == 0.2);
}

TEST_CASE("byte_lm: learns a period, and resumes across a redraw of features to the bit") {
  test::TempDir text;
  for (const RotaryOrder order : {RotaryOrder::after, RotaryOrder::before}) {
    TrainerOptions options;
    options.steps = 24;
    options.batch = 8;
    options.optimizer = AdamWOptions{.lr = 2e-2};
    options.evaluate_every = 12;
    options.checkpoint_every = 8;
    options.device = "cpu";
    auto fresh = [&] {
      torch::manual_seed(1);
      return ByteLmTask({.file = periodic_bytes(text), .length = 16}, byte_model(order));
    };
    test::TempDir one, two;
    ByteLmTask whole = fresh();
    const Trainer::Result result = Trainer(whole, options, {}, one.path()).fit();
    CHECK(result.metrics.at("loss") < 1.0);  // from ln 256 = 5.5

    ByteLmTask begun = fresh();
    TrainerOptions half = options;
    half.steps = 8;  // update 5 drew new features, update 10 does again
    Trainer(begun, half, {}, two.path()).fit();
    ByteLmTask resumed = fresh();
    Trainer trainer(resumed, options, {}, two.path());
    REQUIRE(trainer.resume());
    trainer.fit();
    const auto expected = whole.model().named_parameters(), got = resumed.model().named_parameters();
    for (const auto& item : expected) {
      INFO(item.key());
      CHECK(torch::equal(item.value(), got[item.key()]));
    }
    const auto kept = whole.model().named_buffers();
    for (const auto& item : resumed.model().named_buffers())
      CHECK(torch::equal(item.value(), kept[item.key()]));
  }
}

TEST_CASE("byte_lm: the part that is evaluated is the one that was asked for") {
  test::TempDir folder;
  std::string bytes(1900, 'a');
  bytes += std::string(100, 'b');  // the test part
  std::ofstream(folder / "text", std::ios::binary) << bytes;
  for (const BytePart part : {BytePart::valid, BytePart::test}) {
    ByteLmTask task({.file = folder / "text", .length = 16, .evaluate = part},
                    byte_model(RotaryOrder::after));
    const Batch batch = task.stream(Split::valid, {.batch = 1}, {})->next().value();
    CHECK(batch.tokens[0][0].item<int64_t>() == (part == BytePart::valid ? 'a' : 'b'));
  }
}
