#include "roformer/data/example_stream.h"

#include <algorithm>
#include <set>

#include "tests/catch.h"

namespace roformer {
namespace {

using ExampleList = std::shared_ptr<const std::vector<LabelledExample>>;

/// Example i: 1 + i % 7 tokens, all i + 10; the second half of them in segment 1; label i.
ExampleList numbered_examples(int64_t count) {
  auto examples = std::make_shared<std::vector<LabelledExample>>();
  for (int64_t i = 0; i < count; ++i) {
    LabelledExample example;
    const auto length = static_cast<size_t>(1 + i % 7);
    example.tokens.ids.assign(length, static_cast<int32_t>(i + 10));
    example.tokens.segments.assign(length, 0);
    std::fill(example.tokens.segments.begin() + static_cast<int64_t>(length / 2),
              example.tokens.segments.end(), 1);
    example.label = static_cast<double>(i);
    examples->push_back(std::move(example));
  }
  return examples;
}

/// The examples of the next `batches` batches.
std::vector<std::vector<int64_t>> example_order(BatchStream& stream, int64_t batches) {
  std::vector<std::vector<int64_t>> order;
  for (int64_t i = 0; i < batches; ++i) order.push_back(stream.next().value().examples);
  return order;
}

}  // namespace

TEST_CASE("examples: a batch holds tokens, padding, segments and labels where they belong") {
  const ExampleList examples = numbered_examples(10);
  ExampleStreamOptions options;
  options.batch = 4;
  options.pad = 3;
  const auto stream = make_example_validation(examples, options);
  int64_t seen = 0;
  while (const auto batch = stream->next()) {
    CHECK(batch->tokens.scalar_type() == torch::kInt64);
    CHECK(batch->labels.scalar_type() == torch::kInt64);
    CHECK(batch->target_count() == batch->tokens.size(0));
    int64_t tokens = 0;
    for (int64_t row = 0; row < batch->tokens.size(0); ++row) {
      const int64_t i = batch->examples[static_cast<size_t>(row)];
      const int64_t length = 1 + i % 7;
      CHECK(batch->labels[row].item<int64_t>() == i);
      for (int64_t column = 0; column < batch->tokens.size(1); ++column) {
        const bool token = column < length;
        CHECK(batch->tokens[row][column].item<int64_t>() == (token ? i + 10 : 3));
        if (batch->keep.defined()) CHECK(batch->keep[row][column].item<bool>() == token);
        CHECK(batch->segments[row][column].item<int64_t>() == (token && column >= length / 2 ? 1 : 0));
      }
      tokens += length;
      ++seen;
    }
    CHECK(batch->token_count == tokens);
    CHECK(batch->keep.defined() == (tokens < batch->tokens.numel()));
  }
  CHECK(seen == 10);
  CHECK_FALSE(stream->next());
}

TEST_CASE("examples: labels may be scores") {
  ExampleStreamOptions options;
  options.scores = true;
  options.segments = false;
  const Batch batch = make_example_validation(numbered_examples(3), options)->next().value();
  CHECK(batch.labels.scalar_type() == torch::kFloat32);
  CHECK_FALSE(batch.segments.defined());
}

TEST_CASE("examples: each pass holds every example once, in another order, whatever the bucket") {
  const ExampleList examples = numbered_examples(26);
  for (const int64_t bucket : {1, 3, 100}) {
    ExampleStreamOptions options;
    options.batch = 4;
    options.bucket = bucket;
    CHECK(example_batches(26, options) == 7);
    const auto stream = make_example_training(examples, options);
    std::vector<std::vector<int64_t>> passes;
    for (int pass = 0; pass < 3; ++pass) {
      std::vector<int64_t> all;
      for (int64_t i = 0; i < 7; ++i) {
        const Batch batch = stream->next().value();
        CHECK(batch.examples.size() == (i == 6 ? 2 : 4));
        all.insert(all.end(), batch.examples.begin(), batch.examples.end());
      }
      CHECK(std::set<int64_t>(all.begin(), all.end()).size() == 26);
      passes.push_back(all);
    }
    CHECK(passes[0] != passes[1]);
    CHECK(passes[1] != passes[2]);
  }
}

TEST_CASE("examples: buckets save padding") {
  const ExampleList examples = numbered_examples(280);
  int64_t cells[2];
  for (const bool sorted : {false, true}) {
    ExampleStreamOptions options;
    options.batch = 4;
    options.bucket = sorted ? 8 : 1;
    const auto stream = make_example_training(examples, options);
    cells[sorted] = 0;
    for (int i = 0; i < 70; ++i) cells[sorted] += stream->next().value().tokens.numel();
  }
  CHECK(cells[1] * 10 < cells[0] * 9);
}

TEST_CASE("examples: a stream goes on from any state, and shards divide its batches") {
  const ExampleList examples = numbered_examples(26);
  ExampleStreamOptions options;
  options.batch = 4;
  options.bucket = 2;
  const auto whole = make_example_training(examples, options);
  const auto expected = example_order(*whole, 20);
  for (const int64_t consumed : {0, 3, 7, 11}) {
    const auto first = make_example_training(examples, options);
    example_order(*first, consumed);
    const auto second = make_example_training(examples, options);
    second->restore(first->state());
    const auto rest = example_order(*second, 20 - consumed);
    CHECK((rest == std::vector<std::vector<int64_t>>(expected.begin() + consumed, expected.end())));
  }
  options.batch = 2;
  options.shard = {0, 2};
  const auto left = example_order(*make_example_training(examples, options), 20);
  options.shard = {1, 2};
  const auto right = example_order(*make_example_training(examples, options), 20);
  for (size_t i = 0; i < expected.size(); ++i) {
    std::vector<int64_t> both;
    for (size_t row = 0; row < expected[i].size(); ++row)
      both.push_back((row % 2 ? right : left)[i][row / 2]);
    CHECK((both == expected[i]));
  }
}

TEST_CASE("examples: a rest smaller than the number of shards is left out everywhere alike") {
  const ExampleList examples = numbered_examples(9);
  ExampleStreamOptions options;
  options.batch = 2;
  for (int64_t rank = 0; rank < 2; ++rank) {
    options.shard = {rank, 2};
    CHECK(example_batches(9, options) == 2);
    const auto stream = make_example_training(examples, options);
    for (const auto& batch : example_order(*stream, 6)) CHECK(batch.size() == 2);
  }
}

}  // namespace roformer
