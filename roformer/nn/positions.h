#pragma once

#include <array>
#include <memory>
#include <optional>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "roformer/core/config.h"
#include "roformer/torch.h"

// Position encodings: what they are told, the hooks that they may fill, their options, and how they are made.
//
// A new encoding is three edits: its options here (and in PositionOptions), its class and make() in a file of
// roformer/nn/positions/, its formula in the tests. Code outside the project passes its own PositionEncoding
// to the constructor of a model instead.

namespace roformer {

/// Where the tokens of one attention call stand. Host-side facts travel with the tensors, so nothing asks the
/// device.
struct Positions {
  torch::Tensor q;     ///< int64 [B or 1, Lq]
  torch::Tensor k;     ///< int64 [B or 1, Lk]
  int64_t length = 0;  ///< one past the largest position: limits, growth of tables
  bool contiguous =
      false;            ///< q is q_start, q_start + 1, ... and k is k_start, ..., for every sequence alike
  int64_t q_start = 0;  ///< first position of q; only where contiguous
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
  /// The layer's own W_q, W_k, W_v, for encodings that project positions with them. Set by the layer;
  /// borrowed.
  torch::nn::Linear query{nullptr}, key{nullptr}, value{nullptr};
};

/// What an encoding needs to reach into. Linear attention offers nothing, fused attention `bias`, plain
/// attention everything.
enum class Needs { nothing, bias, scores, probabilities };
enum class Side { query, key, value };

/// Where an encoding acts: what it adds to token vectors, how it turns queries and keys, what it adds to
/// scores.
enum class Acts { on_embeddings, on_heads, on_scores };

/// What an encoding is told of the model when it is made.
struct ModelShape {
  int64_t dim = 0;  ///< width of the token vectors
  int64_t heads = 0;
  int64_t head_dim = 0;  ///< width of one head
  int64_t layers = 0;
  bool causal = false;
  int64_t kv_heads = 0;      ///< heads of keys and values; 0 = heads
  int64_t rotary_width = 0;  ///< columns that a rotation meets where these are features of linear attention;
                             ///< 0 = head_dim
  bool linear = false;       ///< linear attention: there are no scores
  int64_t embedding = 0;     ///< width of the token vectors that embed() meets; 0 = dim

