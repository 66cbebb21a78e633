#include "roformer/tasks/task.h"

#include <algorithm>

namespace roformer {

Metrics Task::metrics(const Evaluation& evaluation) const {
  const auto n = static_cast<double>(std::max<int64_t>(evaluation.count, 1));
  return {{"loss", evaluation.loss_sum / n}, {"accuracy", static_cast<double>(evaluation.correct) / n}};
}

}  // namespace roformer
