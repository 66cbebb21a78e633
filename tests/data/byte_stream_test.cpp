#include "roformer/data/byte_stream.h"

#include <fstream>
#include <set>

#include "roformer/core/error.h"
#include "tests/catch.h"
#include "tests/support.h"

using namespace roformer;

namespace {

/// 1000 bytes; byte i is i mod 251, so a window tells where it begins.
std::filesystem::path write_bytes(const test::TempDir& folder, const std::string& name = "enwik8.first") {
  std::string bytes;
  for (int i = 0; i < 1000; ++i) bytes += static_cast<char>(i % 251);
  std::ofstream(folder / name, std::ios::binary) << bytes;
  return folder / name;
}

int64_t first_byte(const Batch& batch, int64_t row) { return batch.tokens[row][0].item<int64_t>(); }

}  // namespace

TEST_CASE("bytes: 90, 5 and 5 % in order, under an honest name") {
  test::TempDir folder;
  const ByteCorpus corpus(write_bytes(folder), 20);
  CHECK(corpus.name() == "enwik8 prefix");
  CHECK(corpus.part(BytePart::train).size() == 900);
  CHECK(corpus.part(BytePart::valid).size() == 50);
  CHECK(static_cast<unsigned char>(corpus.part(BytePart::valid)[0]) == 900 % 251);
  CHECK(static_cast<unsigned char>(corpus.part(BytePart::test)[0]) == 950 % 251);
  CHECK(ByteCorpus(write_bytes(folder, "text.bin"), 20).name() == "text.bin");
  try {
    ByteCorpus(write_bytes(folder), 50);
    FAIL("accepted");
  } catch (const Error& error) {
    CHECK(std::string(error.what()).find("its valid part has 50 bytes of 1000") != std::string::npos);
  }
}

TEST_CASE("bytes: the label of a byte is the next one") {
  test::TempDir folder;
  auto corpus = std::make_shared<ByteCorpus>(write_bytes(folder), 20);
  const auto stream = make_byte_training(corpus, {.length = 20, .batch = 3});
  const Batch batch = stream->next().value();
  CHECK(batch.tokens.sizes() == torch::IntArrayRef({3, 20}));
  CHECK(torch::equal(batch.tokens.narrow(1, 1, 19), batch.labels.view({3, 20}).narrow(1, 0, 19)));
  CHECK(batch.target_count() == 60);
  CHECK(batch.token_count == 60);
}

TEST_CASE("bytes: windows follow from seed and number, for any batch, shard and restart") {
  test::TempDir folder;
  auto corpus = std::make_shared<ByteCorpus>(write_bytes(folder), 20);
  const ByteStreamOptions options{.length = 20, .batch = 4, .seed = 7};
  const auto whole = make_byte_training(corpus, options);
  const Batch first = whole->next().value(), second = whole->next().value();
  CHECK_FALSE(torch::equal(first.tokens, second.tokens));

  const auto restarted = make_byte_training(corpus, options);
  restarted->restore({4});
  CHECK(torch::equal(restarted->next().value().tokens, second.tokens));
  CHECK(restarted->state().samples == 8);

  for (int64_t rank : {0, 1}) {
    const auto part =
        make_byte_training(corpus, {.length = 20, .batch = 2, .seed = 7, .shard = {.rank = rank, .size = 2}});
    CHECK(torch::equal(part->next().value().tokens, first.tokens.slice(0, rank, 4, 2)));
  }
  const auto other = make_byte_training(corpus, {.length = 20, .batch = 4, .seed = 8});
  CHECK_FALSE(torch::equal(other->next().value().tokens, first.tokens));

  // Every place that leaves room for a window, the last one too, is drawn.
  std::set<int64_t> labels;
  const auto many = make_byte_training(corpus, {.length = 899, .batch = 1, .seed = 1});
  labels.insert(many->next().value().labels[898].item<int64_t>());
  CHECK(labels == std::set<int64_t>{899 % 251});
}

TEST_CASE("bytes: an evaluation goes through its part once, or through windows spread over it") {
  test::TempDir folder;
  auto corpus = std::make_shared<ByteCorpus>(write_bytes(folder), 20);
  const auto starts = [&](int64_t windows, int64_t batch) {
    const auto stream =
        make_byte_evaluation(corpus, BytePart::train, {.length = 100, .batch = batch}, windows);
    std::vector<int64_t> all;
    while (const std::optional<Batch> next = stream->next()) {
      for (int64_t row = 0; row < next->tokens.size(0); ++row) all.push_back(first_byte(*next, row));
    }
    return all;
  };
  // 900 bytes hold eight whole windows and their labels; the ninth begins one byte early.
  const std::vector<int64_t> all{0,         100,       200,       300 % 251, 400 % 251,
                                 500 % 251, 600 % 251, 700 % 251, 799 % 251};
  CHECK(starts(0, 4) == all);
  CHECK(starts(100, 2) == all);
  CHECK(starts(3, 2) == std::vector<int64_t>{0, 300 % 251, 600 % 251});
  const auto part = make_byte_evaluation(corpus, BytePart::train,
                                         {.length = 100, .batch = 2, .shard = {.rank = 1, .size = 2}}, 3);
  CHECK(first_byte(part->next().value(), 0) == 300 % 251);
  CHECK_FALSE(part->next().has_value());
}
