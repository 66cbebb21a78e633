#include "roformer/data/token_file.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <limits>
#include <optional>
#include <string_view>
#include <type_traits>
#include <utility>

#include "roformer/core/error.h"
#include "roformer/core/files.h"
#include "roformer/core/random.h"

namespace roformer {
namespace fs = std::filesystem;
namespace {

static_assert(std::endian::native == std::endian::little, "token files are written as they lie in memory");

constexpr size_t checksum_chunk = size_t{1} << 20;
constexpr int64_t verified_bytes = int64_t{256} << 20;

using CorpusKey = std::array<uint64_t, 2>;

/// At the end of the file, so that it can be written in one go.
struct TokenFileDescription {
  std::array<char, 8> magic = {'R', 'o', 'F', 't', 'o', 'k', 'e', 'n'};
  uint32_t version = 1;
  uint32_t width = 0;
  CorpusKey key = {};
  int64_t length = 0;
  int64_t vocab_size = 0;
  TokenFile::Counts counts;
  uint64_t ids_checksum = 0;
  uint64_t checksum = 0;  // of all above
};
static_assert(std::is_trivially_copyable_v<TokenFileDescription> && sizeof(TokenFileDescription) == 96);

uint64_t hash_bytes(std::string_view bytes, uint64_t seed) {
  uint64_t hash = mix(seed, bytes.size());
  size_t i = 0;
  for (uint64_t word; i + 8 <= bytes.size(); i += 8) {
    std::memcpy(&word, bytes.data() + i, 8);
    hash = mix(hash ^ word);
  }
  uint64_t rest = 0;
  std::memcpy(&rest, bytes.data() + i, bytes.size() - i);
  return mix(hash ^ rest);
}

uint64_t checksum_of(const TokenFileDescription& description) {
  return hash_bytes({reinterpret_cast<const char*>(&description), offsetof(TokenFileDescription, checksum)},
                    0);
}

bool read_at(int fd, char* out, size_t bytes, int64_t offset) {
  while (bytes > 0) {
    const ssize_t got = ::pread(fd, out, bytes, offset);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return false;
    out += got;
    bytes -= static_cast<size_t>(got);
    offset += got;
  }
  return true;
}

/// Ids from the highest one that a window can hold.
int64_t width_for(const Tokenizer& tokenizer, Packing packing) {
  int64_t highest = tokenizer.vocab_size() - 1;
  if (packing == Packing::windows) {  // text alone: bytes fit one byte
    while (highest > 0 && tokenizer.is_special(static_cast<int32_t>(highest))) --highest;
  }
  return highest <= 0xFF ? 1 : highest <= 0xFFFF ? 2 : 4;
}

template <class T>
void widen(const char* bytes, int64_t count, int32_t* ids) {
  for (int64_t i = 0; i < count; ++i) {
    T id;
    std::memcpy(&id, bytes + i * static_cast<int64_t>(sizeof(T)), sizeof(T));
    ids[i] = static_cast<int32_t>(id);
  }
}

class TokenFileWriter {
 public:
  TokenFileWriter(const fs::path& path, int64_t width, int64_t pad) : file_(path), width_(width), pad_(pad) {}

  void add(const std::vector<int32_t>& window) {
    for (const int32_t id : window) {
      buffer_.append(reinterpret_cast<const char*>(&id), static_cast<size_t>(width_));
      counts.tokens += id != pad_;
    }
    ++counts.windows;
    if (buffer_.size() < checksum_chunk) return;
    write({buffer_.data(), checksum_chunk});
    buffer_.erase(0, checksum_chunk);
  }

  void commit(const CorpusKey& key, int64_t length, int64_t vocab_size) {
    if (!buffer_.empty()) write(buffer_);
    TokenFileDescription description;
    description.width = static_cast<uint32_t>(width_);
    description.key = key;
    description.length = length;
    description.vocab_size = vocab_size;
    description.counts = counts;
    description.ids_checksum = checksum_;
    description.checksum = checksum_of(description);
    file_.write({reinterpret_cast<const char*>(&description), sizeof description});
    file_.commit();
  }

  TokenFile::Counts counts;

 private:
  void write(std::string_view chunk) {
    checksum_ = mix(checksum_, hash_bytes(chunk, 0));
    file_.write(chunk);
  }

