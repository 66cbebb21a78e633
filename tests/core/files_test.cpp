#include "roformer/core/files.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <set>
#include <string>

#include "roformer/core/error.h"
#include "tests/catch.h"
#include "tests/support.h"

namespace {

namespace fs = std::filesystem;
using roformer::AtomicFile;
using roformer::Error;
using roformer::FileLock;
using roformer::test::TempDir;

std::set<std::string> folder_names(const fs::path& folder) {
  std::set<std::string> names;
  for (const auto& entry : fs::directory_iterator(folder)) names.insert(entry.path().filename().string());
  return names;
}

std::string files_error(const auto& action) {
  try {
    action();
  } catch (const Error& e) {
    return e.what();
  }
  return "no error";
}

// A limit on the size of files fails a write as a full disk does.
class FileSizeLimit {
 public:
  explicit FileSizeLimit(rlim_t bytes) : handler_(::signal(SIGXFSZ, SIG_IGN)) {
    ::getrlimit(RLIMIT_FSIZE, &before_);
    const rlimit limit = {bytes, before_.rlim_max};
    ::setrlimit(RLIMIT_FSIZE, &limit);
  }
  ~FileSizeLimit() {
    ::setrlimit(RLIMIT_FSIZE, &before_);
    ::signal(SIGXFSZ, handler_);
  }

 private:
  rlimit before_ = {};
  void (*handler_)(int);
};

// What a child process makes of it: 0 if `action` returned, 1 if it threw Error.
int exit_of_child(const auto& action) {
  const pid_t child = ::fork();
  if (child == 0) {
    int code = 0;
    try {
      action();
    } catch (const Error&) {
      code = 1;
    }
    ::_exit(code);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

}  // namespace

TEST_CASE("atomic files hold exactly the bytes and leave nothing else") {
  TempDir dir;
  const std::string bytes("a\0b\n\xff", 5);
  roformer::write_file_atomically(dir / "x.bin", bytes);
  CHECK(roformer::read_file(dir / "x.bin", 5) == bytes);
  roformer::write_file_atomically(dir / "x.bin", "new");
  CHECK(roformer::read_file(dir / "x.bin", 100) == "new");
  roformer::write_file_atomically(dir / "empty", "");
  CHECK(roformer::read_file(dir / "empty", 0).empty());
  CHECK(folder_names(dir.path()) == std::set<std::string>{"x.bin", "empty"});
}

TEST_CASE("an atomic file without commit leaves the old one") {
  TempDir dir;
  roformer::write_file_atomically(dir / "x", "old");
  {
    AtomicFile file(dir / "x");
    file.write("half of the new");
    CHECK(folder_names(dir.path()).size() == 2);
    CHECK(roformer::read_file(dir / "x", 100) == "old");
  }
  CHECK(roformer::read_file(dir / "x", 100) == "old");
  CHECK(folder_names(dir.path()).size() == 1);
}

TEST_CASE("a failed write keeps the old file, removes the temporary and names the reason") {
  TempDir dir;
  roformer::write_file_atomically(dir / "x", "old");
  {
    const FileSizeLimit limit(1000);
    const std::string message =
        files_error([&] { roformer::write_file_atomically(dir / "x", std::string(5000, 'n')); });
    CHECK(message ==
          "cannot write " + (dir / "x").string() + ": File too large; free space or choose another folder");
  }
  CHECK(roformer::read_file(dir / "x", 100) == "old");
  CHECK(folder_names(dir.path()).size() == 1);
  const std::string missing = files_error([&] { roformer::write_file_atomically(dir / "no/x", ""); });
  CHECK(missing ==
        "cannot write " + (dir / "no/x").string() + ": No such file or directory; create its folder first");
}

TEST_CASE("devices and folders are not replaced") {
  TempDir dir;
  fs::create_directory(dir / "folder");
  CHECK(files_error([&] { roformer::write_file_atomically("/dev/null", "x"); }) ==
        "cannot write /dev/null: it is not a plain file; choose another name");
  CHECK(files_error([&] { roformer::write_file_atomically(dir / "folder", "x"); }).find("not a plain file") !=
        std::string::npos);
  CHECK(folder_names(dir.path()).size() == 1);
}

TEST_CASE("leftovers of dead writers are removed, files of others stay") {
  TempDir dir;
  exit_of_child([&] {
    AtomicFile file(dir / "model.pt");
    file.write("torn");
    ::_exit(0);  // as a kill would
  });
  REQUIRE(folder_names(dir.path()).size() == 1);
  AtomicFile running(dir / "other.pt");
  const std::string own = ".x." + std::to_string(::getppid()) + ".1.tmp";  // a living process
  for (const std::string& name :
       {own, std::string(".hidden"), std::string(".a.tmp"), std::string("a.1.1.tmp")})
    std::ofstream(dir / name) << "x";
  roformer::remove_leftovers(dir.path());
  // The temporary of this very process counts as left over too: the caller is not writing.
  CHECK(folder_names(dir.path()) == std::set<std::string>{own, ".hidden", ".a.tmp", "a.1.1.tmp"});
  roformer::remove_leftovers(dir / "missing");
}

TEST_CASE("read_file refuses what it cannot hold or open") {
  TempDir dir;
  const std::string large(200'000, 'x');
  roformer::write_file_atomically(dir / "x", large);
  CHECK(roformer::read_file(dir / "x", 200'000) == large);
  CHECK(files_error([&] { roformer::read_file(dir / "x", 199'999); }) ==
        "cannot read " + (dir / "x").string() + ": it is larger than 199999 bytes");
  CHECK(files_error([&] { roformer::read_file(dir / "no", 1); }) ==
        "cannot read " + (dir / "no").string() + ": No such file or directory");
  CHECK(files_error([&] { roformer::read_file(dir.path(), 1); }).find("Is a directory") != std::string::npos);
}

TEST_CASE("appending goes on and a failed append leaves no half record") {
  TempDir dir;
  {
    roformer::AppendFile file(dir / "log");
    file.append("one\n");
  }
  roformer::AppendFile file(dir / "log");
  file.append("two\n");
  {
    const FileSizeLimit limit(10);
    CHECK(files_error([&] { file.append("three\n"); }) ==
          "cannot write " + (dir / "log").string() +
              ": No space left on device; free space or choose another folder");
  }
  file.append("four\n");
  CHECK(roformer::read_file(dir / "log", 100) == "one\ntwo\nfour\n");
}

TEST_CASE("a run folder has one user at a time") {
  TempDir dir;
  {
    const FileLock lock(dir.path());
    CHECK(files_error([&] { FileLock second(dir.path()); }) ==
          dir.path().string() +
              " is in use by another process; wait until it ends or choose another run folder");
    CHECK(exit_of_child([&] { FileLock second(dir.path()); }) == 1);
  }
  CHECK(exit_of_child([&] { FileLock next(dir.path()); }) == 0);
  const FileLock again(dir.path());  // the child is gone, and its lock with it
}
