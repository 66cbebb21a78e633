#pragma once

#include <functional>
#include <optional>
#include <span>
#include <vector>

#include "roformer/torch.h"

// From a model that says what may come next to a text.

namespace roformer {

/// A model as decoding sees it: tokens int64 [B, n] that follow those of earlier calls -> logits [B, V] of
/// the token after them. The first call gets the prompt.
using NextLogits = std::function<torch::Tensor(const torch::Tensor& tokens)>;

struct SamplingOptions {
  double temperature = 1.0;  ///< logits are divided by it; 0 = greedy, always the likeliest token
  int64_t top_k = 0;         ///< only the k likeliest tokens; 0 = all
  double top_p = 1.0;        ///< only the fewest tokens whose probabilities add up to p (nucleus sampling)
  uint64_t seed = 1;
  int64_t max_new_tokens = 200;
  std::optional<int64_t> end = {};  ///< a row ends after this token
};
/// Throws Error for a value out of its range.
void validate(const SamplingOptions& options);

/// The distribution that a token is drawn from: softmax in double of logits / temperature, then top_k, then
/// top_p of what is left, as transformers orders them. Among equal logits the lower id is the likelier one
/// (transformers' top-k keeps all that equal the k-th). Error: a logit that is NaN or +infinity, or none
/// above -infinity.
std::vector<double> token_probabilities(std::span<const double> logits, const SamplingOptions& options);

/// The token whose share of [0, 1) holds `u`, shares in the order of ids.
int64_t token_at(std::span<const double> probabilities, double u);

/// Continues each row of `prompt`, int64 [B, n] with n > 0, and returns the new tokens [B, m], m <=
/// max_new_tokens; a row that has ended goes on with `end`. `on_tokens` gets the B tokens of each step as
/// they come and stops everything by false. What is drawn depends on the seed, the row's number and the step
/// alone.
torch::Tensor generate_tokens(const NextLogits& next, const torch::Tensor& prompt,
                              const SamplingOptions& options,
                              const std::function<bool(std::span<const int64_t>)>& on_tokens = {});

}  // namespace roformer
