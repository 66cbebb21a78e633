#include "roformer/train/precision.h"

#include <ATen/autocast_mode.h>

namespace roformer {

void require_precision(Precision precision, torch::Device device) {
  if (precision == Precision::fp32 || !device.is_cpu()) return;
  if (precision == Precision::fp16) {
    fail("trainer.precision fp16 needs a GPU; use fp32 here");
  }
  // Processors with AMX have avx512_bf16 too.
  if (!__builtin_cpu_supports("avx512bf16")) {
    fail("trainer.precision bf16 on a CPU needs avx512_bf16, which this one lacks: it would run many times slower than "
         "fp32; use fp32 here");
  }
}

void set_matmul_precision(MatmulPrecision precision, torch::Device device, double tolerance) {
  at::globalContext().setFloat32MatmulPrecision(std::string(enum_name(precision)));
  if (precision == MatmulPrecision::highest || !device.is_cpu()) return;
  const torch::NoGradGuard no_grad;
  const at::Generator generator = at::make_generator<at::CPUGeneratorImpl>(1);  // leaves the run's own alone
  const torch::Tensor a = torch::randn({256, 256}, generator), b = torch::randn({256, 256}, generator);
  const torch::Tensor exact = a.to(torch::kFloat64).matmul(b.to(torch::kFloat64));
  const double error = (a.matmul(b) - exact).abs().max().item<double>() / exact.abs().max().item<double>();
  if (!(error <= tolerance)) {
    at::globalContext().setFloat32MatmulPrecision("highest");
    fail("trainer.matmul_precision: on this processor the faster product is off by {:.1e} of its largest entry "
         "(allowed {:.0e}); use 'highest'",
         error, tolerance);
  }
}

AutocastGuard::AutocastGuard(Precision precision, torch::Device device)
    : device_(device.type()), active_(precision != Precision::fp32) {
  if (!active_) return;
  was_enabled_ = at::autocast::is_autocast_enabled(device_);
  was_dtype_ = at::autocast::get_autocast_dtype(device_);
  at::autocast::set_autocast_enabled(device_, true);
  at::autocast::set_autocast_dtype(device_, precision == Precision::bf16 ? at::kBFloat16 : at::kHalf);
  at::autocast::increment_nesting();
}

AutocastGuard::~AutocastGuard() {
  if (!active_) return;
  if (at::autocast::decrement_nesting() == 0) at::autocast::clear_cache();
  at::autocast::set_autocast_enabled(device_, was_enabled_);
  at::autocast::set_autocast_dtype(device_, was_dtype_);
}

void LossScaler::restore(double scale, int64_t good) {
  scale_ = scale;
  good_ = good;
}

bool LossScaler::update(bool finite) {
  if (!enabled_) return finite;
  if (!finite) {
    scale_ /= 2;
    good_ = 0;
  } else if (++good_ == 2000) {
    scale_ *= 2;
    good_ = 0;
  }
  return finite;
}

}  // namespace roformer
