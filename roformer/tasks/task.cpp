#include "roformer/tasks/task.h"

namespace roformer {

Metrics Evaluation::metrics() const {
  const double n = static_cast<double>(std::max<int64_t>(count, 1));
  return {{"loss", loss_sum / n}, {"accuracy", static_cast<double>(correct) / n}};
}

}  // namespace roformer
