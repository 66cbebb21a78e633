#include "roformer/nn/dropout.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Parallel.h>

#include "roformer/nn/kernels/dropout.h"

namespace roformer {
namespace {

uint64_t next_seed() {
  at::Generator generator = at::detail::getDefaultCPUGenerator();
  const std::lock_guard<std::mutex> lock(generator.mutex());
  return generator.get<at::CPUGeneratorImpl>()->random64();
}

constexpr int64_t dropout_grain = 65536;  // elements that are worth a thread

struct HashedDropout : torch::autograd::Function<HashedDropout> {
  static torch::Tensor forward(torch::autograd::AutogradContext* ctx, const torch::Tensor& x, double p,
                               int64_t seed) {
    ctx->saved_data["p"] = p;
    ctx->saved_data["seed"] = seed;
    const torch::Tensor in = x.contiguous();
    torch::Tensor out = torch::empty_like(in);
    const float* from = in.const_data_ptr<float>();
    float* to = out.mutable_data_ptr<float>();
    at::parallel_for(0, in.numel(), dropout_grain, [&](int64_t begin, int64_t end) {
      kernels::dropout(from, to, begin, end, p, static_cast<uint64_t>(seed));
    });
    return out;
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* ctx,
                                                 torch::autograd::variable_list grads) {
    return {apply(grads[0], ctx->saved_data["p"].toDouble(), ctx->saved_data["seed"].toInt()), {}, {}};
  }
};

}  // namespace

torch::Tensor hashed_dropout(const torch::Tensor& x, double p, uint64_t seed) {
  TORCH_CHECK(x.is_cpu() && x.scalar_type() == torch::kFloat32,
              "hashed_dropout: float32 on the CPU expected, got ", x.scalar_type(), " on ", x.device());
  TORCH_CHECK(p >= 0.0 && p <= 1.0, "hashed_dropout: p = ", p, " is not a probability");
  return HashedDropout::apply(x, p, static_cast<int64_t>(seed));
}

torch::Tensor dropout(const torch::Tensor& x, double p, bool training) {
  if (!training || p == 0.0) return x;
  if (!x.is_cpu() || x.scalar_type() != torch::kFloat32) return at::dropout(x, p, /*train=*/true);
  return hashed_dropout(x, p, next_seed());
}

}  // namespace roformer
