#pragma once

#include <optional>

#include "roformer/data/batch.h"
#include "roformer/nn/layers.h"

namespace roformer {

/// BERT and RoFormer are options of one encoder: learned positions make BERT, rotary ones RoFormer.
struct EncoderOptions {
  int64_t dim = 768;
  int64_t embedding = 0;
  int64_t layers = 12;
  int64_t heads = 12;
  int64_t ffn = 3072;
  double dropout = 0.1;
  std::optional<double> attention_dropout;
  Activation activation = Activation::gelu;
  NormPlacement norm = NormPlacement::post;
  double norm_eps = 1e-12;
  double init_std = 0.02;
  int64_t segments = 2;
  AttentionKind attention = SoftmaxAttention{};
  std::vector<PositionOptions> positions{RotaryOptions{}};
  int64_t vocab_size = 0;  ///< not an option of the file: the tokenizer knows it

  /// Width of token and segment embeddings.
  int64_t embedding_dim() const { return embedding > 0 ? embedding : dim; }
  ModelShape shape() const;
  LayerOptions layer(int64_t index) const;
};
template <class V>
void fields(V& v, EncoderOptions& o) {
  v("dim", o.dim, "width of the model", within(1, 65536));
  v("embedding", o.embedding, "width of the embeddings, mapped to dim before the first block; 0 = dim",
    within(0, 65536));
  v("layers", o.layers, "number of blocks", within(1, 1024));
  v("heads", o.heads, "attention heads; must divide dim", within(1, 1024));
  v("ffn", o.ffn, "hidden width of the feed-forward network", within(1, 1 << 20));
  v("dropout", o.dropout, "on embeddings and on the output of attention and feed-forward", within(0.0, 0.99));
  v("attention_dropout", o.attention_dropout, "on attention weights; null = as dropout", within(0.0, 0.99));
  v("activation", o.activation, "of the feed-forward network and the MLM head");
  v("norm", o.norm, "LayerNorm after the residual (post, as in BERT) or before the sublayer (pre)");
  v("norm_eps", o.norm_eps, "added to the variance in LayerNorm", above(0.0));
  v("init_std", o.init_std, "standard deviation of initial weights and embeddings", at_least(0.0));
  v("segments", o.segments, "segment types (sentence A, B); 0 = no segment embedding", at_least(0));
  v("attention", o.attention, "softmax, or linear in the length");
  v("positions", o.positions, "position encoding, or a list of them");
}
/// heads divide dim, encodings fit together and fit the head width.
void validate(const EncoderOptions& options);

/// Token (+ segment) embeddings, `embed` of the encoding, LayerNorm, dropout, then the blocks. With pre-norm
/// blocks the LayerNorm stands after the last block instead of after the embeddings. Embeddings of another
/// width are mapped to `dim` before the first block (`project`), as in Hugging Face's RoFormer.
class EncoderImpl : public torch::nn::Module {
 public:
  /// `encoding`: an encoding from outside the project; empty = options.positions.
  explicit EncoderImpl(const EncoderOptions& options, PositionEncoding encoding = nullptr);

  /// tokens: int64 [B, L]; keep: bool [B, L], true = token; segments: int64 [B, L]; undefined = all tokens,
  /// all 0. Returns [B, L, dim]. With `hidden` given it receives layers + 1 states, 0 = embeddings. Error
  /// when L is beyond what the encoding can place.
  torch::Tensor forward(const torch::Tensor& tokens, const torch::Tensor& keep = {},
                        const torch::Tensor& segments = {}, const Positions* positions = nullptr,
                        std::vector<torch::Tensor>* hidden = nullptr);

  const torch::Tensor& token_weight() const { return token_->weight; }
  const EncoderOptions& options() const { return options_; }

 private:
  const Positions& range(int64_t length, torch::Device device);

  EncoderOptions options_;
  std::optional<Positions> range_;  // of the last length and device: not built anew for each batch
  torch::nn::Embedding token_{nullptr}, segment_{nullptr};
  PositionEncoding positions_{nullptr};
  torch::nn::LayerNorm norm_{nullptr};
  torch::nn::Linear project_{nullptr};
  std::vector<Layer> layers_;
};
TORCH_MODULE(Encoder);

}  // namespace roformer
