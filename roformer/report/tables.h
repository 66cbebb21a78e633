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

/// {"title", "columns", "rows": [{column: cell}], "notes"}, cells as text.
nlohmann::ordered_json to_json(const Table& table);

/// stem.md and stem.json, each atomically. `numbers`, the unrounded values behind the cells, go into the JSON
/// file as "numbers".
void write_table(const Table& table, const nlohmann::ordered_json& numbers,
                 const std::filesystem::path& stem);

double mean(std::span<const double> values);       // NaN if empty
double sample_sd(std::span<const double> values);  // divisor n - 1; NaN below two values
/// x with P(T <= x) = p for Student's t with df > 0 degrees of freedom, 0 < p < 1.
double t_quantile(double p, double df);
/// Half width of the two-sided 95 % t interval of the mean; NaN below two values.
double t_interval(std::span<const double> values);
/// "1.98 ± 0.03" (mean and t_interval), "1.98" for one value, "–" for none.
std::string mean_and_interval(std::span<const double> values, int digits);

}  // namespace roformer