  AtomicFile file_;
  int64_t width_, pad_;
  std::string buffer_;
  uint64_t checksum_ = 0;
};

/// Held by the one process that prepares something in this folder; waits for the others.
class CacheLock {
 public:
  explicit CacheLock(const fs::path& folder)
      : fd_(::open((folder / ".lock").c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666)) {
    if (fd_ < 0) fail("cannot write {}: {}; choose another folder", folder.string(), std::strerror(errno));
    // Where there are no locks (some network file systems) two may do the same work; the result is the same
    // too.
    while (::flock(fd_, LOCK_EX) != 0 && errno == EINTR) {
    }
  }
  ~CacheLock() { ::close(fd_); }
  CacheLock(const CacheLock&) = delete;
  CacheLock& operator=(const CacheLock&) = delete;

 private:
  int fd_;
};

struct TextFile {
  fs::path path;
  int64_t size = 0;
  int64_t modified = 0;  // nanoseconds

  explicit TextFile(fs::path file) : path(std::move(file)) {
    struct stat status {};
    if (::stat(path.c_str(), &status) != 0) fail("cannot read {}: {}", path.string(), std::strerror(errno));
    size = status.st_size;
    modified = int64_t{status.st_mtim.tv_sec} * 1'000'000'000 + status.st_mtim.tv_nsec;
  }
};

std::vector<TextFile> text_files(const std::vector<fs::path>& paths) {
  std::vector<TextFile> files;
  for (const fs::path& path : list_text_files(paths)) files.emplace_back(path);
  return files;
}

/// One of train and valid while it is prepared.
struct CorpusSide {
  CorpusSide(const fs::path& path, Packing packing, int64_t length, const Tokenizer& tokenizer)
      : writer(path, width_for(tokenizer, packing), tokenizer.special(Special::pad)),
        packer(packing, length, tokenizer,
               [this](const std::vector<int32_t>& window) { writer.add(window); }) {}

  TokenFileWriter writer;
  Packer packer;
  int64_t ids = 0;  // of the text, also of what the packer drops
};

/// Held out: documents whose hash is below `threshold`; or the last part of each.
struct CorpusSplit {
  uint64_t threshold = 0;
  bool cut = false;
};

class CorpusBuilder {
 public:
  CorpusBuilder(const DataOptions& options, const Tokenizer& tokenizer, const PrepareProgress& progress)
      : options_(options),
        tokenizer_(tokenizer),
        progress_(progress),
        packing_(resolve(options.packing, tokenizer)),
        train_files_(text_files(options.train)),
        valid_files_(text_files(options.valid)) {
    for (const TextFile& file : train_files_) total_bytes_ += file.size;
    for (const TextFile& file : valid_files_) {
      total_bytes_ += file.size;
      for (const TextFile& other : train_files_) {
        std::error_code code;
        if (!fs::equivalent(file.path, other.path, code)) continue;
        fail("{} is training text and validation text; take it out of data.train or of data.valid",
             file.path.string());
      }
    }
  }

  CorpusKey key() const {
    std::string text =
        fmt::format("{}\n{}\n{}\n", static_cast<int>(packing_), options_.length, tokenizer_.fingerprint());
    if (valid_files_.empty()) text += fmt::format("{} {}\n", options_.valid_fraction, options_.split_seed);
    for (const auto* files : {&train_files_, &valid_files_}) {
      for (const TextFile& file : *files) {
        const std::string path = fs::absolute(file.path).lexically_normal().string();
        text += fmt::format("{}\n{} {}\n", path, file.size, file.modified);
      }
      text += "--\n";
    }
    return {hash_bytes(text, 1), hash_bytes(text, 2)};
  }

  void build(const fs::path& train_path, const fs::path& valid_path) {
    const double fraction = valid_files_.empty() ? options_.valid_fraction : 0.0;
    CorpusSplit split{static_cast<uint64_t>(std::ldexp(fraction, 64)), false};
    for (bool again = true; again;) {
      again = false;
      CorpusSide train(train_path, packing_, options_.length, tokenizer_);
      CorpusSide valid(valid_path, packing_, options_.length, tokenizer_);
      done_bytes_ = 0;
      smallest_ = std::numeric_limits<uint64_t>::max();
      largest_ = 0;
      for (const TextFile& file : train_files_) read(file, split, train, valid);
      const int64_t trained = train.writer.counts.documents, held_out = valid.writer.counts.documents;
      if (trained + held_out == 0) fail("{}: no text in it", name_of(options_.train));
      if (fraction > 0 && !split.cut && (trained == 0 || held_out == 0)) {
        again = true;
        split.cut = smallest_ == largest_;
        split.threshold = held_out == 0 ? smallest_ + 1 : largest_;
        continue;
      }
      for (const TextFile& file : valid_files_) read(file, {}, valid, train);
      finish(train, valid, fraction > 0);
    }
  }

