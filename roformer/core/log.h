#pragma once

#include <fmt/format.h>

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <limits>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

/// Messages for people: on stderr, and with date and time in the run's log.txt once open_file() was called.
/// Safe to call from any thread.
namespace roformer::log {

enum class Level { info, warning, error };

void write(Level level, std::string_view message);

template <class... Args>
void info(fmt::format_string<Args...> format, Args&&... args) {
  write(Level::info, fmt::format(format, std::forward<Args>(args)...));
}
template <class... Args>
void warn(fmt::format_string<Args...> format, Args&&... args) {
  write(Level::warning, fmt::format(format, std::forward<Args>(args)...));
}
template <class... Args>
void error(fmt::format_string<Args...> format, Args&&... args) {
  write(Level::error, fmt::format(format, std::forward<Args>(args)...));
}

/// Appends from now on to `path` (also what set_quiet hides); an Error if it cannot be opened.
void open_file(const std::filesystem::path& path);
void close_file();

/// Quiet: only warnings and errors on the console, no progress lines.
void set_quiet(bool quiet);

/// What one live line shows. Numbers that are not finite (or zero steps) are left out.
struct ProgressState {
  std::int64_t step = 0, steps = 0;
  double loss = std::numeric_limits<double>::quiet_NaN();
  double tokens_per_second = std::numeric_limits<double>::quiet_NaN();
  std::string state;  // "training", "evaluating", "waiting", "done", ...
};

/// One live line for each name. On a terminal the lines are rewritten in place below the messages; elsewhere
/// each name prints a plain line at most every 10 s, and whenever its state changes. Time left is reckoned
/// from the updates. One Progress at a time; the lines stay on the screen when it ends.
class Progress {
 public:
  explicit Progress(std::vector<std::string> names);
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  void update(std::size_t line, const ProgressState& state);
};

/// The text of one line, without the name's padding if name_width is smaller than the name: at most `columns`
/// columns of a terminal (wide characters count two), control characters replaced.
std::string progress_line(std::string_view name, std::size_t name_width, const ProgressState& state,
                          double seconds_left, std::size_t columns);

}  // namespace roformer::log
