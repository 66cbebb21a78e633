#include "roformer/text/words.h"

#include <fstream>
#include <random>

#include "roformer/core/error.h"
#include "tests/data/text_support.h"
#include "tests/text/oracles.h"

namespace roformer {
namespace {

using CutWords = std::vector<std::string>;

std::filesystem::path fixture_dictionary() { return test::source_dir() / "data" / "fixtures" / "dict.txt"; }

WordsOptions fixture_words(WordsVariant variant = WordsVariant::slow) {
  WordsOptions o;
  o.vocab = test::source_dir() / "data" / "fixtures" / "vocab.txt";
  o.dictionary = fixture_dictionary();
  o.variant = variant;
  return o;
}

}  // namespace

TEST_CASE("words: the most probable cut") {
  const WordCutter cutter(fixture_dictionary());
  CHECK(cutter.entries() == 12);
  CHECK(cutter.cut("") == CutWords{});
  CHECK(cutter.cut("我来到北京大学") == CutWords{"我", "来到", "北京大学"});
  CHECK(cutter.cut("北京大") == CutWords{"北京", "大"});  // 200 x 1 against 1 x 5
  CHECK(cutter.cut("喜欢手机") == CutWords{"喜欢", "手机"});
  CHECK(cutter.cut("喜手") == CutWords{"喜", "手"});
}

TEST_CASE("words: letters and digits outside the dictionary are joined") {
  const WordCutter cutter(fixture_dictionary());
  CHECK(cutter.cut("iPhone12手机") == CutWords{"iPhone12", "手机"});
  CHECK(cutter.cut("3.14") == CutWords{"3", ".", "14"});
  CHECK(cutter.cut("c++ c#") == CutWords{"c++", " ", "c", "#"});
  CHECK(cutter.cut("a股ab") == CutWords{"a股", "ab"});
  CHECK(cutter.cut("x-y") == CutWords{"x", "-", "y"});
  CHECK(cutter.cut("\uFF11\uFF12") == CutWords{"\uFF11", "\uFF12"});  // full-width digits one by one
  CHECK(cutter.cut("h\u00E9llo") == CutWords{"h", "\u00E9", "llo"});
  CHECK(cutter.cut("我\r\n\n 我\u3000") == CutWords{"我", "\r\n", "\n", " ", "我", "\u3000"});
  CHECK(cutter.cut("我\r我") == CutWords{"我", "\r", "我"});
}

TEST_CASE("words: of equally probable cuts the one with the longer first word") {
  test::TempDir folder;
  // 2 x 1 = 1 x 2.
  const WordCutter cutter(test::write_text(folder / "dict.txt", "甲 1 x\n甲乙 2 x\n乙丙 2 x\n丙 1 x\n丁 4 x\n"));
  CHECK(cutter.cut("甲乙丙") == CutWords{"甲乙", "丙"});
  // A word of frequency 0 is none, but a longer one that begins with it is.
  const WordCutter zero(test::write_text(folder / "dict.txt", "甲乙 0 x\n甲乙丙 9 x\n丁 4 x\n"));
  CHECK(zero.cut("甲乙") == CutWords{"甲", "乙"});
  CHECK(zero.cut("甲乙丙") == CutWords{"甲乙丙"});
}

TEST_CASE("words: damaged dictionaries are refused by line") {
  test::TempDir folder;
  const auto error_for = [&](std::string_view text) {
    const auto path = test::write_text(folder / "dict.txt", text);
    return test::error_of([&] { WordCutter cutter(path); });
  };
  using std::string_view_literals::operator""sv;
  for (const std::string_view bad : {"甲 x"sv, "甲"sv, ""sv, "甲 -1 n"sv, " 3 n"sv,
                                     "甲 99999999999999999999 n"sv, "甲 3.5 n"sv, "甲\0 3 n"sv, "甲  3"sv}) {
    const std::string error = error_for("甲 3 n\n" + std::string(bad) + "\n乙 1 n\n");
    INFO(bad);
    CHECK(test::contains(error, "dict.txt:2: expected `word frequency"));
    CHECK_FALSE(test::contains(error, "\n"));
  }
  CHECK(test::contains(error_for("甲 3 n\n\xFF 3 n\n"), "dict.txt:2: not UTF-8"));
  CHECK(test::contains(error_for("\xEF\xBB\xBF甲 3 n\n"), "dict.txt:1: byte order mark"));
  CHECK(test::contains(error_for(""), "no words"));
  CHECK(test::contains(test::error_of([&] { WordCutter cutter(folder / "none.txt"); }), "none.txt"));
  CHECK(WordCutter(test::write_text(folder / "dict.txt", "甲乙 3 n\r\n丙 2\r\n")).cut("甲乙丙") ==
        CutWords{"甲乙", "丙"});
}

TEST_CASE("words: a word of the vocabulary is a token, others go through WordPiece") {
  const auto slow = make_tokenizer(fixture_words());
  CHECK(test::tokens_of(*slow, "我来到北京大学喜欢手机") ==
        CutWords{"我", "来到", "北京大学", "喜欢", "手", "机"});
  CHECK(test::tokens_of(*slow, "UNWANTED running.") ==
        CutWords{"un", "##want", "##ed", "runn", "##ing", "."});
  CHECK(test::tokens_of(*slow, "我[MASK]我[SEP]") == CutWords{"我", "[MASK]", "我", "[SEP]"});
  CHECK(test::tokens_of(*slow, "") == CutWords{});
  CHECK(test::tokens_of(*slow, " \t\r\n") == CutWords{});
  CHECK(slow->vocab_size() == 48);
  CHECK(slow->needs_text());
}

TEST_CASE("words: where the two variants differ") {
  const auto slow = make_tokenizer(fixture_words());
  const auto fast = make_tokenizer(fixture_words(WordsVariant::fast));
  CHECK(test::tokens_of(*slow, "c++") == CutWords{"c", "+", "+"});
  CHECK(test::tokens_of(*fast, "c++") == CutWords{"[UNK]"});
  CHECK(test::tokens_of(*slow, "Na\u00EFve") == CutWords{"[UNK]", "[UNK]", "[UNK]"});
  CHECK(test::tokens_of(*fast, "Na\u00EFve") == CutWords{"naive"});
  CHECK(slow->fingerprint() != fast->fingerprint());
}

TEST_CASE("words: tokens know their bytes, whatever the bytes") {
  for (const WordsVariant variant : {WordsVariant::slow, WordsVariant::fast}) {
    const auto t = make_tokenizer(fixture_words(variant));
    const std::string text = "我 来到[MASK]北京大学,Cafe";
    std::vector<int32_t> ids;
    std::vector<Span> spans;
    t->encode(text, ids, &spans);
    CutWords covered;
    for (const Span& s : spans) {
      covered.push_back(text.substr(static_cast<size_t>(s.begin), static_cast<size_t>(s.end - s.begin)));
    }
    CHECK(covered == CutWords{"我", "来到", "[MASK]", "北京大学", ",", "Cafe"});
    std::mt19937 random(2);
    const std::string some = "c++ \u00E9\u0301\u5317\u4EAC\u5927[MASK]\u1100\u0130\r\n";
    for (int round = 0; round < 1500; ++round) {
      std::string noise;
      for (unsigned n = random() % 40; n > 0; --n) {
        noise += random() % 3 ? some[random() % some.size()] : static_cast<char>(random());
      }
      test::check_spans(*t, noise);
    }
  }
}

TEST_CASE("words: equals jieba") {
  const auto data = test::require_data();
  const auto oracles = test::require_oracles();
  if (!data || !oracles) return;
  const WordCutter cutter(*data / "zh" / "jieba" / "dict.txt");
  CHECK(cutter.entries() == 348982);
  size_t lines = 0;
  for (const nlohmann::json& line : test::read_json_lines(*oracles / "tokenizers" / "jieba_cut.jsonl")) {
    ++lines;
    const std::string text = line["text"];
    INFO(text);
    CHECK(cutter.cut(text) == line["shared_dict"].get<CutWords>());
  }
  CHECK(lines > 390);
  std::ifstream file(*data / "oracles" / "values" / "tokenization.json");
  size_t checked = 0;
  const nlohmann::json values = nlohmann::json::parse(file);
  for (const auto& each : values["jieba"]["default"]) {
    if (each.value("hmm", true)) continue;
    ++checked;
    CHECK(cutter.cut(each["text"].get<std::string>()) == each["words"].get<CutWords>());
  }
  CHECK(checked > 0);
}

TEST_CASE("words: equals transformers' RoFormerTokenizer") {
  const auto data = test::require_data();
  const auto oracles = test::require_oracles();
  if (!data || !oracles) return;
  WordsOptions o;
  o.vocab = *data / "tokenizer" / "wobert_chinese_plus_base.vocab.txt";
  o.dictionary = *data / "zh" / "jieba" / "dict.txt";
  const auto slow = make_tokenizer(o);
  test::check_oracles(*oracles / "tokenizers", "roformer_chinese", *slow);
  o.variant = WordsVariant::fast;
  test::check_oracles(*oracles / "tokenizers", "roformer_chinese", *make_tokenizer(o), true);

  std::ifstream file(*data / "oracles" / "values" / "tokenization.json");
  const nlohmann::json values = nlohmann::json::parse(file)["roformer_chinese_base"];
  const std::string text = values["text"];
  CHECK(test::tokens_of(*slow, text) == values["tokens"].get<CutWords>());
  std::vector<int32_t> ids = test::ids_of(*slow, text + "[UNK]");
  CHECK(ids == values["ids_of_tokens_plus_unk"].get<std::vector<int32_t>>());
}

}  // namespace roformer
