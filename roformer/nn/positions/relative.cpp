#include "roformer/nn/positions/relative.h"

#include <cmath>
#include <string>

#include "roformer/core/error.h"
#include "roformer/nn/positions/row_cache.h"
#include "roformer/nn/rotary.h"

// Encodings that compare queries and keys with their distance inside the attention scores.

namespace roformer {

torch::Tensor distances(const Positions& positions) {
  return positions.q.unsqueeze(2) - positions.k.unsqueeze(1);
}

torch::Tensor pick_rows(const torch::Tensor& scores, const torch::Tensor& rows) {
  return scores.gather(-1, rows.unsqueeze(1).expand({scores.size(0), scores.size(1), -1, -1}));
}

torch::Tensor relative_shift(const torch::Tensor& scores, int64_t keys) {
  const int64_t queries = scores.size(-2), offsets = scores.size(-1);
  TORCH_CHECK(offsets == queries + keys - 1, "relative_shift: ", offsets, " distances for ", queries,
              " queries and ", keys, " keys");
  if (queries == 1) return scores;
  // Row i starts queries - 1 - i columns in: in the flat order one column fewer per row.
  return scores.flatten(-2)
      .narrow(-1, queries - 1, queries * (offsets - 1))
      .unflatten(-1, {queries, offsets - 1})
      .narrow(-1, 0, keys);
}

namespace {

torch::Tensor initial_table(torch::IntArrayRef size, double std) { return torch::randn(size) * std; }

/// x W^T without the bias, cut into heads: [R, dim] -> [H, R, head_dim].
torch::Tensor project_rows(const torch::nn::Linear& linear, const torch::Tensor& rows, int64_t heads) {
  return torch::matmul(rows, linear->weight.t()).view({rows.size(0), heads, -1}).transpose(0, 1);
}

/// The weights of each row of a table: [B, H, Lq, Lk] -> [B, H, Lq, R].
torch::Tensor weights_of_rows(const torch::Tensor& probs, const torch::Tensor& rows, int64_t count) {
  const torch::Tensor zeros =
      torch::zeros({probs.size(0), probs.size(1), probs.size(2), count}, probs.options());
  return zeros.scatter_add(-1, rows.unsqueeze(1).expand(probs.sizes()), probs);
}

void require_square_heads(const ModelShape& shape, std::string_view name) {
  if (shape.kv_heads > 0 && shape.kv_heads != shape.heads) {
    fail(
        "positions: '{}' projects positions by W_k for every head, but model.kv_heads is {} for {} heads; "
        "make them equal",
        name, shape.kv_heads, shape.heads);
  }
}

/// Eq. 5. Tables of one layer: [R, head_dim], or [R, dim] as printed.
class ShawImpl : public PositionEncodingImpl {
 public:
  ShawImpl(const ShawOptions& options, const ModelShape& shape) : options_(options), heads_(shape.heads) {
    const int64_t rows = options.clip_max - options.clip_min + 1;
    const int64_t width = options.as_printed ? shape.dim : shape.head_dim;
    for (int64_t i = 0; i < shape.layers; ++i) {
      keys_.push_back(
          register_parameter("keys" + std::to_string(i), initial_table({rows, width}, options.init_std)));
      if (!options.values) continue;
      values_.push_back(
          register_parameter("values" + std::to_string(i), initial_table({rows, width}, options.init_std)));
    }
  }

  torch::Tensor logits(const torch::Tensor& q, const torch::Tensor&,
                       const AttentionContext& context) override {
    const torch::Tensor table = rows_of(keys_, context, context.key).to(q.scalar_type());
    return pick_rows(torch::matmul(q * scale(q.size(-1)), table.transpose(-2, -1)), rows(context.positions));
  }
  torch::Tensor values(const torch::Tensor& probs, const AttentionContext& context) override {
    if (!options_.values) return {};
    const torch::Tensor table = rows_of(values_, context, context.value).to(probs.scalar_type());
    return torch::matmul(weights_of_rows(probs, rows(context.positions), table.size(-2)), table);
  }
  Needs needs() const override { return options_.values ? Needs::probabilities : Needs::scores; }
  std::string_view name() const override { return ShawOptions::type; }

 private:
  torch::Tensor rows(const Positions& positions) const {
    return distances(positions).clamp(options_.clip_min, options_.clip_max) - options_.clip_min;
  }
  /// [R, head_dim] or, projected, [H, R, head_dim].
  torch::Tensor rows_of(const std::vector<torch::Tensor>& tables, const AttentionContext& context,
                        const torch::nn::Linear& projection) const {
    const torch::Tensor& table = tables.at(static_cast<size_t>(context.layer));
    return options_.as_printed ? project_rows(projection, table, heads_) : table;
  }

