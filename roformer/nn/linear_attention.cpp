#include "roformer/nn/linear_attention.h"

#include <algorithm>
#include <limits>
#include <vector>

namespace roformer {
namespace {

using torch::indexing::Slice;

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

/// numerator [..., dv] / denominator [...]; zeros where the denominator is none.
torch::Tensor ratio(const torch::Tensor& numerator, const torch::Tensor& denominator,
                    const torch::Tensor& v) {
  const double smallest = denominator.scalar_type() == torch::kFloat64 ? std::numeric_limits<double>::min()
                                                                       : std::numeric_limits<float>::min();
  const torch::Tensor none = (denominator.detach() < smallest).unsqueeze(-1);
  const torch::Tensor safe = denominator.unsqueeze(-1).masked_fill(none, 1.0);
  return (numerator / safe).masked_fill(none, 0.0).to(v.scalar_type());
}

/// What the sums of one head hold at a place in the sequence. G = batch x heads.
struct Sums {
  torch::Tensor pairs;  // [G, M, dv]
  torch::Tensor keys;   // [G, M]
};

/// x[:, begin:end] as [G, n, chunk, width], filled up with zeros.
torch::Tensor chunks_of(const torch::Tensor& x, int64_t begin, int64_t end, int64_t chunk) {
  torch::Tensor part = x.slice(1, begin, end);
  const int64_t missing = (chunk - (end - begin) % chunk) % chunk;
  if (missing > 0) part = torch::constant_pad_nd(part, {0, 0, 0, missing});
  // Contiguous here, or every product copies it again.
  return part.reshape({part.size(0), -1, chunk, part.size(2)}).contiguous();
}

/// The inverse.
torch::Tensor joined(const torch::Tensor& x, int64_t begin, int64_t end) {
  return x.reshape({x.size(0), -1, x.size(3)}).slice(1, 0, end - begin);
}

/// `first` plus the sum of all parts before each: parts [G, n, ...] -> [G, n, ...]; `first` [G, ...] becomes
/// the sum of all. With `backwards` the parts after each.
torch::Tensor sums_before(const torch::Tensor& parts, torch::Tensor& first, bool backwards) {
  const int64_t n = parts.size(1);
  torch::Tensor out = torch::empty_like(parts);
  for (int64_t i = 0; i < n; ++i) {
    const int64_t at = backwards ? n - 1 - i : i;
    out.select(1, at).copy_(first);
    first = first + parts.select(1, at);
  }
  return out;
}

/// Sum of rows i, i + 1, ... of each chunk: [G, n, C, M].
torch::Tensor suffix_sums(const torch::Tensor& x) { return x.flip(2).cumsum(2).flip(2); }

/// Places where the segments begin. A segment bounds what is held beside inputs and outputs: about 4 million
/// products of two tokens (16 MB in float32), whatever the length.
int64_t segment_length(int64_t groups, int64_t chunk) {
  constexpr int64_t products = 1 << 22;
  return chunk * std::max<int64_t>(1, products / std::max<int64_t>(1, groups * chunk * chunk));
}

/// Causal numerators [G, L, dv] and denominators [G, L] after the sums `pairs` and `keys`, which it also
/// returns as they are after the last key.
struct CausalSums : torch::autograd::Function<CausalSums> {
  static torch::autograd::variable_list forward(torch::autograd::AutogradContext* ctx, const torch::Tensor& q,
                                                const torch::Tensor& k, const torch::Tensor& rotated_q,
                                                const torch::Tensor& rotated_k, const torch::Tensor& v,
                                                const torch::Tensor& pairs, const torch::Tensor& keys,
                                                int64_t chunk) {
    const int64_t length = q.size(1), step = segment_length(q.size(0), chunk);
    torch::Tensor numerator = torch::empty_like(v),
                  denominator = torch::empty(q.sizes().slice(0, 2), q.options());
    Sums sums{pairs, keys};
    std::vector<torch::Tensor> pairs_at, keys_at;
    for (int64_t begin = 0; begin < length; begin += step) {
      const int64_t end = std::min(length, begin + step);
      auto part = [&](const torch::Tensor& x) { return chunks_of(x, begin, end, chunk); };
      pairs_at.push_back(sums.pairs);
      keys_at.push_back(sums.keys);
      {
        const torch::Tensor a = part(rotated_q), b = part(rotated_k), u = part(v);
        const torch::Tensor before =
            sums_before(torch::matmul(b.transpose(2, 3), u), sums.pairs, /*backwards=*/false);
        torch::Tensor out = torch::matmul(torch::matmul(a, b.transpose(2, 3)).tril_(), u);
        out.add_(torch::matmul(a, before));
        numerator.slice(1, begin, end).copy_(joined(out, begin, end));
      }
      const torch::Tensor p = part(q), prefix = key_prefix(part(k), sums.keys);
      denominator.slice(1, begin, end).copy_(joined((p * prefix).sum(-1, true), begin, end).squeeze(-1));
    }
    ctx->saved_data["chunk"] = chunk;
    ctx->save_for_backward({q, k, rotated_q, rotated_k, v, torch::stack(pairs_at), torch::stack(keys_at)});
    ctx->mark_non_differentiable({sums.pairs, sums.keys});
    return {numerator, denominator, sums.pairs, sums.keys};
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* ctx,
                                                 torch::autograd::variable_list grads) {
    TORCH_CHECK(!torch::GradMode::is_enabled(),
                "linear attention has no second derivatives here: use linear_attention_plain");
    const c10::impl::ExcludeDispatchKeyGuard no_autocast(c10::autocast_dispatch_keyset);
    const auto saved = ctx->get_saved_variables();
    const torch::Tensor &q = saved[0], &k = saved[1], &rotated_q = saved[2], &rotated_k = saved[3],
                        &v = saved[4];
    const int64_t chunk = ctx->saved_data["chunk"].toInt();
    const int64_t length = q.size(1), step = segment_length(q.size(0), chunk);
    const torch::Tensor of_numerator = grads[0].defined() ? grads[0] : torch::zeros_like(v);
    const torch::Tensor of_denominator =
        (grads[1].defined() ? grads[1] : torch::zeros(q.sizes().slice(0, 2), q.options())).unsqueeze(-1);
    torch::Tensor of_q = torch::empty_like(q), of_k = torch::empty_like(k);
    torch::Tensor of_rotated_q = torch::empty_like(q), of_rotated_k = torch::empty_like(k);
    torch::Tensor of_v = torch::empty_like(v);
    Sums after{torch::zeros_like(saved[5][0]), torch::zeros_like(saved[6][0])};  // gradients of the sums
    for (int64_t segment = saved[5].size(0) - 1; segment >= 0; --segment) {
      const int64_t begin = segment * step, end = std::min(length, begin + step);
      auto part = [&](const torch::Tensor& x) { return chunks_of(x, begin, end, chunk); };
      auto write = [&](torch::Tensor& to, const torch::Tensor& from) {
        to.slice(1, begin, end).copy_(joined(from, begin, end));
      };
      Sums sums{saved[5][segment], saved[6][segment]};
      {
        const torch::Tensor a = part(rotated_q), b = part(rotated_k), u = part(v), g = part(of_numerator);
        const torch::Tensor before =
            sums_before(torch::matmul(b.transpose(2, 3), u), sums.pairs, /*backwards=*/false);
        const torch::Tensor later =
            sums_before(torch::matmul(a.transpose(2, 3), g), after.pairs, /*backwards=*/true);
        const torch::Tensor of_weights = torch::matmul(g, u.transpose(2, 3)).tril_();
        write(of_rotated_q, torch::matmul(of_weights, b).add_(torch::matmul(g, before.transpose(2, 3))));
        write(of_rotated_k,
              torch::matmul(of_weights.transpose(2, 3), a).add_(torch::matmul(u, later.transpose(2, 3))));
        const torch::Tensor weights = torch::matmul(a, b.transpose(2, 3)).tril_();
        write(of_v, torch::matmul(weights.transpose(2, 3), g).add_(torch::matmul(b, later)));
      }
      const torch::Tensor g = part(of_denominator);
      write(of_q, key_prefix(part(k), sums.keys).mul_(g));
      const torch::Tensor turned = part(q) * g;
      const torch::Tensor later = sums_before(turned.sum(2), after.keys, /*backwards=*/true);
      write(of_k, suffix_sums(turned).add_(later.unsqueeze(2)));
    }
    return {of_q, of_k, of_rotated_q, of_rotated_k, of_v, after.pairs, after.keys, {}};
  }

