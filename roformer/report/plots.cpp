#include "roformer/report/plots.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <spawn.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <iterator>
#include <string_view>

#include "roformer/core/display.h"
#include "roformer/core/error.h"
#include "roformer/core/files.h"

namespace roformer {
namespace fs = std::filesystem;
namespace {

// Okabe and Ito's palette, told apart with every common colour blindness; yellow, too pale for lines, is left
// out.
constexpr std::array<std::string_view, 7> curve_colors = {"#0072B2", "#D55E00", "#009E73", "#CC79A7",
                                                          "#E69F00", "#56B4E9", "#000000"};
constexpr std::array<int, 7> curve_marks = {7, 5, 9, 13, 11, 6, 4};  // gnuplot's point types
constexpr std::size_t marks_per_curve = 12;

// Cairo draws a character that no font has as a box across the whole picture, so what DejaVu Sans may lack is
// not shown. Keeps Latin, Greek, Cyrillic, punctuation, arrows and mathematics (U+2000 to U+29FF).
std::string drawable(std::string_view text) {
  const std::string utf8 = printable(text);
  std::string out;
  for (std::size_t i = 0, bytes = 0; i < utf8.size(); i += bytes) {
    const auto lead = static_cast<unsigned char>(utf8[i]);
    bytes = lead < 0x80 ? 1 : lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : 4;
    const bool symbol = lead == 0xE2 && static_cast<unsigned char>(utf8[i + 1]) < 0xA8;
    out += lead < 0xD6 || symbol ? utf8.substr(i, bytes) : "?";
  }
  return out;
}

// Every character that could mean something to gnuplot goes as an octal escape. (Doubling single quotes does
// not do: gnuplot takes two doubled ones in a row for the end of the string.) A digit after an escape goes as
// one too, as gnuplot would read it as part of that number.
std::string gnuplot_string(std::string_view text) {
  std::string out = "\"";
  bool after_escape = false;
  for (const char c : drawable(text)) {
    const bool digit = c >= '0' && c <= '9';
    const bool plain =
        (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (digit && !after_escape) || c == ' ';
    out += plain ? std::string(1, c) : fmt::format("\\{:03o}", static_cast<unsigned char>(c));
    after_escape = !plain;
  }
  return out + '"';
}

std::string gnuplot_number(double value) { return std::isfinite(value) ? fmt::format("{}", value) : "NaN"; }

void check_figure(const Figure& figure) {
  bool something = false;
  for (const Curve& c : figure.curves) {
    const std::size_t n = c.x.size();
    const bool band = !c.low.empty() || !c.high.empty();
    if (c.y.size() != n || (band && (c.low.size() != n || c.high.size() != n)))
      fail("cannot draw '{}': the curve '{}' has vectors of different lengths", printable(figure.title),
           printable(c.label));
    for (std::size_t i = 0; i < n; ++i) something |= std::isfinite(c.x[i]) && std::isfinite(c.y[i]);
  }
  if (!something) fail("cannot draw '{}': it has no finite value", printable(figure.title));
}

std::string data_blocks(const Figure& figure) {
  std::string out;
  for (std::size_t k = 0; k < figure.curves.size(); ++k) {
    const Curve& c = figure.curves[k];
    out += fmt::format("$curve{} << END_OF_CURVE\n", k);
    for (std::size_t i = 0; i < c.x.size(); ++i) {
      out += gnuplot_number(c.x[i]) + ' ' + gnuplot_number(c.y[i]);
      if (!c.low.empty()) out += ' ' + gnuplot_number(c.low[i]) + ' ' + gnuplot_number(c.high[i]);
      out += '\n';
    }
    out += "END_OF_CURVE\n";
  }
  return out;
}

std::string plot_command(const Figure& figure) {
  std::string bands, lines;
  for (std::size_t k = 0; k < figure.curves.size(); ++k) {
    const Curve& c = figure.curves[k];
    if (c.x.empty()) continue;
    const std::string_view color = curve_colors[k % curve_colors.size()];
    const std::size_t dash = 1 + k / curve_colors.size() % 4;
    if (!c.low.empty())
      bands += fmt::format("$curve{} using 1:3:4 with filledcurves fillcolor rgb '{}' notitle, ", k, color);
    const std::size_t mark_every = std::max<std::size_t>(1, c.x.size() / marks_per_curve);
    lines += fmt::format("$curve{} using 1:2 with linespoints linecolor rgb '{}' linewidth 3 dashtype {} ", k,
                         color, dash);
    lines += fmt::format("pointtype {} pointsize 1.4 pointinterval {} title {}, ",
                         curve_marks[k % curve_marks.size()], mark_every, gnuplot_string(c.label));
  }
  const std::string all = "plot " + bands + lines;
  return all.substr(0, all.size() - 2) + "\n";
}

std::string gnuplot_script(const Figure& figure, int png, int svg) {
  std::string out = data_blocks(figure);
  auto line = std::back_inserter(out);
  fmt::format_to(line, "set encoding utf8\nset title {}\n", gnuplot_string(figure.title));
  fmt::format_to(line, "set xlabel {}\nset ylabel {}\n", gnuplot_string(figure.x_label),
                 gnuplot_string(figure.y_label));
  const auto limit = [](std::optional<double> value) {
    return value ? gnuplot_number(*value) : std::string("*");
  };
  fmt::format_to(line, "set yrange [{}:{}]\n", limit(figure.y_min), limit(figure.y_max));
  if (figure.log_x) out += "set logscale x 2\n";
  out +=
      "set datafile missing 'NaN'\n"
      "set border 3 linecolor rgb '#555555' linewidth 1.5\n"
      "set tics nomirror out textcolor rgb '#333333'\n"
      "set grid linetype 1 linecolor rgb '#DDDDDD' linewidth 1 back\n"
      "set style fill transparent solid 0.2 noborder\n"
      "set key below center horizontal Left reverse noenhanced "
      "samplen 3 spacing 1.2 width -1 height 0.5 font ',18'\n"
      "set rmargin 5\n";
  const std::string command = plot_command(figure);
  // gnuplot sees inherited files only, never a name that could hold quotes, pipes or line ends.
  fmt::format_to(
      line, "set terminal pngcairo noenhanced size 1200,800 font 'DejaVu Sans,20' background '#FFFFFF'\n");
  fmt::format_to(line, "set output '/dev/fd/{}'\n{}unset output\n", png, command);
  fmt::format_to(line, "set terminal svg noenhanced size 1200,800 font 'DejaVu Sans,Arial,sans-serif,20'\n");
  fmt::format_to(line, "set output '/dev/fd/{}'\n{}unset output\n", svg, command);
  return out;
}

// A file in memory: unlike a pipe it neither blocks nor raises SIGPIPE when gnuplot ends early.
class MemoryFile {
 public:
  explicit MemoryFile(const char* name) : fd_(::memfd_create(name, MFD_CLOEXEC)) {
    if (fd_ < 0) fail("cannot draw: no memory for gnuplot's input: {}", std::strerror(errno));
  }
  ~MemoryFile() { ::close(fd_); }
  MemoryFile(const MemoryFile&) = delete;
  MemoryFile& operator=(const MemoryFile&) = delete;

  int descriptor() const { return fd_; }

  void fill(std::string_view text) {
    for (std::string_view rest = text; !rest.empty();) {
      const ssize_t written = ::write(fd_, rest.data(), rest.size());
      if (written < 0 && errno == EINTR) continue;
      if (written <= 0) fail("cannot draw: no memory for gnuplot's input: {}", std::strerror(errno));
      rest.remove_prefix(static_cast<std::size_t>(written));
    }
    ::lseek(fd_, 0, SEEK_SET);
  }

  std::string first_line_with_text() const {
    std::array<char, 4096> buffer = {};
    const ssize_t got = ::pread(fd_, buffer.data(), buffer.size(), 0);
    const std::string_view text(buffer.data(), got > 0 ? static_cast<std::size_t>(got) : 0);
    const std::size_t begin = text.find_first_not_of(" \t\n^");
    return begin == text.npos ? "" : printable(text.substr(begin, text.find('\n', begin) - begin));
  }

 private:
  int fd_;
};

bool ends_with(int fd, std::string_view mark) {
  std::array<char, 16> tail = {};
  const off_t size = ::lseek(fd, 0, SEEK_END), begin = std::max<off_t>(0, size - 16);
  const ssize_t got = ::pread(fd, tail.data(), tail.size(), begin);
  return got > 0 && std::string_view(tail.data(), static_cast<std::size_t>(got)).find(mark) != mark.npos;
}

void run_gnuplot(const std::string& script, AtomicFile& png_file, AtomicFile& svg_file) {
  const int png = png_file.descriptor(), svg = svg_file.descriptor();
  MemoryFile input("gnuplot-input"), messages("gnuplot-messages");
  input.fill(script);
  posix_spawn_file_actions_t actions;
  ::posix_spawn_file_actions_init(&actions);
  ::posix_spawn_file_actions_adddup2(&actions, png, png);  // onto itself: inherit
  ::posix_spawn_file_actions_adddup2(&actions, svg, svg);
  ::posix_spawn_file_actions_adddup2(&actions, input.descriptor(), STDIN_FILENO);
  ::posix_spawn_file_actions_adddup2(&actions, messages.descriptor(), STDOUT_FILENO);
  ::posix_spawn_file_actions_adddup2(&actions, messages.descriptor(), STDERR_FILENO);
  // "-d": the user's own gnuplot settings stay out of the picture.
  std::string name = "gnuplot", defaults = "-d", from_input = "-";
  std::array<char*, 4> arguments = {name.data(), defaults.data(), from_input.data(), nullptr};
  // Without a UTF-8 locale gnuplot complains of its own degree sign, in front of what matters.
  std::string locale = "LC_ALL=C.UTF-8";
  std::vector<char*> environment = {locale.data()};
  for (char** entry = environ; *entry; ++entry) {
    if (!std::string_view(*entry).starts_with("LC_ALL=")) environment.push_back(*entry);
  }
  environment.push_back(nullptr);
  pid_t child = 0;
  const int code = ::posix_spawnp(&child, "gnuplot", &actions, nullptr, arguments.data(), environment.data());
  ::posix_spawn_file_actions_destroy(&actions);
  if (code == ENOENT) fail("cannot draw: gnuplot is not installed; apt-get install gnuplot-nox");
  if (code != 0) fail("cannot draw: gnuplot does not start: {}", std::strerror(code));
  int status = 0;
  while (::waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  // gnuplot does not notice every write that fails.
  if (status == 0 && ends_with(png, "IEND") && ends_with(svg, "</svg>")) return;
  // On a full disk it says nothing of use; more than a picture's bytes, written here, give the reason.
  for (AtomicFile* file : {&png_file, &svg_file}) {
    ::lseek(file->descriptor(), 0, SEEK_END);
    file->write(std::string(1 << 20, ' '));
  }
  const std::string reason = messages.first_line_with_text();
  fail("cannot draw: gnuplot failed: {}; gnuplot-nox of Debian 12 is known to work",
       reason.empty() ? "it made no whole picture and gave no reason" : reason);
}

}  // namespace

std::array<fs::path, 2> picture_files(const fs::path& stem) {
  const fs::path name = stem.filename();
  if (name.empty() || name == "." || name == "..")
    fail("cannot write a picture to '{}': name a file, without .png or .svg", stem.string());
  return {fs::path(stem) += ".png", fs::path(stem) += ".svg"};
}

void plot(const Figure& figure, const fs::path& stem) {
  check_figure(figure);
  const std::array<fs::path, 2> files = picture_files(stem);
  AtomicFile png(files[0]), svg(files[1]);
  run_gnuplot(gnuplot_script(figure, png.descriptor(), svg.descriptor()), png, svg);
  png.commit();
  svg.commit();
}

}  // namespace roformer