  ShawOptions options_;
  int64_t heads_;
  std::vector<torch::Tensor> keys_, values_;
};

/// Eq. 5 with rows of eq. 4.
class NezhaImpl : public PositionEncodingImpl {
 public:
  NezhaImpl(const NezhaOptions& options, int64_t head_dim)
      : max_distance_(options.max_distance), cache_([head_dim](int64_t rows) {
          return sinusoid_rows(rotary_angles(rows, head_dim), SinusoidLayout::interleaved);
        }) {}

  torch::Tensor logits(const torch::Tensor& q, const torch::Tensor&,
                       const AttentionContext& context) override {
    return pick_rows(torch::matmul(q * scale(q.size(-1)), table(q).t()), rows(context.positions));
  }
  torch::Tensor values(const torch::Tensor& probs, const AttentionContext& context) override {
    return torch::matmul(weights_of_rows(probs, rows(context.positions), 2 * max_distance_ + 1),
                         table(probs));
  }
  Needs needs() const override { return Needs::probabilities; }
  std::string_view name() const override { return NezhaOptions::type; }

 private:
  torch::Tensor rows(const Positions& positions) const {
    return (-distances(positions)).clamp(-max_distance_, max_distance_) + max_distance_;
  }
  torch::Tensor table(const torch::Tensor& like) {
    return cache_.rows(2 * max_distance_ + 1, like.device(), like.scalar_type())
        .narrow(0, 0, 2 * max_distance_ + 1)
        .to(like.scalar_type());
  }

  int64_t max_distance_;
  RowCache cache_;
};

/// Eq. 7.
class TransformerXlImpl : public PositionEncodingImpl {
 public:
  TransformerXlImpl(const TransformerXlOptions& options, const ModelShape& shape)
      : options_(options), shape_(shape), cache_([options, dim = shape.dim](int64_t rows) {
          return sinusoid_rows(rotary_angles(rows, dim), options.layout);
        }) {
    const int64_t width = shape.heads * shape.head_dim;
    for (int64_t i = 0; i < shape.layers; ++i) {
      relative_.push_back(register_parameter("relative" + std::to_string(i),
                                             initial_table({width, shape.dim}, options.init_std)));
    }
    const std::vector<int64_t> size = options.as_printed ? std::vector<int64_t>{shape.heads, shape.dim}
                                                         : std::vector<int64_t>{shape.heads, shape.head_dim};
    u_ = register_parameter("u", initial_table(size, options.init_std));
    v_ = register_parameter("v", initial_table(size, options.init_std));
  }

  torch::Tensor logits(const torch::Tensor& q, const torch::Tensor& k,
                       const AttentionContext& context) override {
    const torch::Tensor u = head_vectors(u_, context).to(q.scalar_type());
    const torch::Tensor v = head_vectors(v_, context).to(q.scalar_type());
    const torch::Tensor content = torch::matmul(u.unsqueeze(1), k.transpose(-2, -1));  // [B, H, 1, Lk]
    const Positions& positions = context.positions;
    const int64_t keys = k.size(2);
    torch::Tensor position;
    if (positions.contiguous) {
      const int64_t first = positions.q_start + q.size(2) - 1 - positions.k_start;  // the largest m - n
      const int64_t count = q.size(2) + keys - 1;
      position = relative_shift(
          torch::matmul(q + v.unsqueeze(1), sinusoids(first, count, q, context).transpose(-2, -1)), keys);
    } else {
      const int64_t largest = positions.length - 1;
      const torch::Tensor all = sinusoids(largest, 2 * largest + 1, q, context);
      position =
          pick_rows(torch::matmul(q + v.unsqueeze(1), all.transpose(-2, -1)), largest - distances(positions));
    }
    return (content + position) * scale(q.size(-1));
  }
  Needs needs() const override { return Needs::scores; }
  std::string_view name() const override { return TransformerXlOptions::type; }

 private:
  /// [H, head_dim].
  torch::Tensor head_vectors(const torch::Tensor& x, const AttentionContext& context) const {
    if (!options_.as_printed) return x;
    const torch::Tensor weight = context.query->weight.view({shape_.heads, -1, shape_.dim});
    return torch::matmul(weight, x.unsqueeze(-1)).squeeze(-1);
  }
  /// W_r p of the distances first, first - 1, ... : [H, count, head_dim].
  torch::Tensor sinusoids(int64_t first, int64_t count, const torch::Tensor& like,
                          const AttentionContext& context) {
    const torch::Tensor ids =
        torch::arange(first, first - count, -1, torch::TensorOptions(torch::kInt64).device(like.device()));
    const int64_t rows = std::max(std::abs(first), std::abs(first - count + 1)) + 1;
    torch::Tensor p = cache_.rows(rows, like.device(), like.scalar_type()).index_select(0, ids.abs());
    // sin is odd: rows of negative distances follow from the positive ones.
    const torch::Tensor sign = torch::where(ids.lt(0), -1.0, 1.0).to(p.scalar_type()).unsqueeze(-1);
    const int64_t half = p.size(1) / 2;
    if (options_.layout == SinusoidLayout::halves) {
      p = torch::cat({p.narrow(1, 0, half) * sign, p.narrow(1, half, half)}, 1);
    } else {
      p = torch::stack(
              {p.unflatten(1, {half, 2}).select(2, 0) * sign, p.unflatten(1, {half, 2}).select(2, 1)}, 2)
              .flatten(1);
    }
    const torch::Tensor& weight = relative_.at(static_cast<size_t>(context.layer));
    return torch::matmul(p.to(weight.scalar_type()), weight.t())
        .view({count, shape_.heads, -1})
        .transpose(0, 1)
        .to(like.scalar_type());
  }