  /// Sum of the keys up to each, itself included. A cumulative sum costs L M; the masked products of the
  /// unrotated features, which eq. 19 does not need otherwise, would cost chunk times that.
  static torch::Tensor key_prefix(const torch::Tensor& k, torch::Tensor& first) {
    torch::Tensor sums = k.cumsum(2);
    const torch::Tensor before = sums_before(sums.select(2, -1), first, /*backwards=*/false);
    return sums.add_(before.unsqueeze(2));
  }
};

}  // namespace

torch::Tensor linear_attention(const LinearTerms& terms) {
  const c10::impl::ExcludeDispatchKeyGuard no_autocast(c10::autocast_dispatch_keyset);
  const LinearTerms t = widened(terms);
  const torch::Tensor pairs = torch::matmul(t.rotated_k.transpose(2, 3), t.v);
  const torch::Tensor numerator = torch::matmul(t.rotated_q, pairs);
  const torch::Tensor denominator = torch::matmul(t.q, t.k.sum(2).unsqueeze(-1)).squeeze(-1);
  return ratio(numerator, denominator, terms.v);
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
  return ratio(torch::matmul(weights, t.v), sims.sum(-1), terms.v);
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

  torch::Tensor numerator, denominator;
  LinearState last;
  if (queries == 1) {
    last.sum = before.sum + t.rotated_k.transpose(2, 3) * t.v;
    last.norm = before.norm + t.k.squeeze(2);
    numerator = torch::matmul(t.rotated_q, last.sum);
    denominator = (t.q.squeeze(2) * last.norm).sum(-1, /*keepdim=*/true);
  } else if (queries == 0) {
    numerator = t.v;
    denominator = t.v.new_zeros({batch, heads, 0});
    last = before;
  } else {
    auto flat = [&](const torch::Tensor& x) { return x.reshape({batch * heads, x.size(2), x.size(3)}); };
    const torch::Tensor q = flat(t.q), k = flat(t.k);
    const bool turned = terms.rotated_q.defined();
    const auto out =
        CausalSums::apply(q, k, turned ? flat(t.rotated_q) : q, turned ? flat(t.rotated_k) : k, flat(t.v),
                          flat(before.sum), before.norm.reshape({-1, width}), std::min(chunk, queries));
    numerator = out[0].view({batch, heads, queries, values});
    denominator = out[1].view({batch, heads, queries});
    last = {out[2].view_as(before.sum), out[3].view_as(before.norm)};
  }
  if (state) *state = {last.sum.detach(), last.norm.detach()};
  return ratio(numerator, denominator, terms.v);
}

}  // namespace roformer
