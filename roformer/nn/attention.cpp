#include "roformer/nn/attention.h"

#include "roformer/nn/dropout.h"

namespace roformer {
namespace {

/// bool, true = may attend, broadcastable to [B, H, Lq, Lk]; undefined = every query sees every key.
torch::Tensor allowed_pairs(const torch::Tensor& q, const torch::Tensor& k, const torch::Tensor& keep,
                            bool causal) {
  torch::Tensor allowed;
  if (keep.defined()) allowed = keep.unsqueeze(1).unsqueeze(1);
  if (causal) {
    // The queries are the last of the keys.
    const int64_t queries = q.size(2), keys = k.size(2);
    const torch::Tensor past =
        torch::ones({queries, keys}, keep.defined() ? keep.options() : q.options().dtype(torch::kBool))
            .tril(keys - queries);
    allowed = allowed.defined() ? allowed.logical_and(past) : past;
  }
  return allowed;
}

/// Zeros for queries that may attend to nothing: softmax over equally lowest scores gave them the mean of
/// all.
torch::Tensor clear_lonely_rows(const torch::Tensor& out, const torch::Tensor& allowed) {
  return out.masked_fill(allowed.any(-1, /*keepdim=*/true).logical_not(), 0);
}

/// What a score is set to where attention is forbidden. Set, never added: two of them would make -inf, and a
/// row of -inf NaN.
double lowest(torch::ScalarType type) {
  switch (type) {
    case torch::kHalf:
      return std::numeric_limits<c10::Half>::lowest();
    case torch::kBFloat16:
      return std::numeric_limits<c10::BFloat16>::lowest();
    case torch::kDouble:
      return std::numeric_limits<double>::lowest();
    default:
      return std::numeric_limits<float>::lowest();
  }
}

torch::Tensor add_defined(const torch::Tensor& a, const torch::Tensor& b) {
  return !a.defined() ? b : !b.defined() ? a : a + b;
}

void check_heads(const torch::Tensor& q, const torch::Tensor& k, const torch::Tensor& v,
                 const torch::Tensor& keep) {
  TORCH_CHECK(q.dim() == 4 && k.dim() == 4 && v.dim() == 4,
              "attention: q, k, v must be [B, heads, L, head_dim]");
  TORCH_CHECK(q.size(3) == k.size(3) && k.size(2) == v.size(2), "attention: q ", q.sizes(), ", k ", k.sizes(),
              " and v ", v.sizes(), " do not fit together");
  TORCH_CHECK(
      !keep.defined() || (keep.scalar_type() == torch::kBool && keep.dim() == 2 && keep.size(1) == k.size(2)),
      "attention: keep must be bool [B, Lk]");
}

}  // namespace

torch::Tensor attention_plain(const torch::Tensor& q, const torch::Tensor& k, const torch::Tensor& v,
                              const torch::Tensor& keep, const torch::Tensor& extra, bool causal,
                              double scale, double dropout, torch::Tensor* probs) {
  check_heads(q, k, v, keep);
  const torch::Tensor allowed = allowed_pairs(q, k, keep, causal);
  // The scale goes to q, which is smaller than the scores; what follows works in place where autograd lets
  // it.
  torch::Tensor scores = torch::matmul(q * scale, k.transpose(-2, -1));
  if (extra.defined()) scores.add_(extra);
  if (allowed.defined()) scores.masked_fill_(allowed.logical_not(), lowest(scores.scalar_type()));
  const torch::Tensor weights = roformer::dropout(torch::softmax(scores, -1), dropout, /*training=*/true);
  if (probs) *probs = weights;
  const torch::Tensor out = torch::matmul(weights, v);
  return allowed.defined() ? clear_lonely_rows(out, allowed) : out;
}

torch::Tensor attention_fused(const torch::Tensor& q, const torch::Tensor& k, const torch::Tensor& v,
                              const torch::Tensor& keep, const torch::Tensor& extra, bool causal,
                              double scale, double dropout) {
  check_heads(q, k, v, keep);
  const bool flag = causal && !keep.defined() && !extra.defined() && q.size(2) == k.size(2);
  const torch::Tensor allowed = flag ? torch::Tensor() : allowed_pairs(q, k, keep, causal);
  torch::Tensor mask = allowed;  // bool, true = attend: gives zeros for rows without any key
  if (extra.defined()) {
    mask = extra.to(q.scalar_type());
    if (allowed.defined()) mask = torch::where(allowed, mask, lowest(q.scalar_type()));
  }
  const torch::Tensor out = at::scaled_dot_product_attention(
      q, k, v, mask.defined() ? std::optional<torch::Tensor>(mask) : std::nullopt, dropout, flag, scale);
  return extra.defined() && allowed.defined() ? clear_lonely_rows(out, allowed) : out;
}

bool fused_attention_pays(const torch::Tensor& q, double dropout) {
  // On the CPU, one thread, without dropout: 1.3 to 1.9 times faster forward (more with a mask); forward and
  // backward 1.05 to 1.4 times faster at 128 tokens, level at 512 (0.9 without mask, 1.15 with), where it
  // saves the memory of the scores. With dropout it falls back to its slow formula and draws its mask by
  // at::dropout.
  return !q.is_cpu() || dropout == 0.0;
}

AttentionImpl::AttentionImpl(const AttentionOptions& options) : options_(options) {
  TORCH_CHECK(options.heads > 0 && options.dim % options.heads == 0, "attention: ", options.heads,
              " heads do not divide a width of ", options.dim);
  auto linear = [&] {
    return torch::nn::Linear(torch::nn::LinearOptions(options.dim, options.dim).bias(options.bias));
  };
  query_ = register_module("query", linear());
  key_ = register_module("key", linear());
  value_ = register_module("value", linear());
  output_ = register_module("output", linear());
}

torch::Tensor AttentionImpl::forward(const torch::Tensor& x, PositionEncoding& encoding,
                                     const AttentionContext& context) {
  TORCH_CHECK(x.dim() == 3 && x.size(2) == options_.dim, "attention: x must be [B, L, ", options_.dim,
              "], got ", x.sizes());
  const int64_t batch = x.size(0), length = x.size(1);
  auto project = [&](torch::nn::Linear& linear, Side side) {
    const torch::Tensor heads = linear(x).view({batch, length, options_.heads, -1}).transpose(1, 2);
    return encoding->rotate(heads, side, context.positions);
  };
  const torch::Tensor q = project(query_, Side::query);
  const torch::Tensor k = project(key_, Side::key);
  const torch::Tensor v = project(value_, Side::value);
  const double scale = encoding->scale(q.size(-1));
  const double p = is_training() ? options_.dropout : 0.0;

  torch::Tensor out;
  if (encoding->needs() > Needs::bias) {
    const torch::Tensor extra = add_defined(encoding->logits(q, k, context), context.bias);
    torch::Tensor probs;
    out = attention_plain(q, k, v, context.keep, extra, context.causal, scale, p, &probs);
    torch::Tensor more = encoding->values(probs, context);
    if (more.defined()) {
      const torch::Tensor allowed = allowed_pairs(q, k, context.keep, context.causal);
      out = out + (allowed.defined() ? clear_lonely_rows(more, allowed) : more);
    }
  } else if (fused_attention_pays(q, p)) {
    out = attention_fused(q, k, v, context.keep, context.bias, context.causal, scale, p);
  } else {
    out = attention_plain(q, k, v, context.keep, context.bias, context.causal, scale, p);
  }
  return output_(out.transpose(1, 2).reshape({batch, length, options_.dim}));
}

}  // namespace roformer
