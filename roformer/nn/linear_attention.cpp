#include "roformer/nn/linear_attention.h"

#include <array>
#include <limits>
#include <optional>

namespace roformer {
namespace {

void check_terms(const LinearTerms& t) {
  TORCH_CHECK(t.q.dim() == 4 && t.k.dim() == 4 && t.v.dim() == 4,
              "linear attention: features and v must be [B, heads, L, width]");
  TORCH_CHECK(t.q.size(3) == t.k.size(3) && t.k.size(2) == t.v.size(2) && t.q.size(0) == t.k.size(0) &&
                  t.q.size(1) == t.k.size(1) && t.k.size(0) == t.v.size(0) && t.k.size(1) == t.v.size(1),
              "linear attention: phi(q) ", t.q.sizes(), ", phi(k) ", t.k.sizes(), " and v ", t.v.sizes(),
              " do not fit together");
  TORCH_CHECK(t.rotated_q.defined() == t.rotated_k.defined(),
              "linear attention: rotated features of both sides or of none");
  TORCH_CHECK(
      !t.rotated_q.defined() || (t.rotated_q.sizes() == t.q.sizes() && t.rotated_k.sizes() == t.k.sizes()),
      "linear attention: rotated features must have the shapes of the features");
}

/// Checked, all of one type, the numerator's features filled in.
LinearTerms widened(const LinearTerms& t) {
  check_terms(t);
  torch::ScalarType type = torch::kFloat32;
  for (const torch::Tensor& x : {t.q, t.k, t.v}) type = at::promote_types(type, x.scalar_type());
  const torch::Tensor q = t.q.to(type), k = t.k.to(type);
  const bool turned = t.rotated_q.defined();
  return {q, k, turned ? t.rotated_q.to(type) : q, turned ? t.rotated_k.to(type) : k, t.v.to(type)};
}

/// Denominators that are none.
torch::Tensor vanishing(const torch::Tensor& denominator) {
  const double smallest = denominator.scalar_type() == torch::kFloat64 ? std::numeric_limits<double>::min()
                                                                       : std::numeric_limits<float>::min();
  return denominator.detach() < smallest;
}

/// numerator [..., dv] / denominator [...]; zeros where the denominator is none.
torch::Tensor ratio(const torch::Tensor& numerator, const torch::Tensor& denominator) {
  const torch::Tensor none = vanishing(denominator).unsqueeze(-1);
  const torch::Tensor safe = denominator.unsqueeze(-1).masked_fill(none, 1.0);
  return (numerator / safe).masked_fill(none, 0.0);
}

/// Causal attention [G, L, dv] after the sums `pairs` [G, M, dv] and `keys` [G, M], which it also returns as
/// they are after the last key. G = batch x heads. Chunk after chunk, so that beside
/// inputs and outputs it holds the sums and what one chunk needs, small enough for the caches. Without
/// rotated features numerator and denominator share their weights.
struct CausalSums : torch::autograd::Function<CausalSums> {
  static torch::autograd::variable_list forward(torch::autograd::AutogradContext* ctx, const torch::Tensor& q,
                                                const torch::Tensor& k,
                                                const std::optional<torch::Tensor>& rotated_q,
                                                const std::optional<torch::Tensor>& rotated_k,
                                                const torch::Tensor& v, const torch::Tensor& pairs,
                                                const torch::Tensor& keys, int64_t chunk) {
    const bool rotated = rotated_q.has_value();
    const torch::Tensor &all_a = rotated ? *rotated_q : q, &all_b = rotated ? *rotated_k : k;
    const int64_t length = q.size(1);
    torch::Tensor out = torch::empty_like(v), inverse = torch::empty(q.sizes().slice(0, 2), q.options());
    torch::Tensor pair_sum = pairs.clone(), key_sum = keys.clone();
    for (int64_t begin = 0; begin < length; begin += chunk) {
      auto part = [&](const torch::Tensor& x) { return x.slice(1, begin, begin + chunk); };
      const torch::Tensor a = part(all_a), b = part(all_b), u = part(v);
      const torch::Tensor weights = masked_products(a, b);
      const torch::Tensor numerator = torch::bmm(weights, u).baddbmm_(a, pair_sum);
      const torch::Tensor denominator =
          rotated ? (part(q) * key_prefix(part(k), key_sum)).sum(-1)
                  : weights.sum(-1).add_(torch::bmm(a, key_sum.unsqueeze(2)).squeeze(2));
      part(out).copy_(ratio(numerator, denominator));
      part(inverse).copy_(denominator.reciprocal().masked_fill_(vanishing(denominator), 0.0));
      pair_sum.baddbmm_(b.transpose(1, 2), u);
      key_sum.add_(part(k).sum(1));
    }
    ctx->saved_data["chunk"] = chunk;
    ctx->saved_data["rotated"] = rotated;
    ctx->save_for_backward({q, k, all_a, all_b, v, pairs, keys, out, inverse});
    ctx->mark_non_differentiable({pair_sum, key_sum});
    return {out, pair_sum, key_sum};
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* ctx,
                                                 torch::autograd::variable_list grads) {
    TORCH_CHECK(!torch::GradMode::is_enabled(),
                "linear attention has no second derivatives here: use linear_attention_plain");
    const c10::impl::ExcludeDispatchKeyGuard no_autocast(c10::autocast_dispatch_keyset);
    const auto saved = ctx->get_saved_variables();
    const torch::Tensor &q = saved[0], &k = saved[1], &all_a = saved[2], &all_b = saved[3], &v = saved[4];
    const bool rotated = ctx->saved_data["rotated"].toBool();
    const int64_t chunk = ctx->saved_data["chunk"].toInt();
    const int64_t length = q.size(1), chunks = (length + chunk - 1) / chunk;
    torch::Tensor of_a = torch::empty_like(q), of_b = torch::empty_like(k), of_v = torch::empty_like(v);
    torch::Tensor of_q, of_k;  // of the denominator, where it has features of its own
    if (rotated) {
      of_q = torch::empty_like(q);
      of_k = torch::empty_like(k);
    }
    auto part = [&](const torch::Tensor& x, int64_t number) {
      return x.slice(1, number * chunk, (number + 1) * chunk);
    };
    // Gradients of a chunk's numerators [G, C, dv], denominators [G, C, 1] and masked products [G, C, C].
    auto gradients = [&](int64_t number) {
      const torch::Tensor g = part(grads[0], number) * part(saved[8], number).unsqueeze(2);
      const torch::Tensor h = (g * part(saved[7], number)).sum(2, /*keepdim=*/true).neg_();
      const torch::Tensor u = part(v, number).transpose(1, 2);
      const torch::Tensor of_weights = rotated ? torch::bmm(g, u) : torch::baddbmm(h, g, u);
      return std::array<torch::Tensor, 3>{g, h, of_weights.tril_()};
    };

    // Queries, from the first on, as they need the sums before them, which the forward pass did not keep.
    torch::Tensor pair_sum = saved[5].clone(), key_sum = saved[6].clone();
    for (int64_t i = 0; i < chunks; ++i) {
      const auto [g, h, of_weights] = gradients(i);
      const torch::Tensor b = part(all_b, i);
      torch::Tensor of = torch::bmm(of_weights, b).baddbmm_(g, pair_sum.transpose(1, 2));
      if (rotated) {
        part(of_q, i).copy_(key_prefix(part(k, i), key_sum).mul_(h));
      } else {
        of.addcmul_(h, key_sum.unsqueeze(1));
      }
      part(of_a, i).copy_(of);
      if (i + 1 == chunks) break;
      pair_sum.baddbmm_(b.transpose(1, 2), part(v, i));
      key_sum.add_(part(k, i).sum(1));
    }

    // Keys and values, from the last on, with the gradients of the sums after them.
    torch::Tensor of_pairs = torch::zeros_like(saved[5]), of_keys = torch::zeros_like(saved[6]);
    for (int64_t i = chunks - 1; i >= 0; --i) {
      const auto [g, h, of_weights] = gradients(i);
      const torch::Tensor a = part(all_a, i), b = part(all_b, i);
      torch::Tensor of =
          torch::bmm(of_weights.transpose(1, 2), a).baddbmm_(part(v, i), of_pairs.transpose(1, 2));
      part(of_v, i).copy_(torch::bmm(masked_products(a, b).transpose(1, 2), g).baddbmm_(b, of_pairs));
      const torch::Tensor weighted = part(q, i) * h;
      if (rotated) {
        part(of_k, i).copy_(suffix_sums(weighted).add_(of_keys.unsqueeze(1)));
      } else {
        of.add_(of_keys.unsqueeze(1));
      }
      part(of_b, i).copy_(of);
      of_pairs.baddbmm_(a.transpose(1, 2), g);
      of_keys.add_(weighted.sum(1));
    }
    if (!rotated) return {of_a, of_b, {}, {}, of_v, of_pairs, of_keys, {}};
    return {of_q, of_k, of_a, of_b, of_v, of_pairs, of_keys, {}};
  }

