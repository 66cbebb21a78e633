#pragma once

#include "roformer/torch.h"

namespace roformer {

/// Dropout: keeps an element with probability 1 - p and divides it by 1 - p; the identity when p = 0 or not training.
/// float32 on the CPU by hashed_dropout with a seed from the default generator, so a saved generator state reproduces it;
/// at::dropout elsewhere (there it costs 30 times as much: it draws and stores a mask).
torch::Tensor dropout(const torch::Tensor& x, double p, bool training);

/// The same with a given seed, float32 on the CPU. The mask is a function of (seed, index of the element in row-major
/// order): the same for any number of threads, and found again in the backward pass instead of stored.
torch::Tensor hashed_dropout(const torch::Tensor& x, double p, uint64_t seed);

}  // namespace roformer
