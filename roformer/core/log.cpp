#include "roformer/core/log.h"

#include <spdlog/sinks/base_sink.h>
#include <spdlog/sinks/basic_file_sink.h>
#include <spdlog/spdlog.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <memory>
#include <mutex>
#include <optional>

#include "roformer/core/display.h"
#include "roformer/core/error.h"

namespace roformer::log {
namespace {

using Clock = std::chrono::steady_clock;
constexpr auto redraw_pause = std::chrono::milliseconds(100);
constexpr auto plain_line_pause = std::chrono::seconds(10);

struct LiveLine {
  std::string name;
  ProgressState state;
  std::int64_t first_step = -1;
  Clock::time_point first_time;  // when the first step was last seen, so waiting does not count
  std::optional<Clock::time_point> printed;
};

std::string duration_text(double seconds) {
  const auto s = static_cast<std::int64_t>(std::ceil(seconds));
  if (s < 60) return fmt::format("{} s", s);
  if (s < 3600) return fmt::format("{} min {:02} s", s / 60, s % 60);
  const std::int64_t minutes = (s + 59) / 60;
  if (minutes < 48 * 60) return fmt::format("{} h {:02} min", minutes / 60, minutes % 60);
  return fmt::format("{} days {:02} h", minutes / 1440, minutes % 1440 / 60);
}

double seconds_left(const LiveLine& line, Clock::time_point now) {
  const ProgressState& s = line.state;
  if (s.step <= line.first_step || s.step >= s.steps) return std::numeric_limits<double>::quiet_NaN();
  const double elapsed = std::chrono::duration<double>(now - line.first_time).count();
  return elapsed / static_cast<double>(s.step - line.first_step) * static_cast<double>(s.steps - s.step);
}

// Everything that reaches stderr passes here, so that messages and live lines never mix.
class Console {
 public:
  // Never destroyed: messages may come from destructors that run at exit.
  static Console& get() {
    static Console& console = *new Console;
    return console;
  }

  void print(Level level, std::string_view message) {
    const std::scoped_lock lock(mutex_);
    if (quiet_ && level == Level::info) return;
    const char* color = level == Level::error ? "\x1b[31m" : "\x1b[33m";
    const char* prefix = level == Level::error ? "error: " : "warning: ";
    std::string out = erased();
    if (level == Level::info)
      out += fmt::format("{}\n", message);
    else if (terminal_)
      out += fmt::format("{}{}\x1b[0m{}\n", color, prefix, message);
    else
      out += fmt::format("{}{}\n", prefix, message);
    send(out + drawn());
  }

  void set_quiet(bool quiet) {
    const std::scoped_lock lock(mutex_);
    if (quiet && !quiet_) send(erased());
    quiet_ = quiet;
  }

  void start(std::vector<std::string> names) {
    const std::scoped_lock lock(mutex_);
    const char* term = std::getenv("TERM");
    terminal_ = ::isatty(STDERR_FILENO) == 1 && std::string_view(term ? term : "dumb") != "dumb";
    lines_.clear();
    name_width_ = 0;
    for (std::string& name : names) {
      name = printable(name);
      name_width_ = std::max(name_width_, display_width(name));
      lines_.emplace_back().name = std::move(name);
    }
  }

  void update(std::size_t index, const ProgressState& state) {
    const std::scoped_lock lock(mutex_);
    LiveLine& line = lines_.at(index);
    const Clock::time_point now = Clock::now();
    const bool urgent = !line.printed || state.state != line.state.state;
    line.state = state;
    if (line.first_step < 0 || state.step <= line.first_step) {
      line.first_step = state.step;
      line.first_time = now;
    }
    if (quiet_) return;
    if (terminal_) {
      if (!urgent && now - last_drawn_ < redraw_pause) return;
      line.printed = last_drawn_ = now;
      send(redrawn());
    } else if (urgent || now - *line.printed >= plain_line_pause) {
      line.printed = now;
      send(progress_line(line.name, 0, state, seconds_left(line, now), std::string::npos) + "\n");
    }
  }

  void finish() {
    const std::scoped_lock lock(mutex_);
    if (terminal_ && !quiet_) send(redrawn());
    lines_.clear();
    drawn_rows_ = 0;
  }

 private:
  Console() = default;

  std::string to_first_row() const { return drawn_rows_ == 0 ? "" : fmt::format("\r\x1b[{}A", drawn_rows_); }

  std::string erased() {
    if (drawn_rows_ == 0) return {};
    std::string out = to_first_row() + "\x1b[J";
    drawn_rows_ = 0;
    return out;
  }

  std::string redrawn() {
    std::string out = to_first_row();
    drawn_rows_ = 0;
    return out + drawn();
  }

