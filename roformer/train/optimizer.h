#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "roformer/core/config.h"
#include "roformer/torch.h"

namespace roformer {

/// Adam with decoupled weight decay (Loshchilov and Hutter 2019).
struct AdamWOptions {
  static constexpr std::string_view type = "adamw";
  double lr = 1e-3;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double eps = 1e-8;
  double weight_decay = 0.01;
};
/// Adam (Kingma and Ba 2015); weight_decay is added to the gradient.
struct AdamOptions {
  static constexpr std::string_view type = "adam";
  double lr = 1e-3;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double eps = 1e-8;
  double weight_decay = 0.0;
};

template <class V, class O>
void adam_fields(V& v, O& o) {
  v("lr", o.lr, "peak learning rate, before the schedule's factor", at_least(0.0));
  v("beta1", o.beta1, "decay of the mean of gradients", within(0.0, 0.999999));
  v("beta2", o.beta2, "decay of the mean of squared gradients", within(0.0, 0.99999999));
  v("eps", o.eps, "added to the root of the second moment", above(0.0));
  v("weight_decay", o.weight_decay, "on matrices and tables; never on biases and norms", at_least(0.0));
}
template <class V>
void fields(V& v, AdamWOptions& o) {
  adam_fields(v, o);
}
template <class V>
void fields(V& v, AdamOptions& o) {
  adam_fields(v, o);
}

using OptimizerOptions = std::variant<AdamWOptions, AdamOptions>;

using NamedTensors = std::vector<std::pair<std::string, torch::Tensor>>;

/// Adam(W) by LibTorch's fused update, one call per group. Parameters of one dimension (biases, norms, trainable theta)
/// are not decayed. A parameter without a gradient is left alone. Bias correction counts the updates of each parameter.
class Optimizer {
 public:
  Optimizer(const OptimizerOptions& options, const torch::nn::Module& module);

  double lr() const;
  /// Drops all gradients (cheaper than zeroing them).
  void zero_grad();
  /// L2 norm over all gradients as they are, a 0-dim float32 tensor on their device.
  torch::Tensor grad_norm() const;
  /// One update; gradients are first divided by `divisor`: loss scale times clipping, folded into one pass.
  void step(double lr, double divisor = 1.0);

  /// Moments and update counts, named "<parameter>.exp_avg", "….exp_avg_sq", "….step".
  NamedTensors state() const;
  /// Copies them back; `find` returns the tensor of that name. Error when a shape does not fit.
  void load_state(const std::function<torch::Tensor(const std::string&)>& find);

 private:
  struct Slot {
    std::string name;
    torch::Tensor parameter, exp_avg, exp_avg_sq, step;
    bool decay;
  };
  OptimizerOptions options_;
  std::vector<Slot> slots_;
};

}  // namespace roformer
