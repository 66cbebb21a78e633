#include <algorithm>
#include <atomic>
#include <fstream>
#include <random>
#include <thread>

#include "roformer/core/error.h"
#include "tests/data/text_support.h"
#include "tests/text/oracles.h"

namespace roformer {
namespace {

using test::ids_of;
using test::tokens_of;
using Tokens = std::vector<std::string>;

WordPieceOptions fixture_options() {
  WordPieceOptions o;
  o.vocab = test::source_dir() / "data" / "fixtures" / "vocab.txt";
  return o;
}

/// A vocabulary of these tokens behind the special ones.
std::unique_ptr<Tokenizer> with_vocabulary(const test::TempDir& folder, const Tokens& tokens,
                                           WordPieceOptions o = {}) {
  std::string text = "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\n";
  for (const std::string& token : tokens) text += token + "\n";
  o.vocab = test::write_text(folder / "vocab.txt", text);
  return make_tokenizer(o);
}

/// The bytes that each token stands for.
Tokens covered(const Tokenizer& tokenizer, const std::string& text) {
  std::vector<int32_t> ids;
  std::vector<Span> spans;
  tokenizer.encode(text, ids, &spans);
  Tokens out;
  for (const Span& s : spans) {
    out.push_back(text.substr(static_cast<size_t>(s.begin), static_cast<size_t>(s.end - s.begin)));
  }
  return out;
}

}  // namespace

TEST_CASE("wordpiece: the words of Devlin et al.'s own tests") {
  const auto t = make_tokenizer(fixture_options());
  CHECK(tokens_of(*t, "") == Tokens{});
  CHECK(tokens_of(*t, "unwanted running") == Tokens{"un", "##want", "##ed", "runn", "##ing"});
  CHECK(tokens_of(*t, "unwantedX running") == Tokens{"[UNK]", "runn", "##ing"});
  CHECK(tokens_of(*t, "UNwant\u00E9d,running") == Tokens{"un", "##want", "##ed", ",", "runn", "##ing"});
  CHECK(ids_of(*t, "The want.") == std::vector<int32_t>{5, 6, 14});
  CHECK(t->decode(ids_of(*t, "unwanted, running")) == "unwanted , running");
  CHECK(t->decode({8, 8}) == "##eded");  // nothing to go on with at the beginning
  CHECK(t->needs_text());
  CHECK(t->vocab_size() == 48);
  CHECK_FALSE(t->starts_word(8));
  CHECK(t->starts_word(5));
  CHECK(t->starts_word(1));
  CHECK_THROWS_AS(t->token(48), std::out_of_range);
  CHECK_THROWS_AS(t->token(-1), std::out_of_range);
  CHECK_THROWS_AS(t->decode({48}), std::out_of_range);
}

TEST_CASE("wordpiece: special tokens") {
  WordPieceOptions o = fixture_options();
  const auto t = make_tokenizer(o);
  CHECK(t->special(Special::pad) == 0);
  CHECK(t->special(Special::unknown) == 1);
  CHECK(t->special(Special::classify) == 2);
  CHECK(t->special(Special::separate) == 3);
  CHECK(t->special(Special::mask) == 4);
  for (int32_t id = -1; id < 49; ++id) CHECK(t->is_special(id) == (id >= 0 && id < 5));
  // By their spelling, also inside a word; in lower case they are text.
  CHECK(ids_of(*t, "the[MASK]want [SEP]") == std::vector<int32_t>{5, 4, 6, 3});
  CHECK(ids_of(*t, "[[PAD]") == std::vector<int32_t>{1, 0});
  CHECK(tokens_of(*t, "caf\u00E9[MASK]caf\u00E9") == Tokens{"cafe", "[MASK]", "cafe"});
  CHECK(tokens_of(*t, "[mask]") == Tokens{"[UNK]", "[UNK]", "[UNK]"});
  CHECK(tokens_of(*t, "[MAS") == Tokens{"[UNK]", "[UNK]"});
  // Cleaning makes a word of it, which is never split; with lower-casing it is none.
  const std::string hidden("a [MA\0SK]", 9);
  CHECK(tokens_of(*t, hidden) == Tokens{"a", "[UNK]", "[UNK]", "[UNK]"});
  o.lowercase = false;
  CHECK(tokens_of(*make_tokenizer(o), hidden) == Tokens{"a", "[MASK]"});
}

TEST_CASE("wordpiece: accents, dashes, Chinese, control characters") {
  WordPieceOptions o = fixture_options();
  const auto t = make_tokenizer(o);
  CHECK(tokens_of(*t, "na\u00EFve NA\u00CFVE nai\u0308ve") == Tokens{"naive", "naive", "naive"});
  CHECK(tokens_of(*t, "a\u2013b") == Tokens{"a", "[UNK]", "b"});
  CHECK(tokens_of(*t, "a-b") == Tokens{"a", "-", "b"});
  CHECK(tokens_of(*t, "\u5317\u4EACa\u5927\u5B66") == Tokens{"\u5317", "\u4EAC", "a", "\u5927", "\u5B66"});
  // Control and format characters vanish, also inside a word; a no-break space separates.
  CHECK(tokens_of(*t, "wa\u0001nt the\u200Bthe \u0007 a\u00A0b") == Tokens{"want", "[UNK]", "a", "b"});
  CHECK(tokens_of(*t, "a\u000Bb") == Tokens{"[UNK]"});  // category Cc, no white space to BERT
  CHECK(tokens_of(*t, "a\u2028b\u3000c") == Tokens{"a", "b", "c"});
  CHECK(tokens_of(*t, "\u03A3\u0391\u03A3") == Tokens{"[UNK]"});  // letter by letter: no final sigma

  o.strip_accents = false;
  const auto keep = make_tokenizer(o);
  CHECK(tokens_of(*keep, "\u00C9") == Tokens{"\u00E9"});
  CHECK(tokens_of(*keep, "E\u0301") == Tokens{"\u00E9"});  // composed
  CHECK(tokens_of(*keep, "na\u00EFve") == Tokens{"[UNK]"});
  o.strip_accents = true;
  o.lowercase = false;
  const auto strip = make_tokenizer(o);
  CHECK(tokens_of(*strip, "na\u00EFve Na\u00EFve") == Tokens{"naive", "[UNK]"});
  o = fixture_options();
  o.lowercase = false;
  CHECK(tokens_of(*make_tokenizer(o), "caf\u00E9 \u00E9 The the") ==
        Tokens{"[UNK]", "\u00E9", "[UNK]", "the"});
  o.split_chinese = false;
  CHECK(tokens_of(*make_tokenizer(o), "\u5317\u4EAC \u5317\u5B66 \u4EAC") ==
        Tokens{"\u5317\u4EAC", "\u5317", "##\u5B66", "\u4EAC"});
}

TEST_CASE("wordpiece: words that are too long") {
  test::TempDir folder;
  WordPieceOptions o;
  o.max_word = 5;
  const auto t = with_vocabulary(folder, {"a", "##a", "\u00E9", "##\u00E9", "aaaaaa"}, o);
  CHECK(tokens_of(*t, "aaaaa") == Tokens{"a", "##a", "##a", "##a", "##a"});
  CHECK(tokens_of(*t, "aaaaaa") == Tokens{"[UNK]"});  // though the vocabulary has it
  o.lowercase = false;
  const auto accents = with_vocabulary(folder, {"\u00E9", "##\u00E9"}, o);
  // Characters count, not bytes.
  CHECK(tokens_of(*accents, "\u00E9\u00E9\u00E9\u00E9\u00E9").size() == 5);
  CHECK(tokens_of(*accents, "\u00E9\u00E9\u00E9\u00E9\u00E9\u00E9") == Tokens{"[UNK]"});
}

TEST_CASE("wordpiece: a piece never ends inside a character") {
  test::TempDir folder;
  WordPieceOptions o;
  o.lowercase = false;
  const auto t = with_vocabulary(folder, {"a", "##\u00E9", "##\u00E9\u00E9\u00E9"}, o);
  CHECK(tokens_of(*t, "a\u00E9\u00E9") == Tokens{"a", "##\u00E9", "##\u00E9"});
  CHECK(tokens_of(*t, "a\u00E9\u00E9\u00E9\u00E9") == Tokens{"a", "##\u00E9\u00E9\u00E9", "##\u00E9"});
}

TEST_CASE("wordpiece: tokens know their bytes in the original text") {
  const auto t = make_tokenizer(fixture_options());
  CHECK(covered(*t, " The, unWanted[MASK]") == Tokens{"The", ",", "un", "Want", "ed", "[MASK]"});
  CHECK(covered(*t, "xx na\u00EFve") == Tokens{"xx", "na\u00EFve"});
  CHECK(covered(*t, "cafe\u0301,a") == Tokens{"cafe\u0301", ",", "a"});
  CHECK(covered(*t, "un\u0001wanted\u00A0a") == Tokens{"un", "want", "ed", "a"});
  CHECK(covered(*t, "unwan\u0001ted\u00A0a") == Tokens{"un", "wan\u0001t", "ed", "a"});
  CHECK(covered(*t, "\u6211a\u5317") == Tokens{"\u6211", "a", "\u5317"});
  CHECK(covered(*t, "[SEP]\u6211[MASK]\u00E9") == Tokens{"[SEP]", "\u6211", "[MASK]", "\u00E9"});
}

TEST_CASE("wordpiece: broken UTF-8 reads like U+FFFD, which BERT drops") {
  const auto t = make_tokenizer(fixture_options());
  CHECK(tokens_of(*t, "wa\xFFnt \xC3 the\xE2\x82") == Tokens{"want", "the"});
  CHECK(tokens_of(*t, "\xED\xA0\x80") == Tokens{});
  std::mt19937 random(1);
  const std::string some =
      "the want[MASK] \xC3\xA9\xCC\x81\xE5\x8C\x97\xF0\x9F\x98\x80#[]\xC2\xA0\xE1\x84\x80";
  for (int round = 0; round < 3000; ++round) {
    std::string text;
    for (unsigned n = random() % 40; n > 0; --n) {
      text += random() % 3 ? some[random() % some.size()] : static_cast<char>(random());
    }
    test::check_spans(*t, text);
    // The same as with U+FFFD written out.
    std::string clean;
    for (size_t at = 0; at < text.size();) append_utf8(clean, next_code_point(text, at));
    REQUIRE(ids_of(*t, text) == ids_of(*t, clean));
  }
}

TEST_CASE("wordpiece: long and hostile texts take linear time") {
  const auto t = make_tokenizer(fixture_options());
  std::string text;
  for (int i = 0; i < 300000; ++i) text += i % 2 ? "\u0327" : "\u0301";  // marks that change places
  CHECK(ids_of(*t, "a" + text) == ids_of(*t, "a"));
  CHECK(ids_of(*t, std::string(1 << 20, 'a')) == std::vector<int32_t>{1});
  CHECK(ids_of(*t, std::string(1 << 20, '[')).size() == 1 << 20);
}

TEST_CASE("wordpiece: several threads, one tokenizer") {
  const auto t = make_tokenizer(fixture_options());
  const std::string text = "The unwanted caf\u00E9, \u5317\u4EAC running[MASK]";
  const std::vector<int32_t> expected = ids_of(*t, text);
  std::atomic<int> wrong = 0;
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&] {
      for (int k = 0; k < 2000; ++k) wrong += ids_of(*t, text) != expected;
    });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK(wrong == 0);
}

