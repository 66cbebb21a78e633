#include "roformer/nn/attention.h"

#include "roformer/core/error.h"
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

/// The fused kernels give none to their mask.
bool needs_gradient(const torch::Tensor& bias) {
  return bias.defined() && bias.requires_grad() && torch::GradMode::is_enabled();
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

int64_t rotary_width(const AttentionKind& kind, int64_t head_dim) {
  const auto* linear = std::get_if<LinearAttention>(&kind);
  return linear && linear->rotary == RotaryOrder::after ? feature_rotary_width(linear->features, head_dim)
                                                        : head_dim;
}

void validate(const AttentionOptions& options) {
  const int64_t kv_heads = options.kv_heads > 0 ? options.kv_heads : options.heads;
  if (options.head_dim == 0 && options.dim % options.heads != 0) {
    fail("{} heads do not divide a width of {}; change model.heads or model.dim", options.heads, options.dim);
  }
  if (options.heads % kv_heads != 0) {
    fail("{} heads of keys do not divide {} heads of queries; change model.kv_heads or model.heads", kv_heads,
         options.heads);
  }
  if (const auto* linear = std::get_if<LinearAttention>(&options.kind)) {
    validate(linear->features, options.head_dim > 0 ? options.head_dim : options.dim / options.heads);
  }
}

AttentionImpl::AttentionImpl(const AttentionOptions& options) : options_(options) {
  validate(options);
  if (options_.kv_heads == 0) options_.kv_heads = options.heads;
  head_dim_ = options.head_dim > 0 ? options.head_dim : options.dim / options.heads;
  auto linear = [&](int64_t in, int64_t out) {
    return torch::nn::Linear(torch::nn::LinearOptions(in, out).bias(options.bias));
  };
  query_ = register_module("query", linear(options.dim, options.heads * head_dim_));
  key_ = register_module("key", linear(options.dim, options_.kv_heads * head_dim_));
  value_ = register_module("value", linear(options.dim, options_.kv_heads * head_dim_));
  output_ = register_module("output", linear(options.heads * head_dim_, options.dim));
  if (const auto* kind = std::get_if<LinearAttention>(&options.kind)) {
    features_ = register_module("features", make(kind->features, head_dim_, options.layer));
  }
}

torch::Tensor AttentionImpl::forward(const torch::Tensor& x, PositionEncoding& encoding,
                                     const AttentionContext& context, AttentionCache* cache) {
  TORCH_CHECK(x.dim() == 3 && x.size(2) == options_.dim, "attention: x must be [B, L, ", options_.dim,
              "], got ", x.sizes());
  TORCH_CHECK(!cache || context.causal, "attention: a cache is for causal models");
  const int64_t batch = x.size(0), length = x.size(1);
  auto project = [&](torch::nn::Linear& linear) {
    return linear(x).view({batch, length, -1, head_dim_}).transpose(1, 2);
  };
  const torch::Tensor q = project(query_), k = project(key_), v = project(value_);
  const torch::Tensor out = features_ ? linear_attention(q, k, v, encoding, context, cache)
                                      : softmax_attention(q, k, v, encoding, context, cache);
  return output_(out.transpose(1, 2).reshape({batch, length, options_.heads * head_dim_}));
}

namespace {

/// The positions of new tokens alone, as keys too.
Positions new_tokens(const Positions& positions) {
  Positions own = positions;
  own.k = own.q;
  own.k_start = own.q_start;
  return own;
}

torch::Tensor append(torch::Tensor& kept, const torch::Tensor& more) {
  kept = kept.defined() ? torch::cat({kept, more}, 2) : more;
  return kept;
}

/// Each head of keys once for every head of queries that it serves.
torch::Tensor repeat_heads(const torch::Tensor& x, int64_t heads) {
  return x.size(1) == heads ? x : x.repeat_interleave(heads / x.size(1), 1);
}

}  // namespace

torch::Tensor AttentionImpl::softmax_attention(const torch::Tensor& raw_q, torch::Tensor k, torch::Tensor v,
                                               PositionEncoding& encoding, const AttentionContext& context,
                                               AttentionCache* cache) {
  const torch::Tensor q = encoding->rotate(raw_q, Side::query, context.positions);
  if (!cache) {
    k = encoding->rotate(k, Side::key, context.positions);
    v = encoding->rotate(v, Side::value, context.positions);
  } else {
    const Positions own = new_tokens(context.positions);
    v = append(cache->v, encoding->rotate(v, Side::value, own));
    if (encoding->cache_rotated()) {
      k = append(cache->k, encoding->rotate(k, Side::key, own));
    } else {
      k = encoding->rotate(append(cache->k, k), Side::key, context.positions);
    }
  }
  k = repeat_heads(k, options_.heads);
  v = repeat_heads(v, options_.heads);
  const double scale = encoding->scale(head_dim_);
  const double p = is_training() ? options_.dropout : 0.0;
  if (encoding->needs() > Needs::bias) {
    AttentionContext lent = context;
    lent.query = query_;
    lent.key = key_;
    lent.value = value_;
    const torch::Tensor extra = add_defined(encoding->logits(q, k, lent), context.bias);
    torch::Tensor probs;
    const torch::Tensor out = attention_plain(q, k, v, context.keep, extra, context.causal, scale, p, &probs);
    const torch::Tensor more = encoding->values(probs, lent);
    if (!more.defined()) return out;
    const torch::Tensor allowed = allowed_pairs(q, k, context.keep, context.causal);
    return out + (allowed.defined() ? clear_lonely_rows(more, allowed) : more);
  }
  const bool fused = fused_attention_pays(q, p) && !needs_gradient(context.bias);
  return fused ? attention_fused(q, k, v, context.keep, context.bias, context.causal, scale, p)
               : attention_plain(q, k, v, context.keep, context.bias, context.causal, scale, p);
}

torch::Tensor AttentionImpl::linear_attention(const torch::Tensor& raw_q, const torch::Tensor& raw_k,
                                              const torch::Tensor& v, PositionEncoding& encoding,
                                              const AttentionContext& context, AttentionCache* cache) {
  TORCH_CHECK(encoding->needs() == Needs::nothing, "attention: '", encoding->name(),
              "' adds to scores, and linear attention has none");
  const bool after = std::get<LinearAttention>(options_.kind).rotary == RotaryOrder::after;
  const Positions own = new_tokens(context.positions);
  torch::Tensor keep = context.keep;  // of the keys at hand
  if (cache && keep.defined()) keep = keep.narrow(1, keep.size(1) - raw_k.size(2), raw_k.size(2));

  torch::Tensor q = raw_q, k = repeat_heads(raw_k, options_.heads);
  if (!after) {
    q = encoding->rotate(q, Side::query, own);
    k = encoding->rotate(k, Side::key, own);
  }
  LinearTerms terms;
  terms.q = features_->query(q);
  terms.k = features_->key(k, keep, context.causal);
  terms.v = repeat_heads(v, options_.heads);
  if (after) {
    terms.rotated_q = encoding->rotate(terms.q, Side::query, own);
    terms.rotated_k = encoding->rotate(terms.k, Side::key, own);
    if (terms.rotated_q.is_same(terms.q)) terms.rotated_q = terms.rotated_k = torch::Tensor();
  }
  if (!context.causal) return roformer::linear_attention(terms);
  return linear_attention_causal(terms, cache ? &cache->sums : nullptr);
}

}  // namespace roformer
