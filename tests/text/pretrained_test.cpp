#include "roformer/text/pretrained.h"

#include <random>

#include "roformer/core/error.h"
#include "roformer/core/files.h"
#include "tests/data/text_support.h"
#include "tests/fuzz.h"
#include "tests/text/oracles.h"

namespace roformer {
namespace {

std::string fixture_vocabulary() {
  return read_file(test::source_dir() / "data" / "fixtures" / "vocab.txt", size_t{1} << 20);
}

/// A Hugging Face folder: the vocabulary and these files.
class HfFolder {
 public:
  HfFolder() { test::write_text(path() / "vocab.txt", fixture_vocabulary()); }
  std::filesystem::path path() const { return folder_.path(); }
  void put(const std::string& name, std::string_view text) const { test::write_text(path() / name, text); }
  std::string error() const {
    const std::string error = test::error_of([&] { tokenizer_of_folder(path()); });
    CHECK_FALSE(test::contains(error, "\n"));
    return error;
  }

 private:
  test::TempDir folder_;
};

}  // namespace

TEST_CASE("pretrained: the settings of a BERT folder") {
  const HfFolder folder;
  folder.put("tokenizer_config.json", R"({"tokenizer_class": "BertTokenizer"})");
  auto o = std::get<WordPieceOptions>(tokenizer_of_folder(folder.path()));
  CHECK(o.vocab == folder.path() / "vocab.txt");
  CHECK(o.lowercase);
  CHECK_FALSE(o.strip_accents.has_value());
  CHECK(o.split_chinese);
  CHECK(o.max_word == 100);
  folder.put("tokenizer_config.json",
             R"({"tokenizer_class": "BertTokenizerFast", "do_lower_case": false, "strip_accents": true,
                 "tokenize_chinese_chars": false, "do_basic_tokenize": true, "never_split": null, "model_max_length": 512,
                 "mask_token": "[MASK]", "pad_token": {"content": "[PAD]", "lstrip": false, "__type": "AddedToken"},
                 "added_tokens_decoder": {"0": {"content": "[PAD]", "lstrip": false, "special": true}}})");
  folder.put("special_tokens_map.json", R"({"cls_token": "[CLS]"})");
  folder.put("added_tokens.json", R"({"[MASK]": 4})");
  o = std::get<WordPieceOptions>(tokenizer_of_folder(folder.path()));
  CHECK_FALSE(o.lowercase);
  CHECK(o.strip_accents == true);
  CHECK_FALSE(o.split_chinese);
}

TEST_CASE("pretrained: config.json decides where tokenizer_config.json does not") {
  const HfFolder folder;
  folder.put("config.json", R"({"model_type": "bert"})");
  CHECK(std::holds_alternative<WordPieceOptions>(tokenizer_of_folder(folder.path())));
  folder.put("tokenizer_config.json", R"({"do_lower_case": false})");
  CHECK_FALSE(std::get<WordPieceOptions>(tokenizer_of_folder(folder.path())).lowercase);
  folder.put("config.json", R"({"model_type": "roformer"})");
  auto o = std::get<WordsOptions>(tokenizer_of_folder(folder.path()));
  CHECK_FALSE(o.lowercase);
  CHECK(o.variant == WordsVariant::slow);
  CHECK(o.dictionary.empty());
  folder.put("tokenizer_config.json", R"({"tokenizer_class": "RoFormerTokenizerFast"})");
  CHECK(std::get<WordsOptions>(tokenizer_of_folder(folder.path())).variant == WordsVariant::fast);
  folder.put("tokenizer_config.json", R"({"tokenizer_class": "RoFormerTokenizer", "strip_accents": false})");
  CHECK(test::contains(folder.error(), "'strip_accents' is false"));
}

TEST_CASE("pretrained: a folder with a .model file") {
  test::TempDir folder;
  test::write_text(folder / "a.model", "x");
  CHECK(std::get<SentencePieceOptions>(tokenizer_of_folder(folder.path())).model == folder / "a.model");
  test::write_text(folder / "b.model", "x");
  CHECK(test::contains(test::error_of([&] { tokenizer_of_folder(folder.path()); }), "a.model and b.model"));
}