TEST_CASE("wordpiece: the fingerprint changes with whatever changes ids") {
  test::TempDir folder;
  const WordPieceOptions plain = fixture_options();
  std::vector<std::string> prints = {make_tokenizer(plain)->fingerprint(),
                                     with_vocabulary(folder, {"a"})->fingerprint()};
  CHECK(make_tokenizer(plain)->fingerprint() == prints.front());
  for (int which = 0; which < 4; ++which) {
    WordPieceOptions o = plain;
    if (which == 0) o.lowercase = false;
    if (which == 1) o.strip_accents = false;
    if (which == 2) o.split_chinese = false;
    if (which == 3) o.max_word = 99;
    prints.push_back(make_tokenizer(o)->fingerprint());
  }
  std::sort(prints.begin(), prints.end());
  CHECK(std::adjacent_find(prints.begin(), prints.end()) == prints.end());
}

TEST_CASE("wordpiece: equals transformers' BertTokenizer") {
  const auto data = test::require_data();
  const auto oracles = test::require_oracles();
  if (!data || !oracles) return;
  WordPieceOptions o;
  o.vocab = *data / "tokenizer" / "bert-base-uncased-vocab.txt";
  test::check_oracles(*oracles / "tokenizers", "bert_uncased", *make_tokenizer(o));
  o.lowercase = false;
  test::check_oracles(*oracles / "tokenizers", "bert_uncased_vocab_cased", *make_tokenizer(o));
  o.lowercase = true;
  o.vocab = *data / "tokenizer" / "bert-base-chinese-vocab.txt";
  test::check_oracles(*oracles / "tokenizers", "bert_chinese", *make_tokenizer(o));
}