  /// Products of queries and keys up to each query's own.
  static torch::Tensor masked_products(const torch::Tensor& a, const torch::Tensor& b) {
    return torch::bmm(a, b.transpose(1, 2)).tril_();
  }

  /// Sum of the keys up to each, itself included. A cumulative sum costs C M; the masked products of the
  /// unrotated features, which eq. 19 does not need otherwise, would cost C times that.
  static torch::Tensor key_prefix(const torch::Tensor& k, const torch::Tensor& before) {
    return k.cumsum(1).add_(before.unsqueeze(1));
  }

  /// Sum of rows i, i + 1, ...
  static torch::Tensor suffix_sums(const torch::Tensor& x) { return x.flip(1).cumsum(1).flip(1); }
};

}  // namespace

torch::Tensor linear_attention(const LinearTerms& terms) {
  const c10::impl::ExcludeDispatchKeyGuard no_autocast(c10::autocast_dispatch_keyset);
  const LinearTerms t = widened(terms);
  const torch::Tensor pairs = torch::matmul(t.rotated_k.transpose(2, 3), t.v);
  const torch::Tensor numerator = torch::matmul(t.rotated_q, pairs);
  const torch::Tensor denominator = torch::matmul(t.q, t.k.sum(2).unsqueeze(-1)).squeeze(-1);
  return ratio(numerator, denominator).to(terms.v.scalar_type());
}

torch::Tensor linear_attention_plain(const LinearTerms& terms, bool causal) {
  const c10::impl::ExcludeDispatchKeyGuard no_autocast(c10::autocast_dispatch_keyset);
  const LinearTerms t = widened(terms);
  torch::Tensor weights = torch::matmul(t.rotated_q, t.rotated_k.transpose(2, 3));
  torch::Tensor sims = torch::matmul(t.q, t.k.transpose(2, 3));
  if (causal) {
    const int64_t offset = t.k.size(2) - t.q.size(2);
    weights = weights.tril(offset);
    sims = sims.tril(offset);
  }
  return ratio(torch::matmul(weights, t.v), sims.sum(-1)).to(terms.v.scalar_type());
}

torch::Tensor linear_attention_causal(const LinearTerms& terms, LinearState* state, int64_t chunk) {
  const c10::impl::ExcludeDispatchKeyGuard no_autocast(c10::autocast_dispatch_keyset);
  LinearTerms t = widened(terms);
  const int64_t batch = t.v.size(0), heads = t.v.size(1), queries = t.q.size(2), keys = t.k.size(2);
  TORCH_CHECK(chunk > 0, "linear attention: chunks of ", chunk, " tokens");
  TORCH_CHECK(queries <= keys, "linear attention: ", queries, " queries for ", keys, " keys");
  TORCH_CHECK(!state || queries == keys, "linear attention: with a state, as many keys as queries");

  LinearState before = state ? *state : LinearState{};
  const int64_t width = t.k.size(3), values = t.v.size(3);
  if (!before.sum.defined()) before.sum = torch::zeros({batch, heads, width, values}, t.v.options());
  if (!before.norm.defined()) before.norm = torch::zeros({batch, heads, width}, t.v.options());
  TORCH_CHECK(before.sum.sizes() == at::IntArrayRef({batch, heads, width, values}) &&
                  before.norm.sizes() == at::IntArrayRef({batch, heads, width}),
              "linear attention: the state is of another batch or model");
  if (const int64_t prefix = keys - queries; prefix > 0) {
    auto head = [&](const torch::Tensor& x) { return x.narrow(2, 0, prefix); };
    auto tail = [&](const torch::Tensor& x) { return x.narrow(2, prefix, queries); };
    before.sum = before.sum + torch::matmul(head(t.rotated_k).transpose(2, 3), head(t.v));
    before.norm = before.norm + head(t.k).sum(2);
    t = {t.q, tail(t.k), t.rotated_q, tail(t.rotated_k), tail(t.v)};
  }

  torch::Tensor result;
  LinearState last;
  if (queries == 1) {
    last.sum = before.sum + t.rotated_k.transpose(2, 3) * t.v;
    last.norm = before.norm + t.k.squeeze(2);
    result =
        ratio(torch::matmul(t.rotated_q, last.sum), (t.q.squeeze(2) * last.norm).sum(-1, /*keepdim=*/true));
  } else if (queries == 0) {
    result = t.v;
    last = before;
  } else {
    auto flat = [&](const torch::Tensor& x) { return x.reshape({batch * heads, x.size(2), x.size(3)}); };
    const bool rotated = terms.rotated_q.defined();
    const auto out =
        CausalSums::apply(flat(t.q), flat(t.k), rotated ? std::optional(flat(t.rotated_q)) : std::nullopt,
                          rotated ? std::optional(flat(t.rotated_k)) : std::nullopt, flat(t.v),
                          flat(before.sum), before.norm.reshape({-1, width}), chunk);
    result = out[0].view({batch, heads, queries, values});
    last = {out[1].view_as(before.sum), out[2].view_as(before.norm)};
  }
  if (state) *state = {last.sum.detach(), last.norm.detach()};
  return result.to(terms.v.scalar_type());
}

}  // namespace roformer
