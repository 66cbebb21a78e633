#include "roformer/text/train.h"

#include <fmt/format.h>
#include <sentencepiece_trainer.h>

#include <algorithm>
#include <limits>
#include <queue>
#include <set>
#include <tuple>
#include <unordered_map>

#include "roformer/core/display.h"
#include "roformer/core/error.h"
#include "roformer/core/files.h"
#include "roformer/core/random.h"
#include "roformer/text/sentencepiece.h"
#include "roformer/text/wordpiece.h"

namespace roformer {
namespace {

constexpr int64_t longest_learned_word = 100;  // characters; transformers makes longer ones [UNK]
constexpr int64_t bytes_around_word = 96;      // what a hash table keeps beside it

/// How often each word occurs. Over its room, the rarest are forgotten.
class WordCounts {
 public:
  explicit WordCounts(int64_t room) : room_(room) {}

  void add(const std::string& word) {
    const auto [entry, is_new] = counts_.try_emplace(word, 0);
    ++entry->second;
    if (!is_new) return;
    used_ += static_cast<int64_t>(word.size()) + bytes_around_word;
    if (used_ <= room_) return;
    // Down to half, so that it is not done at every new word.
    for (int64_t least = 2; used_ > room_ / 2; least *= 2) {
      used_ = 0;
      std::erase_if(counts_, [least](const auto& each) { return each.second < least; });
      for (const auto& [kept, count] : counts_)
        used_ += static_cast<int64_t>(kept.size()) + bytes_around_word;
    }
  }
  /// In an order that depends on nothing else.
  std::vector<std::pair<std::string, int64_t>> sorted() const {
    std::vector<std::pair<std::string, int64_t>> out(counts_.begin(), counts_.end());
    std::sort(out.begin(), out.end());
    return out;
  }

 private:
  std::unordered_map<std::string, int64_t> counts_;
  int64_t room_;
  int64_t used_ = 0;
};

class WordPieceTrainer {
 public:
  explicit WordPieceTrainer(const TokenizerTrainingOptions& o) : options_(o) {
    for (const std::string_view name : bert_special_names) add_token(std::string(name));
  }

  std::string train(const NextLine& next_line) {
    read(next_line);
    make_alphabet();
    count_pairs();
    while (static_cast<int64_t>(tokens_.size()) < options_.vocab_size && join_best()) {
    }
    std::string text;
    for (const std::string& token : tokens_) text += token + '\n';
    return text;
  }

 private:
  struct Word {
    std::vector<int32_t> pieces;
    int64_t count;
  };
  using Pair = std::pair<int32_t, int32_t>;
  struct PairHash {
    size_t operator()(const Pair& p) const {
      return (static_cast<uint64_t>(p.first) << 32 | static_cast<uint32_t>(p.second)) *
                 0x9E3779B97F4A7C15ULL >>
             16;
    }
  };
  struct Candidate {
    int64_t count;
    Pair pair;
    bool operator<(const Candidate& other) const {  // equally frequent: the older pieces first
      return std::tie(count, other.pair) < std::tie(other.count, pair);
    }
  };

  void read(const NextLine& next_line) {
    const WordRules rules{options_.lowercase, options_.lowercase, true, longest_learned_word};
    WordCounts counts(options_.memory << 20);
    WordSplitter splitter;
    std::vector<TextChar> characters;
    std::string line, word;
    while (next_line(line)) {
      characters.clear();
      to_characters(line, 0, rules, characters);
      splitter.split(characters.data(), characters.data() + characters.size(), rules,
                     [&](const TextChar* first, const TextChar* last) {
                       if (last - first > rules.max_word) return;
                       word.clear();
                       for (; first < last; ++first) append_utf8(word, first->code);
                       counts.add(word);
                     });
    }
    texts_ = counts.sorted();
    if (texts_.empty()) fail("train-tokenizer: no words in the text");
  }

  int32_t add_token(std::string text) {
    const auto [entry, is_new] = ids_.try_emplace(text, static_cast<int32_t>(tokens_.size()));
    if (is_new) tokens_.push_back(std::move(text));
    return entry->second;
  }

