#include "roformer/report/plots.h"

#include <stdlib.h>

#include <cmath>
#include <limits>
#include <string>

#include "roformer/core/error.h"
#include "roformer/core/files.h"
#include "tests/catch.h"
#include "tests/support.h"

namespace {

namespace fs = std::filesystem;
using roformer::Figure;
using roformer::test::TempDir;

constexpr double not_finite = std::numeric_limits<double>::quiet_NaN();

std::string file_text(const fs::path& path) { return roformer::read_file(path, 1 << 24); }

std::size_t files_in(const fs::path& folder) {
  return static_cast<std::size_t>(std::distance(fs::directory_iterator(folder), fs::directory_iterator()));
}

std::string plot_error(const Figure& figure, const fs::path& stem) {
  try {
    roformer::plot(figure, stem);
  } catch (const roformer::Error& e) {
    return e.what();
  }
  return "no error";
}

Figure two_curves() {
  Figure figure = {"Pre-training on bytes", "update", "validation loss (nats)", {}, {}, {}};
  for (const double floor : {1.9, 3.1}) {
    roformer::Curve curve = {floor < 2 ? "RoFormer" : "BERT", {}, {}, {}, {}};
    for (int step = 50; step <= 600; step += 50) {
      const double loss = floor + 2.5 * std::exp(-step / 120.0);
      curve.x.push_back(step);
      curve.y.push_back(loss);
      curve.low.push_back(loss - 0.05);
      curve.high.push_back(loss + 0.05);
    }
    figure.curves.push_back(curve);
  }
  return figure;
}

}  // namespace

TEST_CASE("a figure becomes a PNG of 1200 x 800 and an SVG") {
  TempDir dir;
  roformer::plot(two_curves(), dir / "curve.v1");
  const std::string png = file_text(dir / "curve.v1.png"), svg = file_text(dir / "curve.v1.svg");
  CHECK(png.substr(0, 8) == "\x89PNG\r\n\x1a\n");
  CHECK(png.substr(16, 8) == std::string("\0\0\x04\xb0\0\0\x03\x20", 8));
  CHECK(png.substr(png.size() - 8, 4) == "IEND");
  CHECK(svg.find("</svg>") != std::string::npos);
  for (const char* text : {"Pre-training on bytes", "update", "validation loss (nats)", "RoFormer", "BERT"})
    CHECK(svg.find(text) != std::string::npos);
  CHECK(files_in(dir.path()) == 2);
}

TEST_CASE("hostile texts and names are shown, not run") {
  TempDir dir;
  fs::create_directory(dir / "out");
  const std::string marker = (dir / "marker").string();
  const std::vector<std::string> hostile = {"`touch " + marker + "`",
                                            "'; system('touch " + marker + "'); print '",
                                            "\"; system(\"touch " + marker + "\"); print \"",
                                            "x\nsystem('touch " + marker + "')\n",
                                            "END_OF_CURVE\n!touch " + marker + "\n",
                                            "'';system('touch " + marker + "');''",
                                            "''''; system('touch " + marker + "')",
                                            "\\\"; system(\"touch " + marker + "\") #",
                                            "@ARG0 $(touch " + marker + ") %s \\",
                                            "a_b^{c} <b>&amp; \xff\x01 'quote'' ü → 中文"};
  for (std::size_t i = 0; i < hostile.size(); ++i) {
    Figure figure = two_curves();
    figure.title = figure.x_label = figure.y_label = figure.curves[0].label = hostile[i];
    roformer::plot(figure, dir / "out" / std::to_string(i));
    CHECK_FALSE(fs::exists(marker));
  }
  // Enhanced text would swallow the underscore and the braces.
  CHECK(file_text(dir / "out/9.svg").find("a_b^{c} &lt;b>&amp;amp; ?  'quote'' ü → ??") != std::string::npos);
  for (const char* name : {"a'b", "|touch marker", "a b\nc", "`touch marker`", "-x", "$HOME", "\xff"}) {
    roformer::plot(two_curves(), dir / "out" / name);
    CHECK(fs::exists(dir / "out" / (std::string(name) + ".png")));
  }
  CHECK_FALSE(fs::exists("marker"));
  CHECK(files_in(dir / "out") == 2 * (hostile.size() + 7));
}

TEST_CASE("digits after other characters are drawn as they are, and x may grow in powers of two") {
  TempDir dir;
  Figure figure = two_curves();
  figure.title = "6.415 at #236, 1.5e-3";
  figure.curves = {{"loss", {128, 1024}, {1, 2}, {}, {}}};
  roformer::plot(figure, dir / "linear");
  figure.log_x = true;
  roformer::plot(figure, dir / "log");
  const std::string linear = file_text(dir / "linear.svg"), log = file_text(dir / "log.svg");
  CHECK(log.find("6.415 at #236, 1.5e-3") != std::string::npos);
  for (const char* tick : {"128<", "256<", "512<", "1024<"}) CHECK(log.find(tick) != std::string::npos);
  CHECK(linear.find("512<") == std::string::npos);
}

