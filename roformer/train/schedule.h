#pragma once

#include <cstdint>
#include <string_view>
#include <variant>

#include "roformer/core/config.h"

// Learning-rate schedules as pure functions of the update number n = 1 .. steps (updates, not micro-batches).
// Warm-up rises linearly: n / warmup, so update `warmup` is the first at the peak. The decays equal Hugging Face's from
// there on (their counter starts at 0, ours at 1).

namespace roformer {

struct ConstantOptions {
  static constexpr std::string_view type = "constant";
  double warmup = 0;
};
/// (steps - n + 1) / (steps - warmup): to zero after the last update.
struct LinearOptions {
  static constexpr std::string_view type = "linear";
  double warmup = 0;
};
/// (1 + cos(pi (n - 1 - warmup) / (steps - warmup))) / 2.
struct CosineOptions {
  static constexpr std::string_view type = "cosine";
  double warmup = 0;
};
/// sqrt(warmup / n) (Vaswani et al. 2017, section 5.3); without warm-up 1 / sqrt(n).
struct InverseSqrtOptions {
  static constexpr std::string_view type = "inverse_sqrt";
  double warmup = 4000;
};

template <class V, class O>
void schedule_fields(V& v, O& o) {
  v("warmup", o.warmup, "updates of linear warm-up; below 1: a share of all updates", at_least(0));
}
template <class V>
void fields(V& v, ConstantOptions& o) {
  schedule_fields(v, o);
}
template <class V>
void fields(V& v, LinearOptions& o) {
  schedule_fields(v, o);
}
template <class V>
void fields(V& v, CosineOptions& o) {
  schedule_fields(v, o);
}
template <class V>
void fields(V& v, InverseSqrtOptions& o) {
  schedule_fields(v, o);
}

using ScheduleOptions = std::variant<ConstantOptions, LinearOptions, CosineOptions, InverseSqrtOptions>;

/// The factor of the peak rate at update n, 1 <= n <= steps.
double schedule_factor(const ScheduleOptions& options, int64_t n, int64_t steps);

}  // namespace roformer