  /// The most frequent characters, in the order of their code points: at the beginning of words, then inside.
  void make_alphabet() {
    std::unordered_map<char32_t, int64_t> counts;
    for (const auto& [text, count] : texts_) {
      for (size_t at = 0; at < text.size();) counts[next_code_point(text, at)] += count;
    }
    std::vector<std::pair<int64_t, char32_t>> ranked;
    for (const auto& [code, count] : counts) ranked.emplace_back(-count, code);
    std::sort(ranked.begin(), ranked.end());
    const int64_t room = std::min(options_.alphabet, (options_.vocab_size - 5) / 2);
    if (static_cast<int64_t>(ranked.size()) > room)
      ranked.resize(static_cast<size_t>(std::max<int64_t>(room, 1)));

    // Every one may begin a word; inside words those that were seen there.
    std::set<char32_t> begins, insides;
    for (const auto& [count, code] : ranked) begins.insert(code);
    for (const auto& [text, count] : texts_) {
      size_t at = 0;
      for (next_code_point(text, at); at < text.size();) {
        const char32_t code = next_code_point(text, at);
        if (begins.count(code)) insides.insert(code);
      }
    }
    const auto add_characters = [this](const std::set<char32_t>& codes, const std::string& prefix) {
      for (const char32_t code : codes) {
        std::string piece = prefix;
        append_utf8(piece, code);
        add_token(std::move(piece));
      }
    };
    add_characters(begins, "");
    add_characters(insides, "##");

    for (const auto& [text, count] : texts_) {
      Word word{{}, count};
      for (size_t at = 0; at < text.size();) {
        std::string piece(at > 0 ? "##" : "");
        append_utf8(piece, next_code_point(text, at));
        const auto found = ids_.find(piece);
        if (found == ids_.end()) {  // a character outside the alphabet: the word is [UNK]
          word.pieces.clear();
          break;
        }
        word.pieces.push_back(found->second);
      }
      if (word.pieces.size() > 1) words_.push_back(std::move(word));
    }
    texts_ = {};
  }

  void count_pairs() {
    for (size_t w = 0; w < words_.size(); ++w) {
      for (size_t i = 0; i + 1 < words_[w].pieces.size(); ++i) {
        const Pair pair{words_[w].pieces[i], words_[w].pieces[i + 1]};
        counts_[pair] += words_[w].count;
        note_place(pair, w);
      }
    }
    for (const auto& [pair, count] : counts_) queue_.push({count, pair});
  }

  void note_place(const Pair& pair, size_t word) {
    std::vector<uint32_t>& places = places_[pair];
    if (places.empty() || places.back() != word) places.push_back(static_cast<uint32_t>(word));
  }

  bool join_best() {
    while (!queue_.empty()) {
      const Candidate best = queue_.top();
      queue_.pop();
      const auto known = counts_.find(best.pair);
      const int64_t count = known == counts_.end() ? 0 : known->second;
      if (count != best.count) {  // counted before another join
        if (count > 0) queue_.push({count, best.pair});
        continue;
      }
      if (count < options_.min_count) return false;
      join(best.pair);
      return true;
    }
    return false;
  }

  void join(const Pair& pair) {
    const std::string_view tail = tokens_[static_cast<size_t>(pair.second)];
    const int32_t joined = add_token(tokens_[static_cast<size_t>(pair.first)] + std::string(tail.substr(2)));
    std::vector<uint32_t> places = std::move(places_[pair]);
    places_.erase(pair);
    std::sort(places.begin(), places.end());
    places.erase(std::unique(places.begin(), places.end()), places.end());
    std::vector<Pair> grown;
    for (const uint32_t w : places) {
      Word& word = words_[w];
      std::vector<int32_t>& pieces = word.pieces;
      bool has_it = false;
      for (size_t i = 0; i + 1 < pieces.size(); ++i) has_it |= Pair{pieces[i], pieces[i + 1]} == pair;
      if (!has_it) continue;
      for (size_t i = 0; i + 1 < pieces.size(); ++i) counts_[{pieces[i], pieces[i + 1]}] -= word.count;
      size_t kept = 0;
      for (size_t i = 0; i < pieces.size(); ++kept) {
        const bool here = i + 1 < pieces.size() && Pair{pieces[i], pieces[i + 1]} == pair;
        pieces[kept] = here ? joined : pieces[i];
        i += here ? 2 : 1;
      }
      pieces.resize(kept);
      for (size_t i = 0; i + 1 < pieces.size(); ++i) {
        const Pair each{pieces[i], pieces[i + 1]};
        counts_[each] += word.count;
        if (each.first == joined || each.second == joined) {
          note_place(each, w);
          grown.push_back(each);
        }
      }
    }
    counts_.erase(pair);
    std::sort(grown.begin(), grown.end());
    grown.erase(std::unique(grown.begin(), grown.end()), grown.end());
    for (const Pair& each : grown) {
      const auto found = counts_.find(each);
      if (found != counts_.end() && found->second > 0) queue_.push({found->second, each});
    }
  }

