#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <vector>

#include "roformer/data/text.h"
#include "roformer/text/tokenizer.h"

namespace roformer {

/// Windows of exactly `length` token ids, special tokens and padding in place, that stay on disk: a window is
/// read when it is asked for, so memory does not grow with the corpus (the system's page cache does the
/// rest). Safe to read from several threads.
class TokenFile {
 public:
  struct Counts {
    int64_t windows = 0;
    int64_t documents = 0;  ///< documents, lines or blocks
    int64_t bytes = 0;      ///< of these documents
    int64_t tokens = 0;     ///< in the windows, special tokens included, padding not
  };

  ~TokenFile();
  TokenFile(const TokenFile&) = delete;
  TokenFile& operator=(const TokenFile&) = delete;

  int64_t windows() const { return counts_.windows; }
  int64_t length() const { return length_; }
  const Counts& counts() const { return counts_; }
  const std::filesystem::path& path() const { return path_; }

  /// Writes the ids of window `index` to ids[0 .. length). Error if the file was cut or changed meanwhile.
  void read(int64_t index, int32_t* ids) const;

 private:
  friend class TokenFileAccess;
  TokenFile() = default;

  std::filesystem::path path_;
  int fd_ = -1;
  int64_t length_ = 0;
  int64_t width_ = 0;  // bytes of an id: 1, 2 or 4
  int64_t vocab_size_ = 0;
  Counts counts_;
};

/// A prepared corpus.
struct Corpus {
  std::shared_ptr<const TokenFile> train;
  std::shared_ptr<const TokenFile>
      valid;  ///< no windows if valid_fraction is 0 and no validation text was named
  bool from_cache = false;

  /// Error unless the training text fills one batch of `batch` sequences.
  void require_batch(int64_t batch) const;
};

/// Called now and then while text is read: bytes read so far, bytes of all files. May go round twice. What it
/// throws ends the preparation and leaves nothing behind.
using PrepareProgress = std::function<void(int64_t done, int64_t total)>;

/// Tokenizes the text of `options` into two token files in `cache`, or opens them if they are there already.
/// Their name is a hash of everything that they depend on: path, size and modification time of each text file
/// (not its content: reading 20 GB to find out that nothing changed would take minutes), tokenizer, packing,
/// length, split. A cached file is trusted only if its description and size are right, and its checksum too
/// if it has 256 MiB or less. Files appear under their names complete or not at all. Of several processes
/// that want the same corpus at the same time, one prepares it and the others wait.
///
/// Split: a document is held out if the hash of its content falls below valid_fraction; equal documents go
/// the same way. If that left one side without a document, the document with the smallest hash is held out,
/// or the one with the largest is not. A corpus of one document is cut instead, and its last part is held
/// out.
///
/// Errors, besides those of list_text_files and DocumentReader: no text at all, text too short for one window
/// (of either side), text that changed while it was read.
Corpus prepare_corpus(const DataOptions& options, const Tokenizer& tokenizer,
                      const std::filesystem::path& cache, const PrepareProgress& progress = {});

/// Fills windows from the ids of documents, as Packing says (not `automatic`). `sink` gets each full window.
///   windows    the rest at the end is dropped
///   documents  a document that does not fit is continued in the next window, [CLS] and [SEP] around each
///   part; if
///              fewer than 3 places are left they are padded, and so is the end of the last window
///   rows       the rest of each group of 1,000 documents is dropped (Hugging Face, run_mlm.py: group_texts,
///   whose
///              map() works on batches of 1,000; unlike there, empty lines count as nothing)
class Packer {
 public:
  using Sink = std::function<void(const std::vector<int32_t>& window)>;

  Packer(Packing packing, int64_t length, const Tokenizer& tokenizer, Sink sink);
  void add(const std::vector<int32_t>& document);
  void finish();

 private:
  void put(int32_t id);
  void pad();

  Packing packing_;
  size_t length_;
  int32_t classify_, separate_, pad_;
  Sink sink_;
  std::vector<int32_t> window_;
  int64_t rows_ = 0;
};

}  // namespace roformer
