#pragma once

#include <array>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "roformer/core/shard.h"
#include "roformer/data/stream.h"

namespace roformer {

enum class BytePart { train, valid, test };
inline auto enum_names(BytePart) {
  return std::array<std::pair<BytePart, std::string_view>, 3>{
      {{BytePart::train, "train"}, {BytePart::valid, "valid"}, {BytePart::test, "test"}}};
}

/// A file of bytes in three parts, in order: 90, 5 and 5 %, which for Enwik8 are its usual 90, 5 and 5
/// million. Held in memory.
class ByteCorpus {
 public:
  /// Error: unreadable, more than 4 GiB, fewer than 3 bytes in a part of `length` + 1.
  ByteCorpus(const std::filesystem::path& file, int64_t length);

  std::string_view part(BytePart part) const;
  /// "enwik8" for all of its 10^8 bytes, "enwik8 prefix" for fewer; the file's name for other texts.
  const std::string& name() const { return name_; }
  int64_t size() const { return static_cast<int64_t>(bytes_.size()); }

 private:
  std::string bytes_, name_;
};

struct ByteStreamOptions {
  int64_t length = 1024;  ///< bytes that a window reads; it predicts as many, one further on
  int64_t batch = 16;     ///< windows of one batch of one shard
  uint64_t seed = 1;
  Shard shard = {};
};

/// Endless windows at random places, with replacement. The place follows from (seed, number of the sample)
/// alone, so batch size, shards and restarts change nothing. batch.labels [B * L]: the next byte of every
/// byte.
std::unique_ptr<BatchStream> make_byte_training(std::shared_ptr<const ByteCorpus> corpus,
                                                const ByteStreamOptions& options);

/// Windows one after another, none overlapping, through a part; the last one begins earlier if bytes are left
/// over. `windows` > 0: so many of them, evenly spread, the same ones each time.
std::unique_ptr<BatchStream> make_byte_evaluation(std::shared_ptr<const ByteCorpus> corpus, BytePart part,
                                                  const ByteStreamOptions& options, int64_t windows);

}  // namespace roformer
