#include "roformer/core/tensorboard.h"

#include <bit>
#include <cmath>
#include <cstring>
#include <map>
#include <string>
#include <vector>

#include "roformer/core/files.h"
#include "tests/catch.h"
#include "tests/support.h"

namespace {

namespace fs = std::filesystem;
using roformer::crc32c;
using roformer::EventWriter;
using roformer::test::TempDir;

template <class T>
T take_value(std::string_view& bytes) {
  REQUIRE(bytes.size() >= sizeof(T));
  T value;  // the tests run on little-endian machines
  std::memcpy(&value, bytes.data(), sizeof(T));
  bytes.remove_prefix(sizeof(T));
  return value;
}

// The payloads of a TFRecord file, every checksum checked.
std::vector<std::string> tf_records(std::string_view bytes) {
  const auto unmasked = [](std::uint32_t v) { return std::rotl(v - 0xA282EAD8u, 15); };
  std::vector<std::string> out;
  while (!bytes.empty()) {
    const std::string_view header = bytes.substr(0, 8);
    const auto length = take_value<std::uint64_t>(bytes);
    CHECK(unmasked(take_value<std::uint32_t>(bytes)) == crc32c(header));
    REQUIRE(length <= bytes.size());
    out.emplace_back(bytes.substr(0, length));
    bytes.remove_prefix(length);
    CHECK(unmasked(take_value<std::uint32_t>(bytes)) == crc32c(out.back()));
  }
  return out;
}

// Field number -> raw bytes (varints as 8 bytes) of one protobuf message.
std::map<int, std::string> proto_fields(std::string_view bytes) {
  const auto varint = [&bytes] {
    std::uint64_t value = 0;
    for (int shift = 0;; shift += 7) {
      const auto byte = take_value<std::uint8_t>(bytes);
      value |= std::uint64_t{byte & 0x7Fu} << shift;
      if (byte < 0x80) return value;
    }
  };
  std::map<int, std::string> out;
  while (!bytes.empty()) {
    const std::uint64_t key = varint();
    std::string value;
    if ((key & 7) == 0) {
      const std::uint64_t number = varint();
      value.assign(reinterpret_cast<const char*>(&number), 8);
    } else {
      REQUIRE((key & 7) != 3);
      const std::size_t size = (key & 7) == 1 ? 8 : (key & 7) == 5 ? 4 : varint();
      REQUIRE(size <= bytes.size());
      value = bytes.substr(0, size);
      bytes.remove_prefix(size);
    }
    out[static_cast<int>(key >> 3)] = value;
  }
  return out;
}

template <class T>
T field_as(std::string_view bytes) {
  REQUIRE(bytes.size() == sizeof(T));
  return take_value<T>(bytes);
}

std::vector<std::string> events_of(const fs::path& path) {
  return tf_records(roformer::read_file(path, 1 << 24));
}

}  // namespace

TEST_CASE("CRC-32C of known texts") {
  CHECK(crc32c("123456789") == 0xE3069283u);
  CHECK(crc32c("") == 0);
  CHECK(crc32c(std::string(32, '\0')) == 0x8A9136AAu);  // RFC 3720, B.4
  CHECK(crc32c(std::string(32, '\xff')) == 0x62A8AB43u);
}

TEST_CASE("an event file holds a version and the scalars") {
  TempDir dir;
  EventWriter writer(dir.path());
  const std::string name = writer.path().filename().string();
  CHECK(name.rfind("events.out.tfevents.", 0) == 0);
  CHECK(name.find('.', 20) == 30);  // ten digits of seconds
  writer.scalar("train/loss", 2.5, 300, 1700000000.25);
  writer.scalar(std::string(200, 't'), std::nan(""), std::int64_t{1} << 40, 1.0);
  CHECK(events_of(writer.path()).size() == 1);
  writer.flush();
  const auto events = events_of(writer.path());
  REQUIRE(events.size() == 3);
  CHECK(proto_fields(events[0])[3] == "brain.Event:2");
  CHECK(field_as<double>(proto_fields(events[0])[1]) > 1.6e9);

  auto event = proto_fields(events[1]);
  CHECK(field_as<double>(event[1]) == 1700000000.25);
  CHECK(field_as<std::int64_t>(event[2]) == 300);
  auto value = proto_fields(proto_fields(event[5])[1]);
  CHECK(value[1] == "train/loss");
  CHECK(field_as<float>(value[2]) == 2.5f);

  event = proto_fields(events[2]);
  CHECK(field_as<std::int64_t>(event[2]) == std::int64_t{1} << 40);
  value = proto_fields(proto_fields(event[5])[1]);
  CHECK(value[1] == std::string(200, 't'));
  CHECK(std::isnan(field_as<float>(value[2])));
}

TEST_CASE("records are written in time and at the end") {
  TempDir dir;
  fs::path path;
  {
    EventWriter writer(dir.path());
    path = writer.path();
    for (int i = 0; i < 1000; ++i) writer.scalar("x", i, i, i);
    CHECK(events_of(path).size() > 500);
  }
  CHECK(events_of(path).size() == 1001);
}

TEST_CASE("a resumed run opens a later file that drops the steps after the checkpoint") {
  TempDir dir;
  std::vector<fs::path> paths;
  for (int i = 0; i < 3; ++i) paths.push_back(EventWriter(dir.path(), 400).path());
  CHECK(paths[0] < paths[1]);
  CHECK(paths[1] < paths[2]);
  const auto events = events_of(paths[2]);
  REQUIRE(events.size() == 2);
  auto start = proto_fields(events[1]);
  CHECK(field_as<std::int64_t>(start[2]) == 401);
  CHECK(field_as<std::int64_t>(proto_fields(start[7])[1]) == 1);
}