  int64_t embedding_dim() const { return embedding > 0 ? embedding : dim; }
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
  virtual torch::Tensor logits(const torch::Tensor& /*q*/, const torch::Tensor& /*k*/,
                               const AttentionContext&) {
    return {};
  }
  /// Further output from the attention weights (after dropout) [B, heads, Lq, Lk]: [B, heads, Lq, head_dim].
  virtual torch::Tensor values(const torch::Tensor& /*probs*/, const AttentionContext&) { return {}; }
  /// Factor of q·k.
  virtual double scale(int64_t head_dim) const;
  virtual Needs needs() const { return Needs::nothing; }
  /// Longest sequence it can place; -1 = any. A longer one is refused with an Error that names this limit.
  virtual int64_t limit() const { return -1; }
  /// Whether rotated keys may be kept for later queries; false: a cache keeps raw keys and rotates them at
  /// every call.
  virtual bool cache_rotated() const { return true; }
  /// The name in YAML, for messages.
  virtual std::string_view name() const { return "custom"; }
};
TORCH_MODULE(PositionEncoding);

/// A new encoding of class T.
template <class T, class... Arguments>
PositionEncoding new_encoding(Arguments&&... arguments) {
  return std::shared_ptr<PositionEncodingImpl>(std::make_shared<T>(std::forward<Arguments>(arguments)...));
}

// --- Options
// -------------------------------------------------------------------------------------------------------

/// No positions at all: an encoder is then blind to order.
struct NoneOptions {
  static constexpr std::string_view type = "none";
  static constexpr Acts acts = Acts::on_embeddings;
};
template <class V>
void fields(V&, NoneOptions&) {}

/// Eq. 3 with a trainable table p_i (BERT; Devlin et al. 2019).
struct LearnedOptions {
  static constexpr std::string_view type = "learned";
  static constexpr Acts acts = Acts::on_embeddings;
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
  static constexpr Acts acts = Acts::on_embeddings;
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

/// Theta as trained.
struct NoScaling {
  static constexpr std::string_view type = "none";
};
template <class V>
void fields(V&, NoScaling&) {}

/// Positions divided by `factor` (position interpolation, Chen et al. 2023).
struct LinearScaling {
  static constexpr std::string_view type = "linear";
  double factor = 2.0;
};
template <class V>
void fields(V& v, LinearScaling& o) {
  v("factor", o.factor, "how much longer than in training", at_least(1.0));
}

/// base * factor^(d / (d - 2)): the fastest pair keeps its angle, the slowest is interpolated (NTK-aware
/// scaling).
struct NtkScaling {
  static constexpr std::string_view type = "ntk";
  double factor = 2.0;
};
template <class V>
void fields(V& v, NtkScaling& o) {
  v("factor", o.factor, "how much longer than in training", at_least(1.0));
}

/// NTK-aware scaling that follows the length: base * (factor * length / original_length - factor + 1)^(d / (d
/// - 2)) beyond original_length, nothing up to it. Keys in a cache are turned anew as the sequence grows.
struct DynamicNtkScaling {
  static constexpr std::string_view type = "dynamic";
  double factor = 2.0;
  int64_t original_length = 2048;
};
template <class V>
void fields(V& v, DynamicNtkScaling& o) {
  v("factor", o.factor, "steepness; 1 = exactly as much as the length needs", at_least(1.0));
  v("original_length", o.original_length, "longest sequence in training", required(), within(1, 1 << 24));
}

/// YaRN (Peng et al. 2023): pairs that turn more than beta_fast times within original_length keep theta,
/// those that turn less than beta_slow times get theta / factor, a ramp between; cos and sin are scaled by
/// the attention factor, 0.1 ln(factor) + 1 by default.
struct YarnScaling {
  static constexpr std::string_view type = "yarn";
  double factor = 2.0;
  int64_t original_length = 2048;
  double beta_fast = 32.0;
  double beta_slow = 1.0;
  std::optional<double> attention_factor;
  bool truncate = true;
};
template <class V>
void fields(V& v, YarnScaling& o) {
  v("factor", o.factor, "how much longer than in training", at_least(1.0));
  v("original_length", o.original_length, "longest sequence in training", required(), within(1, 1 << 24));
  v("beta_fast", o.beta_fast, "turns from which on a pair keeps theta", above(0.0));
  v("beta_slow", o.beta_slow, "turns below which a pair is interpolated", above(0.0));
  v("attention_factor", o.attention_factor,
    "of cos and sin; null = 0.1 ln(factor) + 1; 1 in linear attention", above(0.0));
  v("truncate", o.truncate, "round the ends of the ramp to whole pairs");
}

/// Llama 3.1: pairs of short wavelength keep theta, long ones get theta / factor, a blend between.
struct Llama3Scaling {
  static constexpr std::string_view type = "llama3";
  double factor = 8.0;
  double low_freq_factor = 1.0;
  double high_freq_factor = 4.0;
  int64_t original_length = 8192;
};
template <class V>
void fields(V& v, Llama3Scaling& o) {
  v("factor", o.factor, "how much longer than in training", at_least(1.0));
  v("low_freq_factor", o.low_freq_factor, "wavelengths above original_length / this are interpolated",
    above(0.0));
  v("high_freq_factor", o.high_freq_factor, "wavelengths below original_length / this stay", above(0.0));
  v("original_length", o.original_length, "longest sequence in training", required(), within(1, 1 << 24));
}

using RotaryScaling =
    std::variant<NoScaling, LinearScaling, NtkScaling, DynamicNtkScaling, YarnScaling, Llama3Scaling>;

/// RoPE, eq. 14-16 and 34: pairs of columns of q and k turn by m * theta_i, theta_i = base^(-2i/d), i = 0 ..
/// d/2 - 1.
struct RotaryOptions {
  static constexpr std::string_view type = "rotary";
  static constexpr Acts acts = Acts::on_heads;
  RotaryLayout layout = RotaryLayout::interleaved;
  double base = 10000.0;
  int64_t dim = 0;
  bool trainable = false;
  bool values = false;
  RotaryScaling scaling = NoScaling{};
  double xpos = 0.0;
};
template <class V>
void fields(V& v, RotaryOptions& o) {
  v("layout", o.layout, "which columns form a pair: (2i, 2i+1) as in the paper, or (i, i + d/2) as in LLaMA");
  v("base", o.base, "theta_i = base^(-2i/d)", above(1.0));
  v("dim", o.dim, "leading columns of each head that turn (even); 0 = all", at_least(0));
  v("trainable", o.trainable, "learn theta");
  v("values", o.values, "turn the values too");
  v("scaling", o.scaling, "how theta changes for sequences beyond the training length");
  v("xpos", o.xpos,
    "xPos (Sun et al. 2022), for causal models: tokens that wavelengths fade over, usually 512; 0 = no "
    "fading",
    at_least(0.0));
}

/// Eq. 5: r = clip(m - n, clip_min, clip_max) picks rows of tables that are added to keys and values. By
/// default as in Shaw et al. 2018 after the projection, one table of head_dim columns for all heads of a
/// layer; as printed before it, W_k (x_n + p_r).
struct ShawOptions {
  static constexpr std::string_view type = "shaw";
  static constexpr Acts acts = Acts::on_scores;
  int64_t clip_min = -16;
  int64_t clip_max = 16;
  bool values = true;
  bool as_printed = false;
  double init_std = 0.02;
};
template <class V>
void fields(V& v, ShawOptions& o) {
  v("clip_min", o.clip_min, "smallest m - n with a row of its own", within(-(1 << 20), 0));
  v("clip_max", o.clip_max, "largest m - n with a row of its own", within(0, 1 << 20));
  v("values", o.values, "add a table to the values too");
  v("as_printed", o.as_printed, "tables of model width, projected by W_k and W_v, as eq. 5 is printed");
  v("init_std", o.init_std, "standard deviation of the initial tables", at_least(0.0));
}

/// NEZHA (Wei et al. 2019): eq. 5 with a fixed sinusoidal table (eq. 4) of clip(n - m, +-max_distance) +
/// max_distance, on keys and values.
struct NezhaOptions {
  static constexpr std::string_view type = "nezha";
  static constexpr Acts acts = Acts::on_scores;
  int64_t max_distance = 64;
};
template <class V>
void fields(V& v, NezhaOptions& o) {
  v("max_distance", o.max_distance, "distances beyond are clipped", within(1, 1 << 20));
}

/// Eq. 6-7 (Dai et al. 2019): q.k + q.W_r p + u.k + v.W_r p with sinusoids p of m - n, W_r per layer, u and v
/// shared by the layers. u and v are head vectors as in Transformer-XL; as printed they have model width and
/// pass through W_q.
struct TransformerXlOptions {
  static constexpr std::string_view type = "transformer_xl";
  static constexpr Acts acts = Acts::on_scores;
  SinusoidLayout layout = SinusoidLayout::halves;
  bool as_printed = false;
  double init_std = 0.02;
};
template <class V>
void fields(V& v, TransformerXlOptions& o) {
  v("layout", o.layout, "columns of the sinusoids of m - n");
  v("as_printed", o.as_printed, "u and v of model width, projected by W_q, as eq. 7 is printed");
  v("init_std", o.init_std, "standard deviation of the initial W_r, u and v", at_least(0.0));
}

/// Eq. 8: a trainable bias per head and bucket of n - m, scores unscaled (T5; Raffel et al. 2020). One table
/// for all layers; causal models use all buckets for the past.
struct T5Options {
  static constexpr std::string_view type = "t5";
  static constexpr Acts acts = Acts::on_scores;
  int64_t buckets = 32;
  int64_t max_distance = 128;
  double init_std = 0.02;
};
template <class V>
void fields(V& v, T5Options& o) {
  v("buckets", o.buckets, "rows of the table, half of them for each direction in an encoder",
    within(2, 1 << 16));
  v("max_distance", o.max_distance, "distances from here on share the last bucket", within(2, 1 << 20));
  v("init_std", o.init_std, "standard deviation of the initial table", at_least(0.0));
}

/// ALiBi (Press et al. 2022): -slope * |m - n| with a fixed slope per head, any number of heads.
struct AlibiOptions {
  static constexpr std::string_view type = "alibi";
  static constexpr Acts acts = Acts::on_scores;
};
template <class V>
void fields(V&, AlibiOptions&) {}

/// Eq. 9, TUPE (Ke et al. 2021): (q.k + U_q p_m . U_k p_n) / sqrt(2 d) + b of the bucket of n - m, one set
/// for all layers; the first token ([CLS]) is untied: two numbers per head replace its position terms, as
/// query and as key.
struct TupeOptions {
  static constexpr std::string_view type = "tupe";
  static constexpr Acts acts = Acts::on_scores;
  int64_t max_length = 512;
  int64_t buckets = 32;
  int64_t max_distance = 128;
  bool untie_first = true;
  double init_std = 0.02;
};
template <class V>
void fields(V& v, TupeOptions& o) {
  v("max_length", o.max_length, "rows of the table p: no longer sequence can be read", within(1, 1 << 22));
  v("buckets", o.buckets, "of the relative bias b, as in T5; 0 = no b (TUPE-A)", within(0, 1 << 16));
  v("max_distance", o.max_distance, "distances from here on share the last bucket", within(2, 1 << 20));
  v("untie_first", o.untie_first, "position 0 is [CLS] and stands outside the order");
  v("init_std", o.init_std, "standard deviation of initial tables and U", at_least(0.0));
}

/// Eq. 10, DeBERTa (He et al. 2021): (q.k + q.K_r + k.Q_r) / sqrt(3 d), where r = clip(m - n, -max_distance,
/// max_distance - 1) picks a row of one table for all layers, projected by the layer's W_q and W_k (eq. 10,
/// DeBERTa v2) or by matrices of its own (v1).
struct DebertaOptions {
  static constexpr std::string_view type = "deberta";
  static constexpr Acts acts = Acts::on_scores;
  int64_t max_distance = 512;
  bool own_projections = false;
  double init_std = 0.02;
};
template <class V>
void fields(V& v, DebertaOptions& o) {
  v("max_distance", o.max_distance, "half the rows of the table; distances beyond are clipped",
    within(1, 1 << 20));
  v("own_projections", o.own_projections, "matrices for positions beside W_q and W_k, in every layer");
  v("init_std", o.init_std, "standard deviation of the initial table and matrices", at_least(0.0));
}

/// The closed list: a type without a make() fails to compile.
using PositionOptions =
    std::variant<NoneOptions, LearnedOptions, SinusoidalOptions, RotaryOptions, ShawOptions, NezhaOptions,
                 TransformerXlOptions, T5Options, AlibiOptions, TupeOptions, DebertaOptions>;

PositionEncoding make(const NoneOptions&, const ModelShape&);
PositionEncoding make(const LearnedOptions&, const ModelShape&);
PositionEncoding make(const SinusoidalOptions&, const ModelShape&);
PositionEncoding make(const RotaryOptions&, const ModelShape&);
PositionEncoding make(const ShawOptions&, const ModelShape&);
PositionEncoding make(const NezhaOptions&, const ModelShape&);
PositionEncoding make(const TransformerXlOptions&, const ModelShape&);
PositionEncoding make(const T5Options&, const ModelShape&);
PositionEncoding make(const AlibiOptions&, const ModelShape&);
PositionEncoding make(const TupeOptions&, const ModelShape&);
PositionEncoding make(const DebertaOptions&, const ModelShape&);

/// One encoding, or several in a chain: the embed hooks add up, at most one member may fill any other hook.
PositionEncoding make_positions(const std::vector<PositionOptions>& options, const ModelShape& shape);

/// Relations between options and model (even widths, not wider than a head), as Errors, without building
/// anything.
inline void validate(const NoneOptions&, const ModelShape&) {}
inline void validate(const LearnedOptions&, const ModelShape&) {}
void validate(const SinusoidalOptions& options, const ModelShape& shape);
void validate(const RotaryOptions& options, const ModelShape& shape);
void validate(const ShawOptions& options, const ModelShape& shape);
void validate(const NezhaOptions& options, const ModelShape& shape);
void validate(const TransformerXlOptions& options, const ModelShape& shape);
void validate(const T5Options& options, const ModelShape& shape);
inline void validate(const AlibiOptions&, const ModelShape&) {}
void validate(const TupeOptions& options, const ModelShape& shape);
void validate(const DebertaOptions& options, const ModelShape& shape);
/// The same for all, that at most one acts in attention, and that none needs scores where there are none.
void validate(const std::vector<PositionOptions>& options, const ModelShape& shape);

}  // namespace roformer
