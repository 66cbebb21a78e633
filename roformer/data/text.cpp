#include "roformer/data/text.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "roformer/core/error.h"
#include "roformer/text/unicode.h"

namespace roformer {
namespace fs = std::filesystem;
namespace {

bool is_packed(const fs::path& file) { return file.extension() == ".gz" || file.extension() == ".dz"; }

/// The bytes of a file from start to end, unpacked.
class ByteSource {
 public:
  explicit ByteSource(const fs::path& file) : path_(file.string()) {
    fd_ = ::open(path_.c_str(), O_RDONLY | O_CLOEXEC);
    if (fd_ < 0) fail("cannot read {}: {}", path_, std::strerror(errno));
    struct stat status {};
    if (::fstat(fd_, &status) == 0) size_ = status.st_size;
    if (!is_packed(file)) return;
    gz_ = ::gzdopen(fd_, "rb");
    if (gz_ == nullptr) {
      ::close(fd_);
      fail("cannot read {}: no memory", path_);
    }
    ::gzbuffer(gz_, 256 << 10);
    // zlib hands other files through as they are.
    if (size_ > 0 && ::gzdirect(gz_) == 1) {
      ::gzclose(gz_);
      fail("{}: not a gzip file, in spite of its name; rename it if it is plain text", path_);
    }
  }
  ~ByteSource() {
    if (gz_ != nullptr) {
      ::gzclose(gz_);
    } else {
      ::close(fd_);
    }
  }
  ByteSource(const ByteSource&) = delete;
  ByteSource& operator=(const ByteSource&) = delete;

  bool packed() const { return gz_ != nullptr; }
  int64_t position() const { return gz_ != nullptr ? static_cast<int64_t>(::gzoffset(gz_)) : read_; }

  /// Fewer bytes than asked for only at the end.
  size_t read(char* out, size_t bytes) {
    return gz_ != nullptr ? read_packed(out, bytes) : read_plain(out, bytes);
  }

 private:
  size_t read_plain(char* out, size_t bytes) {
    size_t done = 0;
    while (done < bytes) {
      const ssize_t got = ::read(fd_, out + done, bytes - done);
      if (got < 0 && errno == EINTR) continue;
      if (got < 0) fail("cannot read {}: {}", path_, std::strerror(errno));
      if (got == 0) break;
      done += static_cast<size_t>(got);
    }
    read_ += static_cast<int64_t>(done);
    if (done < bytes && read_ < size_) {
      fail("{}: shrank from {} to {} bytes while it was read; start again when it is complete", path_, size_,
           read_);
    }
    return done;
  }

  size_t read_packed(char* out, size_t bytes) {
    const int got = ::gzread(gz_, out, static_cast<unsigned>(bytes));
    int code = Z_OK;
    const char* message = ::gzerror(gz_, &code);
    if (got < 0 || (code != Z_OK && code != Z_STREAM_END)) {
      const std::string reason = code == Z_ERRNO       ? std::strerror(errno)
                                 : code == Z_BUF_ERROR ? "cut off"
                                                       : message;
      fail("{}: damaged gzip file ({}); get it again", path_, reason);
    }
    return static_cast<size_t>(got);
  }

  std::string path_;
  int fd_ = -1;
  gzFile gz_ = nullptr;
  int64_t size_ = 0, read_ = 0;
};

bool is_blank(std::string_view line) { return line.find_first_not_of(" \t") == std::string_view::npos; }

bool looks_binary(const fs::path& file) {
  if (is_packed(file)) return file.stem().extension() == ".tar";
  ByteSource source(file);
  char head[8192];
  const size_t bytes = source.read(head, sizeof head);
  return std::memchr(head, 0, bytes) != nullptr;
}

void add_folder(const fs::path& folder, std::vector<fs::path>& files) {
  std::vector<fs::path> found;
  try {
    for (auto it = fs::recursive_directory_iterator(folder); it != fs::recursive_directory_iterator(); ++it) {
      if (it->path().filename().string().starts_with('.')) {
        if (it->is_directory()) it.disable_recursion_pending();
      } else if (it->is_regular_file() && !looks_binary(it->path())) {
        found.push_back(it->path());
      }
    }
  } catch (const fs::filesystem_error& error) {
    fail("cannot read {}: {}", error.path1().string(), error.code().message());
  }
  if (found.empty()) fail("{}: no text files in this folder", folder.string());
  std::sort(found.begin(), found.end());
  files.insert(files.end(), found.begin(), found.end());
}

}  // namespace

Packing resolve(Packing packing, const Tokenizer& tokenizer) {
  if (packing != Packing::automatic) return packing;
  return tokenizer.needs_text() ? Packing::documents : Packing::windows;
}

size_t cut_point(std::string_view text, size_t at) {
  const size_t lowest = at > 4096 ? at - 4096 : 0;
  for (size_t i = at; i > lowest; --i) {
    const char c = text[i - 1];
    if (c == ' ' || c == '\n' || c == '\t') return i;
  }
  for (size_t back = 0; back <= std::min<size_t>(at, 3); ++back) {
    if ((static_cast<unsigned char>(text[at - back]) & 0xC0) != 0x80) return at - back;
  }
  return at;  // no UTF-8
}

std::vector<fs::path> list_text_files(const std::vector<fs::path>& paths) {
  std::vector<fs::path> files;
  for (const fs::path& path : paths) {
    std::error_code code;
    const fs::file_status status = fs::status(path, code);
    if (!fs::exists(status))
      fail("{}: {}", path.string(), code ? code.message() : "No such file or directory");
    if (fs::is_directory(status)) {
      add_folder(path, files);
    } else if (fs::is_regular_file(status)) {
      files.push_back(path);
    } else {
      fail("{}: neither a file nor a folder", path.string());
    }
  }
  return files;
}

struct DocumentReader::Impl {
  Impl(const fs::path& file_, Packing packing_, bool needs_text_)
      : file(file_), packing(packing_), needs_text(needs_text_), source(file_) {
    if (packing == Packing::windows && !needs_text) return;
    while (available() < 3 && fill()) {
    }
    if (std::string_view(buffer).starts_with("\xEF\xBB\xBF")) begin = 3;
  }

