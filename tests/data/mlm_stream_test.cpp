#include "roformer/data/mlm_stream.h"

#include <fstream>
#include <set>

#include "tests/data/text_support.h"
#include "tests/support.h"

namespace roformer {
namespace {

namespace fs = std::filesystem;
using test::TempDir;

/// A prepared corpus of made-up text with a few dozen windows.
struct SmallCorpus {
  explicit SmallCorpus(Packing packing, size_t bytes = 3000, double valid_fraction = 0.0) {
    DataOptions options;
    options.train = {test::write_text(dir / "t.txt", test::made_up_text(bytes))};
    options.length = 32;
    options.packing = packing;
    options.valid_fraction = valid_fraction;
    corpus = prepare_corpus(options, *tokenizer, dir / "cache");
  }
  int64_t size() const { return corpus.train->windows(); }
  MaskTokens tokens() const { return MaskTokens(*tokenizer); }

  TempDir dir;
  std::unique_ptr<Tokenizer> tokenizer = make_tokenizer(BytesOptions{});
  Corpus corpus;
};

MlmStreamOptions stream_of(int64_t batch, uint64_t seed = 1, Shard shard = {}) {
  MlmStreamOptions options;
  options.batch = batch;
  options.seed = seed;
  options.shard = shard;
  return options;
}

/// The text under the masks of one row.
std::vector<int64_t> row_before_masking(const Batch& batch, int64_t row) {
  const torch::Tensor flat = batch.tokens.clone().view({-1});
  if (batch.target_count() > 0) flat.index_put_({batch.targets}, batch.labels);
  const torch::Tensor ids = flat.view_as(batch.tokens)[row].contiguous();
  return {ids.data_ptr<int64_t>(), ids.data_ptr<int64_t>() + ids.numel()};
}

bool same_tensor(const torch::Tensor& a, const torch::Tensor& b) {
  return a.defined() == b.defined() && (!a.defined() || torch::equal(a, b));
}

bool same_batch(const Batch& a, const Batch& b) {
  return same_tensor(a.tokens, b.tokens) && same_tensor(a.keep, b.keep) &&
         same_tensor(a.targets, b.targets) && same_tensor(a.labels, b.labels) &&
         a.token_count == b.token_count;
}

std::vector<Batch> take_batches(BatchStream& stream, int count) {
  std::vector<Batch> batches;
  for (int i = 0; i < count; ++i) batches.push_back(stream.next().value());
  return batches;
}

/// A finite stream that counts, and fails where it is told to.
class CountingStream : public BatchStream {
 public:
  CountingStream(int64_t end, int64_t fails_at) : end_(end), fails_at_(fails_at) {}
  std::optional<Batch> next() override {
    if (at_ == fails_at_) throw Error("the disk is gone");
    if (at_ == end_) return std::nullopt;
    Batch batch;
    batch.token_count = at_++;
    return batch;
  }
  StreamState state() const override { return {at_}; }
  void restore(StreamState state) override { at_ = state.samples; }

