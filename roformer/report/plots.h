#pragma once

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

/// Writes stem.png (1200 x 800) and stem.svg with gnuplot, each atomically. Non-finite values leave gaps.
/// Texts are shown literally ('?' for scripts that need other fonts than DejaVu Sans). An Error if there is
/// nothing to draw, vectors differ in length, or gnuplot is missing or fails.
void plot(const Figure& figure, const std::filesystem::path& stem);

}  // namespace roformer
