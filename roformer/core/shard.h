#pragma once

#include <cstdint>

namespace roformer {

/// The part of a data stream that one process of a data-parallel run reads: every `size`-th sample, from `rank` on.
struct Shard {
  int64_t rank = 0;
  int64_t size = 1;
};

}  // namespace roformer
