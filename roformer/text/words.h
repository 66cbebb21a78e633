#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

namespace roformer {

/// Chinese text to words: jieba's cut without its hidden Markov model, equal to Python's
/// jieba.cut(text, HMM=False). Of all ways to cut a run of Chinese characters, Latin letters and digits into
/// words of the dictionary, the most probable one (product of relative frequencies); an unknown character is
/// a word of its own.
class WordCutter {
 public:
  /// Error "file:line: ..." for a line that is not `word frequency [part of speech]`.
  explicit WordCutter(const std::filesystem::path& dictionary);

  /// Appends where each word of `text` ends; the words follow one another without gaps.
  void cut(std::u32string_view text, std::vector<size_t>& ends) const;
  /// The words of UTF-8 text.
  std::vector<std::string> cut(std::string_view text) const;

  int64_t entries() const { return entries_; }
  /// Of the whole file.
  uint64_t digest() const { return digest_; }

 private:
  struct Edge {
    uint64_t key = 0;  // from node << 21 | character; 0: no edge
    int32_t node = 0;
  };
  int32_t child(int32_t node, char32_t code) const;  // -1: none
  int32_t child_or_new(int32_t node, char32_t code);
  void cut_block(std::u32string_view block, size_t offset, std::vector<size_t>& ends) const;

  std::vector<Edge> edges_;      // a hash table
  std::vector<int64_t> counts_;  // of the word that ends at each node; 0: none does
  std::vector<double> weights_;  // log(count) - log(total)
  size_t mask_ = 0;
  double unknown_ = 0;  // the weight of a character outside the dictionary
  int64_t entries_ = 0;
  uint64_t digest_ = 0;
};

/// jieba's dictionary where `make models` puts it: models/jieba/dict.txt beside the running program or one
/// folder up. Error if it is not there.
std::filesystem::path default_dictionary();

}  // namespace roformer
