#include "roformer/models/encoder.h"

#include "roformer/core/error.h"
#include "roformer/nn/dropout.h"

namespace roformer {

ModelShape EncoderOptions::shape() const {
  return {.dim = dim,
          .heads = heads,
          .head_dim = dim / heads,
          .layers = layers,
          .rotary_width = rotary_width(attention, dim / heads),
          .linear = std::holds_alternative<LinearAttention>(attention),
          .embedding = embedding_dim()};
}

LayerOptions EncoderOptions::layer(int64_t index) const {
  return {.attention = {.dim = dim,
                        .heads = heads,
                        .dropout = attention_dropout.value_or(dropout),
                        .kind = attention,
                        .layer = index},
          .ffn = {.dim = dim, .hidden = ffn, .activation = activation},
          .dropout = dropout,
          .norm = norm,
          .norm_eps = norm_eps};
}

void validate(const EncoderOptions& options) {
  validate(options.layer(0).attention);
  validate(options.positions, options.shape());
}

EncoderImpl::EncoderImpl(const EncoderOptions& options, PositionEncoding encoding) : options_(options) {
  TORCH_CHECK(options.vocab_size > 0, "encoder: vocab_size is not set");
  if (!encoding) {
    validate(options);
    encoding = make_positions(options.positions, options.shape());
  }
  token_ = register_module("token", torch::nn::Embedding(options.vocab_size, options.embedding_dim()));
  if (options.segments > 0) {
    segment_ = register_module("segment", torch::nn::Embedding(options.segments, options.embedding_dim()));
  }
  positions_ = register_module("positions", encoding);
  const int64_t normed = options.norm == NormPlacement::pre ? options.dim : options.embedding_dim();
  norm_ = register_module("norm",
                          torch::nn::LayerNorm(torch::nn::LayerNormOptions({normed}).eps(options.norm_eps)));
  if (options.embedding_dim() != options.dim) {
    project_ = register_module("project", torch::nn::Linear(options.embedding_dim(), options.dim));
  }
  torch::nn::ModuleList list = register_module("layers", torch::nn::ModuleList());
  for (int64_t i = 0; i < options.layers; ++i) {
    layers_.emplace_back(options.layer(i));
    list->push_back(layers_.back());
  }
  initialise(*this, options.init_std);
}

const Positions& EncoderImpl::range(int64_t length, torch::Device device) {
  if (!range_ || range_->length != length || range_->q.device() != device) {
    range_ = Positions::range(length, device);
  }
  return *range_;
}

torch::Tensor EncoderImpl::forward(const torch::Tensor& tokens, const torch::Tensor& keep,
                                   const torch::Tensor& segments, const Positions* positions,
                                   std::vector<torch::Tensor>* hidden) {
  TORCH_CHECK(tokens.dim() == 2, "encoder: tokens must be [B, L], got ", tokens.sizes());
  if (!positions) positions = &range(tokens.size(1), tokens.device());
  if (const int64_t limit = positions_->limit(); limit >= 0 && positions->length > limit) {
    fail(
        "a sequence of {} tokens is longer than '{}' positions can place ({}); raise "
        "model.positions.max_length or shorten data.length",
        positions->length, positions_->name(), limit);
  }

  torch::Tensor x = token_(tokens);
  if (segments.defined()) {
    TORCH_CHECK(segment_, "encoder: segments given, but the model has no segment embedding");
    x = x + segment_(segments);
  } else if (segment_) {
    x = x + segment_->weight[0];
  }
  x = positions_->embed(x, *positions);
  const bool pre = options_.norm == NormPlacement::pre;
  x = roformer::dropout(pre ? x : norm_(x), options_.dropout, is_training());
  if (project_) x = project_(x);
  if (hidden) *hidden = {x};

  AttentionContext context{*positions, keep};
  context.bias = positions_->bias(*positions);
  for (Layer& layer : layers_) {
    x = layer(x, positions_, context);
    ++context.layer;
    if (hidden) hidden->push_back(x);
  }
  if (pre) {
    x = norm_(x);
    if (hidden) hidden->back() = x;
  }
  return x;
}

}  // namespace roformer
