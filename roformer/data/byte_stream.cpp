#include "roformer/data/byte_stream.h"

#include <algorithm>

#include "roformer/core/error.h"
#include "roformer/core/files.h"
#include "roformer/core/random.h"

namespace roformer {
namespace {

constexpr uint64_t window_key = 0x77696e646f77;
constexpr int64_t enwik8_bytes = 100'000'000;

/// Bytes at `starts` as a batch of windows.
Batch byte_batch(std::string_view text, const std::vector<int64_t>& starts, int64_t length) {
  const auto rows = static_cast<int64_t>(starts.size());
  Batch batch;
  batch.tokens = torch::empty({rows, length}, torch::kInt64);
  batch.labels = torch::empty({rows * length}, torch::kInt64);
  auto* const tokens = batch.tokens.mutable_data_ptr<int64_t>();
  auto* const labels = batch.labels.mutable_data_ptr<int64_t>();
  for (int64_t row = 0; row < rows; ++row) {
    const auto* const bytes =
        reinterpret_cast<const unsigned char*>(text.data()) + starts[static_cast<size_t>(row)];
    std::copy(bytes, bytes + length, tokens + row * length);
    std::copy(bytes + 1, bytes + 1 + length, labels + row * length);
  }
  batch.token_count = rows * length;
  return batch;
}

/// Samples 0, 1, 2, ... (without end where `count` < 0), each at start_of(sample).
template <class F>
class ByteStream final : public BatchStream {
 public:
  ByteStream(std::shared_ptr<const ByteCorpus> corpus, BytePart part, const ByteStreamOptions& options,
             int64_t count, F start_of)
      : corpus_(std::move(corpus)),
        part_(part),
        options_(options),
        count_(count),
        start_of_(std::move(start_of)) {}

  std::optional<Batch> next() override {
    const auto [rank, size] = options_.shard;
    std::vector<int64_t> starts;
    int64_t step = options_.batch * size;
    if (count_ >= 0) step = std::min(step, count_ - samples_);
    for (int64_t i = rank; i < step; i += size) starts.push_back(start_of_(samples_ + i));
    if (starts.empty()) return std::nullopt;
    samples_ += step;
    return byte_batch(corpus_->part(part_), starts, options_.length);
  }
  StreamState state() const override { return {samples_}; }
  void restore(StreamState state) override { samples_ = state.samples; }

 private:
  std::shared_ptr<const ByteCorpus> corpus_;
  BytePart part_;
  ByteStreamOptions options_;
  int64_t count_;
  F start_of_;
  int64_t samples_ = 0;
};

template <class F>
std::unique_ptr<BatchStream> make_byte_stream(std::shared_ptr<const ByteCorpus> corpus, BytePart part,
                                              const ByteStreamOptions& options, int64_t count, F start_of) {
  return std::make_unique<ByteStream<F>>(std::move(corpus), part, options, count, std::move(start_of));
}

}  // namespace

ByteCorpus::ByteCorpus(const std::filesystem::path& file, int64_t length)
    : bytes_(read_file(file, size_t{4} << 30)), name_(file.filename().string()) {
  if (name_.starts_with("enwik8")) name_ = size() == enwik8_bytes ? "enwik8" : "enwik8 prefix";
  for (const auto& [each, label] : enum_names(BytePart{})) {
    if (static_cast<int64_t>(part(each).size()) <= length) {
      fail(
          "{}: its {} part has {} bytes of {}, too few for windows of {}; shorten task.length or take more "
          "text",
          file.string(), label, part(each).size(), size(), length);
    }
  }
}

std::string_view ByteCorpus::part(BytePart part) const {
  const size_t twentieth = bytes_.size() / 20, train = bytes_.size() - 2 * twentieth;
  const std::string_view all = bytes_;
  switch (part) {
    case BytePart::train:
      return all.substr(0, train);
    case BytePart::valid:
      return all.substr(train, twentieth);
    default:
      return all.substr(train + twentieth);
  }
}

std::unique_ptr<BatchStream> make_byte_training(std::shared_ptr<const ByteCorpus> corpus,
                                                const ByteStreamOptions& options) {
  const uint64_t places = corpus->part(BytePart::train).size() - static_cast<uint64_t>(options.length);
  return make_byte_stream(std::move(corpus), BytePart::train, options, -1,
                          [places, seed = options.seed](int64_t sample) {
                            return static_cast<int64_t>(
                                Random(mix(seed, window_key, static_cast<uint64_t>(sample))).below(places));
                          });
}

std::unique_ptr<BatchStream> make_byte_evaluation(std::shared_ptr<const ByteCorpus> corpus, BytePart part,
                                                  const ByteStreamOptions& options, int64_t windows) {
  const int64_t length = options.length;
  const int64_t last =
      static_cast<int64_t>(corpus->part(part).size()) - 1 - length;  // where the last window begins
  const int64_t all = (last + length - 1) / length + 1;
  const int64_t count = windows > 0 ? std::min(windows, all) : all;
  return make_byte_stream(std::move(corpus), part, options, count, [=](int64_t sample) {
    const int64_t window = count == all ? sample : sample * all / count;
    return std::min(window * length, last);
  });
}

}  // namespace roformer