 private:
  int64_t at_ = 0, end_, fails_at_;
};

}  // namespace

TEST_CASE("training stream: shapes, dtypes, targets") {
  for (const Packing packing : {Packing::windows, Packing::documents}) {
    const SmallCorpus small(packing);
    const auto stream = make_mlm_training(small.corpus.train, small.tokens(), stream_of(4));
    bool padded = false;
    for (int i = 0; i < 30; ++i) {
      const Batch batch = stream->next().value();
      REQUIRE(batch.tokens.sizes() == torch::IntArrayRef({4, 32}));
      REQUIRE(batch.tokens.dtype() == torch::kInt64);
      REQUIRE(batch.targets.dtype() == torch::kInt64);
      REQUIRE(batch.labels.sizes() == batch.targets.sizes());
      REQUIRE(batch.target_count() > 0);
      CHECK_FALSE(batch.segments.defined());
      // Ascending, within the batch, on the text only.
      CHECK((batch.targets.slice(0, 1) > batch.targets.slice(0, 0, -1)).all().item<bool>());
      CHECK(batch.targets.min().item<int64_t>() >= 0);
      CHECK(batch.targets.max().item<int64_t>() < 128);
      CHECK((batch.labels < 256).all().item<bool>());
      // Before masking: what is padding is what `keep` leaves out.
      torch::Tensor padding = torch::zeros({4, 32}, torch::kBool);
      for (int64_t row = 0; row < 4; ++row) {
        const std::vector<int64_t> ids = row_before_masking(batch, row);
        for (int64_t k = 0; k < 32; ++k) padding[row][k] = ids[static_cast<size_t>(k)] == 256;
      }
      const int64_t count = 128 - padding.sum().item<int64_t>();
      CHECK(batch.token_count == count);
      CHECK(batch.keep.defined() == (count < 128));
      if (batch.keep.defined()) CHECK(torch::equal(batch.keep, ~padding));
      padded |= batch.keep.defined();
    }
    CHECK(padded == (packing == Packing::documents));
  }
}

TEST_CASE("training stream: each epoch has every window once, in an order and with masks of its own") {
  const SmallCorpus small(Packing::windows);
  const int64_t n = small.size();
  REQUIRE(n > 50);
  std::set<std::vector<int64_t>> all;
  std::vector<int32_t> ids(32);
  for (int64_t i = 0; i < n; ++i) {
    small.corpus.train->read(i, ids.data());
    all.insert({ids.begin(), ids.end()});
  }
  const auto stream = make_mlm_training(small.corpus.train, small.tokens(), stream_of(1));
  std::vector<std::vector<std::vector<int64_t>>> orders;
  std::map<std::vector<int64_t>, std::set<std::vector<int64_t>>> masked;  // window -> what it looked like
  for (int epoch = 0; epoch < 3; ++epoch) {
    std::vector<std::vector<int64_t>> order;
    for (int64_t i = 0; i < n; ++i) {
      const Batch batch = stream->next().value();
      order.push_back(row_before_masking(batch, 0));
      const auto* tokens = batch.tokens.data_ptr<int64_t>();
      masked[order.back()].insert({tokens, tokens + 32});
    }
    CHECK(std::set(order.begin(), order.end()) == all);
    for (const auto& other : orders) CHECK(other != order);
    orders.push_back(order);
  }
  int64_t fresh = 0;
  for (const auto& [window, looks] : masked) fresh += looks.size() == 3;
  CHECK(fresh > n * 9 / 10);
  const auto other = make_mlm_training(small.corpus.train, small.tokens(), stream_of(1, 2));
  CHECK_FALSE(
      same_batch(other->next().value(),
                 make_mlm_training(small.corpus.train, small.tokens(), stream_of(1, 1))->next().value()));
}

TEST_CASE("training stream: batches run over the end of an epoch") {
  const SmallCorpus small(Packing::windows);
  const int64_t batch = small.size() - 3;
  const auto stream = make_mlm_training(small.corpus.train, small.tokens(), stream_of(batch));
  const auto single = make_mlm_training(small.corpus.train, small.tokens(), stream_of(1));
  for (int i = 0; i < 3; ++i) {
    const Batch large = stream->next().value();
    REQUIRE(large.tokens.size(0) == batch);
    for (int64_t row = 0; row < batch; ++row) {
      // Masks too are the same for any batch size.
      REQUIRE(torch::equal(large.tokens[row], single->next().value().tokens[0]));
    }
  }
  CHECK(stream->state().samples == 3 * batch);
}

TEST_CASE("training stream: resumed anywhere it goes on as if never left") {
  const SmallCorpus small(Packing::documents);
  const MlmStreamOptions options = stream_of(7);
  const int count = static_cast<int>(small.size() / 7 * 2 + 3);  // past two epochs
  const auto whole = make_mlm_training(small.corpus.train, small.tokens(), options);
  std::vector<StreamState> states = {whole->state()};
  std::vector<Batch> wanted;
  for (int i = 0; i < count; ++i) {
    wanted.push_back(whole->next().value());
    states.push_back(whole->state());
  }
  for (int from = 0; from < count; ++from) {
    const auto resumed = make_mlm_training(small.corpus.train, small.tokens(), options);
    resumed->restore(states[static_cast<size_t>(from)]);
    CHECK(resumed->state().samples == states[static_cast<size_t>(from)].samples);
    for (int i = from; i < std::min(count, from + 3); ++i) {
      REQUIRE(same_batch(resumed->next().value(), wanted[static_cast<size_t>(i)]));
    }
  }
}

TEST_CASE("training stream: the shards together read what one process reads") {
  const SmallCorpus small(Packing::documents);
  for (const int64_t size : {2, 3}) {
    const auto one = make_mlm_training(small.corpus.train, small.tokens(), stream_of(4 * size));
    std::vector<std::unique_ptr<BatchStream>> ranks;
    for (int64_t rank = 0; rank < size; ++rank) {
      ranks.push_back(make_mlm_training(small.corpus.train, small.tokens(), stream_of(4, 1, {rank, size})));
    }
    for (int i = 0; i < 30; ++i) {
      const Batch wanted = one->next().value();
      int64_t targets = 0, tokens = 0;
      for (int64_t rank = 0; rank < size; ++rank) {
        const Batch part = ranks[static_cast<size_t>(rank)]->next().value();
        REQUIRE(part.tokens.size(0) == 4);
        for (int64_t row = 0; row < 4; ++row) {
          REQUIRE(torch::equal(part.tokens[row], wanted.tokens[rank + row * size]));
        }
        targets += part.target_count();
        tokens += part.token_count;
        CHECK(ranks[static_cast<size_t>(rank)]->state().samples == one->state().samples);
      }
      CHECK(targets == wanted.target_count());
      CHECK(tokens == wanted.token_count);
    }
  }
}

TEST_CASE("validation stream: fixed windows and masks, whatever the seed and batch, then the end") {
  const SmallCorpus small(Packing::windows);
  const auto rows_of = [&](int64_t batch, uint64_t seed, int64_t sequences) {
    const auto stream =
        make_mlm_validation(small.corpus.train, small.tokens(), stream_of(batch, seed), sequences);
    std::vector<std::vector<int64_t>> rows;
    while (const auto next = stream->next()) {
      for (int64_t row = 0; row < next->tokens.size(0); ++row) {
        const auto* ids = next->tokens.data_ptr<int64_t>() + row * 32;
        rows.emplace_back(ids, ids + 32);
      }
    }
    CHECK_FALSE(stream->next().has_value());
    CHECK(stream->state().samples == static_cast<int64_t>(rows.size()));
    return rows;
  };
  const auto rows = rows_of(8, 1, 20);
  CHECK(rows.size() == 20);
  CHECK(rows_of(8, 1, 20) == rows);
  CHECK(rows_of(8, 99, 20) == rows);
  CHECK(rows_of(3, 1, 20) == rows);
  // More of them only adds to the end.
  const auto more = rows_of(8, 1, 40);
  CHECK(std::vector(more.begin(), more.begin() + 20) == rows);
  CHECK(rows_of(8, 1, 1'000'000).size() == static_cast<size_t>(small.size()));
  CHECK(std::set(more.begin(), more.end()).size() == 40);

  // Entered in the middle.
  const auto stream = make_mlm_validation(small.corpus.train, small.tokens(), stream_of(8), 20);
  stream->restore({16});
  const Batch last = stream->next().value();
  REQUIRE(last.tokens.size(0) == 4);
  CHECK(std::equal(rows[16].begin(), rows[16].end(), last.tokens.data_ptr<int64_t>()));
  CHECK_FALSE(stream->next().has_value());
}

TEST_CASE("validation stream: sharded, each sequence once") {
  const SmallCorpus small(Packing::windows);
  for (const int64_t sequences : {1, 2, 7, 13, 24}) {
    std::multiset<std::vector<int64_t>> together, alone;
    const auto collect = [&](const MlmStreamOptions& options, auto& rows) {
      const auto stream = make_mlm_validation(small.corpus.train, small.tokens(), options, sequences);
      while (const auto next = stream->next()) {
        REQUIRE(next->tokens.size(0) > 0);
        for (int64_t row = 0; row < next->tokens.size(0); ++row) {
          const auto* ids = next->tokens.data_ptr<int64_t>() + row * 32;
          rows.emplace(ids, ids + 32);
        }
      }
    };
    collect(stream_of(4), alone);
    for (int64_t rank = 0; rank < 3; ++rank) collect(stream_of(2, 1, {rank, 3}), together);
    CHECK(alone.size() == static_cast<size_t>(sequences));
    CHECK(together == alone);
  }
}

TEST_CASE("validation stream: no windows, no batches") {
  const SmallCorpus small(Packing::windows);
  const auto stream = make_mlm_validation(small.corpus.valid, small.tokens(), stream_of(4), 128);
  CHECK_FALSE(stream->next().has_value());
  CHECK_THROWS(make_mlm_training(small.corpus.valid, small.tokens(), stream_of(4)));
}

TEST_CASE("prefetch: the same batches and states as without") {
  const SmallCorpus small(Packing::documents);
  const auto make = [&] { return make_mlm_training(small.corpus.train, small.tokens(), stream_of(5)); };
  for (const int depth : {1, 2, 7}) {
    const auto direct = make();
    const auto ahead = prefetch(make(), depth);
    CHECK(ahead->state().samples == 0);
    std::vector<StreamState> states;
    for (int i = 0; i < 60; ++i) {
      REQUIRE(same_batch(ahead->next().value(), direct->next().value()));
      REQUIRE(ahead->state().samples == direct->state().samples);
      states.push_back(direct->state());
    }
    // Back and forth, in the middle of work.
    for (const size_t at : {10u, 50u, 0u}) {
      direct->restore(states[at]);
      ahead->restore(states[at]);
      CHECK(ahead->state().samples == states[at].samples);
      REQUIRE(same_batch(ahead->next().value(), direct->next().value()));
      REQUIRE(same_batch(ahead->next().value(), direct->next().value()));
      CHECK(ahead->state().samples == direct->state().samples);
    }
  }
}

TEST_CASE("prefetch: the end stays the end until restored") {
  const auto stream = prefetch(std::make_unique<CountingStream>(5, -1));
  for (int round = 0; round < 3; ++round) {
    for (int64_t i = 0; i < 5; ++i) CHECK(stream->next().value().token_count == i);
    CHECK_FALSE(stream->next().has_value());
    CHECK_FALSE(stream->next().has_value());
    CHECK(stream->state().samples == 5);
    stream->restore({0});
  }
}

TEST_CASE("prefetch: an error comes after the batches before it") {
  const auto stream = prefetch(std::make_unique<CountingStream>(100, 3), 4);
  for (int64_t i = 0; i < 3; ++i) CHECK(stream->next().value().token_count == i);
  CHECK(test::error_of([&] { stream->next(); }) == "the disk is gone");
  CHECK(test::error_of([&] { stream->next(); }) == "the disk is gone");
  CHECK(stream->state().samples == 3);
  stream->restore({50});
  CHECK(stream->next().value().token_count == 50);
}

TEST_CASE("prefetch: may be dropped at any time") {
  for (int taken = 0; taken < 50; ++taken) {
    const auto stream = prefetch(std::make_unique<CountingStream>(1000, -1), 1 + taken % 3);
    take_batches(*stream, taken);
  }
  CHECK_THROWS(prefetch(std::make_unique<CountingStream>(1, -1), 0));
}

TEST_CASE("real text: one epoch of WikiText-2 in bytes has the masking rates of the recipe") {
  const auto data = test::require_data();
  if (!data) return;
  const TempDir dir;
  const auto tokenizer = make_tokenizer(BytesOptions{});
  DataOptions options;
  options.train = {*data / "text_en/wikitext-2-raw"};
  const Corpus corpus = prepare_corpus(options, *tokenizer, dir / "cache");
  const auto stream = make_mlm_training(corpus.train, MaskTokens(*tokenizer), stream_of(64));
  int64_t tokens = 0, chosen = 0, masked = 0, same = 0;
  while (tokens < corpus.train->counts().tokens) {
    const Batch batch = stream->next().value();
    tokens += batch.token_count;
    chosen += batch.target_count();
    const torch::Tensor now = batch.tokens.view({-1}).index({batch.targets});
    masked += (now == 260).sum().item<int64_t>();
    same += (now == batch.labels).sum().item<int64_t>();
  }
  REQUIRE(tokens > 1'000'000);
  const auto rate = [&](int64_t count) { return static_cast<double>(count) / static_cast<double>(tokens); };
  CHECK(rate(masked) == Approx(0.12).margin(0.001));
  CHECK(rate(same) == Approx(0.015).margin(0.001));
  CHECK(rate(chosen - masked - same) == Approx(0.015).margin(0.001));
}

}  // namespace roformer
