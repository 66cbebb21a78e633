#pragma once

#include <bit>
#include <cstdint>

#include "roformer/core/random.h"

namespace roformer {

/// A random order of 0 .. n-1 that needs no memory: position -> element. Another key, another order.
/// A Feistel network over the smallest 4^k >= n (Luby and Rackoff 1988) permutes too large a set; values that
/// fall outside are sent through again until they fall inside ("cycle walking", Black and Rogaway 2002), at
/// most 4 times on average.
class Permutation {
 public:
  /// n >= 1.
  Permutation(int64_t n, uint64_t key)
      : n_(static_cast<uint64_t>(n)), key_(key), half_((std::bit_width(n_ - 1) + 1) / 2) {}

  int64_t operator()(int64_t position) const {
    if (n_ == 1) return 0;
    auto x = static_cast<uint64_t>(position);
    do {
      x = encrypt(x);
    } while (x >= n_);
    return static_cast<int64_t>(x);
  }

 private:
  static constexpr uint64_t rounds = 6;

  uint64_t encrypt(uint64_t x) const {
    const uint64_t mask = (uint64_t{1} << half_) - 1;
    uint64_t left = x >> half_, right = x & mask;
    for (uint64_t round = 0; round < rounds; ++round) {
      const uint64_t next = left ^ (mix(key_ + round, right) & mask);
      left = right;
      right = next;
    }
    return left << half_ | right;
  }

  uint64_t n_, key_;
  int half_;
};

}  // namespace roformer
