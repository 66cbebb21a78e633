#include <algorithm>
#include <cmath>
#include <string>

#include "roformer/core/error.h"
#include "roformer/nn/positions.h"

namespace roformer {

Positions Positions::range(int64_t length, torch::Device device, int64_t start) {
  const torch::Tensor ids =
      torch::arange(start, start + length, torch::TensorOptions(torch::kInt64).device(device)).unsqueeze(0);
  return {
      .q = ids, .k = ids, .length = start + length, .contiguous = true, .q_start = start, .k_start = start};
}

Positions Positions::tail(int64_t queries, int64_t keys, torch::Device device) {
  TORCH_CHECK(0 <= queries && queries <= keys, "Positions::tail: ", queries, " queries of ", keys, " keys");
  const torch::Tensor ids =
      torch::arange(keys, torch::TensorOptions(torch::kInt64).device(device)).unsqueeze(0);
  const int64_t start = keys - queries;
  return {.q = ids.narrow(1, start, queries), .k = ids, .length = keys, .contiguous = true, .q_start = start};
}

Positions Positions::of(const torch::Tensor& ids, int64_t length) {
  TORCH_CHECK(ids.dim() == 2 && ids.scalar_type() == torch::kInt64,
              "Positions::of: int64 [B or 1, L] expected, got ", ids.scalar_type(), " ", ids.sizes());
  return {.q = ids, .k = ids, .length = length};
}

double PositionEncodingImpl::scale(int64_t head_dim) const {
  return 1.0 / std::sqrt(static_cast<double>(head_dim));
}

namespace {

/// Several encodings: all embed, one may act in attention.
class ChainImpl : public PositionEncodingImpl {
 public:
  void add(PositionEncoding member, bool acts_in_attention) {
    name_ += (members_.empty() ? "" : " + ") + std::string(member->name());
    members_.push_back(register_module(std::to_string(members_.size()), std::move(member)));
    if (acts_in_attention || members_.size() == 1) attention_ = members_.back().ptr();
  }

  torch::Tensor embed(const torch::Tensor& x, const Positions& positions) override {
    torch::Tensor sum = x;
    for (PositionEncoding& member : members_) sum = member->embed(sum, positions);
    return sum;
  }
  torch::Tensor bias(const Positions& positions) override { return attention_->bias(positions); }
  torch::Tensor rotate(const torch::Tensor& heads, Side side, const Positions& positions) override {
    return attention_->rotate(heads, side, positions);
  }
  torch::Tensor logits(const torch::Tensor& q, const torch::Tensor& k,
                       const AttentionContext& context) override {
    return attention_->logits(q, k, context);
  }
  torch::Tensor values(const torch::Tensor& probs, const AttentionContext& context) override {
    return attention_->values(probs, context);
  }
  double scale(int64_t head_dim) const override { return attention_->scale(head_dim); }
  Needs needs() const override { return attention_->needs(); }
  bool cache_rotated() const override { return attention_->cache_rotated(); }

  int64_t limit() const override {
    int64_t least = -1;
    for (const PositionEncoding& member : members_) {
      const int64_t limit = member->limit();
      if (limit >= 0) least = least < 0 ? limit : std::min(least, limit);
    }
    return least;
  }
  std::string_view name() const override { return name_; }

 private:
  std::vector<PositionEncoding> members_;
  std::shared_ptr<PositionEncodingImpl>
      attention_;  // the member with the other hooks; any, when none has them
  std::string name_;
};

Acts acts_of(const PositionOptions& options) {
  return std::visit([](const auto& o) { return o.acts; }, options);
}

bool acts_in_attention(const PositionOptions& options) { return acts_of(options) != Acts::on_embeddings; }

std::string_view type_of(const PositionOptions& options) {
  return std::visit([](const auto& o) { return o.type; }, options);
}

}  // namespace

void validate(const std::vector<PositionOptions>& options, const ModelShape& shape) {
  if (options.empty()) fail("positions: the list is empty; write 'none' for a model without positions");
  std::string_view acting;
  for (const PositionOptions& each : options) {
    std::visit([&](const auto& o) { validate(o, shape); }, each);
    if (shape.linear && acts_of(each) == Acts::on_scores) {
      fail(
          "positions: '{}' adds to attention scores, but model.attention is linear and has none; take "
          "rotary, learned, "
          "sinusoidal or none, or attention: softmax",
          type_of(each));
    }
    if (!acts_in_attention(each)) continue;
    if (!acting.empty()) {
      fail("positions: '{}' and '{}' both act inside attention; keep one of them", acting, type_of(each));
    }
    acting = type_of(each);
  }
}

PositionEncoding make_positions(const std::vector<PositionOptions>& options, const ModelShape& shape) {
  validate(options, shape);
  auto make_one = [&](const PositionOptions& each) {
    return std::visit([&](const auto& o) { return make(o, shape); }, each);
  };
  if (options.size() == 1) return make_one(options.front());
  auto chain = std::make_shared<ChainImpl>();
  for (const PositionOptions& each : options) chain->add(make_one(each), acts_in_attention(each));
  return std::shared_ptr<PositionEncodingImpl>(std::move(chain));
}

}  // namespace roformer
