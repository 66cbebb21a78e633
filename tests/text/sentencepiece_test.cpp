#include <atomic>
#include <random>
#include <sstream>
#include <thread>

#include "roformer/core/error.h"
#include "roformer/core/files.h"
#include "roformer/text/train.h"
#include "tests/data/text_support.h"
#include "tests/text/oracles.h"

namespace roformer {
namespace {

/// A small model of made-up English.
std::filesystem::path small_model(const test::TempDir& folder,
                                  TrainedTokenizer kind = TrainedTokenizer::bpe) {
  TokenizerTrainingOptions o;
  o.kind = kind;
  o.vocab_size = 40;
  o.output = folder / "small.model";
  auto text = std::make_shared<std::istringstream>(test::made_up_text(20000));
  train_tokenizer(o, [text](std::string& line) { return static_cast<bool>(std::getline(*text, line)); });
  return o.output;
}

std::string replaced(std::string text, const std::string& from, const std::string& to) {
  const size_t at = text.find(from);
  REQUIRE(at != text.npos);
  REQUIRE(from.size() == to.size());
  return text.replace(at, from.size(), to);
}

}  // namespace

TEST_CASE("sentencepiece: text comes back, and tokens know their bytes") {
  test::TempDir folder;
  for (const TrainedTokenizer kind : {TrainedTokenizer::bpe, TrainedTokenizer::unigram}) {
    const auto t = make_tokenizer(SentencePieceOptions{small_model(folder, kind)});
    const std::string text = "the small angle turns every position by rotary word";
    std::vector<int32_t> ids = {7};
    t->encode(text, ids);
    CHECK(ids.front() == 7);  // appended
    ids.erase(ids.begin());
    CHECK(t->decode(ids) == text);
    CHECK(t->starts_word(ids.front()));
    CHECK(t->needs_text());
    std::vector<int32_t> again;
    std::vector<Span> spans;
    t->encode(text, again, &spans);
    CHECK(again == ids);
    REQUIRE(spans.size() == ids.size());
    std::string covered;
    for (const Span& s : spans) {
      covered += text.substr(static_cast<size_t>(s.begin), static_cast<size_t>(s.end - s.begin));
    }
    CHECK(covered == text);
    CHECK_THROWS_AS(t->token(static_cast<int32_t>(t->vocab_size())), std::out_of_range);
    CHECK_THROWS_AS(t->token(-1), std::out_of_range);
    CHECK_THROWS_AS(t->decode({1000000}), std::out_of_range);
  }
}

TEST_CASE("sentencepiece: missing special tokens get ids after the model's own") {
  test::TempDir folder;
  const auto path = small_model(folder);
  const std::string model = read_file(path, size_t{1} << 24);
  const auto whole = make_tokenizer(SentencePieceOptions{path});
  CHECK(whole->vocab_size() == 40);
  const auto other = test::write_text(folder / "other.model",
                                      replaced(replaced(model, "[MASK]", "[M__K]"), "[PAD]", "[P_D]"));
  const auto t = make_tokenizer(SentencePieceOptions{other});
  CHECK(t->vocab_size() == 42);
  CHECK(t->special(Special::pad) == 40);
  CHECK(t->special(Special::mask) == 41);
  CHECK(t->special(Special::classify) == 2);
  CHECK(t->token(40) == "[PAD]");
  CHECK(t->token(41) == "[MASK]");
  CHECK(t->is_special(41));
  CHECK_FALSE(t->is_special(4));
  CHECK(t->decode({41}) == "[MASK]");
  CHECK(t->fingerprint() != whole->fingerprint());
  const auto usual = test::write_text(folder / "usual.model", replaced(model, "[PAD]", "<pad>"));
  CHECK(make_tokenizer(SentencePieceOptions{usual})->special(Special::pad) == 0);
}

TEST_CASE("sentencepiece: damaged models are an Error that names the file, never a crash") {
  test::TempDir folder;
  const std::string model = read_file(small_model(folder), size_t{1} << 24);
  const auto error_for = [&](std::string_view bytes) {
    const auto path = test::write_text(folder / "bad.model", bytes);
    return test::error_of([&] { make_tokenizer(SentencePieceOptions{path}); });
  };
  for (const std::string& bad : {std::string(), std::string("not a model"), model.substr(0, 100),
                                 model.substr(0, model.size() - 7), std::string(1000, '\0')}) {
    const std::string error = error_for(bad);
    CHECK(test::contains(error, "bad.model: not a SentencePiece model, or damaged"));
    CHECK_FALSE(test::contains(error, "\n"));
  }
  CHECK(test::contains(test::error_of([&] { make_tokenizer(SentencePieceOptions{folder / "none.model"}); }),
                       "none.model"));
  std::mt19937 random(11);
  int errors = 0;
  for (int round = 0; round < 300; ++round) {
    std::string bad = model;
    if (round % 3 == 0) bad.resize(random() % bad.size());
    for (unsigned n = random() % 4; n > 0 && !bad.empty(); --n) {
      bad[random() % bad.size()] = static_cast<char>(random());
    }
    const auto path = test::write_text(folder / "bad.model", bad);
    try {
      const auto t = make_tokenizer(SentencePieceOptions{path});
      t->decode(test::ids_of(*t, "the rotary position \xFF turns"));
    } catch (const Error&) {
      ++errors;
    }
  }
  CHECK(errors > 20);
}

TEST_CASE("sentencepiece: any bytes, several threads") {
  test::TempDir folder;
  const auto t = make_tokenizer(SentencePieceOptions{small_model(folder)});
  std::mt19937 random(12);
  for (int round = 0; round < 500; ++round) {
    std::string noise;
    for (unsigned n = random() % 30; n > 0; --n) noise += random() % 2 ? static_cast<char>(random()) : 'w';
    std::vector<int32_t> ids;
    std::vector<Span> spans;
    t->encode(noise, ids, &spans);
    REQUIRE(ids == test::ids_of(*t, noise));
    for (const Span& s : spans) {
      REQUIRE(s.begin <= s.end);
      REQUIRE(s.end <= static_cast<int64_t>(noise.size()));
    }
  }
  const std::string text = "every layer sees the word";
  const auto expected = test::ids_of(*t, text);
  std::atomic<int> wrong = 0;
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&] {
      for (int k = 0; k < 500; ++k) wrong += test::ids_of(*t, text) != expected;
    });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK(wrong == 0);
}

}  // namespace roformer
