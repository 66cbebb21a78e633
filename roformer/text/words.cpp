#include "roformer/text/words.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <charconv>
#include <cmath>
#include <limits>
#include <system_error>

#include "roformer/core/display.h"
#include "roformer/core/error.h"
#include "roformer/core/files.h"
#include "roformer/text/build.h"
#include "roformer/text/unicode.h"
#include "roformer/text/wordpiece.h"

namespace roformer {
namespace {

constexpr size_t dictionary_bytes = size_t{64} << 20;
constexpr int64_t largest_count = int64_t{1} << 40;  // sums of 4 million of them stay exact in a double
constexpr size_t longest_dictionary_word = 256;      // bytes

bool is_latin_or_digit(char32_t code) {
  return (code >= '0' && code <= '9') || (code >= 'a' && code <= 'z') || (code >= 'A' && code <= 'Z');
}

/// What jieba looks up in the dictionary; all else it cuts into single characters.
bool is_in_block(char32_t code) {
  return (code >= 0x4E00 && code <= 0x9FD5) || is_latin_or_digit(code) || code == '+' || code == '#' ||
         code == '&' || code == '.' || code == '_' || code == '%' || code == '-';
}

}  // namespace

int32_t WordCutter::child(int32_t node, char32_t code) const {
  const uint64_t key = static_cast<uint64_t>(node) << 21 | code;
  for (size_t i = (key * 0x9E3779B97F4A7C15ULL >> 20) & mask_;; i = (i + 1) & mask_) {
    if (edges_[i].key == key) return edges_[i].node;
    if (edges_[i].key == 0) return -1;
  }
}

int32_t WordCutter::child_or_new(int32_t node, char32_t code) {
  if (counts_.size() * 2 > edges_.size()) {
    std::vector<Edge> old(edges_.size() * 2);
    old.swap(edges_);
    mask_ = edges_.size() - 1;
    for (const Edge& edge : old) {
      if (edge.key == 0) continue;
      size_t i = (edge.key * 0x9E3779B97F4A7C15ULL >> 20) & mask_;
      while (edges_[i].key != 0) i = (i + 1) & mask_;
      edges_[i] = edge;
    }
  }
  const uint64_t key = static_cast<uint64_t>(node) << 21 | code;
  size_t i = (key * 0x9E3779B97F4A7C15ULL >> 20) & mask_;
  for (; edges_[i].key != 0; i = (i + 1) & mask_) {
    if (edges_[i].key == key) return edges_[i].node;
  }
  edges_[i] = {key, static_cast<int32_t>(counts_.size())};
  counts_.push_back(0);
  return edges_[i].node;
}

WordCutter::WordCutter(const std::filesystem::path& dictionary) {
  const std::string name = dictionary.string();
  const std::string text = read_file(dictionary, dictionary_bytes);
  digest_ = Vocabulary::hash(text);
  edges_.resize(std::bit_ceil(text.size() / 8 + 16));
  mask_ = edges_.size() - 1;
  counts_.push_back(0);
  int64_t total = 0;
  size_t line = 0;
  for (size_t begin = 0; begin < text.size();) {
    ++line;
    const size_t end = std::min(text.find('\n', begin), text.size());
    std::string_view entry = std::string_view(text).substr(begin, end - begin);
    begin = end + 1;
    if (line == 1 && entry.starts_with("\xEF\xBB\xBF")) fail("{}:1: byte order mark; remove it", name);
    if (entry.ends_with('\r')) entry.remove_suffix(1);
    const size_t space = entry.find(' ');
    const std::string_view word = entry.substr(0, space);
    int64_t count = -1;
    if (space != entry.npos) {
      const std::string_view number = entry.substr(space + 1, entry.find(' ', space + 1) - space - 1);
      const auto [stop, error] = std::from_chars(number.data(), number.data() + number.size(), count);
      if (error != std::errc() || stop != number.data() + number.size()) count = -1;
    }
    if (word.empty() || word.find('\0') != word.npos || count < 0 || count > largest_count ||
        word.size() > longest_dictionary_word) {
      fail("{}:{}: expected `word frequency part-of-speech` as in jieba's dict.txt, found '{}'", name, line,
           shown(entry));
    }
    if (valid_utf8_prefix(entry) != entry.size()) fail("{}:{}: not UTF-8; convert the file", name, line);
    int32_t node = 0;
    for (size_t at = 0; at < word.size();) node = child_or_new(node, next_code_point(word, at));
    counts_[static_cast<size_t>(node)] = count;
    total += count;
    ++entries_;
  }
  if (total == 0) fail("{}: no words; is this jieba's dict.txt?", name);
  const double log_total = std::log(static_cast<double>(total));
  unknown_ = std::log(1.0) - log_total;
  weights_.resize(counts_.size());
  for (size_t i = 0; i < counts_.size(); ++i) {
    weights_[i] = std::log(static_cast<double>(std::max<int64_t>(counts_[i], 1))) - log_total;
  }
}

void WordCutter::cut_block(std::u32string_view block, size_t offset, std::vector<size_t>& ends) const {
  // From the last character on: the best cut of block[i ..) is a word and the best cut of what is behind it.
  std::vector<double> best(block.size() + 1, 0.0);
  std::vector<size_t> next(block.size());
  for (size_t i = block.size(); i-- > 0;) {
    bool any = false;
    int32_t node = 0;
    for (size_t k = i; k < block.size(); ++k) {
      node = child(node, block[k]);
      if (node < 0) break;
      if (counts_[static_cast<size_t>(node)] == 0) continue;
      const double score = weights_[static_cast<size_t>(node)] + best[k + 1];
      if (!any || score >= best[i]) {  // Python's max over (score, end): of equal ones the longest
        best[i] = score;
        next[i] = k + 1;
      }
      any = true;
    }
    if (!any) {
      best[i] = unknown_ + best[i + 1];
      next[i] = i + 1;
    }
  }
  bool joined =
      false;  // whether the last end may still move: neighbouring single letters and digits are one word
  for (size_t i = 0; i < block.size(); i = next[i]) {
    const bool single = next[i] == i + 1 && is_latin_or_digit(block[i]);
    if (single && joined) {
      ends.back() = offset + next[i];
    } else {
      ends.push_back(offset + next[i]);
    }
    joined = single;
  }
}

void WordCutter::cut(std::u32string_view text, std::vector<size_t>& ends) const {
  for (size_t i = 0; i < text.size();) {
    if (is_in_block(text[i])) {
      const size_t begin = i;
      while (i < text.size() && is_in_block(text[i])) ++i;
      cut_block(text.substr(begin, i - begin), begin, ends);
    } else {
      i += text[i] == '\r' && i + 1 < text.size() && text[i + 1] == '\n' ? 2 : 1;
      ends.push_back(i);
    }
  }
}

std::vector<std::string> WordCutter::cut(std::string_view text) const {
  std::u32string codes;
  for (size_t at = 0; at < text.size();) codes += next_code_point(text, at);
  std::vector<size_t> ends;
  cut(codes, ends);
  std::vector<std::string> words;
  size_t begin = 0;
  for (const size_t end : ends) {
    words.emplace_back();
    for (; begin < end; ++begin) append_utf8(words.back(), codes[begin]);
  }
  return words;
}

std::filesystem::path default_dictionary() {
  namespace fs = std::filesystem;
  const fs::path inside = fs::path("models") / "jieba" / "dict.txt";
  std::error_code error;
  const fs::path program = fs::read_symlink("/proc/self/exe", error);
  if (!error) {
    for (const fs::path& folder : {program.parent_path(), program.parent_path().parent_path()}) {
      if (fs::is_regular_file(folder / inside, error)) return folder / inside;
    }
  }
  fail(
      "no models/jieba/dict.txt beside {}; `make models` gets it, or name a dictionary "
      "(tokenizer.dictionary)",
      error || program.empty() ? "the program" : program.string());
}

namespace {

class WordsTokenizer final : public VocabularyTokenizer {
 public:
  explicit WordsTokenizer(const WordsOptions& o)
      : VocabularyTokenizer(o.vocab),
        options_(o),
        cutter_(o.dictionary.empty() ? default_dictionary() : o.dictionary),
        pieces_(vocabulary_, {o.lowercase, o.lowercase, true, o.max_word}) {}