  size_t available() const { return buffer.size() - begin; }

  /// Appends to the buffer; false at the end of the file.
  bool fill() {
    if (at_end) return false;
    constexpr size_t chunk = 256 << 10;
    buffer.erase(0, begin);
    start += static_cast<int64_t>(begin);
    begin = 0;
    const size_t old = buffer.size();
    buffer.resize(old + chunk);
    const size_t got = source.read(buffer.data() + old, chunk);
    buffer.resize(old + got);
    at_end = got < chunk;
    return got > 0;
  }

  /// The next `bytes` of the buffer, and `skip` more that nobody gets.
  std::string_view take(size_t bytes, size_t skip = 0) {
    const std::string_view text = std::string_view(buffer).substr(begin, bytes);
    if (needs_text) check(text);
    begin += bytes + skip;
    return text;
  }

  void check(std::string_view text) const {
    const size_t valid = valid_utf8_prefix(text);
    const size_t nul = std::min(text.find('\0'), text.size());
    if (std::min(valid, nul) == text.size()) return;
    const int64_t offset = start + static_cast<int64_t>(begin + std::min(valid, nul));
    const char* where = source.packed() ? " of the unpacked text" : "";
    if (nul < valid)
      fail("{}: byte {}{} is NUL; is this UTF-16 or a binary file?", file.string(), offset, where);
    fail("{}: not UTF-8 at byte {}{}; convert it (iconv -t UTF-8)", file.string(), offset, where);
  }

  bool next_block(std::string& block) {
    constexpr size_t most = block_bytes;
    while (available() <= most && fill()) {
    }
    if (available() == 0) return false;
    size_t bytes = std::min(available(), most);
    if (needs_text && available() > most) bytes = cut_point(std::string_view(buffer).substr(begin), most);
    block = take(bytes);
    return true;
  }

  /// A line, or a piece of one that is longer than a document may be: then `partial`.
  bool next_line() {
    constexpr size_t most = document_bytes;
    partial = false;
    for (;;) {
      const size_t end = buffer.find('\n', begin);
      if (end != std::string::npos && end - begin <= most) {
        line = take(end - begin, 1);
        break;
      }
      if (available() > most) {
        line = take(cut_point(std::string_view(buffer).substr(begin), most));
        partial = true;
        return true;
      }
      if (fill()) continue;
      if (available() == 0) return false;
      line = take(available());
      break;
    }
    if (line.ends_with('\r')) line.pop_back();
    return true;
  }

  bool next_document(std::string& document) {
    document.clear();
    for (;;) {
      if (!kept_back && !next_line()) return !document.empty();
      kept_back = false;
      if (is_blank(line)) {
        if (!document.empty()) return true;
        continue;
      }
      if (!document.empty() && document.size() + 1 + line.size() > static_cast<size_t>(document_bytes)) {
        kept_back = true;
        return true;
      }
      if (!document.empty()) document += '\n';
      document += line;
      if (partial) return true;
    }
  }

  bool next_row(std::string& row) {
    while (next_line()) {
      if (is_blank(line)) continue;
      row = line;
      return true;
    }
    return false;
  }

  fs::path file;
  Packing packing;
  bool needs_text;
  ByteSource source;
  std::string buffer, line;
  size_t begin = 0;   // of what was not handed out
  int64_t start = 0;  // place of buffer[0] in the file
  bool at_end = false;
  bool partial = false;    // `line` is not a whole line
  bool kept_back = false;  // `line` starts the next document
};

DocumentReader::DocumentReader(const fs::path& file, Packing packing, bool needs_text)
    : impl_(std::make_unique<Impl>(file, packing, needs_text)) {}
DocumentReader::~DocumentReader() = default;

bool DocumentReader::next(std::string& document) {
  switch (impl_->packing) {
    case Packing::windows:
      return impl_->next_block(document);
    case Packing::rows:
      return impl_->next_row(document);
    default:
      return impl_->next_document(document);
  }
}

int64_t DocumentReader::position() const { return impl_->source.position(); }

}  // namespace roformer
