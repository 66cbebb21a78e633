#include "roformer/data/example_stream.h"

#include <algorithm>
#include <numeric>

#include "roformer/core/random.h"

namespace roformer {
namespace {

constexpr uint64_t example_order_key = 0x6578616d706c65;

class ExampleStream final : public BatchStream {
 public:
  ExampleStream(std::shared_ptr<const std::vector<LabelledExample>> examples,
                const ExampleStreamOptions& options, bool endless)
      : examples_(std::move(examples)), options_(options), endless_(endless) {
    TORCH_CHECK(options_.batch >= 1 && options_.bucket >= 1 && options_.shard.size >= 1 &&
                    options_.shard.rank >= 0 && options_.shard.rank < options_.shard.size,
                "examples: batch and bucket must be at least 1 and 0 <= rank < size");
    TORCH_CHECK(!endless_ || !examples_->empty(), "examples: there are none");
  }

  std::optional<Batch> next() override {
    const int64_t total = options_.batch * options_.shard.size;
    while (true) {
      const int64_t pass = samples_ / pass_size(), begin = samples_ % pass_size();
      if (!endless_ && samples_ >= size()) return std::nullopt;
      set_order(pass);
      const int64_t rows = std::min(total, size() - begin);
      samples_ += rows;
      if (endless_ && rows < options_.shard.size) continue;  // a rank without a sequence would wait for ever
      std::vector<int64_t> chosen;
      for (int64_t i = options_.shard.rank; i < rows; i += options_.shard.size) {
        chosen.push_back(order_[static_cast<size_t>(begin + i)]);
      }
      if (chosen.empty()) return std::nullopt;
      return make_batch(std::move(chosen));
    }
  }

  StreamState state() const override { return {samples_}; }
  void restore(StreamState state) override {
    TORCH_CHECK(state.samples >= 0, "examples: negative number of samples");
    samples_ = state.samples;
  }

 private:
  int64_t size() const { return static_cast<int64_t>(examples_->size()); }
  int64_t pass_size() const { return std::max<int64_t>(1, size()); }
  size_t length(int64_t example) const {
    return (*examples_)[static_cast<size_t>(example)].tokens.ids.size();
  }

  void set_order(int64_t pass) {
    if (pass == pass_ && !order_.empty()) return;
    pass_ = pass;
    order_.resize(examples_->size());
    std::iota(order_.begin(), order_.end(), 0);
    auto longer = [&](int64_t a, int64_t b) { return length(a) > length(b); };
    if (!endless_) {
      std::stable_sort(order_.begin(), order_.end(), longer);
      return;
    }
    Random random(mix(options_.seed, example_order_key, static_cast<uint64_t>(pass)));
    auto shuffle = [&](auto& values) {
      for (size_t i = values.size(); i > 1; --i) std::swap(values[i - 1], values[random.below(i)]);
    };
    shuffle(order_);
    if (options_.bucket == 1) return;
    const size_t batch = static_cast<size_t>(options_.batch * options_.shard.size);
    const size_t bucket = batch * static_cast<size_t>(options_.bucket);
    for (size_t begin = 0; begin < order_.size(); begin += bucket) {
      const size_t end = std::min(order_.size(), begin + bucket);
      std::stable_sort(order_.begin() + static_cast<int64_t>(begin),
                       order_.begin() + static_cast<int64_t>(end), longer);
    }
    // Whole batches in random order; a short one stays at the end.
    std::vector<size_t> batches(order_.size() / batch);
    std::iota(batches.begin(), batches.end(), size_t{0});
    shuffle(batches);
    std::vector<int64_t> mixed;
    mixed.reserve(order_.size());
    for (const size_t i : batches) {
      mixed.insert(mixed.end(), order_.begin() + static_cast<int64_t>(i * batch),
                   order_.begin() + static_cast<int64_t>((i + 1) * batch));
    }
    mixed.insert(mixed.end(), order_.begin() + static_cast<int64_t>(mixed.size()), order_.end());
    order_ = std::move(mixed);
  }

  Batch make_batch(std::vector<int64_t> chosen) const {
    const auto rows = static_cast<int64_t>(chosen.size());
    size_t longest = 0;
    for (const int64_t i : chosen) longest = std::max(longest, length(i));
    const auto width = static_cast<int64_t>(longest);

    Batch batch;
    batch.tokens = torch::full({rows, width}, options_.pad, torch::kInt64);
    if (options_.segments) batch.segments = torch::zeros({rows, width}, torch::kInt64);
    batch.labels = torch::empty({rows}, options_.scores ? torch::kFloat32 : torch::kInt64);
    torch::Tensor keep = torch::zeros({rows, width}, torch::kBool);
    for (int64_t row = 0; row < rows; ++row) {
      const LabelledExample& example = (*examples_)[static_cast<size_t>(chosen[static_cast<size_t>(row)])];
      const auto count = static_cast<int64_t>(example.tokens.ids.size());
      std::copy(example.tokens.ids.begin(), example.tokens.ids.end(), batch.tokens[row].data_ptr<int64_t>());
      std::fill_n(keep[row].data_ptr<bool>(), count, true);
      if (options_.segments) {
        std::copy(example.tokens.segments.begin(), example.tokens.segments.end(),
                  batch.segments[row].data_ptr<int64_t>());
      }
      batch.labels[row] = example.label;
      batch.token_count += count;
    }
    if (batch.token_count < rows * width) batch.keep = keep;
    batch.examples = std::move(chosen);
    return batch;
  }

  std::shared_ptr<const std::vector<LabelledExample>> examples_;
  ExampleStreamOptions options_;
  bool endless_;
  int64_t samples_ = 0;
  int64_t pass_ = -1;
  std::vector<int64_t> order_;  // of the pass
};

}  // namespace

int64_t example_batches(int64_t examples, const ExampleStreamOptions& options) {
  const int64_t total = options.batch * options.shard.size;
  return examples / total + (examples % total >= options.shard.size ? 1 : 0);
}

std::unique_ptr<BatchStream> make_example_training(
    std::shared_ptr<const std::vector<LabelledExample>> examples, const ExampleStreamOptions& options) {
  return std::make_unique<ExampleStream>(std::move(examples), options, true);
}

std::unique_ptr<BatchStream> make_example_validation(
    std::shared_ptr<const std::vector<LabelledExample>> examples, const ExampleStreamOptions& options) {
  return std::make_unique<ExampleStream>(std::move(examples), options, false);
}

}  // namespace roformer