  TransformerXlOptions options_;
  ModelShape shape_;
  RowCache cache_;
  std::vector<torch::Tensor> relative_;  // W_r of each layer
  torch::Tensor u_, v_;
};

/// Eq. 10.
class DebertaImpl : public PositionEncodingImpl {
 public:
  DebertaImpl(const DebertaOptions& options, const ModelShape& shape)
      : max_distance_(options.max_distance), heads_(shape.heads) {
    table_ =
        register_parameter("table", initial_table({2 * options.max_distance, shape.dim}, options.init_std));
    if (!options.own_projections) return;
    for (int64_t i = 0; i < shape.layers; ++i) {
      const int64_t width = shape.heads * shape.head_dim;
      auto add = [&](std::vector<torch::nn::Linear>& list, const char* name, bool bias) {
        list.push_back(
            register_module(name + std::to_string(i),
                            torch::nn::Linear(torch::nn::LinearOptions(shape.dim, width).bias(bias))));
        const torch::NoGradGuard no_grad;
        list.back()->weight.normal_(0.0, options.init_std);
        if (bias) list.back()->bias.zero_();
      };
      add(keys_, "key", false);
      add(queries_, "query", true);
    }
  }

  torch::Tensor logits(const torch::Tensor& q, const torch::Tensor& k,
                       const AttentionContext& context) override {
    const torch::Tensor r =
        (distances(context.positions) + max_distance_).clamp(0, 2 * max_distance_ - 1);  // [B or 1, Lq, Lk]
    auto layer = [&](std::vector<torch::nn::Linear>& own,
                     const torch::nn::Linear& shared) -> torch::nn::Linear {
      return own.empty() ? shared : own.at(static_cast<size_t>(context.layer));
    };
    auto project = [&](torch::nn::Linear linear) {
      return linear(table_)
          .view({table_.size(0), heads_, -1})
          .permute({1, 2, 0})
          .to(q.scalar_type());  // [H, d, R]
    };
    const double factor = scale(q.size(-1));
    const torch::Tensor content_to_position =
        pick_rows(torch::matmul(q * factor, project(layer(keys_, context.key))), r);
    const torch::Tensor position_to_content =
        pick_rows(torch::matmul(k * factor, project(layer(queries_, context.query))), r.transpose(-2, -1));
    return content_to_position + position_to_content.transpose(-2, -1);
  }
  double scale(int64_t head_dim) const override {
    return 1.0 / std::sqrt(3.0 * static_cast<double>(head_dim));
  }
  Needs needs() const override { return Needs::scores; }
  std::string_view name() const override { return DebertaOptions::type; }

 private:
  int64_t max_distance_, heads_;
  torch::Tensor table_;
  std::vector<torch::nn::Linear> keys_, queries_;
};

}  // namespace

void validate(const ShawOptions& options, const ModelShape& shape) {
  if (options.as_printed) require_square_heads(shape, ShawOptions::type);
}

void validate(const NezhaOptions&, const ModelShape& shape) {
  if (shape.head_dim % 2 != 0) fail("positions: nezha needs an even head width, got {}", shape.head_dim);
}

void validate(const TransformerXlOptions&, const ModelShape& shape) {
  if (shape.dim % 2 != 0) fail("positions: transformer_xl needs an even model 'dim', got {}", shape.dim);
}

void validate(const DebertaOptions&, const ModelShape& shape) {
  require_square_heads(shape, DebertaOptions::type);
}

PositionEncoding make(const ShawOptions& options, const ModelShape& shape) {
  return new_encoding<ShawImpl>(options, shape);
}
PositionEncoding make(const NezhaOptions& options, const ModelShape& shape) {
  return new_encoding<NezhaImpl>(options, shape.head_dim);
}
PositionEncoding make(const TransformerXlOptions& options, const ModelShape& shape) {
  return new_encoding<TransformerXlImpl>(options, shape);
}
PositionEncoding make(const DebertaOptions& options, const ModelShape& shape) {
  return new_encoding<DebertaImpl>(options, shape);
}

}  // namespace roformer