  void encode(std::string_view text, std::vector<int32_t>& ids, std::vector<Span>* spans) const override {
    WordPieces::Output out{ids, spans, {}, {}, {}, {}};
    size_t done = 0;
    for (size_t k = text.find('['); k != text.npos; k = text.find('[', k)) {
      const int32_t special = pieces_.special_at(text.substr(k));
      if (special < 0) {
        ++k;
        continue;
      }
      add(text.substr(done, k - done), done, out);
      const auto at = static_cast<int64_t>(k);
      k += vocabulary_.token(special).size();
      ids.push_back(special);
      if (spans) spans->push_back({at, static_cast<int64_t>(k)});
      done = k;
    }
    add(text.substr(done), done, out);
  }
  std::string fingerprint() const override {
    return fmt::format("words 1 {:016x} {:016x} {} {} {}", vocabulary_.digest(), cutter_.digest(),
                       options_.lowercase, options_.variant == WordsVariant::slow ? "slow" : "fast",
                       options_.max_word);
  }

 private:
  /// No special tokens in it.
  void add(std::string_view text, size_t offset, WordPieces::Output& out) const {
    std::vector<TextChar> raw, chars;
    decode_utf8(text, static_cast<int64_t>(offset), raw);
    const bool fast = options_.variant == WordsVariant::fast;
    if (fast) {
      std::erase_if(raw, [](const TextChar& c) {
        return c.code == 0 || c.code == 0xFFFD ||
               (is_other_in_unicode_8(c.code) && c.code != '\t' && c.code != '\n' && c.code != '\r');
      });
      for (TextChar& c : raw) {
        if (is_python_space(c.code)) c.code = ' ';
      }
      if (options_.lowercase) {
        to_nfd(raw);
        std::erase_if(raw, [](const TextChar& c) { return is_mark_in_unicode_8(c.code); });
      }
    }
    if (options_.lowercase) {
      for (const TextChar& c : raw) append_lower(c, chars);
    } else {
      chars = std::move(raw);
    }
    std::u32string codes(chars.size(), U' ');
    std::transform(chars.begin(), chars.end(), codes.begin(), [](const TextChar& c) { return c.code; });
    std::vector<size_t> ends;
    cutter_.cut(codes, ends);
    size_t begin = 0;
    std::string word;
    for (const size_t end : ends) {
      const TextChar *first = chars.data() + begin, *last = chars.data() + end;
      begin = end;
      word.clear();
      for (const TextChar* c = first; c < last; ++c) append_utf8(word, c->code);
      const int32_t id = vocabulary_.find(word);
      if (id >= 0) {
        out.ids.push_back(id);
        if (out.spans) out.spans->push_back({first->begin, (last - 1)->end});
      } else if (!fast) {
        pieces_.add_characters(first, last, out);
      } else {
        add_fast(first, last, out);
      }
    }
  }

  /// Chinese characters and white space separate, punctuation does not.
  void add_fast(const TextChar* first, const TextChar* last, WordPieces::Output& out) const {
    while (first < last) {
      const TextChar* const start = first++;
      if (is_python_space(start->code)) continue;
      if (!is_bert_chinese(start->code)) {
        while (first < last && !is_bert_chinese(first->code) && !is_python_space(first->code)) ++first;
      }
      pieces_.add_word(start, first, out);
    }
  }

  WordsOptions options_;
  WordCutter cutter_;
  WordPieces pieces_;
};

}  // namespace

std::unique_ptr<Tokenizer> build_tokenizer(const WordsOptions& options) {
  return std::make_unique<WordsTokenizer>(options);
}

}  // namespace roformer
