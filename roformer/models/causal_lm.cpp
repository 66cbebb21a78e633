#include "roformer/models/causal_lm.h"

#include "roformer/core/error.h"
#include "roformer/nn/dropout.h"

namespace roformer {

ModelShape CausalLmOptions::shape() const {
  return {.dim = dim,
          .heads = heads,
          .head_dim = head_width(),
          .layers = layers,
          .causal = true,
          .kv_heads = kv_heads,
          .rotary_width = rotary_width(attention, head_width()),
          .linear = std::holds_alternative<LinearAttention>(attention)};
}

LayerOptions CausalLmOptions::layer(int64_t index) const {
  return {.attention = {.dim = dim,
                        .heads = heads,
                        .kv_heads = kv_heads,
                        .head_dim = head_dim,
                        .dropout = dropout,
                        .bias = bias,
                        .kind = attention,
                        .layer = index},
          .ffn = {.dim = dim, .hidden = ffn, .activation = activation, .gated = gated, .bias = bias},
          .dropout = dropout,
          .norm = NormPlacement::pre,
          .norm_kind = norm,
          .norm_eps = norm_eps};
}

void validate(const CausalLmOptions& options) {
  validate(options.layer(0).attention);
  validate(options.positions, options.shape());
}

CausalLmImpl::CausalLmImpl(const CausalLmOptions& options, PositionEncoding encoding) : options_(options) {
  TORCH_CHECK(options.vocab_size > 0, "language model: vocab_size is not set");
  if (!encoding) {
    validate(options);
    encoding = make_positions(options.positions, options.shape());
  }
  token_ = register_module("token", torch::nn::Embedding(options.vocab_size, options.dim));
  positions_ = register_module("positions", encoding);
  torch::nn::ModuleList list = register_module("layers", torch::nn::ModuleList());
  for (int64_t i = 0; i < options.layers; ++i) {
    layers_.emplace_back(options.layer(i));
    list->push_back(layers_.back());
  }
  norm_ = register_module("norm", Norm(options.norm, options.dim, options.norm_eps));
  if (!options.tied) {
    output_ = register_module(
        "output", torch::nn::Linear(torch::nn::LinearOptions(options.dim, options.vocab_size).bias(false)));
  }
  if (options.init_std) initialise(*this, *options.init_std);
  const torch::NoGradGuard no_grad;
  token_->weight.normal_(0.0, options.embedding_std);
}

torch::Tensor CausalLmImpl::hidden(const torch::Tensor& tokens, const torch::Tensor& keep,
                                   CausalState* state) {
  TORCH_CHECK(tokens.dim() == 2, "language model: tokens must be [B, L], got ", tokens.sizes());
  const int64_t before = state ? state->length : 0, length = before + tokens.size(1);
  if (const int64_t limit = positions_->limit(); limit >= 0 && length > limit) {
    fail("a sequence of {} tokens is longer than '{}' positions can place ({})", length, positions_->name(),
         limit);
  }

  torch::Tensor all_keep = keep;
  Positions positions;
  if (state && before > 0 && (keep.defined() || state->keep.defined())) {
    auto all = [&](const torch::Tensor& x, int64_t columns) {
      return x.defined() ? x : torch::ones({tokens.size(0), columns}, tokens.options().dtype(torch::kBool));
    };
    all_keep = torch::cat({all(state->keep, before), all(keep, tokens.size(1))}, 1);
  }
  if (all_keep.defined()) {
    // Tokens count, padding does not: a prompt padded on the left goes on as it would alone.
    const torch::Tensor ids = (all_keep.to(torch::kInt64).cumsum(1) - 1).clamp_min(0);
    positions = Positions::of(ids, length);
    positions.q = ids.narrow(1, before, tokens.size(1));
  } else {
    positions = Positions::tail(tokens.size(1), length, tokens.device());
  }

  torch::Tensor x = positions_->embed(token_(tokens), positions);
  x = roformer::dropout(x, options_.dropout, is_training());
  if (state) state->layers.resize(layers_.size());
  AttentionContext context{positions, all_keep, /*causal=*/true};
  context.bias = positions_->bias(positions);
  for (Layer& layer : layers_) {
    x = layer(x, positions_, context, state ? &state->layers[static_cast<size_t>(context.layer)] : nullptr);
    ++context.layer;
  }
  if (state) {
    state->keep = all_keep;
    state->length = length;
  }
  return norm_(x);
}

torch::Tensor CausalLmImpl::logits(const torch::Tensor& hidden) {
  return output_ ? output_(hidden) : torch::matmul(hidden, token_->weight.t());
}

NextLogits next_logits(CausalLm model, bool cached) {
  return [model, cached, state = CausalState(), all = torch::Tensor()](const torch::Tensor& tokens) mutable {
    const torch::NoGradGuard no_grad;
    torch::Tensor hidden;
    if (cached) {
      hidden = model->hidden(tokens, {}, &state);
    } else {
      all = all.defined() ? torch::cat({all, tokens}, 1) : tokens;
      hidden = model->hidden(all);
    }
    return model->logits(hidden.select(1, -1));
  };
}

}  // namespace roformer
