#pragma once

#include <cstddef>
#include <filesystem>
#include <string>
#include <string_view>

namespace roformer {

/// A file that appears under its name complete or not at all: the bytes go to a temporary file beside the
/// target, commit() syncs and renames it. Without commit() the temporary is removed and an old target stays
/// as it was. Every failure is an Error such as "cannot write X: No space left on device; free space or
/// choose another folder".
class AtomicFile {
 public:
  explicit AtomicFile(std::filesystem::path target);
  ~AtomicFile();
  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;

  void write(std::string_view bytes);
  void commit();

  /// For another program that fills the file through /dev/fd.
  int descriptor() const { return fd_; }

 private:
  void discard();

  std::filesystem::path target_, temporary_;
  int fd_ = -1;
};

void write_file_atomically(const std::filesystem::path& path, std::string_view bytes);

/// Removes the temporary files that dead processes, or this one, left in `folder` (not below it). Those of
/// other living processes stay.
void remove_leftovers(const std::filesystem::path& folder);

/// A file that only grows. Closed on exec, so child processes do not hold it.
class AppendFile {
 public:
  explicit AppendFile(std::filesystem::path path);
  ~AppendFile();
  AppendFile(const AppendFile&) = delete;
  AppendFile& operator=(const AppendFile&) = delete;

  /// One write call, so neither a kill nor a reader sees the parts of two appends mixed. A failure is an
  /// Error and leaves the file as it was.
  void append(std::string_view bytes);

  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
  int fd_ = -1;
};

/// The whole file; an Error if it cannot be read or holds more than `limit` bytes.
std::string read_file(const std::filesystem::path& path, std::size_t limit);

/// Keeps a second process from training into the same run folder. The lock goes with the process, however it
/// ends.
class FileLock {
 public:
  /// Creates `folder/.lock`; an Error "... is in use by another process" if another FileLock holds it.
  explicit FileLock(const std::filesystem::path& folder);
  ~FileLock();
  /// Whether another FileLock holds it now.
  static bool is_held(const std::filesystem::path& folder);
  FileLock(const FileLock&) = delete;
  FileLock& operator=(const FileLock&) = delete;

 private:
  int fd_ = -1;
};

}  // namespace roformer
