#pragma once

#include <array>
#include <memory>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "roformer/core/config.h"
#include "roformer/torch.h"

// Position encodings: what they are told, the hooks that they may fill, their options, and how they are made.
//
// A new encoding is three edits: its options here (and in PositionOptions), its class and make() in a file of
// roformer/nn/positions/, its formula in the tests. Code outside the project passes its own PositionEncoding to the
// constructor of a model instead.

namespace roformer {

/// Where the tokens of one attention call stand. Host-side facts travel with the tensors, so nothing asks the device.
struct Positions {
  torch::Tensor q;          ///< int64 [B or 1, Lq]
  torch::Tensor k;          ///< int64 [B or 1, Lk]
  int64_t length = 0;       ///< one past the largest position: limits, growth of tables
  bool contiguous = false;  ///< q is q_start, q_start + 1, ... and k is k_start, ..., for every sequence alike
  int64_t q_start = 0;      ///< first position of q; only where contiguous
  int64_t k_start = 0;

  /// Self-attention of a whole sequence from `start` on: both sides start .. start + length - 1.
  static Positions range(int64_t length, torch::Device device, int64_t start = 0);
  /// Queries are the last `queries` of `keys` positions (a cache holds the rest).
  static Positions tail(int64_t queries, int64_t keys, torch::Device device);
  /// Given ids, int64 [B or 1, L], all below `length`; both sides alike.
  static Positions of(const torch::Tensor& ids, int64_t length);
};

/// What one attention call tells the encoding. Built once per forward pass, lent by each layer.
struct AttentionContext {
  const Positions& positions;
  torch::Tensor keep;  ///< bool [B, Lk], true = token; undefined = all tokens
  bool causal = false;
  int64_t layer = 0;
  torch::Tensor bias = {};  ///< what bias() of the encoding gave, once for all layers
};

/// What an encoding needs to reach into. Fused attention offers `bias`, plain attention everything.
enum class Needs { nothing, bias, scores, probabilities };
enum class Side { query, key, value };

/// What an encoding is told of the model when it is made.
struct ModelShape {
  int64_t dim = 0;       ///< width of the token vectors
  int64_t heads = 0;
  int64_t head_dim = 0;  ///< width of one head
  int64_t layers = 0;
  bool causal = false;
};

/// Owned by the model, shared by its layers. Override the hooks you need; the defaults do nothing.
class PositionEncodingImpl : public torch::nn::Module {
 public:
  /// Adds absolute positions to the token vectors. x: [B, L, dim]; uses positions.q.
  virtual torch::Tensor embed(const torch::Tensor& x, const Positions&) { return x; }
  /// A bias that does not look at the content: [B or 1, heads or 1, Lq, Lk], added to the scaled scores.
  virtual torch::Tensor bias(const Positions&) { return {}; }
  /// Turns queries, keys (or values) by their positions. heads: [B, heads, L, head_dim].
  virtual torch::Tensor rotate(const torch::Tensor& heads, Side, const Positions&) { return heads; }
  /// Further scores from queries and keys, already scaled: [B, heads, Lq, Lk]; undefined = none.
  virtual torch::Tensor logits(const torch::Tensor& /*q*/, const torch::Tensor& /*k*/, const AttentionContext&) {
    return {};
  }
  /// Further output from the attention weights (after dropout) [B, heads, Lq, Lk]: [B, heads, Lq, head_dim].
  virtual torch::Tensor values(const torch::Tensor& /*probs*/, const AttentionContext&) { return {}; }
  /// Factor of q·k.
  virtual double scale(int64_t head_dim) const;
  virtual Needs needs() const { return Needs::nothing; }
  /// Longest sequence it can place; -1 = any. A longer one is refused with an Error that names this limit.
  virtual int64_t limit() const { return -1; }
  /// The name in YAML, for messages.
  virtual std::string_view name() const { return "custom"; }
};
TORCH_MODULE(PositionEncoding);

/// A new encoding of class T.
template <class T, class... Arguments>
PositionEncoding new_encoding(Arguments&&... arguments) {
  return std::shared_ptr<PositionEncodingImpl>(std::make_shared<T>(std::forward<Arguments>(arguments)...));
}

// --- Options -------------------------------------------------------------------------------------------------------

/// No positions at all: an encoder is then blind to order.
struct NoneOptions {
  static constexpr std::string_view type = "none";
  static constexpr bool acts_in_attention = false;  ///< fills a hook other than embed
};
template <class V>
void fields(V&, NoneOptions&) {}

/// Eq. 3 with a trainable table p_i (BERT; Devlin et al. 2019).
struct LearnedOptions {
  static constexpr std::string_view type = "learned";
  static constexpr bool acts_in_attention = false;
  int64_t max_length = 512;
  double init_std = 0.02;
};
template <class V>
void fields(V& v, LearnedOptions& o) {
  v("max_length", o.max_length, "rows of the table: no longer sequence can be read", within(1, 1 << 22));
  v("init_std", o.init_std, "standard deviation of the initial table", at_least(0.0));
}

enum class SinusoidLayout { interleaved, halves };
inline auto enum_names(SinusoidLayout) {
  return std::array<std::pair<SinusoidLayout, std::string_view>, 2>{
      {{SinusoidLayout::interleaved, "interleaved"}, {SinusoidLayout::halves, "halves"}}};
}

/// Eq. 4: p_{i,2t} = sin(i / 10000^(2t/d)), p_{i,2t+1} = cos(...) (the paper prints an undefined k for i).
struct SinusoidalOptions {
  static constexpr std::string_view type = "sinusoidal";
  static constexpr bool acts_in_attention = false;
  SinusoidLayout layout = SinusoidLayout::interleaved;
  double base = 10000.0;
  int64_t offset = 0;
  double scale = 1.0;
};
template <class V>
void fields(V& v, SinusoidalOptions& o) {
  v("layout", o.layout, "columns: sin and cos in turn (interleaved) or all sines, then all cosines (halves)");
  v("base", o.base, "wavelengths grow from 2 pi to 2 pi times this", above(1.0));
  v("offset", o.offset, "position of the first token", within(0, 1 << 22));
  v("scale", o.scale, "factor of the table; 1 drowns token vectors drawn with a deviation of 0.02");
}

enum class RotaryLayout { interleaved, halves };
inline auto enum_names(RotaryLayout) {
  return std::array<std::pair<RotaryLayout, std::string_view>, 2>{
      {{RotaryLayout::interleaved, "interleaved"}, {RotaryLayout::halves, "halves"}}};
}

/// RoPE, eq. 14-16 and 34: pairs of columns of q and k turn by m * theta_i, theta_i = base^(-2i/d), i = 0 .. d/2 - 1.
struct RotaryOptions {
  static constexpr std::string_view type = "rotary";
  static constexpr bool acts_in_attention = true;
  RotaryLayout layout = RotaryLayout::interleaved;
  double base = 10000.0;
  int64_t dim = 0;
  bool trainable = false;
  bool values = false;
};
template <class V>
void fields(V& v, RotaryOptions& o) {
  v("layout", o.layout, "which columns form a pair: (2i, 2i+1) as in the paper, or (i, i + d/2) as in LLaMA");
  v("base", o.base, "theta_i = base^(-2i/d)", above(1.0));
  v("dim", o.dim, "leading columns of each head that turn (even); 0 = all", at_least(0));
  v("trainable", o.trainable, "learn theta");
  v("values", o.values, "turn the values too");
}

/// The closed list: a type without a make() fails to compile.
using PositionOptions = std::variant<NoneOptions, LearnedOptions, SinusoidalOptions, RotaryOptions>;

PositionEncoding make(const NoneOptions&, const ModelShape&);
PositionEncoding make(const LearnedOptions&, const ModelShape&);
PositionEncoding make(const SinusoidalOptions&, const ModelShape&);
PositionEncoding make(const RotaryOptions&, const ModelShape&);

/// One encoding, or several in a chain: the embed hooks add up, at most one member may fill any other hook.
PositionEncoding make_positions(const std::vector<PositionOptions>& options, const ModelShape& shape);

/// Relations between options and model (even widths, not wider than a head), as Errors, without building anything.
inline void validate(const NoneOptions&, const ModelShape&) {}
inline void validate(const LearnedOptions&, const ModelShape&) {}
void validate(const SinusoidalOptions& options, const ModelShape& shape);
void validate(const RotaryOptions& options, const ModelShape& shape);
/// The same for all, and that at most one acts in attention.
void validate(const std::vector<PositionOptions>& options, const ModelShape& shape);

}  // namespace roformer
