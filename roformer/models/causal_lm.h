#pragma once

#include <optional>
#include <vector>

#include "roformer/eval/search.h"
#include "roformer/nn/layers.h"

namespace roformer {

/// A language model that reads from left to right: Performer and LLaMA are options of it.
struct CausalLmOptions {
  int64_t dim = 512;
  int64_t layers = 8;
  int64_t heads = 8;
  int64_t kv_heads = 0;
  int64_t head_dim = 0;
  int64_t ffn = 2048;
  double dropout = 0.0;
  Activation activation = Activation::gelu;
  bool gated = false;
  NormKind norm = NormKind::layer;
  double norm_eps = 1e-5;
  bool bias = true;
  bool tied = false;
  std::optional<double> init_std = 0.02;
  double embedding_std = 0.02;
  AttentionKind attention = SoftmaxAttention{};
  std::vector<PositionOptions> positions{RotaryOptions{}};
  int64_t vocab_size = 0;  ///< not an option of the file: the tokenizer knows it

  int64_t head_width() const { return head_dim > 0 ? head_dim : dim / heads; }
  ModelShape shape() const;
  LayerOptions layer(int64_t index) const;
};
template <class V>
void fields(V& v, CausalLmOptions& o) {
  v("dim", o.dim, "width of the model", within(1, 65536));
  v("layers", o.layers, "number of blocks", within(1, 1024));
  v("heads", o.heads, "attention heads; must divide dim, unless head_dim is given", within(1, 1024));
  v("kv_heads", o.kv_heads, "heads of keys and values (grouped-query attention); 0 = heads", within(0, 1024));
  v("head_dim", o.head_dim, "width of a head; 0 = dim / heads", within(0, 65536));
  v("ffn", o.ffn, "hidden width of the feed-forward network", within(1, 1 << 20));
  v("dropout", o.dropout, "on embeddings, attention weights and on the output of attention and feed-forward",
    within(0.0, 0.99));
  v("activation", o.activation, "of the feed-forward network");
  v("gated", o.gated, "feed-forward with a gate; silu makes it SwiGLU");
  v("norm", o.norm, "LayerNorm (layer) or RMSNorm (rms), before each sublayer and after the last block");
  v("norm_eps", o.norm_eps, "added to the variance or mean square in the norm", above(0.0));
  v("bias", o.bias, "of the linear maps in attention and feed-forward");
  v("tied", o.tied, "the output map is the token embedding; else one of its own, without bias");
  v("init_std", o.init_std,
    "standard deviation of initial weights; null = LibTorch's uniform of +-1/sqrt(inputs)", at_least(0.0));
  v("embedding_std", o.embedding_std, "standard deviation of the initial token embedding", at_least(0.0));
  v("attention", o.attention, "softmax, or linear in the length");
  v("positions", o.positions, "position encoding, or a list of them");
}
/// heads divide dim, encodings fit together, the head width and the kind of attention.
void validate(const CausalLmOptions& options);

/// What the model keeps of a growing sequence: keys and values per layer, or with linear attention sums of
/// fixed size.
struct CausalState {
  std::vector<AttentionCache> layers;
  torch::Tensor keep;  ///< bool [B, tokens so far]; undefined = all are tokens
  int64_t length = 0;  ///< columns so far
};

/// Token embeddings, pre-norm blocks, a last norm, logits.
class CausalLmImpl : public torch::nn::Module {
 public:
  /// `encoding`: from outside the project; empty = options.positions.
  explicit CausalLmImpl(const CausalLmOptions& options, PositionEncoding encoding = nullptr);

  /// tokens: int64 [B, L]; keep: bool [B, L], true = token; undefined = all tokens. Hidden states after the
  /// last norm, [B, L, dim]. With `state` the tokens go on from those of earlier calls. Positions count
  /// tokens, not columns: padding on the left changes nothing. Error when a sequence is beyond what the
  /// encoding can place.
  torch::Tensor hidden(const torch::Tensor& tokens, const torch::Tensor& keep = {},
                       CausalState* state = nullptr);
  /// hidden [..., dim] -> logits [..., V].
  torch::Tensor logits(const torch::Tensor& hidden);
  /// Both: logits [B, L, V].
  torch::Tensor forward(const torch::Tensor& tokens, const torch::Tensor& keep = {},
                        CausalState* state = nullptr) {
    return logits(hidden(tokens, keep, state));
  }

  const CausalLmOptions& options() const { return options_; }
  int64_t limit() const { return positions_->limit(); }

 private:
  CausalLmOptions options_;
  torch::nn::Embedding token_{nullptr};
  PositionEncoding positions_{nullptr};
  std::vector<Layer> layers_;
  Norm norm_{nullptr};
  torch::nn::Linear output_{nullptr};
};
TORCH_MODULE(CausalLm);

/// The model as decoding sees it. Keeps a state, so that a call costs what its own tokens cost; without
/// `cached` every call reads all tokens anew, which gives the same (a deeper layer under dynamic NTK scaling
/// excepted: its theta follows the length). No gradients; eval mode is the caller's to set.
NextLogits next_logits(CausalLm model, bool cached = true);

}  // namespace roformer
