#include "roformer/core/files.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <utility>

#include "roformer/core/error.h"

namespace roformer {
namespace fs = std::filesystem;
namespace {

[[noreturn]] void cannot_write(const fs::path& path, int code) {
  std::string advice = "choose another folder";
  if (code == ENOSPC || code == EDQUOT || code == EFBIG) advice = "free space or choose another folder";
  if (code == ENOENT) advice = "create its folder first";
  fail("cannot write {}: {}; {}", path.string(), std::strerror(code), advice);
}

fs::path folder_of(const fs::path& path) {
  return path.has_parent_path() ? path.parent_path() : fs::path(".");
}

// Renames are durable only once the folder itself is on the disk. Some file systems cannot sync folders.
void sync_folder(const fs::path& folder) {
  const int fd = ::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0) return;  // a folder may be writable but not readable
  const int code = ::fsync(fd) == 0 ? 0 : errno;
  ::close(fd);
  if (code == EIO || code == ENOSPC || code == EDQUOT) cannot_write(folder, code);
}

// The process id in the name of a temporary file ".<name>.<pid>.<count>.tmp", else 0.
pid_t owner_of_temporary(std::string name) {
  if (!name.starts_with('.') || !name.ends_with(".tmp")) return 0;
  name.resize(name.size() - 4);
  const auto take_number = [&name]() -> pid_t {
    const std::size_t dot = name.rfind('.');
    if (dot == std::string::npos) return 0;
    pid_t number = 0;
    const char* last = name.data() + name.size();
    const auto [end, code] = std::from_chars(name.data() + dot + 1, last, number);
    if (code != std::errc() || end != last) return 0;
    name.resize(dot);
    return number;
  };
  return take_number() > 0 ? take_number() : 0;
}

}  // namespace

AtomicFile::AtomicFile(fs::path target) : target_(std::move(target)) {
  static std::atomic<int> count = 0;
  std::error_code ignored;
  const fs::file_status status = fs::symlink_status(target_, ignored);
  // A rename would replace a device such as /dev/null by a file.
  if (fs::exists(status) && !fs::is_regular_file(status) && !fs::is_symlink(status))
    fail("cannot write {}: it is not a plain file; choose another name", target_.string());
  temporary_ =
      folder_of(target_) / fmt::format(".{}.{}.{}.tmp", target_.filename().string(), ::getpid(), ++count);
  fd_ = ::open(temporary_.c_str(), O_RDWR | O_CREAT | O_TRUNC | O_NOFOLLOW | O_CLOEXEC, 0666);
  if (fd_ < 0) cannot_write(target_, errno);
}

AtomicFile::~AtomicFile() { discard(); }

void AtomicFile::discard() {
  if (fd_ < 0) return;
  ::close(std::exchange(fd_, -1));
  ::unlink(temporary_.c_str());
}

void AtomicFile::write(std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t written = ::write(fd_, bytes.data(), bytes.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) cannot_write(target_, errno);
    bytes.remove_prefix(static_cast<std::size_t>(written));
  }
}

void AtomicFile::commit() {
  if (::fsync(fd_) != 0) cannot_write(target_, errno);
  if (::rename(temporary_.c_str(), target_.c_str()) != 0) cannot_write(target_, errno);
  ::close(std::exchange(fd_, -1));
  sync_folder(folder_of(target_));
}

void write_file_atomically(const fs::path& path, std::string_view bytes) {
  AtomicFile file(path);
  file.write(bytes);
  file.commit();
}

void remove_leftovers(const fs::path& folder) {
  std::error_code ignored;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder, ignored)) {
    const pid_t owner = owner_of_temporary(entry.path().filename().string());
    if (owner == 0) continue;
    const bool alive = owner != ::getpid() && (::kill(owner, 0) == 0 || errno == EPERM);
    if (!alive) fs::remove(entry.path(), ignored);
  }
}

AppendFile::AppendFile(fs::path path) : path_(std::move(path)) {
  fd_ = ::open(path_.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
  if (fd_ < 0) cannot_write(path_, errno);
}

AppendFile::~AppendFile() { ::close(fd_); }

void AppendFile::append(std::string_view bytes) {
  struct stat before = {};
  if (::fstat(fd_, &before) != 0) cannot_write(path_, errno);
  ssize_t written = 0;
  do {
    written = ::write(fd_, bytes.data(), bytes.size());
  } while (written < 0 && errno == EINTR);
  if (written == static_cast<ssize_t>(bytes.size())) return;
  // The system reports a full disk as a short write first, and with a reason only at the next one.
  const int code = written < 0 ? errno : ENOSPC;
  if (written > 0 && ::ftruncate(fd_, before.st_size) != 0) cannot_write(path_, errno);
  cannot_write(path_, code);
}

std::string read_file(const fs::path& path, std::size_t limit) {
  const auto cannot_read = [&path](int code) {
    fail("cannot read {}: {}", path.string(), std::strerror(code));
  };
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) cannot_read(errno);
  std::string text;
  std::size_t size = 0;
  int code = 0;
  while (true) {
    if (size == text.size()) text.resize(size + std::max<std::size_t>(std::size_t{1} << 16, size / 2));
    const ssize_t got = ::read(fd, text.data() + size, text.size() - size);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) code = errno;
    if (got <= 0) break;
    size += static_cast<std::size_t>(got);
    if (size > limit) break;
  }
  ::close(fd);
  if (code != 0) cannot_read(code);
  if (size > limit) fail("cannot read {}: it is larger than {} bytes", path.string(), limit);
  text.resize(size);
  return text;
}

FileLock::FileLock(const fs::path& folder) {
  const fs::path path = folder / ".lock";
  fd_ = ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666);
  if (fd_ < 0) cannot_write(path, errno);
  if (::flock(fd_, LOCK_EX | LOCK_NB) == 0) return;
  const int code = errno;
  // Network file systems without locks: training there must still be possible.
  if (code == ENOSYS || code == EOPNOTSUPP || code == ENOLCK) return;
  ::close(std::exchange(fd_, -1));
  if (code != EWOULDBLOCK) cannot_write(path, code);
  fail("{} is in use by another process; wait until it ends or choose another run folder", folder.string());
}

bool FileLock::is_held(const fs::path& folder) {
  const int fd = ::open((folder / ".lock").c_str(), O_RDWR | O_CLOEXEC);
  if (fd < 0) return false;
  const bool held = ::flock(fd, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK;
  ::close(fd);
  return held;
}

// The file stays: removing it would let two processes lock two different files of the same name.
FileLock::~FileLock() { ::close(fd_); }

}  // namespace roformer
