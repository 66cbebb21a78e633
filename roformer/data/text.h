#pragma once

#include <array>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "roformer/core/config.h"
#include "roformer/text/tokenizer.h"

namespace roformer {

/// How running text becomes windows of equal length.
enum class Packing {
  automatic,  ///< windows if the tokenizer takes any bytes, else documents
  windows,    ///< one stream of tokens, cut; no special tokens, no padding
  documents,  ///< paragraphs (blank lines between), each piece in a window wrapped in [CLS] .. [SEP]
  rows,       ///< every line wrapped, concatenated, cut: what Hugging Face's run_mlm.py does
};
inline auto enum_names(Packing) {
  return std::array<std::pair<Packing, std::string_view>, 4>{{{Packing::automatic, "automatic"},
                                                              {Packing::windows, "windows"},
                                                              {Packing::documents, "documents"},
                                                              {Packing::rows, "rows"}}};
}
/// `automatic` made definite.
Packing resolve(Packing packing, const Tokenizer& tokenizer);

/// The `data:` block of a run on plain text.
struct DataOptions {
  std::vector<std::filesystem::path> train;
  std::vector<std::filesystem::path> valid;
  double valid_fraction = 0.05;
  int64_t split_seed = 0;
  int64_t length = 128;
  Packing packing = Packing::automatic;
  int64_t eval_sequences = 128;
  std::filesystem::path cache;
};
template <class V>
void fields(V& v, DataOptions& o) {
  v("train", o.train, "training text: a file, a folder (read recursively) or a list of both; .gz is unpacked",
    required());
  v("valid", o.valid,
    "validation text, in the same forms; without it, a part of the training text is held out");
  v("valid_fraction", o.valid_fraction,
    "part of the training text that is held out, chosen by a hash of each document (of each 64 KiB block "
    "where "
    "text is cut into plain windows); counts only without data.valid; 0 = train on everything, never "
    "evaluate",
    within(0.0, 0.9));
  v("split_seed", o.split_seed, "another number holds out other documents", at_least(0));
  v("length", o.length, "tokens in a sequence, special tokens included", within(3, 1 << 20));
  v("packing", o.packing,
    "how text fills a sequence. windows: cut anywhere, no special tokens; documents: paragraphs as [CLS] "
    "text "
    "[SEP], long ones continued in the next sequence; rows: lines as [CLS] line [SEP], joined and cut, as in "
    "Hugging Face's run_mlm; automatic: windows for bytes, documents for other tokenizers");
  v("eval_sequences", o.eval_sequences, "validation sequences of one evaluation, the same ones each time",
    at_least(1));
  v("cache", o.cache, "folder for the tokenised text, may be shared by runs; default: cache/ in the run folder");
}

/// Where to cut `text` (longer than `at` bytes): behind the last white space of the 4 KiB before `at`, else
/// between two characters, at most 3 bytes before `at`.
size_t cut_point(std::string_view text, size_t at);

/// The files behind a list of paths, in a fixed order: files as named; a folder gives its files at any depth,
/// sorted by path, without hidden ones, archives (*.tar.gz) and binary ones (a NUL byte in the first 8 KiB,
/// unless *.gz or
/// *.dz). Error: a path that does not exist or is neither file nor folder, a folder without text.
std::vector<std::filesystem::path> list_text_files(const std::vector<std::filesystem::path>& paths);

/// The documents of one file, one after another, in bounded memory whatever the file is like.
///   windows    blocks of 64 KiB, every byte as it is in the file; for a tokenizer that needs text they end
///   at white
///              space, or at least between characters, and a byte order mark at the start is dropped.
///   documents  the lines between two blank lines, joined by '\n'. Blank: nothing but spaces and tabs.
///   rows       single lines that are not blank.
/// In documents and rows CRLF ends a line as LF does, a byte order mark is dropped, and what is longer than 1
/// MiB becomes several documents, cut at white space where there is some.
/// *.gz and *.dz are unpacked while reading (several members in a row count as one text).
/// Errors name the file: unreadable, shrunk while being read, damaged gzip; for tokenizers that need text
/// also the place of the first byte that is not UTF-8, or NUL (which mostly means UTF-16 or a binary file).
class DocumentReader {
 public:
  static constexpr int64_t block_bytes = int64_t{64} << 10;
  static constexpr int64_t document_bytes = int64_t{1} << 20;

  DocumentReader(const std::filesystem::path& file, Packing packing, bool needs_text);
  ~DocumentReader();

  /// False at the end of the file; documents are never empty.
  bool next(std::string& document);
  /// Bytes of the file (packed ones if it is packed) read so far.
  int64_t position() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace roformer
