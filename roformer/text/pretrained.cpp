#include "roformer/text/pretrained.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <system_error>
#include <type_traits>
#include <vector>

#include "roformer/core/display.h"
#include "roformer/core/error.h"
#include "roformer/core/files.h"
#include "roformer/core/json_file.h"
#include "roformer/text/vocabulary.h"

namespace roformer {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr size_t tokenizer_json_bytes = size_t{16} << 20;

// In the order of enum Special.
constexpr std::string_view special_keys[5] = {"pad_token", "unk_token", "cls_token", "sep_token",
                                              "mask_token"};

/// Typed access to a JSON file of a tokenizer.
class TokenizerJson : public JsonFile {
 public:
  explicit TokenizerJson(const fs::path& path) : JsonFile(path, tokenizer_json_bytes, Absent::empty) {}

  std::optional<bool> find_bool(std::string_view key) const {
    const json* value = find(key);
    if (!value) return std::nullopt;
    if (!value->is_boolean()) refuse("'{}' is {}, expected true, false or null", key, shown_value(*value));
    return value->get<bool>();
  }
  std::string find_text(std::string_view key) const {
    const json* value = find(key);
    if (!value) return "";
    if (!value->is_string()) refuse("'{}' is {}, expected text", key, shown_value(*value));
    return value->get<std::string>();
  }
  static std::string shown_value(const json& value) {
    return shown(value.dump(-1, ' ', false, json::error_handler_t::replace));
  }
};

/// A special token is text or an object with `content`; the flags in it would change where texts are split.
std::string special_text(const TokenizerJson& file, std::string_view key, const json& value) {
  const json* content = &value;
  if (value.is_object()) {
    for (const char* flag : {"lstrip", "rstrip", "single_word"}) {
      const auto found = value.find(flag);
      if (found != value.end() && *found != json(false)) {
        file.refuse("'{}' has {} = {}, which is not supported; expected false", key, flag,
                    TokenizerJson::shown_value(*found));
      }
    }
    const auto found = value.find("content");
    if (found == value.end()) file.refuse("'{}' has no 'content'", key);
    content = &*found;
  }
  if (!content->is_string()) {
    file.refuse("'{}' is {}, expected text", key, TokenizerJson::shown_value(*content));
  }
  return content->get<std::string>();
}

void require_special(const TokenizerJson& file) {
  for (size_t role = 0; role < 5; ++role) {
    const json* value = file.find(special_keys[role]);
    if (!value) continue;
    const std::string text = special_text(file, special_keys[role], *value);
    if (text != bert_special_names[role]) {
      file.refuse("'{}' is '{}'; only '{}' is supported", special_keys[role], shown(text, 40),
                  bert_special_names[role]);
    }
  }
  const json* more = file.find("additional_special_tokens");
  if (more && !more->empty()) file.refuse("'additional_special_tokens' is not supported; remove them");
}

void require_no_added(const TokenizerJson& file, const std::string& text) {
  if (std::find(std::begin(bert_special_names), std::end(bert_special_names), text) ==
      std::end(bert_special_names)) {
    file.refuse("added token '{}': added tokens are not supported; put it into vocab.txt", shown(text, 40));
  }
}

/// Everything that changes ids and is not followed here.
void require_plain(const TokenizerJson& config, const fs::path& folder) {
  if (!config.find_bool("do_basic_tokenize").value_or(true)) {
    config.refuse("'do_basic_tokenize' is false, which is not supported");
  }
  if (config.find_bool("split_special_tokens").value_or(false)) {
    config.refuse("'split_special_tokens' is true, which is not supported");
  }
  const json* never = config.find("never_split");
  if (never && !never->empty()) config.refuse("'never_split' is not supported; remove it");
  require_special(config);
  if (const json* added = config.find("added_tokens_decoder")) {
    if (!added->is_object()) config.refuse("'added_tokens_decoder' is not a JSON object");
    for (const auto& [id, token] : added->items()) {
      require_no_added(config, special_text(config, "added_tokens_decoder", token));
    }
  }
  require_special(TokenizerJson(folder / "special_tokens_map.json"));
  const TokenizerJson added(folder / "added_tokens.json");
  for (const auto& [text, id] : added.values().items()) require_no_added(added, text);
}

fs::path only_model(const fs::path& folder) {
  const std::vector<fs::path> found = sentencepiece_files(folder);
  if (found.size() > 1) {
    fail("{}: {} and {} are there; leave one .model file", folder.string(), found[0].filename().string(),
         found[1].filename().string());
  }
  return found.empty() ? fs::path() : found.front();
}

SentencePieceOptions sentencepiece_of_llama(const TokenizerJson& config, const fs::path& folder) {
  // What stands around a text is the matter of who reads it: a token at the beginning, none at the end.
  if (!config.find_bool("add_bos_token").value_or(true))
    config.refuse("'add_bos_token' is false, which is not supported");
  if (config.find_bool("add_eos_token").value_or(false))
    config.refuse("'add_eos_token' is true, which is not supported");
  const fs::path model = only_model(folder);
  if (model.empty())
    fail("{}: no .model file (SentencePiece), the one tokenizer of LLaMA that is read", folder.string());
  return {model};
}

}  // namespace

std::vector<fs::path> sentencepiece_files(const fs::path& folder) {
  std::vector<fs::path> found;
  std::error_code error;
  for (fs::directory_iterator it(folder, error), end; !error && it != end; it.increment(error)) {
    if (it->path().extension() == ".model") found.push_back(it->path());
  }
  if (error) fail("cannot read {}: {}", folder.string(), error.message());
  std::sort(found.begin(), found.end());
  return found;
}

