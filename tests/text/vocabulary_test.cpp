#include "roformer/text/vocabulary.h"

#include "roformer/core/error.h"
#include "tests/data/text_support.h"
#include "tests/fuzz.h"
#include "tests/support.h"

namespace roformer {
namespace {

const std::string vocabulary_head = "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\n";

}  // namespace

TEST_CASE("vocabulary: line numbers are ids") {
  test::TempDir folder;
  for (const std::string end : {"\n", ""}) {  // the last line may lack its end
    const Vocabulary v(
        test::write_text(folder / "v.txt", vocabulary_head + "the\n##ing\n\u2028\na b\n##x" + end));
    CHECK(v.size() == 10);
    CHECK(v.find("the") == 5);
    CHECK(v.find("##ing") == 6);
    CHECK(v.find("\u2028") == 7);  // Chinese BERT has it
    CHECK(v.find("a b") == 8);
    CHECK(v.find("##x") == 9);
    CHECK(v.find("") == -1);
    CHECK(v.find("th") == -1);
    CHECK(v.token(9) == "##x");
    CHECK(v.longest() == 6);
    CHECK(v.find("ing", Vocabulary::hash("##ing"), "##") == 6);
    CHECK(v.find("ing", Vocabulary::hash("ing")) == -1);
    for (int32_t id = 0; id < 5; ++id) {
      CHECK(v.special(static_cast<Special>(id)) == id);
      CHECK(v.is_special(id));
    }
    CHECK_FALSE(v.is_special(5));
    CHECK_THROWS_AS(v.token(10), std::out_of_range);
    CHECK_THROWS_AS(v.token(-1), std::out_of_range);
  }
}

TEST_CASE("vocabulary: many tokens are all found, and nothing else") {
  test::TempDir folder;
  std::string text = vocabulary_head;
  for (int i = 0; i < 20000; ++i) text += "t" + std::to_string(i * 7) + "\n";
  const Vocabulary v(test::write_text(folder / "v.txt", text));
  int64_t wrong = 0;
  for (int i = 0; i < 140000; ++i) {
    wrong += v.find("t" + std::to_string(i)) != (i % 7 == 0 ? i / 7 + 5 : -1);
  }
  CHECK(wrong == 0);
}

TEST_CASE("vocabulary: damage is named with its line") {
  test::TempDir folder;
  const auto error_for = [&](const std::string& text) {
    const auto path = test::write_text(folder / "v.txt", text);
    const std::string error = test::error_of([&] { Vocabulary v(path); });
    CHECK_FALSE(test::contains(error, "\n"));
    return error;
  };
  using std::string_literals::operator""s;
  CHECK(test::contains(error_for(""), "v.txt: empty"));
  CHECK(test::contains(error_for("\xEF\xBB\xBF" + vocabulary_head), "v.txt:1: byte order mark"));
  CHECK(test::contains(error_for("[PAD]\r\n[UNK]\r\n"), "v.txt:1: Windows line end"));
  CHECK(test::contains(error_for(vocabulary_head + "a\nb\r\n"), "v.txt:7: Windows line end"));
  CHECK(test::contains(error_for(vocabulary_head + "a\rb\n"), "v.txt:6: carriage return"));
  CHECK(test::contains(error_for(vocabulary_head + "a\n\nb\n"), "v.txt:7: empty line"));
  CHECK(test::contains(error_for(vocabulary_head + "\n"), "v.txt:6: empty line"));
  CHECK(test::contains(error_for(vocabulary_head + "a\nb\na\n"), "v.txt:8: 'a' is also on line 6"));
  CHECK(test::contains(error_for(vocabulary_head + "[UNK]\n"), "v.txt:6: '[UNK]' is also on line 2"));
  CHECK(test::contains(error_for(vocabulary_head + "a\0b\n"s), "v.txt:6: NUL"));
  CHECK(test::contains(error_for(vocabulary_head + "\xFF\n"), "v.txt:6: not UTF-8"));
  CHECK(test::contains(error_for(vocabulary_head + std::string(2000, 'x') + "\n"),
                       "v.txt:6: a token of 2000 bytes"));
  for (const std::string missing : {"[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"}) {
    std::string text = vocabulary_head;
    text.replace(text.find(missing), missing.size(), "other");
    const std::string error = error_for(text);
    CHECK(test::contains(error, "v.txt: no " + missing));
    CHECK(test::contains(error, "5 tokens"));
  }
  CHECK(test::contains(test::error_of([&] { Vocabulary v(folder / "none.txt"); }), "none.txt"));
  CHECK(test::contains(test::error_of([&] { Vocabulary v(folder.path()); }), folder.path().string()));
}

TEST_CASE("fuzz: vocabulary") {
  test::TempDir folder;
  const std::vector<std::string> corpus{vocabulary_head + "the\n##ing\n\u5317\n",
                                        "a\r\n[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\n"};
  const std::vector<std::string> words{"\n", "\r",   "\xef\xbb\xbf",      "[PAD]\n",
                                       "##", "\xff", std::string(1, '\0')};
  const auto counts = test::fuzz(corpus, words, [&](const std::string& bytes) {
    test::fuzz_write(folder / "v.txt", bytes);
    const Vocabulary v(folder / "v.txt");
    for (int32_t id = 0; id < v.size(); ++id) {
      if (v.find(v.token(id)) != id) FAIL("a token that is not found");
    }
  });
  CHECK(counts.first > 0);
  CHECK(counts.second > 0);
}

}  // namespace roformer
