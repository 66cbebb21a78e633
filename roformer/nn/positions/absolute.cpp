#include <string>

#include "roformer/core/error.h"
#include "roformer/nn/positions.h"
#include "roformer/nn/positions/row_cache.h"
#include "roformer/nn/rotary.h"

// Encodings that are added to the token vectors, and the absence of one.

namespace roformer {
namespace {

class NoneImpl : public PositionEncodingImpl {
 public:
  std::string_view name() const override { return NoneOptions::type; }
};

/// Eq. 3: x_i + p_i.
class LearnedImpl : public PositionEncodingImpl {
 public:
  LearnedImpl(const LearnedOptions& options, int64_t dim) {
    table_ = register_parameter("table", torch::randn({options.max_length, dim}) * options.init_std);
  }

  torch::Tensor embed(const torch::Tensor& x, const Positions& positions) override {
    if (positions.length > limit()) {
      fail("learned positions end at {}, but the sequence needs {}; shorten it or raise 'max_length'",
           limit(), positions.length);
    }
    return x + rows_at(table_, positions.q, positions.contiguous, positions.q_start);
  }

  int64_t limit() const override { return table_.size(0); }
  std::string_view name() const override { return LearnedOptions::type; }

 private:
  torch::Tensor table_;
};

/// Eq. 4.
class SinusoidalImpl : public PositionEncodingImpl {
 public:
  SinusoidalImpl(const SinusoidalOptions& options, int64_t dim)
      : cache_([options, dim](int64_t rows) {
          const torch::Tensor angles =
              rotary_angles(rows + options.offset, dim, options.base).narrow(0, options.offset, rows);
          return options.scale * sinusoid_rows(angles, options.layout);
        }) {}

  torch::Tensor embed(const torch::Tensor& x, const Positions& positions) override {
    const torch::Tensor& table = cache_.rows(positions.length, x.device(), x.scalar_type());
    // The sum is formed in the wider type and rounded once.
    return (x + rows_at(table, positions.q, positions.contiguous, positions.q_start)).to(x.scalar_type());
  }

  std::string_view name() const override { return SinusoidalOptions::type; }

 private:
  RowCache cache_;
};

}  // namespace

void validate(const SinusoidalOptions&, const ModelShape& shape) {
  if (shape.embedding_dim() % 2 != 0)
    fail("positions: sinusoidal needs an even model 'dim', got {}", shape.embedding_dim());
}

PositionEncoding make(const NoneOptions&, const ModelShape&) { return new_encoding<NoneImpl>(); }

PositionEncoding make(const LearnedOptions& options, const ModelShape& shape) {
  return new_encoding<LearnedImpl>(options, shape.embedding_dim());
}

PositionEncoding make(const SinusoidalOptions& options, const ModelShape& shape) {
  validate(options, shape);
  return new_encoding<SinusoidalImpl>(options, shape.embedding_dim());
}

}  // namespace roformer