 private:
  static std::string name_of(const std::vector<fs::path>& paths) {
    return paths.size() == 1 ? paths[0].string()
                             : fmt::format("{} and {} more", paths[0].string(), paths.size() - 1);
  }

  void read(const TextFile& file, const CorpusSplit& split, CorpusSide& train, CorpusSide& valid) {
    DocumentReader reader(file.path, packing_, tokenizer_.needs_text());
    int64_t reported = 0;
    std::string document;
    if (progress_) progress_(done_bytes_, total_bytes_);
    while (reader.next(document)) {
      const uint64_t hash = hash_bytes(document, static_cast<uint64_t>(options_.split_seed));
      smallest_ = std::min(smallest_, hash);
      largest_ = std::max(largest_, hash);
      if (split.cut) {
        const double kept = static_cast<double>(document.size()) * (1.0 - options_.valid_fraction);
        const size_t at = cut_point(document, std::min(static_cast<size_t>(kept), document.size() - 1));
        add(std::string_view(document).substr(0, at), train);
        add(std::string_view(document).substr(at), valid);
      } else {
        add(document, hash < split.threshold ? valid : train);
      }
      if (progress_ && reader.position() - reported >= int64_t{1} << 20) {
        reported = reader.position();
        progress_(done_bytes_ + reported, total_bytes_);
      }
    }
    done_bytes_ += file.size;
    const TextFile now(file.path);
    if (now.size != file.size || now.modified != file.modified) {
      fail("{}: changed while it was read; start again when it is complete", file.path.string());
    }
  }

  void add(std::string_view document, CorpusSide& side) {
    ids_.clear();
    tokenizer_.encode(document, ids_);
    side.packer.add(ids_);
    side.ids += static_cast<int64_t>(ids_.size());
    side.writer.counts.documents += 1;
    side.writer.counts.bytes += static_cast<int64_t>(document.size());
  }

  void finish(CorpusSide& train, CorpusSide& valid, bool split) {
    train.packer.finish();
    valid.packer.finish();
    if (train.writer.counts.windows == 0) {
      fail(
          "{}: its {} tokens of training text do not fill one sequence of {}; give more text or lower "
          "data.length",
          name_of(options_.train), train.ids, options_.length);
    }
    if (valid.writer.counts.windows == 0 && !valid_files_.empty()) {
      fail("{}: its {} tokens do not fill one sequence of {}; give more text or lower data.length",
           name_of(options_.valid), valid.ids, options_.length);
    }
    if (valid.writer.counts.windows == 0 && split) {
      fail(
          "{}: the {} tokens held out for validation do not fill one sequence of {}; raise "
          "data.valid_fraction, "
          "name data.valid, or give more text",
          name_of(options_.train), valid.ids, options_.length);
    }
    valid.writer.commit(key(), options_.length, tokenizer_.vocab_size());
    train.writer.commit(key(), options_.length, tokenizer_.vocab_size());
  }

  const DataOptions& options_;
  const Tokenizer& tokenizer_;
  const PrepareProgress& progress_;
  Packing packing_;
  std::vector<TextFile> train_files_, valid_files_;
  int64_t total_bytes_ = 0, done_bytes_ = 0;
  uint64_t smallest_ = 0, largest_ = 0;  // hashes seen in this pass
  std::vector<int32_t> ids_;
};

}  // namespace

/// Opens a token file; null if it is missing, damaged or of another key.
class TokenFileAccess {
 public:
  static std::shared_ptr<const TokenFile> open(const fs::path& path, const CorpusKey& key) {
    std::shared_ptr<TokenFile> file(new TokenFile);
    file->path_ = path;
    file->fd_ = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
    struct stat status {};
    if (file->fd_ < 0 || ::fstat(file->fd_, &status) != 0) return nullptr;
    TokenFileDescription found;
    const int64_t id_bytes = status.st_size - static_cast<int64_t>(sizeof found);
    if (id_bytes < 0 || !read_at(file->fd_, reinterpret_cast<char*>(&found), sizeof found, id_bytes))
      return nullptr;
    if (found.magic != TokenFileDescription{}.magic || found.version != TokenFileDescription{}.version)
      return nullptr;
    if (found.checksum != checksum_of(found) || found.key != key) return nullptr;
    if (found.counts.windows * found.length * found.width != id_bytes) return nullptr;
    if (id_bytes <= verified_bytes && !verify(file->fd_, id_bytes, found.ids_checksum)) return nullptr;
    file->length_ = found.length;
    file->width_ = found.width;
    file->vocab_size_ = found.vocab_size;
    file->counts_ = found.counts;
    return file;
  }