TEST_CASE("pretrained: what would change ids is refused by name") {
  const std::pair<const char*, const char*> cases[] = {
      {R"({"tokenizer_class": "GPT2Tokenizer"})", "'tokenizer_class' GPT2Tokenizer is not supported"},
      {R"({"tokenizer_class": "BertJapaneseTokenizer"})", "BertJapaneseTokenizer"},
      {R"({"tokenizer_class": 3})", "'tokenizer_class' is 3, expected text"},
      {R"({"tokenizer_class": "BertTokenizer", "do_lower_case": "yes"})", "'do_lower_case' is \"yes\""},
      {R"({"tokenizer_class": "BertTokenizer", "strip_accents": 1})", "'strip_accents' is 1"},
      {R"({"tokenizer_class": "BertTokenizer", "do_basic_tokenize": false})", "'do_basic_tokenize'"},
      {R"({"tokenizer_class": "BertTokenizer", "split_special_tokens": true})", "'split_special_tokens'"},
      {R"({"tokenizer_class": "BertTokenizer", "never_split": ["a"]})", "'never_split'"},
      {R"({"tokenizer_class": "BertTokenizer", "mask_token": "<mask>"})", "'mask_token' is '<mask>'"},
      {R"({"tokenizer_class": "BertTokenizer", "mask_token": {"content": "[MASK]", "lstrip": true}})",
       "lstrip = true"},
      {R"({"tokenizer_class": "BertTokenizer", "mask_token": {}})", "has no 'content'"},
      {R"({"tokenizer_class": "BertTokenizer", "mask_token": 5})", "'mask_token' is 5"},
      {R"({"tokenizer_class": "BertTokenizer", "additional_special_tokens": ["<x>"]})",
       "'additional_special_tokens'"},
      {R"({"tokenizer_class": "BertTokenizer", "added_tokens_decoder": {"9": {"content": "<x>"}}})",
       "added token '<x>'"},
      {R"({"tokenizer_class": "BertTokenizer", "added_tokens_decoder": []})", "'added_tokens_decoder'"},
      {R"([])", "expected a JSON object"},
      {R"({"tokenizer_class": )", "not JSON"},
      {"", "not JSON"},
      {"\xFF", "not JSON"},
  };
  for (const auto& [json, expected] : cases) {
    const HfFolder folder;
    folder.put("tokenizer_config.json", json);
    INFO(json);
    CHECK(test::contains(folder.error(), "tokenizer_config.json: "));
    CHECK(test::contains(folder.error(), expected));
  }
  const HfFolder folder;
  CHECK(test::contains(folder.error(), "no tokenizer found"));
  folder.put("config.json", R"({"model_type": "gpt2"})");
  CHECK(test::contains(folder.error(), "config.json: no tokenizer for 'model_type' 'gpt2'"));
  folder.put("config.json", R"({"model_type": "bert"})");
  CHECK(folder.error().empty());
  folder.put("added_tokens.json", R"({"<x>": 48})");
  CHECK(test::contains(folder.error(), "added_tokens.json: added token '<x>'"));
  folder.put("added_tokens.json", "{}");
  folder.put("special_tokens_map.json", R"({"pad_token": "<pad>"})");
  CHECK(test::contains(folder.error(), "special_tokens_map.json: 'pad_token' is '<pad>'"));
  std::filesystem::remove(folder.path() / "special_tokens_map.json");
  std::filesystem::remove(folder.path() / "vocab.txt");
  CHECK(test::contains(folder.error(), "no vocab.txt"));
  folder.put("tokenizer_config.json", "{\"a\": " + std::string(100000, '[') + std::string(100000, ']') + "}");
  CHECK(test::contains(folder.error(), "nested"));
  CHECK(
      test::contains(test::error_of([&] { tokenizer_of_folder(folder.path() / "none"); }), "no such folder"));
}

