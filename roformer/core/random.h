#pragma once

#include <cstdint>

namespace roformer {

/// Counter-based random numbers: a value depends on its key alone, never on how many were drawn before. So masks are
/// the same for any batch size, thread count, shard and restart.
/// The finaliser is SplitMix64's (Steele, Lea, Flood 2014).
constexpr uint64_t mix(uint64_t x) {
  x += 0x9e3779b97f4a7c15ULL;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ULL;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebULL;
  return x ^ (x >> 31);
}

/// Hash of several numbers, the order counts.
template <class... Rest>
constexpr uint64_t mix(uint64_t first, uint64_t second, Rest... rest) {
  return mix(mix(first) ^ second, static_cast<uint64_t>(rest)...);
}

/// A short stream of such numbers: Random(mix(seed, epoch, index)).
class Random {
 public:
  explicit constexpr Random(uint64_t key) : state_(key) {}

  constexpr uint64_t next() {
    const uint64_t value = mix(state_);
    state_ += 0x9e3779b97f4a7c15ULL;
    return value;
  }
  /// In [0, 1), 53 bits.
  constexpr double uniform() { return static_cast<double>(next() >> 11) * 0x1.0p-53; }
  /// In [0, n), n > 0; by multiplication, bias below n / 2^64.
  constexpr uint64_t below(uint64_t n) {
    __extension__ using Wide = unsigned __int128;
    return static_cast<uint64_t>((static_cast<Wide>(next()) * n) >> 64);
  }

 private:
  uint64_t state_;
};

}  // namespace roformer
