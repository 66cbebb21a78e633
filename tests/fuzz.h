#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "roformer/core/error.h"
#include "tests/support.h"

// Mutated files: whatever a file holds, reading it ends in values or in a roformer::Error of one line. Two
// seconds each by default; ROFORMER_FUZZ_SECONDS sets another time, ROFORMER_FUZZ_SEED another start.

namespace roformer::test {

inline double fuzz_seconds() {
  const char* text = std::getenv("ROFORMER_FUZZ_SECONDS");
  return text && *text ? std::atof(text) : 2.0;
}

inline uint64_t fuzz_seed() {
  const char* text = std::getenv("ROFORMER_FUZZ_SEED");
  return text && *text ? std::strtoull(text, nullptr, 10) : 1;
}

inline std::string fuzz_bytes(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

inline void fuzz_write(const std::filesystem::path& path, const std::string& bytes) {
  std::filesystem::remove(path);
  std::ofstream(path, std::ios::binary).write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
}

/// One to eight changes: flipped bits, other bytes, pieces cut out, doubled, moved in from another file,
/// numbers and words that formats trip over, other ends.
inline std::string fuzz_mutate(std::string bytes, const std::vector<std::string>& corpus,
                               const std::vector<std::string>& words, std::mt19937_64& random) {
  auto below = [&](size_t n) { return n == 0 ? 0 : static_cast<size_t>(random() % n); };
  for (size_t changes = 1 + below(8); changes > 0; --changes) {
    const size_t at = below(bytes.size() + 1);
    const size_t length = below(std::min<size_t>(bytes.size() - at, 64) + 1);
    switch (below(8)) {
      case 0:
        if (at < bytes.size()) bytes[at] = static_cast<char>(bytes[at] ^ (1 << below(8)));
        break;
      case 1:
        if (at < bytes.size()) bytes[at] = static_cast<char>(random());
        break;
      case 2:
        bytes.erase(at, length);
        break;
      case 3:
        bytes.insert(at, bytes.substr(at, length));
        break;
      case 4: {
        const std::string& other = corpus[below(corpus.size())];
        const size_t from = below(other.size() + 1);
        bytes.insert(at, other.substr(from, below(64)));
        break;
      }
      case 5:
        bytes.insert(at, words[below(words.size())]);
        break;
      case 6: {
        const std::string& word = words[below(words.size())];
        bytes.replace(at, std::min(word.size(), bytes.size() - at), word);
        break;
      }
      default:
        if (below(8) == 0) bytes.resize(at);
    }
  }
  return bytes;
}

/// Feeds mutations to `read` until the time is over; returns how many were read as valid and how many
/// refused.
template <class F>
std::pair<size_t, size_t> fuzz(const std::vector<std::string>& corpus, const std::vector<std::string>& words,
                               F&& read) {
  std::mt19937_64 random(fuzz_seed());
  std::pair<size_t, size_t> counts{0, 0};
  const auto end = std::chrono::steady_clock::now() + std::chrono::duration<double>(fuzz_seconds());
  do {
    const std::string bytes = fuzz_mutate(corpus[random() % corpus.size()], corpus, words, random);
    try {
      read(bytes);
      ++counts.first;
    } catch (const Error& error) {
      ++counts.second;
      const std::string_view what = error.what();
      if (what.empty() || what.find('\n') != std::string_view::npos)
        FAIL("a message of more than one line: " << what);
    } catch (const std::exception& error) {
      std::string hex;
      for (const char c : bytes) hex += fmt::format("{:02x}", static_cast<unsigned char>(c));
      FAIL("seed " << fuzz_seed() << ": " << error.what() << " on " << hex);
    }
  } while (std::chrono::steady_clock::now() < end);
  return counts;
}

}  // namespace roformer::test
