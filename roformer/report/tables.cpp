#include "roformer/report/tables.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <stdexcept>

#include "roformer/core/display.h"
#include "roformer/core/files.h"

namespace roformer {
namespace {

constexpr double not_a_number = std::numeric_limits<double>::quiet_NaN();

std::string escaped_cell(std::string_view text) {
  std::string out;
  for (const char c : printable(text)) {
    if (c == '|' || c == '\\') out += '\\';
    out += c;
  }
  return out;
}

bool is_number_cell(std::string_view text) {
  if (text.empty() || text == "–") return true;
  const std::size_t sign = text.front() == '-' || text.front() == '+' ? 1 : 0;
  return text.size() > sign && text[sign] >= '0' && text[sign] <= '9';
}

void check_table(const Table& table) {
  for (const auto& row : table.rows)
    if (row.size() != table.columns.size())
      throw std::logic_error(fmt::format("table '{}': a row has {} cells for {} columns", table.title,
                                         row.size(), table.columns.size()));
}

std::string csv_cell(std::string_view text) {
  if (text.find_first_of(",\"\r\n") == text.npos) return std::string(text);
  std::string out = "\"";
  for (const char c : text) {
    if (c == '"') out += c;
    out += c;
  }
  return out + '"';
}

std::string csv_line(const std::vector<std::string>& cells) {
  std::string out;
  for (std::size_t c = 0; c < cells.size(); ++c) out += (c > 0 ? "," : "") + csv_cell(cells[c]);
  return out + "\r\n";
}

// I_x(a, b) by its continued fraction (NIST DLMF 8.17.22) with the modified Lentz method.
double incomplete_beta(double a, double b, double x) {
  if (x <= 0) return 0;
  if (x >= 1) return 1;
  if (x > (a + 1) / (a + b + 2))
    return 1 - incomplete_beta(b, a, 1 - x);  // where the fraction converges slowly
  constexpr double tiny = 1e-300;
  const auto away_from_zero = [](double v) { return std::abs(v) < tiny ? tiny : v; };
  double fraction = 1, c = 1, d = 0, change = 0;
  for (int n = 1; n < 20'000 && std::abs(change - 1) > 1e-16; ++n) {
    const double m = n / 2;
    const double coefficient = n % 2 == 0 ? m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m))
                                          : -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1));
    d = 1 / away_from_zero(1 + coefficient * d);
    c = away_from_zero(1 + coefficient / c);
    change = c * d;
    fraction *= change;
  }
  const double log_factor =
      std::lgamma(a + b) - std::lgamma(a) - std::lgamma(b) + a * std::log(x) + b * std::log1p(-x);
  return std::exp(log_factor) / (a * fraction);
}

/// P(|T| >= |t|) = I_x(df / 2, 1 / 2) with x = df / (df + t^2), which falls as t grows.
double two_tails(double t, double df) { return incomplete_beta(df / 2, 0.5, df / (df + t * t)); }

}  // namespace

std::string to_markdown(const Table& table) {
  check_table(table);
  const std::size_t columns = table.columns.size();
  std::vector<std::vector<std::string>> cells(1);
  for (const std::string& column : table.columns) cells[0].push_back(escaped_cell(column));
  for (const auto& row : table.rows) {
    cells.emplace_back();
    for (const std::string& cell : row) cells.back().push_back(escaped_cell(cell));
  }
  std::vector<std::size_t> widths(columns, 3);
  const std::vector<bool> right = number_columns(table);
  for (std::size_t c = 0; c < columns; ++c) {
    for (const auto& row : cells) widths[c] = std::max(widths[c], display_width(row[c]));
  }

  std::string out;
  if (!table.title.empty()) out += "### " + printable(table.title) + "\n\n";
  for (std::size_t r = 0; r < cells.size(); ++r) {
    for (std::size_t c = 0; c < columns; ++c) {
      const std::string padding(widths[c] - display_width(cells[r][c]), ' ');
      out += right[c] ? "| " + padding + cells[r][c] + ' ' : "| " + cells[r][c] + padding + ' ';
    }
    out += "|\n";
    if (r > 0) continue;
    for (std::size_t c = 0; c < columns; ++c)
      out +=
          right[c] ? "| " + std::string(widths[c] - 1, '-') + ": " : "| " + std::string(widths[c], '-') + ' ';
    out += "|\n";
  }
  for (const std::string& note : table.notes) out += "\n" + printable(note) + "\n";
  return out;
}

