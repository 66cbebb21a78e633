#include "roformer/core/log.h"

#include <fcntl.h>
#include <poll.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <termios.h>
#include <unistd.h>

#include <string>

#include "roformer/core/display.h"
#include "roformer/core/error.h"
#include "roformer/core/files.h"
#include "tests/catch.h"
#include "tests/support.h"

namespace {

namespace console = roformer::log;
using console::progress_line;
using console::ProgressState;
using roformer::test::TempDir;

constexpr double unknown_number = std::numeric_limits<double>::quiet_NaN();

// Puts stderr elsewhere for a while: into a pipe or a terminal 40 columns wide.
class CapturedStderr {
 public:
  explicit CapturedStderr(bool terminal) : saved_(::dup(STDERR_FILENO)) {
    int writer = -1;
    if (terminal) {
      reader_ = ::posix_openpt(O_RDWR | O_NOCTTY);
      ::grantpt(reader_);
      ::unlockpt(reader_);
      writer = ::open(::ptsname(reader_), O_RDWR | O_NOCTTY);
      const winsize size = {24, 40, 0, 0};
      ::ioctl(writer, TIOCSWINSZ, &size);
      termios raw = {};
      ::tcgetattr(writer, &raw);
      raw.c_oflag &= ~static_cast<tcflag_t>(OPOST);  // "\n" stays "\n"
      ::tcsetattr(writer, TCSANOW, &raw);
      ::setenv("TERM", "xterm", 1);
    } else {
      int ends[2];
      REQUIRE(::pipe(ends) == 0);
      reader_ = ends[0];
      writer = ends[1];
    }
    ::dup2(writer, STDERR_FILENO);
    ::close(writer);
  }
  ~CapturedStderr() {
    ::dup2(saved_, STDERR_FILENO);
    ::close(saved_);
    ::close(reader_);
  }

  std::string take() {
    std::string text;
    char buffer[4096];
    pollfd ready = {reader_, POLLIN, 0};
    while (::poll(&ready, 1, 20) > 0 && (ready.revents & POLLIN)) {
      const ssize_t got = ::read(reader_, buffer, sizeof buffer);
      if (got <= 0) break;
      text.append(buffer, static_cast<std::size_t>(got));
    }
    return text;
  }

 private:
  int saved_, reader_ = -1;
};

ProgressState training_state(std::int64_t step, double loss = 2.5) {
  return {step, 600, loss, 45'200, "training"};
}

}  // namespace

TEST_CASE("a progress line shows what is known and fits") {
  const std::string all = progress_line("bert", 8, training_state(20), 75.2, 200);
  CHECK(all == "bert      step  20/600  loss 2.5000    45.2k tokens/s  1 min 16 s left  training");
  CHECK(progress_line("bert", 0, {0, 0, unknown_number, unknown_number, "waiting"}, unknown_number, 200) ==
        "bert  waiting");
  CHECK(progress_line("a", 0, {1, 9, unknown_number, unknown_number, ""}, 7300, 200) ==
        "a  step 1/9  2 h 02 min left");
  for (std::size_t columns = 0; columns < 90; ++columns) {
    const std::string line = progress_line("中文\x1b[2J", 12, training_state(20), 75, columns);
    CHECK(roformer::display_width(line) <= columns);
    CHECK(line.find('\x1b') == std::string::npos);
  }
}

TEST_CASE("off a terminal an arm prints a plain line when its state changes, not at every update") {
  CapturedStderr captured(false);
  {
    console::Progress progress({"roformer", "bert"});
    for (int step = 1; step <= 50; ++step) progress.update(0, training_state(step));
    progress.update(1, training_state(7));
    CHECK(captured.take() ==
          "roformer  step   1/600  loss 2.5000    45.2k tokens/s  training\n"
          "bert  step   7/600  loss 2.5000    45.2k tokens/s  training\n");
    console::warn("a {}\x1b[2J", "message");
    CHECK(captured.take() == "warning: a message [2J\n");
    progress.update(0, {600, 600, 1.5, unknown_number, "done"});
  }
  CHECK(captured.take() == "roformer  step 600/600  loss 1.5000  done\n");
}

TEST_CASE("on a terminal the lines are rewritten in place, below the messages") {
  CapturedStderr captured(true);
  {
    console::Progress progress({"roformer", "bert"});
    progress.update(0, training_state(1));
    const std::string first = captured.take();
    CHECK(first == "roformer  step   1/600  loss 2.5000   …\x1b[K\nbert    \x1b[K\n\x1b[J");
    progress.update(1, training_state(3));
    CHECK(captured.take() ==
          "\r\x1b[2A"
          "roformer  step   1/600  loss 2.5000   …\x1b[K\n"
          "bert      step   3/600  loss 2.5000   …\x1b[K\n\x1b[J");
    for (int step = 2; step < 50; ++step) progress.update(0, training_state(1, 9.0));
    CHECK(captured.take().size() < 3 * first.size());  // at most ten times a second
    console::info("saved");
    CHECK(captured.take() ==
          "\r\x1b[2A\x1b[J"
          "saved\n"
          "roformer  step   1/600  loss 9.0000   …\x1b[K\n"
          "bert      step   3/600  loss 2.5000   …\x1b[K\n\x1b[J");
  }
  CHECK(captured.take().rfind("\r\x1b[2A", 0) == 0);  // once more, and there they stay
  console::info("after");
  CHECK(captured.take() == "after\n");
}

TEST_CASE("quiet hides information and progress, log.txt keeps the messages") {
  TempDir dir;
  CapturedStderr captured(false);
  console::open_file(dir / "log.txt");
  console::set_quiet(true);
  {
    console::Progress progress({"a"});
    progress.update(0, training_state(1));
    console::info("hidden, two\nlines");
    console::error("shown");
  }
  console::set_quiet(false);
  console::info("seen");
  console::close_file();
  console::info("console only");
  CHECK(captured.take() == "error: shown\nseen\nconsole only\n");
  const std::string text = roformer::read_file(dir / "log.txt", 1 << 16);
  CHECK(text.find("  info  hidden, two\nlines\n") != std::string::npos);
  CHECK(text.find("  error  shown\n") != std::string::npos);
  CHECK(text.find("  info  seen\n") != std::string::npos);
  CHECK(text.find("console only") == std::string::npos);
  console::open_file(dir / "log.txt");
  console::close_file();
  CHECK(roformer::read_file(dir / "log.txt", 1 << 16) == text);
  CHECK_THROWS_AS(console::open_file(dir / "log.txt" / "x"), roformer::Error);
}
