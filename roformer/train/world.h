#pragma once

#include <string>

#include "roformer/core/shard.h"
#include "roformer/torch.h"

namespace roformer {

/// Where a run computes: its device, and its share of a data-parallel job (one process so far).
struct World {
  torch::Device device{torch::kCPU};
  Shard shard;

  /// device: "auto" (a GPU if there is one), "cpu", "cuda" or "cuda:N"; Error when it cannot be had, with the reason.
  /// The CUDA part is a library of its own beside the program, opened here before anything asks LibTorch about CUDA,
  /// since LibTorch remembers a "no" for good. threads: 0 = LibTorch's choice.
  static World open(const std::string& device, int64_t threads);
};

/// "auto", "cpu", "cuda" or "cuda:N"; Error otherwise.
void validate_device(const std::string& device);

}  // namespace roformer
