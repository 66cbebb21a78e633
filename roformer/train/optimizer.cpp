#include "roformer/train/optimizer.h"

#include <ATen/ops/_foreach_add.h>
#include <ATen/ops/_foreach_norm.h>
#include <ATen/ops/_fused_adam.h>
#include <ATen/ops/_fused_adamw.h>

namespace roformer {

Optimizer::Optimizer(const OptimizerOptions& options, const torch::nn::Module& module) : options_(options) {
  for (const auto& item : module.named_parameters()) {
    const torch::Tensor& p = item.value();
    if (!p.requires_grad()) continue;
    slots_.push_back({item.key(), p, torch::zeros_like(p.detach()), torch::zeros_like(p.detach()),
                      torch::zeros({}, p.options().dtype(torch::kFloat32).requires_grad(false)), p.dim() > 1});
  }
}

double Optimizer::lr() const {
  return std::visit([](const auto& o) { return o.lr; }, options_);
}

void Optimizer::zero_grad() {
  for (Slot& slot : slots_) slot.parameter.mutable_grad().reset();
}

torch::Tensor Optimizer::grad_norm() const {
  std::vector<torch::Tensor> grads;
  for (const Slot& slot : slots_) {
    if (slot.parameter.grad().defined()) grads.push_back(slot.parameter.grad());
  }
  if (grads.empty()) return torch::zeros({});
  const torch::NoGradGuard no_grad;
  return at::linalg_vector_norm(at::stack(at::_foreach_norm(grads))).to(torch::kFloat32);
}

void Optimizer::step(double lr, double divisor) {
  const torch::NoGradGuard no_grad;
  const double decays = std::visit([](const auto& o) { return o.weight_decay; }, options_);
  for (const bool decay : {true, false}) {
    std::vector<torch::Tensor> parameters, grads, exp_avg, exp_avg_sq, steps;
    for (Slot& slot : slots_) {
      torch::Tensor grad = slot.parameter.grad();
      if (slot.decay != decay || !grad.defined()) continue;
      // The fused update walks memory: a gradient laid out otherwise would be read in the wrong order.
      if (grad.strides() != slot.parameter.strides()) grad = torch::empty_like(slot.parameter).copy_(grad);
      parameters.push_back(slot.parameter);
      grads.push_back(grad);
      exp_avg.push_back(slot.exp_avg);
      exp_avg_sq.push_back(slot.exp_avg_sq);
      steps.push_back(slot.step);
    }
    if (parameters.empty()) continue;
    at::_foreach_add_(steps, 1);
    std::optional<torch::Tensor> scale;
    if (divisor != 1.0) scale = torch::full({}, divisor, steps[0].options());
    std::visit(
        [&](const auto& o) {
          const double weight_decay = decay ? decays : 0.0;
          if constexpr (std::is_same_v<std::decay_t<decltype(o)>, AdamWOptions>) {
            at::_fused_adamw_(parameters, grads, exp_avg, exp_avg_sq, {}, steps, lr, o.beta1, o.beta2, weight_decay,
                              o.eps, /*amsgrad=*/false, /*maximize=*/false, scale);
          } else {
            at::_fused_adam_(parameters, grads, exp_avg, exp_avg_sq, {}, steps, lr, o.beta1, o.beta2, weight_decay,
                             o.eps, /*amsgrad=*/false, /*maximize=*/false, scale);
          }
        },
        options_);
  }
}

NamedTensors Optimizer::state() const {
  NamedTensors state;
  for (const Slot& slot : slots_) {
    state.emplace_back(slot.name + ".exp_avg", slot.exp_avg);
    state.emplace_back(slot.name + ".exp_avg_sq", slot.exp_avg_sq);
    state.emplace_back(slot.name + ".step", slot.step);
  }
  return state;
}

void Optimizer::load_state(const std::function<torch::Tensor(const std::string&)>& find) {
  const torch::NoGradGuard no_grad;
  for (auto& [name, tensor] : state()) {
    const torch::Tensor stored = find(name);
    if (stored.sizes() != tensor.sizes()) fail("the optimizer's '{}' has another shape", name);
    tensor.copy_(stored);
  }
}

}  // namespace roformer
