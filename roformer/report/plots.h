#pragma once

#include <array>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace roformer {

struct Curve {
  std::string label;
  std::vector<double> x, y;
  std::vector<double> low, high;  // a translucent band around y; empty = none
};

struct Figure {
  std::string title, x_label, y_label;
  std::vector<Curve> curves;
  std::optional<double> y_min, y_max;
  bool log_x = false;  // x in powers of two
};

/// stem.png and stem.svg. An Error if `stem` names no file: it is empty, or a folder with a slash after it.
std::array<std::filesystem::path, 2> picture_files(const std::filesystem::path& stem);

/// Writes stem.png (1200 x 800) and stem.svg with gnuplot, each atomically. Non-finite values leave gaps.
/// Texts are shown literally ('?' for scripts that need other fonts than DejaVu Sans). An Error if there is
/// nothing to draw, vectors differ in length, gnuplot is missing or fails, or a file cannot be written.
void plot(const Figure& figure, const std::filesystem::path& stem);

}  // namespace roformer
