#include "roformer/data/mlm_stream.h"

#include <algorithm>

#include "roformer/core/random.h"
#include "roformer/data/permutation.h"

namespace roformer {
namespace {

// Different uses of one seed must not share numbers.
constexpr uint64_t order_key = 0x6f72646572, mask_key = 0x6d61736b;

torch::Tensor tensor_of(const std::vector<int64_t>& values) {
  return torch::tensor(at::ArrayRef<int64_t>(values), torch::kInt64);
}

class MlmStream final : public BatchStream {
 public:
  /// `sequences` < 0: without end.
  MlmStream(std::shared_ptr<const TokenFile> windows, const MaskTokens& tokens,
            const MlmStreamOptions& options, int64_t seed, int64_t sequences)
      : windows_(std::move(windows)), tokens_(tokens), options_(options), seed_(seed), sequences_(sequences) {
    TORCH_CHECK(options_.batch >= 1 && options_.shard.size >= 1 && options_.shard.rank >= 0 &&
                    options_.shard.rank < options_.shard.size,
                "mlm stream: batch must be at least 1 and 0 <= rank < size");
    TORCH_CHECK(windows_->windows() > 0 || sequences_ == 0, "mlm stream: no windows");
  }

  std::optional<Batch> next() override {
    const auto [rank, size] = options_.shard;
    int64_t rows = options_.batch;
    if (sequences_ >= 0) {
      const int64_t left = std::min(sequences_ - samples_, rows * size);  // of this batch of all ranks
      rows = std::max<int64_t>(0, (left - rank + size - 1) / size);
      if (rows == 0) return std::nullopt;
    }
    Batch batch = make_batch(samples_ + rank, size, rows);
    samples_ += options_.batch * size;
    if (sequences_ >= 0) samples_ = std::min(samples_, sequences_);
    return batch;
  }

  StreamState state() const override { return {samples_}; }
  void restore(StreamState state) override {
    TORCH_CHECK(state.samples >= 0, "mlm stream: negative number of samples");
    samples_ = state.samples;
  }

 private:
  Batch make_batch(int64_t first, int64_t stride, int64_t rows) {
    const int64_t length = windows_->length();
    Batch batch;
    batch.tokens = torch::empty({rows, length}, torch::kInt64);
    auto* const tokens = batch.tokens.data_ptr<int64_t>();
    std::vector<int64_t> targets, labels;
    std::vector<uint64_t> mask_seeds;
    ids_.resize(static_cast<size_t>(length));
    for (int64_t row = 0; row < rows; ++row) {
      const int64_t sample = first + row * stride;
      const auto epoch = static_cast<uint64_t>(sample / windows_->windows());
      const Permutation order(windows_->windows(), mix(seed_, order_key, epoch));
      const int64_t window = order(sample % windows_->windows());
      windows_->read(window, ids_.data());
      std::copy(ids_.begin(), ids_.end(), tokens + row * length);
      mask_seeds.push_back(mix(seed_, mask_key, epoch, static_cast<uint64_t>(window)));
    }
    // Before masking, which may put [PAD] in as a random token.
    batch.token_count =
        std::count_if(tokens, tokens + rows * length, [&](int64_t id) { return id != tokens_.pad; });
    if (batch.token_count < rows * length) batch.keep = batch.tokens.ne(tokens_.pad);
    for (int64_t row = 0; row < rows; ++row) {
      const size_t begin = targets.size();
      mask_window({tokens + row * length, static_cast<size_t>(length)}, options_.masking, tokens_,
                  Random(mask_seeds[static_cast<size_t>(row)]), targets, labels);
      for (size_t i = begin; i < targets.size(); ++i) targets[i] += row * length;
    }
    batch.targets = tensor_of(targets);
    batch.labels = tensor_of(labels);
    return batch;
  }

  std::shared_ptr<const TokenFile> windows_;
  MaskTokens tokens_;
  MlmStreamOptions options_;
  uint64_t seed_;
  int64_t sequences_;
  int64_t samples_ = 0;
  std::vector<int32_t> ids_;
};

}  // namespace

std::unique_ptr<BatchStream> make_mlm_training(std::shared_ptr<const TokenFile> windows,
                                               const MaskTokens& tokens, const MlmStreamOptions& options) {
  return std::make_unique<MlmStream>(std::move(windows), tokens, options, options.seed, -1);
}

std::unique_ptr<BatchStream> make_mlm_validation(std::shared_ptr<const TokenFile> windows,
                                                 const MaskTokens& tokens, const MlmStreamOptions& options,
                                                 int64_t sequences) {
  const int64_t count = std::min(sequences, windows->windows());
  return std::make_unique<MlmStream>(std::move(windows), tokens, options, 0, count);
}

}  // namespace roformer
