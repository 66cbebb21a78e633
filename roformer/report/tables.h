#pragma once

#include <filesystem>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <vector>

namespace roformer {

struct Table {
  std::string title;
  std::vector<std::string> columns;
  std::vector<std::vector<std::string>> rows;  // each as long as columns
  std::vector<std::string> notes;
};

/// A Markdown table, aligned also for readers of the plain text (columns of numbers to the right), pipes
/// escaped.
std::string to_markdown(const Table& table);

/// Which columns hold numbers alone ("1.98 ± 0.03", "–"), and go to the right.
std::vector<bool> number_columns(const Table& table);

/// Columns and rows as comma-separated values (RFC 4180: lines end in CRLF; quotes around cells with commas,
/// quotes or line ends). Title and notes are left out.
std::string to_csv(const Table& table);
/// A cell of it: the shortest decimal number that reads back to the same double; empty for NaN and
/// infinities.
std::string unrounded(double value);

/// {"title", "columns", "rows": [{column: cell}], "notes"}, cells as text.
nlohmann::ordered_json to_json(const Table& table);

/// stem.md and stem.json, each atomically. `numbers`, the unrounded values behind the cells, go into the JSON
/// file as "numbers".
void write_table(const Table& table, const nlohmann::ordered_json& numbers,
                 const std::filesystem::path& stem);

double mean(std::span<const double> values);       // NaN if empty
double sample_sd(std::span<const double> values);  // divisor n - 1; NaN below two values
double median(std::span<const double> values);     // NaN if empty
/// P(T <= t) for Student's t with df > 0 degrees of freedom; to about 1e-14 relative in the lower tail.
double t_cdf(double t, double df);
/// x with P(T <= x) = p for Student's t with df > 0 degrees of freedom, 0 < p < 1.
double t_quantile(double p, double df);
/// Half width of the two-sided 95 % t interval of the mean; NaN below two values.
double t_interval(std::span<const double> values);
/// Two conditions measured on the same units, in the same order: Student's paired t test.
struct PairedDifference {
  double mean = 0;      ///< of second - first; NaN if empty
  double interval = 0;  ///< half width of its 95 % t interval; NaN below two pairs
  double p_value = 0;   ///< two-sided; NaN below two pairs, and where all differences are 0
};
PairedDifference paired_difference(std::span<const double> first, std::span<const double> second);
/// "1.98 ± 0.03" (mean and t_interval), "1.98" for one value, "–" for none.
std::string mean_and_interval(std::span<const double> values, int digits);

}  // namespace roformer