TEST_CASE("single points, gaps, flat curves, many curves and limits are drawn") {
  TempDir dir;
  Figure figure = {"", "", "", {{"one", {1}, {2}, {}, {}}}, {}, {}};
  roformer::plot(figure, dir / "one");
  figure.curves = {{"gap", {1, 2, 3, 4}, {2, not_finite, INFINITY, 2}, {}, {}},
                   {"none", {}, {}, {}, {}},
                   {"nan", {1}, {not_finite}, {}, {}}};
  roformer::plot(figure, dir / "gap");
  for (int k = 0; k < 20; ++k) figure.curves.push_back({std::to_string(k), {0, 1}, {0.0 + k, 1.0}, {}, {}});
  figure.y_min = 0;
  figure.y_max = 10;
  roformer::plot(figure, dir / "many");
  CHECK(files_in(dir.path()) == 6);
}

TEST_CASE("a picture needs a file name") {
  TempDir dir;
  for (const char* name : {"", ".", ".."})
    CHECK(plot_error(two_curves(), dir / name).find("name a file, without .png or .svg") !=
          std::string::npos);
  CHECK(plot_error(two_curves(), "").find("to ''") != std::string::npos);
  CHECK(files_in(dir.path()) == 0);
  CHECK(roformer::picture_files("a/b.c")[1] == "a/b.c.svg");
}

TEST_CASE("a picture that gnuplot cut short without a word is not kept") {
  TempDir dir, tools;
  const std::string path = ::getenv("PATH"), script = (tools / "script").string();
  roformer::write_file_atomically(
      tools / "gnuplot", "#!/bin/sh\nPATH='" + path + "'\ncat > " + script + "\ngnuplot -d " + script +
                             "\nfd=$(sed -n \"s|^set output '/dev/fd/\\([0-9]*\\)'|\\1|p\" " + script +
                             " | sed -n \"${CUT}p\")\n[ -z \"$fd\" ] || truncate -s -9 /dev/fd/$fd\n");
  fs::permissions(tools / "gnuplot", fs::perms::owner_all);
  ::setenv("PATH", tools.path().c_str(), 1);
  std::string messages[3];
  for (int cut = 0; cut < 3; ++cut) {  // nothing, the PNG, the SVG
    ::setenv("CUT", cut == 0 ? "9" : std::to_string(cut).c_str(), 1);
    messages[cut] = plot_error(two_curves(), dir / std::to_string(cut));
  }
  ::setenv("PATH", path.c_str(), 1);
  ::unsetenv("CUT");
  CHECK(messages[0] == "no error");
  for (const int cut : {1, 2})
    CHECK(
        messages[cut] ==
        "cannot draw: gnuplot failed: it made no whole picture and gave no reason; gnuplot-nox of Debian 12 "
        "is known to work");
  CHECK(files_in(dir.path()) == 2);
}

TEST_CASE("what cannot be drawn is named, and an old picture stays") {
  TempDir dir;
  roformer::write_file_atomically(dir / "x.png", "old");
  Figure figure = {"Empty", "", "", {{"a", {1}, {not_finite}, {}, {}}}, {}, {}};
  CHECK(plot_error(figure, dir / "x") == "cannot draw 'Empty': it has no finite value");
  figure.curves[0].y = {1, 2};
  CHECK(plot_error(figure, dir / "x") ==
        "cannot draw 'Empty': the curve 'a' has vectors of different lengths");
  figure.curves[0] = {"a", {1}, {2}, {1}, {}};
  CHECK(plot_error(figure, dir / "x") ==
        "cannot draw 'Empty': the curve 'a' has vectors of different lengths");

  const std::string path = ::getenv("PATH");
  ::setenv("PATH", dir.path().c_str(), 1);
  const std::string missing = plot_error(two_curves(), dir / "x");
  roformer::write_file_atomically(dir / "gnuplot",
                                  "#!/bin/sh\necho 'line 3: no such terminal' >&2\nexit 1\n");
  fs::permissions(dir / "gnuplot", fs::perms::owner_all);
  const std::string failing = plot_error(two_curves(), dir / "x");
  roformer::write_file_atomically(dir / "gnuplot", "#!/bin/sh\nexit 0\n");
  fs::permissions(dir / "gnuplot", fs::perms::owner_all);
  const std::string idle = plot_error(two_curves(), dir / "x");
  ::setenv("PATH", path.c_str(), 1);
  CHECK(missing == "cannot draw: gnuplot is not installed; apt-get install gnuplot-nox");
  CHECK(failing ==
        "cannot draw: gnuplot failed: line 3: no such terminal; gnuplot-nox of Debian 12 is known to work");
  CHECK(idle.rfind("cannot draw: gnuplot failed: it made no whole picture", 0) == 0);
  CHECK(file_text(dir / "x.png") == "old");
  CHECK(files_in(dir.path()) == 2);
}