  const TokenizerTrainingOptions& options_;
  std::vector<std::string> tokens_;
  std::unordered_map<std::string, int32_t> ids_;
  std::vector<std::pair<std::string, int64_t>> texts_;
  std::vector<Word> words_;
  std::unordered_map<Pair, int64_t, PairHash> counts_;
  std::unordered_map<Pair, std::vector<uint32_t>, PairHash> places_;
  std::priority_queue<Candidate> queue_;
};

/// Lines for the library, an even sample of them if they are too many: those whose number hashes below a
/// limit, which halves whenever the room is full.
class LineSample final : public sentencepiece::SentenceIterator {
 public:
  LineSample(const NextLine& next_line, int64_t room) {
    uint64_t limit = std::numeric_limits<uint64_t>::max();
    int64_t used = 0;
    std::string line;
    for (uint64_t number = 0; next_line(line); ++number) {
      const uint64_t hash = mix(number);
      if (line.empty() || hash > limit) continue;
      used += static_cast<int64_t>(line.size()) + bytes_around_word;
      lines_.push_back({hash, line});
      while (used > room && limit > 0) {
        limit /= 2;
        std::erase_if(lines_, [limit](const auto& each) { return each.first > limit; });
        used = 0;
        for (const auto& each : lines_) used += static_cast<int64_t>(each.second.size()) + bytes_around_word;
      }
    }
    if (lines_.empty()) fail("train-tokenizer: no lines in the text, or none that fit into `memory`");
  }

  bool done() const override { return at_ == lines_.size(); }
  void Next() override { ++at_; }
  const std::string& value() const override { return lines_[at_].second; }
  sentencepiece::util::Status status() const override { return {}; }

 private:
  std::vector<std::pair<uint64_t, std::string>> lines_;
  size_t at_ = 0;
};

std::string train_sentencepiece(const TokenizerTrainingOptions& o, const NextLine& next_line) {
  quiet_sentencepiece();
  // The library takes several times the text itself.
  LineSample lines(next_line, (o.memory << 20) / 4);
  const std::unordered_map<std::string, std::string> arguments = {
      {"model_type", o.kind == TrainedTokenizer::bpe ? "bpe" : "unigram"},
      {"vocab_size", std::to_string(o.vocab_size)},
      {"character_coverage", fmt::format("{}", o.coverage)},
      {"normalization_rule_name", o.lowercase ? "nmt_nfkc_cf" : "nmt_nfkc"},
      {"pad_id", "0"},
      {"unk_id", "1"},
      {"bos_id", "2"},
      {"eos_id", "3"},
      {"pad_piece", "[PAD]"},
      {"unk_piece", "[UNK]"},
      {"bos_piece", "[CLS]"},
      {"eos_piece", "[SEP]"},
      {"control_symbols", "[MASK]"},
      {"max_sentence_length", "65536"},
      {"num_threads", "4"},  // sums of floats depend on it
      {"minloglevel", "3"}};
  std::string model;
  const auto status = sentencepiece::SentencePieceTrainer::Train(arguments, &lines, &model);
  if (!status.ok()) {
    fail(
        "train-tokenizer: SentencePiece says: {}; often vocab_size ({}) is too large or too small for the "
        "text",
        shown(status.message(), 200), o.vocab_size);
  }
  return model;
}

}  // namespace

void train_tokenizer(const TokenizerTrainingOptions& options, const NextLine& next_line) {
  const std::string made = options.kind == TrainedTokenizer::wordpiece
                               ? WordPieceTrainer(options).train(next_line)
                               : train_sentencepiece(options, next_line);
  write_file_atomically(options.output, made);
}

}  // namespace roformer