TEST_CASE("fuzz: tokenizer_config.json, special_tokens_map.json, added_tokens.json") {
  const HfFolder folder;
  const std::vector<std::string> corpus{
      R"({"tokenizer_class": "BertTokenizer", "do_lower_case": true, "strip_accents": null, "mask_token": {"content":
      "[MASK]", "lstrip": false}, "added_tokens_decoder": {"0": {"content": "[PAD]"}}, "never_split": null})",
      R"({"pad_token": "[PAD]", "unk_token": {"content": "[UNK]", "single_word": false}})", R"({"[PAD]": 0})",
      "{}"};
  const std::vector<std::string> words{"{",
                                       "}",
                                       "[",
                                       "]",
                                       ",",
                                       ":",
                                       "\"",
                                       "null",
                                       "1",
                                       "1e999",
                                       "\\ud800",
                                       "\xff",
                                       "true",
                                       "false",
                                       "\"a\"",
                                       "\"content\":",
                                       "\"lstrip\":true",
                                       std::string(1, '\0')};
  std::mt19937_64 random(test::fuzz_seed());
  const auto counts = test::fuzz(corpus, words, [&](const std::string& bytes) {
    for (const char* name : {"special_tokens_map.json", "added_tokens.json"}) folder.put(name, "{}");
    folder.put("tokenizer_config.json", corpus[0]);
    const char* names[] = {"tokenizer_config.json", "special_tokens_map.json", "added_tokens.json"};
    folder.put(names[random() % 3], bytes);
    tokenizer_of_folder(folder.path());
  });
  CHECK(counts.first > 0);
  CHECK(counts.second > 0);
}

TEST_CASE("pretrained: saved and read back") {
  const HfFolder source;
  test::TempDir target;
  WordPieceOptions w;
  w.vocab = source.path() / "vocab.txt";
  w.lowercase = false;
  w.strip_accents = true;
  w.split_chinese = false;
  save_tokenizer(w, target / "a" / "b", 77);
  CHECK(read_file(target / "a" / "b" / "vocab.txt", size_t{1} << 20) == fixture_vocabulary());
  auto back = std::get<WordPieceOptions>(tokenizer_of_folder(target / "a" / "b"));
  CHECK(back.lowercase == false);
  CHECK(back.strip_accents == true);
  CHECK(back.split_chinese == false);
  CHECK(make_tokenizer(back)->fingerprint() == make_tokenizer(w)->fingerprint());
  const auto json =
      nlohmann::json::parse(read_file(target / "a" / "b" / "tokenizer_config.json", size_t{1} << 20));
  CHECK(json["tokenizer_class"] == "BertTokenizer");
  CHECK(json["do_lower_case"] == false);
  CHECK(json["strip_accents"] == true);
  CHECK(json["tokenize_chinese_chars"] == false);
  CHECK(json["model_max_length"] == 77);
  for (const auto& [key, value] :
       std::initializer_list<std::pair<const char*, const char*>>{{"unk_token", "[UNK]"},
                                                                  {"mask_token", "[MASK]"},
                                                                  {"pad_token", "[PAD]"},
                                                                  {"cls_token", "[CLS]"},
                                                                  {"sep_token", "[SEP]"}}) {
    CHECK(json[key] == value);
    CHECK(nlohmann::json::parse(
              read_file(target / "a" / "b" / "special_tokens_map.json", size_t{1} << 20))[key] == value);
  }
  // Over itself.
  save_tokenizer(back, target / "a" / "b");
  CHECK(read_file(target / "a" / "b" / "vocab.txt", size_t{1} << 20) == fixture_vocabulary());

  for (const WordsVariant variant : {WordsVariant::slow, WordsVariant::fast}) {
    WordsOptions words;
    words.vocab = w.vocab;
    words.variant = variant;
    save_tokenizer(words, target / "words");
    CHECK(std::get<WordsOptions>(tokenizer_of_folder(target / "words")).variant == variant);
  }
}

TEST_CASE("pretrained: what transformers has no class for is not written") {
  const HfFolder source;
  test::TempDir target;
  const auto error_of_saving = [&](const TokenizerOptions& o) {
    return test::error_of([&] { save_tokenizer(o, target / "out"); });
  };
  CHECK(test::contains(error_of_saving(BytesOptions{}), "type bytes"));
  CHECK(test::contains(error_of_saving(SentencePieceOptions{"a.model"}), "type sentencepiece"));
  WordPieceOptions w;
  w.vocab = source.path() / "vocab.txt";
  w.max_word = 200;
  CHECK(test::contains(error_of_saving(w), "max_word is 200"));
  w.max_word = 100;
  w.vocab = source.path() / "none.txt";
  CHECK(test::contains(error_of_saving(w), "none.txt"));
  CHECK_FALSE(std::filesystem::exists(target / "out"));
}

}  // namespace roformer
