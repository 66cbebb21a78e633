#include "roformer/core/metrics_log.h"

#include <string>
#include <string_view>

#include "roformer/core/error.h"

namespace roformer {
namespace fs = std::filesystem;
namespace {

constexpr std::size_t max_metrics_file = std::size_t{4} << 30;

bool has_known_types(const nlohmann::json& record) {
  for (const auto& [name, value] : record.items()) {
    const bool good = name == "step"                          ? value.is_number_integer()
                      : name == "split"                       ? value.is_string()
                      : name == "tokens" || name == "seconds" ? value.is_number()
                                                              : true;
    if (!good) return false;
  }
  return true;
}

// Calls use(line with its newline, record) for every whole record of `text`.
template <class Use>
void each_record(const fs::path& path, std::string_view text, Use use) {
  std::int64_t number = 0;
  while (!text.empty()) {
    ++number;
    const std::size_t newline = text.find('\n');
    if (newline == std::string_view::npos) return;  // torn
    const std::string_view line = text.substr(0, newline + 1);
    text.remove_prefix(newline + 1);
    const bool short_enough = line.size() <= MetricsLog::max_line;
    const nlohmann::json record =
        short_enough ? nlohmann::json::parse(line, nullptr, false) : nlohmann::json();
    if (record.is_object() && has_known_types(record)) {
      use(line, record);
    } else if (!text.empty()) {
      fail("{}:{}: not a record of metrics ({}); mend or remove the line", path.string(), number,
           short_enough ? "one JSON object with numbers, \"step\" an integer, \"split\" a text"
                        : "the line is too long");
    }
  }
}

// A kill or a power cut may leave half a line, to which the next record must not be glued.
const fs::path& without_torn_line(const fs::path& path) {
  if (!fs::exists(path)) return path;
  const std::string text = read_file(path, max_metrics_file);
  const std::size_t whole = text.rfind('\n') + 1;  // npos + 1 == 0
  if (whole != text.size()) fs::resize_file(path, whole);
  return path;
}

}  // namespace

MetricsLog::MetricsLog(const fs::path& path) : file_(without_torn_line(path)) {}

void MetricsLog::append(const nlohmann::ordered_json& record) {
  if (!record.is_object()) throw std::logic_error("a record of metrics must be a JSON object");
  const std::string line =
      record.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + '\n';
  if (line.size() > max_line) throw std::logic_error("a record of metrics is too long");
  file_.append(line);
}

std::vector<nlohmann::json> MetricsLog::read(const fs::path& path) {
  std::vector<nlohmann::json> records;
  each_record(path, read_file(path, max_metrics_file),
              [&](std::string_view, const nlohmann::json& record) { records.push_back(record); });
  return records;
}

void MetricsLog::rewind(const fs::path& path, std::int64_t step) {
  if (!fs::exists(path)) return;
  const std::string text = read_file(path, max_metrics_file);
  std::string kept;
  each_record(path, text, [&](std::string_view line, const nlohmann::json& record) {
    if (!record.contains("step") || record["step"].get<std::int64_t>() <= step) kept += line;
  });
  if (kept.size() != text.size()) write_file_atomically(path, kept);
}

}  // namespace roformer
