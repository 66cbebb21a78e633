#include "roformer/train/schedule.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace roformer {
namespace {

double decay(const ConstantOptions&, double, double, double) { return 1.0; }

double decay(const LinearOptions&, double n, double warmup, double steps) {
  return std::max(0.0, (steps - n + 1) / std::max(1.0, steps - warmup));
}

double decay(const CosineOptions&, double n, double warmup, double steps) {
  const double progress = std::min(1.0, (n - 1 - warmup) / std::max(1.0, steps - warmup));
  return 0.5 * (1.0 + std::cos(std::numbers::pi * progress));
}

double decay(const InverseSqrtOptions&, double n, double warmup, double) {
  return std::sqrt(std::max(1.0, warmup) / n);
}

}  // namespace

double schedule_factor(const ScheduleOptions& options, int64_t n, int64_t steps) {
  return std::visit(
      [&](const auto& o) {
        const double warmup = o.warmup < 1.0 ? std::round(o.warmup * static_cast<double>(steps)) : o.warmup;
        const double update = static_cast<double>(n);
        return update <= warmup ? update / warmup : decay(o, update, warmup, static_cast<double>(steps));
      },
      options);
}

}  // namespace roformer
