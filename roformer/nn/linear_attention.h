#pragma once

#include "roformer/torch.h"

// Linear attention, eq. 18, and with rotations eq. 19: never a matrix of Lq x Lk.

namespace roformer {

/// Eq. 18:  out_m = sum_n phi(q_m).phi(k_n) v_n / sum_n phi(q_m).phi(k_n).
/// Eq. 19 turns the features of the numerator alone; its weights may be negative and need not sum to 1.
/// Computed in float32 at least (float64 for float64), returned in the dtype of v. A row whose denominator is
/// zero (no key, all padding, no feature in common) gives zeros and no gradient.
struct LinearTerms {
  torch::Tensor q;          ///< phi(q) [B, H, Lq, M]
  torch::Tensor k;          ///< phi(k) [B, H, Lk, M], rows of padding zero
  torch::Tensor rotated_q;  ///< R_m phi(q_m), for the numerator; undefined = q
  torch::Tensor rotated_k;  ///< R_n phi(k_n), rows of padding zero; undefined = k; both or neither
  torch::Tensor v;          ///< [B, H, Lk, dv]
};

/// Every query sees every key: O(L) time, a state of M x dv. -> [B, H, Lq, dv]
torch::Tensor linear_attention(const LinearTerms& terms);

/// The same as the formula is read, by a matrix of Lq x Lk. `causal`: the queries are the last Lq of the Lk
/// keys and see no later key. What the tests compare with; differentiable any number of times.
torch::Tensor linear_attention_plain(const LinearTerms& terms, bool causal);

/// All that a causal model keeps of the tokens it has read. Undefined = none read.
struct LinearState {
  torch::Tensor sum;   ///< sum of R_n phi(k_n) v_n^T: [B, H, M, dv]
  torch::Tensor norm;  ///< sum of phi(k_n): [B, H, M]
};

/// Causal, in O(L) time and memory: prefix sums between chunks, masked products within. The queries are the
/// last Lq of the Lk keys. With a state (Lq = Lk) it goes on from there and leaves in it what the last key
/// adds, without gradient, so that calls token by token equal one call. One query takes the recurrent step.
/// The backward pass computes sums and products anew, and so keeps nothing but its inputs. It gives first
/// derivatives only.
torch::Tensor linear_attention_causal(const LinearTerms& terms, LinearState* state = nullptr,
                                      int64_t chunk = 64);

}  // namespace roformer
