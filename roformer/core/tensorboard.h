#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>

#include "roformer/core/files.h"

namespace roformer {

/// CRC-32C (Castagnoli, reflected polynomial 0x82F63B78), as TFRecord files use it.
std::uint32_t crc32c(std::string_view bytes);

/// TensorBoard event file: TFRecords (little-endian u64 length, masked CRC, bytes, masked CRC) of protobuf
/// Events. Formats: tensorflow/core/lib/io/record_writer.h, tensorflow/core/util/event.proto,
/// framework/summary.proto.
class EventWriter {
 public:
  /// A new file in `folder` whose name sorts after those present. A run that goes on after step `resumed_at`
  /// first writes a session start, at which TensorBoard drops the older files' records of later steps.
  explicit EventWriter(const std::filesystem::path& folder, std::optional<std::int64_t> resumed_at = {});
  ~EventWriter();
  EventWriter(const EventWriter&) = delete;
  EventWriter& operator=(const EventWriter&) = delete;

  /// wall_time: seconds since 1970. Kept in memory until flush() or a few hundred records.
  void scalar(std::string_view tag, double value, std::int64_t step, double wall_time);
  void flush();

  const std::filesystem::path& path() const { return file_.path(); }

 private:
  void record(std::string_view event);

  AppendFile file_;
  std::string pending_;
};

}  // namespace roformer
