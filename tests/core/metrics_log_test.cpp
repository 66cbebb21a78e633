#include "roformer/core/metrics_log.h"

#include <bit>
#include <cmath>
#include <fstream>
#include <limits>
#include <random>
#include <string>

#include "roformer/core/error.h"
#include "roformer/core/files.h"
#include "tests/catch.h"
#include "tests/support.h"

namespace {

using nlohmann::ordered_json;
using roformer::MetricsLog;
using roformer::test::TempDir;

std::string metrics_text(const std::filesystem::path& path) { return roformer::read_file(path, 1 << 24); }

void put_metrics(const std::filesystem::path& path, const std::string& text) {
  std::ofstream(path, std::ios::binary) << text;
}

std::string metrics_error(const std::filesystem::path& path) {
  try {
    MetricsLog::read(path);
  } catch (const roformer::Error& e) {
    return e.what();
  }
  return "no error";
}

}  // namespace

TEST_CASE("metrics are one ordered object per line") {
  TempDir dir;
  MetricsLog log(dir / "m.jsonl");
  log.append({{"step", 1}, {"split", "train"}, {"loss", 0.1}, {"bad", std::nan("")}, {"worse", INFINITY}});
  log.append({{"step", 2}, {"text", "a\nb \xff"}});
  CHECK(metrics_text(dir / "m.jsonl") ==
        "{\"step\":1,\"split\":\"train\",\"loss\":0.1,\"bad\":null,\"worse\":null}\n"
        "{\"step\":2,\"text\":\"a\\nb \xef\xbf\xbd\"}\n");
  CHECK_THROWS_AS(log.append(ordered_json(3)), std::logic_error);
  CHECK_THROWS_AS(log.append({{"text", std::string(MetricsLog::max_line, 'x')}}), std::logic_error);
  CHECK(MetricsLog::read(dir / "m.jsonl").size() == 2);
}

TEST_CASE("doubles come back bit for bit") {
  TempDir dir;
  std::mt19937_64 random(7);
  std::vector<double> values = {
      0.0, -0.0, 1.0 / 3, 5e-324, std::numeric_limits<double>::max(), 2.2250738585072014e-308};
  while (values.size() < 5000) {
    const double value = std::bit_cast<double>(random());
    if (std::isfinite(value)) values.push_back(value);
  }
  MetricsLog(dir / "m.jsonl").append({{"values", values}});
  const auto records = MetricsLog::read(dir / "m.jsonl");
  REQUIRE(records.size() == 1);
  std::size_t different = 0;
  for (std::size_t i = 0; i < values.size(); ++i)
    different += std::bit_cast<std::uint64_t>(records[0]["values"][i].get<double>()) !=
                 std::bit_cast<std::uint64_t>(values[i]);
  CHECK(different == 0);
}

TEST_CASE("a torn last line is ignored, and the next record starts on a line of its own") {
  TempDir dir;
  for (const std::string torn : {"{\"step\":3,\"lo", "{\"step\":3}", "{\"step\":3,\"lo\n", "\n"}) {
    put_metrics(dir / "m.jsonl", "{\"step\":1}\n{\"step\":2}\n" + torn);
    CHECK(MetricsLog::read(dir / "m.jsonl").size() == 2);
  }
  put_metrics(dir / "m.jsonl", "{\"step\":1}\n{\"step\":2}\n{\"step\":3,\"lo");
  MetricsLog(dir / "m.jsonl").append({{"step", 3}});
  CHECK(metrics_text(dir / "m.jsonl") == "{\"step\":1}\n{\"step\":2}\n{\"step\":3}\n");
  put_metrics(dir / "only", "{\"st");
  MetricsLog(dir / "only").append({{"step", 1}});
  CHECK(metrics_text(dir / "only") == "{\"step\":1}\n");
}

TEST_CASE("a broken line elsewhere is named") {
  TempDir dir;
  const std::string path = (dir / "m.jsonl").string();
  for (const std::string broken : {"{\"step\":", "[1]", "", "{\"step\":1.5}", "{\"step\":1} {\"step\":2}"}) {
    put_metrics(path, "{\"step\":1}\n" + broken + "\n{\"step\":3}\n");
    CHECK(metrics_error(path) == path +
                                     ":2: not a record of metrics (one JSON object with numbers, \"step\" an "
                                     "integer, \"split\" a text); mend or remove the line");
    CHECK_THROWS_AS(MetricsLog::rewind(path, 5), roformer::Error);
  }
  put_metrics(path, "{\"a\":\"" + std::string(MetricsLog::max_line, 'x') + "\"}\n{\"step\":3}\n");
  CHECK(metrics_error(path) ==
        path + ":1: not a record of metrics (the line is too long); mend or remove the line");
  CHECK(metrics_error(dir / "missing").find("No such file") != std::string::npos);
}

TEST_CASE("rewind keeps the records up to a step, byte for byte") {
  TempDir dir;
  const std::string head = "{\"note\": \"no step\"}\n{\"step\": 0}\n{\"step\":10, \"loss\":1e-05}\n";
  put_metrics(dir / "m.jsonl", head + "{\"step\":11}\n{\"step\":12}\n{\"st");
  MetricsLog::rewind(dir / "m.jsonl", 10);
  CHECK(metrics_text(dir / "m.jsonl") == head);
  MetricsLog::rewind(dir / "m.jsonl", 10);
  CHECK(metrics_text(dir / "m.jsonl") == head);
  MetricsLog::rewind(dir / "m.jsonl", -1);
  CHECK(metrics_text(dir / "m.jsonl") == "{\"note\": \"no step\"}\n");
  MetricsLog::rewind(dir / "missing", 10);
  CHECK_FALSE(std::filesystem::exists(dir / "missing"));
}