TEST_CASE("wordpiece: equals the values of google-research/bert") {
  const auto data = test::require_data();
  if (!data) return;
  std::ifstream file(*data / "oracles" / "values" / "tokenization.json");
  const nlohmann::json values = nlohmann::json::parse(file);
  test::TempDir folder;
  const auto tokens_in = [&](const nlohmann::json& vocabulary, bool lowercase) {
    Tokens tokens;
    for (const std::string token : vocabulary) {
      if (token.front() != '[') tokens.push_back(token);
    }
    WordPieceOptions o;
    o.lowercase = lowercase;
    return with_vocabulary(folder, tokens, o);
  };
  for (const auto& each : values["bert_wordpiece"]["cases"]) {
    CHECK(tokens_of(*tokens_in(values["bert_wordpiece"]["vocab"], false), each["text"].get<std::string>()) ==
          each["tokens"].get<Tokens>());
  }
  CHECK(tokens_of(*tokens_in(values["bert_full"]["vocab"], true),
                  values["bert_full"]["text"].get<std::string>()) ==
        values["bert_full"]["tokens"].get<Tokens>());
  for (const auto& each : values["bert_basic"]["cases"]) {  // words only: a vocabulary that has them all
    Tokens vocabulary = each["tokens"].get<Tokens>();
    std::sort(vocabulary.begin(), vocabulary.end());
    vocabulary.erase(std::unique(vocabulary.begin(), vocabulary.end()), vocabulary.end());
    WordPieceOptions o;
    o.lowercase = each["lower"].get<bool>();
    CHECK(tokens_of(*with_vocabulary(folder, vocabulary, o), each["text"].get<std::string>()) ==
          each["tokens"].get<Tokens>());
  }
}

}  // namespace roformer