std::vector<bool> number_columns(const Table& table) {
  check_table(table);
  std::vector<bool> numbers(table.columns.size(), !table.rows.empty());
  for (const auto& row : table.rows) {
    for (std::size_t c = 0; c < row.size(); ++c) numbers[c] = numbers[c] && is_number_cell(row[c]);
  }
  return numbers;
}

std::string to_csv(const Table& table) {
  check_table(table);
  std::string out = csv_line(table.columns);
  for (const auto& row : table.rows) out += csv_line(row);
  return out;
}

std::string unrounded(double value) { return std::isfinite(value) ? fmt::format("{}", value) : ""; }

nlohmann::ordered_json to_json(const Table& table) {
  check_table(table);
  nlohmann::ordered_json rows = nlohmann::ordered_json::array();
  for (const auto& cells : table.rows) {
    nlohmann::ordered_json row = nlohmann::ordered_json::object();
    for (std::size_t c = 0; c < cells.size(); ++c) row[table.columns[c]] = cells[c];
    rows.push_back(std::move(row));
  }
  return {
      {"title", table.title}, {"columns", table.columns}, {"rows", std::move(rows)}, {"notes", table.notes}};
}

void write_table(const Table& table, const nlohmann::ordered_json& numbers,
                 const std::filesystem::path& stem) {
  nlohmann::ordered_json json = to_json(table);
  json["numbers"] = numbers;
  const std::string text = json.dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + '\n';
  write_file_atomically(std::filesystem::path(stem) += ".md", to_markdown(table));
  write_file_atomically(std::filesystem::path(stem) += ".json", text);
}

double mean(std::span<const double> values) {
  if (values.empty()) return not_a_number;
  return std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
}

double sample_sd(std::span<const double> values) {
  if (values.size() < 2) return not_a_number;
  const double center = mean(values);
  double sum = 0;
  for (const double v : values) sum += (v - center) * (v - center);
  return std::sqrt(sum / static_cast<double>(values.size() - 1));
}

double median(std::span<const double> values) {
  if (values.empty()) return not_a_number;
  std::vector<double> sorted(values.begin(), values.end());
  std::sort(sorted.begin(), sorted.end());
  const std::size_t middle = sorted.size() / 2;
  return sorted.size() % 2 ? sorted[middle] : (sorted[middle - 1] + sorted[middle]) / 2;
}

double t_cdf(double t, double df) {
  if (std::isnan(t) || !(df > 0)) return not_a_number;
  const double tail = two_tails(t, df) / 2;
  return t < 0 ? tail : 1 - tail;
}

double t_quantile(double p, double df) {
  if (!(p > 0 && p < 1 && df > 0)) return not_a_number;
  if (p < 0.5) return -t_quantile(1 - p, df);
  const double tail = 2 * (1 - p);
  const auto beyond = [&](double t) { return two_tails(t, df); };
  double low = 0, high = 1;
  while (beyond(high) > tail && high < 1e150) high *= 2;
  for (int i = 0; i < 200; ++i) {
    const double middle = (low + high) / 2;
    (beyond(middle) > tail ? low : high) = middle;
  }
  return (low + high) / 2;
}

double t_interval(std::span<const double> values) {
  if (values.size() < 2) return not_a_number;
  const auto n = static_cast<double>(values.size());
  return t_quantile(0.975, n - 1) * sample_sd(values) / std::sqrt(n);
}

PairedDifference paired_difference(std::span<const double> first, std::span<const double> second) {
  if (first.size() != second.size()) throw std::logic_error("a paired difference needs pairs");
  std::vector<double> differences;
  for (std::size_t i = 0; i < first.size(); ++i) differences.push_back(second[i] - first[i]);
  const auto n = static_cast<double>(differences.size());
  // 0 / 0, nothing to test, is NaN; x / 0 an infinite t.
  const double t = mean(differences) / (sample_sd(differences) / std::sqrt(n));
  return {mean(differences), t_interval(differences), 2 * t_cdf(-std::abs(t), n - 1)};
}

std::string mean_and_interval(std::span<const double> values, int digits) {
  if (values.empty()) return "–";
  if (values.size() == 1) return fmt::format("{:.{}f}", values[0], digits);
  return fmt::format("{:.{}f} ± {:.{}f}", mean(values), digits, t_interval(values), digits);
}

}  // namespace roformer
