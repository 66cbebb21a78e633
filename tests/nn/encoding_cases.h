#pragma once

#include <cmath>
#include <string>

#include "roformer/nn/attention.h"
#include "tests/tensors.h"

// What the tests of position encodings share.

namespace roformer::test {

inline void set_parameter(torch::nn::Module& module, const std::string& name, const torch::Tensor& value) {
  const torch::NoGradGuard no_grad;
  const auto parameters = module.named_parameters();
  const torch::Tensor* parameter = parameters.find(name);
  if (!parameter) FAIL("no parameter '" << name << "'");
  if (parameter->sizes() != value.sizes()) {
    FAIL("'" << name << "' is " << c10::str(parameter->sizes()) << ", given " << c10::str(value.sizes()));
  }
  parameter->copy_(value);
}

inline torch::nn::Linear linear_of(const torch::Tensor& weight, const torch::Tensor& bias = {}) {
  const torch::NoGradGuard no_grad;
  torch::nn::Linear linear(torch::nn::LinearOptions(weight.size(1), weight.size(0)).bias(bias.defined()));
  linear->to(weight.scalar_type());
  linear->weight.copy_(weight);
  if (bias.defined()) linear->bias.copy_(bias);
  return linear;
}

/// What one layer of attention computes through the hooks of an encoding.
struct HookResult {
  torch::Tensor scores;  ///< scaled, before the softmax
  torch::Tensor probs, output;
};

/// q, k, v: [B, H, L, d]. `keep` [B, Lk] and `causal` as in AttentionContext.
inline HookResult run_hooks(PositionEncoding& encoding, const torch::Tensor& q, const torch::Tensor& k,
                            const torch::Tensor& v, AttentionContext context) {
  HookResult result;
  const torch::Tensor rq = encoding->rotate(q, Side::query, context.positions);
  const torch::Tensor rk = encoding->rotate(k, Side::key, context.positions);
  const torch::Tensor rv = encoding->rotate(v, Side::value, context.positions);
  result.scores = torch::matmul(rq, rk.transpose(-2, -1)) * encoding->scale(q.size(-1));
  const torch::Tensor bias = encoding->bias(context.positions);
  if (bias.defined()) result.scores = result.scores + bias;
  const torch::Tensor logits = encoding->logits(rq, rk, context);
  if (logits.defined()) result.scores = result.scores + logits;
  torch::Tensor masked = result.scores;
  if (context.keep.defined()) {
    masked = masked.masked_fill(context.keep.logical_not().unsqueeze(1).unsqueeze(1), -1e30);
  }
  if (context.causal) {
    const torch::Tensor past = torch::ones({q.size(2), k.size(2)}, torch::kBool).tril(k.size(2) - q.size(2));
    masked = masked.masked_fill(past.logical_not(), -1e30);
  }
  result.probs = torch::softmax(masked, -1);
  result.output = torch::matmul(result.probs, rv);
  const torch::Tensor more = encoding->values(result.probs, context);
  if (more.defined()) result.output = result.output + more;
  return result;
}

/// [B, L, dim] through weights [H, d, dim] or [H * d, dim] and a bias: [B, H, L, d].
inline torch::Tensor heads_of(const torch::Tensor& x, const torch::nn::Linear& linear, int64_t heads) {
  torch::nn::Linear copy = linear;
  return copy(x).unflatten(-1, {heads, -1}).transpose(1, 2);
}

/// One folder formula_*: x, Wq, Wk, Wv per head; queries are the last tokens.
struct FormulaCase {
  explicit FormulaCase(const std::filesystem::path& folder)
      : oracle(folder),
        heads(input("Wq").size(0)),
        head_dim(input("Wq").size(1)),
        dim(input("Wq").size(2)),
        queries(input("positions_q").size(0)),
        positions(Positions::tail(queries, input("positions_k").size(0), torch::kCPU)),
        query(linear_of(input("Wq").flatten(0, 1))),
        key(linear_of(input("Wk").flatten(0, 1))),
        value(linear_of(input("Wv").flatten(0, 1))) {
    if (!torch::equal(input("positions_q"), positions.q[0]) ||
        !torch::equal(input("positions_k"), positions.k[0])) {
      FAIL("positions of the case are no tail");
    }
  }

  torch::Tensor input(const std::string& name) const { return oracle.inputs.tensor(name); }
  torch::Tensor expected(const std::string& name) const { return oracle.expected.tensor(name); }
  ModelShape shape(bool causal = false) const {
    return {.dim = dim, .heads = heads, .head_dim = head_dim, .layers = 1, .causal = causal};
  }
  AttentionContext context() const {
    return {.positions = positions, .keep = {}, .query = query, .key = key, .value = value};
  }
  HookResult run(PositionEncoding& encoding) const {
    const torch::NoGradGuard no_grad;
    const torch::Tensor x = input("x"), last = x.slice(1, x.size(1) - queries);
    return run_hooks(encoding, heads_of(last, query, heads), heads_of(x, key, heads),
                     heads_of(x, value, heads), context());
  }
  /// Compares scores (as the formula scales them), weights and output; `suffix` names the pair.
  void check(PositionEncoding& encoding, const std::string& suffix = "") const {
    const HookResult got = run(encoding);
    CHECK(max_error(got.probs, expected("probs" + suffix)) < oracle.tolerance());
    CHECK(max_error(got.output, expected("output" + suffix)) < oracle.tolerance());
  }

  OracleCase oracle;
  int64_t heads, head_dim, dim, queries;
  Positions positions;
  torch::nn::Linear query, key, value;
};

inline std::filesystem::path encodings_of(const std::filesystem::path& oracles) {
  return oracles / "encodings";
}

inline bool all_finite(const torch::Tensor& x) { return x.isfinite().all().item<bool>(); }

}  // namespace roformer::test
