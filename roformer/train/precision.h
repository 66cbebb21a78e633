#pragma once

#include <array>
#include <string_view>
#include <utility>

#include "roformer/core/config.h"
#include "roformer/torch.h"

namespace roformer {

enum class Precision { fp32, bf16, fp16 };
inline auto enum_names(Precision) {
  return std::array<std::pair<Precision, std::string_view>, 3>{
      {{Precision::fp32, "fp32"}, {Precision::bf16, "bf16"}, {Precision::fp16, "fp16"}}};
}

/// How float32 matrix products are computed; LibTorch's own names.
enum class MatmulPrecision { highest, high, medium };
inline auto enum_names(MatmulPrecision) {
  return std::array<std::pair<MatmulPrecision, std::string_view>, 3>{{{MatmulPrecision::highest, "highest"},
                                                                      {MatmulPrecision::high, "high"},
                                                                      {MatmulPrecision::medium, "medium"}}};
}

/// Error with the reason when `device` cannot run `precision` at a useful speed: bf16 on a CPU needs avx512_bf16
/// (without them it is many times slower than fp32), fp16 needs a GPU.
void require_precision(Precision precision, torch::Device device);

/// Sets the GEMM route and proves it: a 256 x 256 x 256 product must agree with float64 to `tolerance` of its largest
/// entry. Error otherwise, since "medium" allows bf16 rounding where the processor has it.
void set_matmul_precision(MatmulPrecision precision, torch::Device device, double tolerance = 1e-4);

/// Autocast for one scope; fp32 = none. Restores what was before.
class AutocastGuard {
 public:
  AutocastGuard(Precision precision, torch::Device device);
  ~AutocastGuard();
  AutocastGuard(const AutocastGuard&) = delete;
  AutocastGuard& operator=(const AutocastGuard&) = delete;

 private:
  at::DeviceType device_;
  bool active_, was_enabled_ = false;
  at::ScalarType was_dtype_ = at::kFloat;
};

/// Dynamic loss scale for fp16: doubles after 2,000 good updates, halves after an overflow, whose update is skipped.
/// Otherwise 1 and without effect. State: scale() and good().
class LossScaler {
 public:
  explicit LossScaler(Precision precision) : enabled_(precision == Precision::fp16), scale_(enabled_ ? 65536.0 : 1.0) {}

  bool enabled() const { return enabled_; }
  double scale() const { return scale_; }
  int64_t good() const { return good_; }
  void restore(double scale, int64_t good);
  /// After each update's gradients are known. Returns whether to apply the update.
  bool update(bool finite);

 private:
  bool enabled_;
  double scale_;
  int64_t good_ = 0;
};

}  // namespace roformer