  // The lines from the cursor down; clears each row behind the text and what is below the last one.
  std::string drawn() {
    if (!terminal_ || quiet_ || lines_.empty()) return {};
    winsize size = {};
    if (::ioctl(STDERR_FILENO, TIOCGWINSZ, &size) != 0 || size.ws_col == 0) size = {24, 80, 0, 0};
    const std::size_t columns =
        std::max(2, int{size.ws_col}) - 1;  // the last column would wrap on some terminals
    const std::size_t rows = std::max(2, int{size.ws_row}) - 1;  // the cursor stands below
    const Clock::time_point now = Clock::now();
    std::string out;
    for (std::size_t i = 0; i < lines_.size() && i < rows; ++i) {
      const std::size_t hidden = i + 1 == rows ? lines_.size() - rows : 0;
      std::string text =
          progress_line(lines_[i].name, name_width_, lines_[i].state, seconds_left(lines_[i], now), columns);
      if (hidden > 0) text = shorten(fmt::format("... and {} more", hidden + 1), columns);
      out += text + "\x1b[K\n";
      ++drawn_rows_;
    }
    return out + "\x1b[J";
  }

  static void send(std::string_view text) {
    while (!text.empty()) {
      const ssize_t written = ::write(STDERR_FILENO, text.data(), text.size());
      if (written < 0 && errno == EINTR) continue;
      if (written <= 0) return;  // a closed console must not end the run
      text.remove_prefix(static_cast<std::size_t>(written));
    }
  }

  std::mutex mutex_;
  bool quiet_ = false, terminal_ = false;
  std::vector<LiveLine> lines_;
  std::size_t name_width_ = 0, drawn_rows_ = 0;
  Clock::time_point last_drawn_;
};

class ConsoleSink : public spdlog::sinks::base_sink<std::mutex> {
  void sink_it_(const spdlog::details::log_msg& message) override {
    const Level level = message.level >= spdlog::level::err    ? Level::error
                        : message.level >= spdlog::level::warn ? Level::warning
                                                               : Level::info;
    Console::get().print(level, {message.payload.data(), message.payload.size()});
  }
  void flush_() override {}
};

std::mutex& sinks_mutex() {
  static std::mutex& mutex = *new std::mutex;
  return mutex;
}

spdlog::logger& logger() {
  static spdlog::logger& instance = *[] {
    auto* made = new spdlog::logger("roformer", std::make_shared<ConsoleSink>());
    made->flush_on(spdlog::level::info);
    // log.txt on a full disk: the run itself decides what a full disk means, when it saves.
    made->set_error_handler([](const std::string&) {});
    return made;
  }();
  return instance;
}

}  // namespace

void write(Level level, std::string_view message) {
  const std::scoped_lock lock(sinks_mutex());
  const auto spdlog_level = level == Level::error     ? spdlog::level::err
                            : level == Level::warning ? spdlog::level::warn
                                                      : spdlog::level::info;
  std::string text;  // texts of users and of files must not steer the terminal
  for (std::size_t at = 0; at <= message.size();) {
    const std::size_t end = std::min(message.find('\n', at), message.size());
    if (at > 0) text += '\n';
    text += printable(message.substr(at, end - at));
    at = end + 1;
  }
  logger().log(spdlog_level, spdlog::string_view_t(text.data(), text.size()));
}

void open_file(const std::filesystem::path& path) {
  close_file();
  const std::scoped_lock lock(sinks_mutex());
  try {
    auto sink = std::make_shared<spdlog::sinks::basic_file_sink_mt>(path.string());
    sink->set_pattern("%Y-%m-%d %H:%M:%S  %^%l%$  %v");
    logger().sinks().push_back(std::move(sink));
  } catch (const spdlog::spdlog_ex&) {
    fail("cannot write {}; choose another run folder", path.string());
  }
}

void close_file() {
  const std::scoped_lock lock(sinks_mutex());
  logger().sinks().resize(1);
}

void set_quiet(bool quiet) { Console::get().set_quiet(quiet); }

std::string progress_line(std::string_view name, std::size_t name_width, const ProgressState& state,
                          double left, std::size_t columns) {
  std::string text = printable(name);
  const std::size_t width = display_width(text);
  if (width < name_width) text.append(name_width - width, ' ');
  if (state.steps > 0) {
    const std::string steps = fmt::format("{}", state.steps);
    text += fmt::format("  step {:>{}}/{}", state.step, steps.size(), steps);
  }
  if (std::isfinite(state.loss)) text += fmt::format("  loss {:.4f}", state.loss);
  if (std::isfinite(state.tokens_per_second)) {
    const double rate = state.tokens_per_second;
    if (rate >= 1e6)
      text += fmt::format("  {:6.2f}M tokens/s", rate / 1e6);
    else if (rate >= 1e3)
      text += fmt::format("  {:6.1f}k tokens/s", rate / 1e3);
    else
      text += fmt::format("  {:7.0f} tokens/s", rate);
  }
  if (std::isfinite(left)) text += "  " + duration_text(left) + " left";
  if (!state.state.empty()) text += "  " + printable(state.state);
  return shorten(text, columns);
}

Progress::Progress(std::vector<std::string> names) { Console::get().start(std::move(names)); }
Progress::~Progress() { Console::get().finish(); }
void Progress::update(std::size_t line, const ProgressState& state) { Console::get().update(line, state); }

}  // namespace roformer::log
