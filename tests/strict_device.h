#pragma once

#include "roformer/torch.h"

// A device for tests without a GPU: LibTorch's PrivateUse1 key over host memory. Each operator first checks
// that all its tensors live on this device, then runs the CPU kernel. So a tensor that was forgotten on the
// CPU throws here as it would on a GPU, which LibTorch's `meta` device does not do.
//
// As on CUDA, a CPU tensor without dimensions may stand where a number may, but not in a list of tensors
// (fused optimizers).

namespace roformer::test {

torch::Device strict_device();

/// How often a value was read back to the host since the program started (item(), nonzero, masks as indices,
/// copies to the CPU): each would make a GPU wait.
int64_t strict_device_reads();

}  // namespace roformer::test