TokenizerOptions tokenizer_of_folder(const fs::path& folder) {
  std::error_code error;
  if (!fs::is_directory(folder, error)) fail("{}: no such folder", folder.string());
  const TokenizerJson config(folder / "tokenizer_config.json");
  std::string kind = config.find_text("tokenizer_class");
  std::string source = config.name();
  const fs::path vocab = folder / "vocab.txt";
  const bool has_vocab = fs::exists(vocab, error);
  if (kind.empty()) {
    if (!has_vocab) {
      const fs::path model = only_model(folder);
      if (!model.empty()) return SentencePieceOptions{model};
    }
    const TokenizerJson model_config(folder / "config.json");
    source = model_config.name();
    kind = model_config.find_text("tokenizer_class");
    if (kind.empty()) {
      const std::string model_type = model_config.find_text("model_type");
      if (model_type.empty()) {
        fail(
            "{}: no tokenizer found: neither tokenizer_config.json with a 'tokenizer_class', nor config.json "
            "with a "
            "'model_type', nor a .model file",
            folder.string());
      }
      if (model_type == "bert" || model_type == "nezha") {
        kind = "BertTokenizer";
      } else if (model_type == "roformer") {
        kind = "RoFormerTokenizer";
      } else if (model_type == "llama") {
        kind = "LlamaTokenizer";
      } else {
        fail("{}: no tokenizer for 'model_type' '{}'; supported are bert, nezha, roformer and llama", source,
             shown(model_type));
      }
    }
  }
  if (kind == "LlamaTokenizer" || kind == "LlamaTokenizerFast") return sentencepiece_of_llama(config, folder);
  const bool bert = kind == "BertTokenizer" || kind == "BertTokenizerFast";
  if (!bert && kind != "RoFormerTokenizer" && kind != "RoFormerTokenizerFast") {
    fail(
        "{}: 'tokenizer_class' {} is not supported; supported are BertTokenizer, RoFormerTokenizer and "
        "LlamaTokenizer",
        source, shown(kind));
  }
  require_plain(config, folder);
  if (!has_vocab)
    fail("{}: no vocab.txt, which {} needs; get it from where the model came from", folder.string(), kind);

  const bool lowercase = config.find_bool("do_lower_case").value_or(true);
  const std::optional<bool> strip_accents = config.find_bool("strip_accents");
  const bool split_chinese = config.find_bool("tokenize_chinese_chars").value_or(true);
  if (bert) {
    WordPieceOptions o;
    o.vocab = vocab;
    o.lowercase = lowercase;
    o.strip_accents = strip_accents;
    o.split_chinese = split_chinese;
    return o;
  }
  if (strip_accents.value_or(lowercase) != lowercase) {
    config.refuse("'strip_accents' is {}, which is supported for BertTokenizer only", *strip_accents);
  }
  if (!split_chinese) {
    config.refuse("'tokenize_chinese_chars' is false, which is supported for BertTokenizer only");
  }
  WordsOptions o;
  o.vocab = vocab;
  o.lowercase = lowercase;
  o.variant = kind.ends_with("Fast") ? WordsVariant::fast : WordsVariant::slow;
  return o;
}

void save_tokenizer(const TokenizerOptions& options, const fs::path& folder, int64_t max_length) {
  std::visit(
      [&](const auto& o) {
        using O = std::remove_cvref_t<decltype(o)>;
        if constexpr (std::is_same_v<O, BytesOptions> || std::is_same_v<O, SentencePieceOptions>) {
          fail(
              "{}: a tokenizer of type {} has no class in transformers; only wordpiece and words can be "
              "written",
              folder.string(), O::type);
        } else {
          if (o.max_word != 100) {
            fail("{}: tokenizer.max_word is {}, but transformers has 100 and no setting for it",
                 folder.string(), o.max_word);
          }
          const Vocabulary checked(o.vocab);
          const std::string vocabulary = read_file(o.vocab, size_t{64} << 20);
          json config = {{"do_lower_case", o.lowercase},
                         {"do_basic_tokenize", true},
                         {"never_split", nullptr},
                         {"strip_accents", nullptr},
                         {"tokenize_chinese_chars", true}};
          if constexpr (std::is_same_v<O, WordPieceOptions>) {
            config["tokenizer_class"] = "BertTokenizer";
            if (o.strip_accents) config["strip_accents"] = *o.strip_accents;
            config["tokenize_chinese_chars"] = o.split_chinese;
          } else {
            const bool fast = o.variant == WordsVariant::fast;
            config["tokenizer_class"] = fast ? "RoFormerTokenizerFast" : "RoFormerTokenizer";
          }
          if (max_length > 0) config["model_max_length"] = max_length;
          json special = json::object();
          for (size_t role = 0; role < 5; ++role)
            special[std::string(special_keys[role])] = bert_special_names[role];
          config.update(special);

          std::error_code error;
          fs::create_directories(folder, error);
          if (error) fail("cannot make {}: {}", folder.string(), error.message());
          write_file_atomically(folder / "vocab.txt", vocabulary);
          write_file_atomically(folder / "tokenizer_config.json", config.dump(2) + "\n");
          write_file_atomically(folder / "special_tokens_map.json", special.dump(2) + "\n");
        }
      },
      options);
}

}  // namespace roformer
