#include "roformer/core/tensorboard.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <bit>
#include <charconv>
#include <chrono>

namespace roformer {
namespace fs = std::filesystem;
namespace {

constexpr std::size_t flush_above = std::size_t{1} << 14;  // bytes, about 300 scalars

template <class T>
void put_little_endian(std::string& out, T value) {
  for (std::size_t i = 0; i < sizeof(T); ++i) out += static_cast<char>((value >> (8 * i)) & 0xFF);
}

// Protocol buffers' wire format: key = field number << 3 | wire type (0 varint, 1 64 bits, 2 bytes, 5 32
// bits).
void put_varint(std::string& out, std::uint64_t value) {
  for (; value >= 0x80; value >>= 7) out += static_cast<char>((value & 0x7F) | 0x80);
  out += static_cast<char>(value);
}

void put_integer(std::string& out, unsigned field, std::uint64_t value) {
  put_varint(out, field << 3);
  put_varint(out, value);
}

void put_double(std::string& out, unsigned field, double value) {
  put_varint(out, (field << 3) | 1);
  put_little_endian(out, std::bit_cast<std::uint64_t>(value));
}

void put_float(std::string& out, unsigned field, float value) {
  put_varint(out, (field << 3) | 5);
  put_little_endian(out, std::bit_cast<std::uint32_t>(value));
}

void put_bytes(std::string& out, unsigned field, std::string_view bytes) {
  put_varint(out, (field << 3) | 2);
  put_varint(out, bytes.size());
  out += bytes;
}

std::string event_start(double wall_time) {
  std::string event;
  put_double(event, 1, wall_time);  // Event.wall_time
  return event;
}

double seconds_since_1970() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

// TensorBoard reads the files of a folder in the order of their names, so a new one must sort last even when
// a run is resumed within the second of its start.
fs::path next_event_file(const fs::path& folder) {
  constexpr std::string_view prefix = "events.out.tfevents.";
  auto time = static_cast<std::int64_t>(seconds_since_1970());
  for (const fs::directory_entry& entry : fs::directory_iterator(folder)) {
    const std::string name = entry.path().filename().string();
    if (!name.starts_with(prefix)) continue;
    std::int64_t other = 0;
    std::from_chars(name.data() + prefix.size(), name.data() + name.size(), other);
    if (other < 9'999'999'999)
      time = std::max(time, other + 1);  // ten digits, as all TensorBoard writers use
  }
  std::array<char, 256> host = {};
  if (::gethostname(host.data(), host.size() - 1) != 0) host[0] = '\0';
  std::string host_name = host.data();
  std::replace(host_name.begin(), host_name.end(), '/', '_');
  return folder /
         fmt::format("{}{:010}.{}.{}", prefix, time, host_name.empty() ? "host" : host_name, ::getpid());
}

}  // namespace

std::uint32_t crc32c(std::string_view bytes) {
  static const auto table = [] {
    std::array<std::uint32_t, 256> t = {};
    for (std::uint32_t i = 0; i < 256; ++i) {
      t[i] = i;
      for (int bit = 0; bit < 8; ++bit) t[i] = (t[i] >> 1) ^ (t[i] & 1 ? 0x82F63B78u : 0u);
    }
    return t;
  }();
  std::uint32_t crc = 0xFFFFFFFFu;
  for (const char c : bytes) crc = (crc >> 8) ^ table[(crc ^ static_cast<unsigned char>(c)) & 0xFF];
  return ~crc;
}

EventWriter::EventWriter(const fs::path& folder, std::optional<std::int64_t> resumed_at)
    : file_(next_event_file(folder)) {
  const double now = seconds_since_1970();
  std::string version = event_start(now);
  put_bytes(version, 3, "brain.Event:2");  // Event.file_version
  record(version);
  if (resumed_at) {
    std::string session;
    put_integer(session, 1, 1);  // SessionLog.status = START
    std::string start = event_start(now);
    // TensorBoard drops what has this step or a later one.
    put_integer(start, 2, static_cast<std::uint64_t>(*resumed_at + 1));  // Event.step
    put_bytes(start, 7, session);                                        // Event.session_log
    record(start);
  }
  flush();
}

EventWriter::~EventWriter() {
  try {
    flush();
  } catch (...) {  // the caller who wants to know has called flush()
  }
}

void EventWriter::scalar(std::string_view tag, double value, std::int64_t step, double wall_time) {
  std::string item;
  put_bytes(item, 1, tag);                        // Summary.Value.tag
  put_float(item, 2, static_cast<float>(value));  // Summary.Value.simple_value
  std::string summary;
  put_bytes(summary, 1, item);  // Summary.value
  std::string event = event_start(wall_time);
  put_integer(event, 2, static_cast<std::uint64_t>(step));  // Event.step
  put_bytes(event, 5, summary);                             // Event.summary
  record(event);
  if (pending_.size() > flush_above) flush();
}

void EventWriter::flush() {
  std::string bytes;
  bytes.swap(pending_);  // records that a full disk refused are not tried again
  if (!bytes.empty()) file_.append(bytes);
}

void EventWriter::record(std::string_view event) {
  // A plain CRC of data that holds CRCs is weak, hence the mask.
  const auto masked = [](std::string_view bytes) { return std::rotr(crc32c(bytes), 15) + 0xA282EAD8u; };
  std::string length;
  put_little_endian(length, static_cast<std::uint64_t>(event.size()));
  pending_ += length;
  put_little_endian(pending_, masked(length));
  pending_ += event;
  put_little_endian(pending_, masked(event));
}

}  // namespace roformer
