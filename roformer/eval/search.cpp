#include "roformer/eval/search.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "roformer/core/error.h"
#include "roformer/core/random.h"

namespace roformer {

void validate(const SamplingOptions& options) {
  if (!(options.temperature >= 0.0) || std::isinf(options.temperature))
    fail("temperature must be a number of at least 0, got {}", options.temperature);
  if (options.top_k < 0) fail("top-k must be at least 0, got {}", options.top_k);
  if (!(options.top_p > 0.0 && options.top_p <= 1.0))
    fail("top-p must be above 0 and at most 1, got {}", options.top_p);
  if (options.max_new_tokens < 0)
    fail("the number of new tokens must be at least 0, got {}", options.max_new_tokens);
}

std::vector<double> token_probabilities(std::span<const double> logits, const SamplingOptions& options) {
  constexpr double infinity = std::numeric_limits<double>::infinity();
  size_t best = 0;
  for (size_t i = 0; i < logits.size(); ++i) {
    if (std::isnan(logits[i]) || logits[i] == infinity) {
      fail("the model's logits are not numbers (token {}: {}): has its training diverged?", i, logits[i]);
    }
    if (logits[i] > logits[best]) best = i;
  }
  if (logits.empty() || logits[best] == -infinity) fail("the model's logits leave no token to choose");

  std::vector<double> probabilities(logits.size(), 0.0);
  if (options.temperature == 0.0) {
    probabilities[best] = 1.0;
    return probabilities;
  }
  std::vector<size_t> order(logits.size());
  std::iota(order.begin(), order.end(), size_t{0});
  const bool fewer = options.top_k > 0 && options.top_k < static_cast<int64_t>(order.size());
  if (fewer || options.top_p < 1.0) {
    std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return logits[a] > logits[b]; });
  }
  if (fewer) order.resize(static_cast<size_t>(options.top_k));
  double sum = 0.0;
  for (const size_t id : order) {
    // The greatest logit is taken off before the division, which then cannot overflow.
    probabilities[id] = std::exp((logits[id] - logits[best]) / options.temperature);
    sum += probabilities[id];
  }
  if (options.top_p < 1.0) {
    double kept = 0.0;
    for (const size_t id : order) {
      if (kept >= options.top_p * sum) {
        probabilities[id] = 0.0;
      } else {
        kept += probabilities[id];
      }
    }
    sum = kept;
  }
  for (double& probability : probabilities) probability /= sum;
  return probabilities;
}

int64_t token_at(std::span<const double> probabilities, double u) {
  double sum = 0.0;
  size_t token = 0;
  for (size_t i = 0; i < probabilities.size(); ++i) {
    if (probabilities[i] <= 0.0) continue;
    token = i;
    sum += probabilities[i];
    if (u < sum) break;
  }
  return static_cast<int64_t>(token);  // rounding may leave the sum below u: the last one that can be
}

torch::Tensor generate_tokens(const NextLogits& next, const torch::Tensor& prompt,
                              const SamplingOptions& options,
                              const std::function<bool(std::span<const int64_t>)>& on_tokens) {
  validate(options);
  TORCH_CHECK(prompt.dim() == 2 && prompt.size(1) > 0, "decoding: the prompt must be [B, n] with n > 0, got ",
              prompt.sizes());
  const int64_t rows = prompt.size(0);
  std::vector<torch::Tensor> columns;
  std::vector<int64_t> tokens(static_cast<size_t>(rows));
  std::vector<bool> ended(static_cast<size_t>(rows), false);
  torch::Tensor read = prompt;
  for (int64_t step = 0; step < options.max_new_tokens; ++step) {
    const torch::Tensor logits = next(read).to(torch::kCPU, torch::kFloat64).contiguous();
    TORCH_CHECK(logits.dim() == 2 && logits.size(0) == rows, "decoding: logits must be [", rows, ", V], got ",
                logits.sizes());
    const auto width = static_cast<size_t>(logits.size(1));
    for (int64_t row = 0; row < rows; ++row) {
      const auto at = static_cast<size_t>(row);
      if (ended[at]) continue;  // keeps its `end`
      const std::span<const double> scores(logits.const_data_ptr<double>() + at * width, width);
      const double u = Random(mix(options.seed, at, static_cast<uint64_t>(step))).uniform();
      tokens[at] = token_at(token_probabilities(scores, options), u);
      ended[at] = options.end == tokens[at];
    }
    const torch::Tensor column = torch::tensor(tokens, torch::kInt64).unsqueeze(1);
    columns.push_back(column);
    if (on_tokens && !on_tokens(tokens)) break;
    if (std::find(ended.begin(), ended.end(), false) == ended.end()) break;
    read = column.to(prompt.device());
  }
  return columns.empty() ? torch::empty({rows, 0}, torch::kInt64) : torch::cat(columns, 1);
}

}  // namespace roformer