 private:
  static bool verify(int fd, int64_t bytes, uint64_t wanted) {
    std::string chunk;
    uint64_t checksum = 0;
    for (int64_t offset = 0; offset < bytes; offset += static_cast<int64_t>(checksum_chunk)) {
      chunk.resize(static_cast<size_t>(std::min<int64_t>(checksum_chunk, bytes - offset)));
      if (!read_at(fd, chunk.data(), chunk.size(), offset)) return false;
      checksum = mix(checksum, hash_bytes(chunk, 0));
    }
    return checksum == wanted;
  }
};

TokenFile::~TokenFile() {
  if (fd_ >= 0) ::close(fd_);
}

void TokenFile::read(int64_t index, int32_t* ids) const {
  if (index < 0 || index >= windows()) throw std::out_of_range("no such window in the token file");
  thread_local std::vector<char> bytes;
  bytes.resize(static_cast<size_t>(length_ * width_));
  bool good = read_at(fd_, bytes.data(), bytes.size(), index * length_ * width_);
  if (good) {
    if (width_ == 1) widen<uint8_t>(bytes.data(), length_, ids);
    if (width_ == 2) widen<uint16_t>(bytes.data(), length_, ids);
    if (width_ == 4) widen<uint32_t>(bytes.data(), length_, ids);
    // An id outside the vocabulary would end in an index error deep inside the model.
    good = std::all_of(ids, ids + length_, [&](int32_t id) { return id >= 0 && id < vocab_size_; });
  }
  if (!good) fail("{}: damaged; delete it, the next run prepares it again", path_.string());
}

void Corpus::require_batch(int64_t batch) const {
  if (train->windows() >= batch) return;
  fail(
      "the training text fills {} sequences of {} tokens, fewer than one batch of {}; give more text, or "
      "lower "
      "trainer.batch or data.length",
      train->windows(), train->length(), batch);
}

Corpus prepare_corpus(const DataOptions& options, const Tokenizer& tokenizer, const fs::path& cache,
                      const PrepareProgress& progress) {
  CorpusBuilder builder(options, tokenizer, progress);
  const CorpusKey key = builder.key();
  const std::string name = fmt::format("{:016x}{:016x}", key[0], key[1]);
  const fs::path train = cache / (name + ".train.tokens"), valid = cache / (name + ".valid.tokens");
  const auto open = [&](bool from_cache) -> std::optional<Corpus> {
    Corpus corpus{TokenFileAccess::open(train, key), TokenFileAccess::open(valid, key), from_cache};
    if (corpus.train && corpus.valid) return corpus;
    return std::nullopt;
  };
  if (auto corpus = open(true)) return *corpus;

  std::error_code code;
  fs::create_directories(cache, code);
  if (code) fail("cannot write {}: {}; choose another folder", cache.string(), code.message());
  const CacheLock lock(cache);
  if (auto corpus = open(true)) return *corpus;  // another process was faster
  remove_leftovers(cache);
  builder.build(train, valid);
  if (auto corpus = open(false)) return *corpus;
  fail("{}: damaged right after it was written; check the disk", train.string());
}

Packer::Packer(Packing packing, int64_t length, const Tokenizer& tokenizer, Sink sink)
    : packing_(packing),
      length_(static_cast<size_t>(length)),
      classify_(tokenizer.special(Special::classify)),
      separate_(tokenizer.special(Special::separate)),
      pad_(tokenizer.special(Special::pad)),
      sink_(std::move(sink)) {
  window_.reserve(length_);
}

void Packer::add(const std::vector<int32_t>& document) {
  if (document.empty()) return;
  if (packing_ == Packing::documents) {
    for (size_t done = 0; done < document.size();) {
      if (length_ - window_.size() < 3) pad();
      const size_t part = std::min(document.size() - done, length_ - window_.size() - 2);
      put(classify_);
      for (const size_t end = done + part; done < end; ++done) put(document[done]);
      put(separate_);
    }
    return;
  }
  if (packing_ == Packing::rows) put(classify_);
  for (const int32_t id : document) put(id);
  if (packing_ != Packing::rows) return;
  put(separate_);
  if (++rows_ % 1000 == 0) window_.clear();
}

void Packer::finish() {
  if (packing_ == Packing::documents && !window_.empty()) pad();
  window_.clear();
}

void Packer::put(int32_t id) {
  window_.push_back(id);
  if (window_.size() < length_) return;
  sink_(window_);
  window_.clear();
}

void Packer::pad() {
  while (window_.size() < length_ - 1) window_.push_back(pad_);
  put(pad_);
}

}  // namespace roformer
