#include <algorithm>
#include <random>
#include <sstream>

#include "roformer/core/error.h"
#include "roformer/core/files.h"
#include "roformer/text/train.h"
#include "roformer/text/unicode.h"
#include "tests/data/text_support.h"
#include "tests/text/oracles.h"

namespace roformer {
namespace {

NextLine lines_of(const std::string& text) {
  auto stream = std::make_shared<std::istringstream>(text);
  return [stream](std::string& line) { return static_cast<bool>(std::getline(*stream, line)); };
}

std::string trained(TokenizerTrainingOptions o, const std::filesystem::path& output,
                    const std::string& text) {
  o.output = output;
  train_tokenizer(o, lines_of(text));
  return read_file(output, size_t{1} << 28);
}

/// Sentences of 400 made-up words, rare and frequent ones.
std::string training_text(size_t bytes) {
  std::mt19937 random(5);
  const std::string syllables[] = {"ka", "ro", "mi", "tel", "sun", "ver", "po", "gra", "li", "nd"};
  std::vector<std::string> words;
  for (int i = 0; i < 400; ++i) {
    std::string word;
    for (unsigned n = 1 + random() % 4; n > 0; --n) word += syllables[random() % 10];
    words.push_back(word);
  }
  std::string text;
  while (text.size() < bytes) {
    for (unsigned n = 3 + random() % 9; n > 0; --n) {
      const size_t a = random() % 400, b = random() % 400;
      text += words[std::min(a, b)] + (n == 1 ? ".\n" : " ");
    }
  }
  return text;
}

}  // namespace

TEST_CASE("training: wordpiece joins the most frequent pair") {
  test::TempDir folder;
  TokenizerTrainingOptions o;
  o.vocab_size = 100;
  // Pairs: b ##c 3 times, a ##b and ##b ##c twice; then ab ##c twice as well.
  const std::string text = "bc bc bc\nABC abc, d\u00E9";
  CHECK(trained(o, folder / "v.txt", text) ==
        "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\n,\na\nb\nc\nd\ne\n##b\n##c\n##e\nbc\nab\nabc\n");
  o.min_count = 1;
  CHECK(trained(o, folder / "v.txt", text) ==
        "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\n,\na\nb\nc\nd\ne\n##b\n##c\n##e\nbc\nab\nabc\nde\n");
  o.vocab_size = 13;
  // The rarest characters make room: the alphabet takes at most half.
  CHECK(trained(o, folder / "v.txt", text) ==
        "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\n,\na\nb\nc\n##b\n##c\nbc\nab\n");
  o.vocab_size = 100;
  o.lowercase = false;
  CHECK(test::contains(trained(o, folder / "v.txt", text), "\nA\n"));
  o.alphabet = 2;  // b, c: the others are [UNK]
  CHECK(trained(o, folder / "v.txt", text) == "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\nb\nc\n##b\n##c\nbc\n");
}

TEST_CASE("training: wordpiece makes a vocabulary that reads back, the same each time") {
  test::TempDir folder;
  TokenizerTrainingOptions o;
  o.vocab_size = 300;
  const std::string text = training_text(200000);
  const std::string vocabulary = trained(o, folder / "v.txt", text);
  CHECK(trained(o, folder / "w.txt", text) == vocabulary);
  CHECK(std::count(vocabulary.begin(), vocabulary.end(), '\n') == 300);
  WordPieceOptions w;
  w.vocab = folder / "v.txt";
  const auto t = make_tokenizer(w);
  const std::vector<int32_t> ids = test::ids_of(*t, text);
  CHECK(std::count(ids.begin(), ids.end(), t->special(Special::unknown)) == 0);
  CHECK(ids.size() * 4 < text.size());  // joined: fewer tokens than a quarter of the characters

  o.memory = 1;  // 1 MiB holds these words, so nothing is forgotten
  CHECK(trained(o, folder / "w.txt", text) == vocabulary);
}

TEST_CASE("training: wordpiece forgets rare words when memory is short") {
  test::TempDir folder;
  TokenizerTrainingOptions o;
  o.vocab_size = 200;
  o.memory = 1;
  std::string text;
  for (int i = 0; i < 40000; ++i) text += "often word" + std::to_string(i) + "q\n";  // about 4 MB in a table
  const std::string vocabulary = trained(o, folder / "v.txt", text);
  CHECK(test::contains(vocabulary, "\noften\n"));
}

TEST_CASE("training: SentencePiece, both kinds") {
  test::TempDir folder;
  const std::string text = training_text(100000);
  for (const TrainedTokenizer kind : {TrainedTokenizer::bpe, TrainedTokenizer::unigram}) {
    TokenizerTrainingOptions o;
    o.kind = kind;
    o.vocab_size = 200;
    const std::string model = trained(o, folder / "a.model", text);
    CHECK(trained(o, folder / "b.model", text) == model);
    SentencePieceOptions s;
    s.model = folder / "a.model";
    const auto t = make_tokenizer(s);
    CHECK(t->vocab_size() == 200);
    for (int32_t id = 0; id < 5; ++id) {
      CHECK(t->special(static_cast<Special>(id)) == id);
      CHECK(t->is_special(id));
    }
    CHECK_FALSE(t->is_special(5));
    CHECK(t->token(4) == "[MASK]");
    const std::string line = text.substr(0, text.find('\n'));
    CHECK(t->decode(test::ids_of(*t, line)) == line);
    CHECK(t->decode({2, 3}) == "[CLS][SEP]");
    o.vocab_size = 100000;
    o.output = folder / "c.model";
    const std::string error = test::error_of([&] { train_tokenizer(o, lines_of(text)); });
    CHECK(test::contains(error, "vocab_size (100000)"));
    CHECK_FALSE(test::contains(error, "\n"));
    CHECK_FALSE(std::filesystem::exists(o.output));
  }
}

TEST_CASE("training: SentencePiece learns from an even sample when memory is short") {
  test::TempDir folder;
  TokenizerTrainingOptions o;
  o.kind = TrainedTokenizer::bpe;
  o.vocab_size = 60;
  o.memory = 1;
  std::string text;  // 3 MB: more than the quarter of a MiB that is kept
  for (int i = 0; i < 60000; ++i) text += i < 30000 ? "early words here\n" : "later lines there\n";
  trained(o, folder / "a.model", text);
  SentencePieceOptions s;
  s.model = folder / "a.model";
  const auto t = make_tokenizer(s);
  for (const char* word : {"early", "later"}) CHECK(test::ids_of(*t, word).size() == 1);
}

TEST_CASE("training: what cannot be learned from") {
  test::TempDir folder;
  for (const TrainedTokenizer kind :
       {TrainedTokenizer::wordpiece, TrainedTokenizer::bpe, TrainedTokenizer::unigram}) {
    TokenizerTrainingOptions o;
    o.kind = kind;
    o.output = folder / "none";
    for (const char* text : {"", "\n\n\n"}) {
      CHECK(test::contains(test::error_of([&] { train_tokenizer(o, lines_of(text)); }),
                           "train-tokenizer: no "));
    }
    CHECK_FALSE(std::filesystem::exists(o.output));
    o.vocab_size = 60;
    o.output = folder / "missing" / "file";
    CHECK(test::contains(test::error_of([&] { train_tokenizer(o, lines_of(training_text(20000))); }),
                         "missing"));
  }
}

}  // namespace roformer
