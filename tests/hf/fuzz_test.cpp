#include "roformer/core/error.h"
#include "roformer/hf/folder.h"
#include "roformer/hf/llama.h"
#include "roformer/hf/pickle.h"

#include "tests/fuzz.h"
#include "tests/tensors.h"

#include <caffe2/serialize/inline_container.h>

using namespace roformer;

namespace {

namespace fs = std::filesystem;
using test::fuzz;
using test::fuzz_bytes;
using test::fuzz_seed;
using test::fuzz_write;

const std::vector<std::string>& fuzz_json_words() {
  static const std::vector<std::string> words{"{",
                                              "}",
                                              "[",
                                              "]",
                                              ",",
                                              ":",
                                              "\"",
                                              "null",
                                              "true",
                                              "false",
                                              "-1",
                                              "0",
                                              "1e999",
                                              "1.5",
                                              "18446744073709551615",
                                              "9223372036854775807",
                                              "9223372036854775808",
                                              "-9223372036854775808",
                                              "\\u0000",
                                              "\\ud800",
                                              "\xff",
                                              "\xef\xbb\xbf",
                                              "\"shape\"",
                                              "\"dtype\"",
                                              "\"data_offsets\"",
                                              "\"__metadata__\"",
                                              "\"F32\"",
                                              "\"BOOL\"",
                                              "\"hidden_size\":",
                                              "\"id2label\":{\"0\":",
                                              "\"model_type\":\"bert\"",
                                              "\"architectures\":[",
                                              "\"num_labels\":",
                                              "\"rope_scaling\":{\"rope_type\":\"llama3\",",
                                              "\"yarn\"",
                                              "\"factor\":",
                                              "\"eos_token_id\":[",
                                              "\"num_key_value_heads\":",
                                              "\"head_dim\":",
                                              std::string(1, '\0')};
  return words;
}

EncoderOptions fuzz_options(bool bert) {
  EncoderOptions o;
  o.dim = 4;
  o.layers = 1;
  o.heads = 2;
  o.ffn = 4;
  o.vocab_size = 5;
  if (bert) {
    o.positions = {LearnedOptions{.max_length = 4}};
  } else {
    o.positions = {RotaryOptions{}};
  }
  return o;
}

std::string fuzz_number(int64_t n) {
  std::string out = "J";
  for (int i = 0; i < 4; ++i) out += static_cast<char>(n >> (8 * i) & 0xFF);
  return out;
}

std::string fuzz_text(const std::string& text) {
  return std::string("X") + static_cast<char>(text.size()) + std::string(3, '\0') + text;
}

/// The pickle of one tensor "w", [2, 3] of a storage of six, as torch.save writes it.
std::string fuzz_pickle() {
  return std::string("\x80\x02", 2) + "ccollections\nOrderedDict\nq" + std::string(1, '\0') + ")Rq\x01(" +
         fuzz_text("w") + "ctorch._utils\n_rebuild_tensor_v2\nq\x02((" + fuzz_text("storage") +
         "ctorch\nFloatStorage\nq\x03" + fuzz_text("0") + fuzz_text("cpu") + fuzz_number(6) + "tQ" +
         fuzz_number(0) + "K\x02K\x03\x86K\x03K\x01\x86\x89h" + std::string(1, '\0') + ")RtRu}" +
         fuzz_text("_metadata") + "h\x01sb.";
}

}  // namespace

TEST_CASE("fuzz: safetensors headers") {
  test::TempDir folder;
  std::vector<std::string> corpus;
  save_safetensors(folder / "a", {{"x", torch::ones({2, 3})}, {"y", torch::zeros({0, 2}, torch::kInt64)}},
                   {{"format", "pt"}});
  save_safetensors(folder / "b",
                   {{"flag", torch::ones({3}, torch::kBool)}, {"h", torch::ones({}, torch::kHalf)}});
  save_safetensors(folder / "c", {});
  for (const char* name : {"a", "b", "c"}) corpus.push_back(fuzz_bytes(folder / name));
  std::mt19937_64 random(fuzz_seed());
  const auto counts = fuzz(corpus, fuzz_json_words(), [&](std::string bytes) {
    // Mostly with a length that fits again, or the length alone would stop nearly all.
    const size_t brace = bytes.rfind('}');
    if (random() % 8 != 0 && brace != std::string::npos && brace >= 8) {
      const uint64_t length = brace + 1 - 8;
      std::memcpy(bytes.data(), &length, 8);
    }
    fuzz_write(folder / "mutated", bytes);
    const SafetensorsFile file(folder / "mutated");
    for (const SafetensorsEntry& entry : file.entries()) file.tensor(entry.name);
  });
  REQUIRE(counts.first > 0);
  REQUIRE(counts.second > 0);
}

TEST_CASE("fuzz: pickles") {
  const std::vector<std::string> corpus{fuzz_pickle()};
  const std::vector<std::string> words{"c",
                                       "R",
                                       "Q",
                                       "t",
                                       "(",
                                       "u",
                                       "s",
                                       "b",
                                       "2",
                                       "0",
                                       "1",
                                       "}",
                                       "]",
                                       ")",
                                       "e",
                                       "a",
                                       "\x81",
                                       "\x85",
                                       "\x86",
                                       "\x87",
                                       "\x88",
                                       "\x8a\x08\xff\xff\xff\xff\xff\xff\xff\x7f",
                                       "\x8a\x01\xff",
                                       "J\xff\xff\xff\x7f",
                                       "J\xff\xff\xff\xff",
                                       "h\x01",
                                       "h\x02",
                                       "q\x05",
                                       "h\x05",
                                       "\x93",
                                       "\x94",
                                       "N",
                                       "cos\nsystem\n",
                                       "ctorch\nBoolStorage\n",
                                       std::string("X\x00\x00\x00\x00", 5)};
  const auto counts = fuzz(corpus, words, [&](const std::string& bytes) {
    for (const auto& [name, t] : read_tensor_pickle(bytes)) {
      // What was accepted lies within its storage.
      int64_t last = t.offset;
      for (size_t i = 0; i < t.shape.size(); ++i) last += std::max<int64_t>(t.shape[i] - 1, 0) * t.strides[i];
      const bool empty = std::find(t.shape.begin(), t.shape.end(), 0) != t.shape.end();
      if (!empty && (last < 0 || last >= t.storage_size)) FAIL("a tensor beyond its storage");
    }
  });
  REQUIRE(counts.first > 0);
  REQUIRE(counts.second > 0);
}

TEST_CASE("fuzz: pytorch_model.bin") {
  test::TempDir folder;
  {
    caffe2::serialize::PyTorchStreamWriter writer((folder / "good").string());
    const std::string pickle = fuzz_pickle(), data(24, '\1');
    writer.writeRecord("data.pkl", pickle.data(), pickle.size());
    writer.writeRecord("data/0", data.data(), data.size());
    writer.writeRecord("byteorder", "little", 6);
    writer.writeEndOfFile();
  }
  REQUIRE(PickleFile(folder / "good").entries().size() == 1);
  const std::vector<std::string> words{
      std::string(4, '\xff'), std::string(8, '\0'), "PK\x01\x02", "PK\x05\x06", "data.pkl", "data/0", "\x08",
      "\xff\xff\xff\x7f"};
  const auto counts = fuzz({fuzz_bytes(folder / "good")}, words, [&](const std::string& bytes) {
    fuzz_write(folder / "mutated", bytes);
    const PickleFile file(folder / "mutated");
    for (const auto& [name, entry] : file.entries()) file.tensor(name);
  });
  REQUIRE(counts.second > 0);
}

TEST_CASE("fuzz: config.json") {
  test::TempDir folder;
  std::vector<std::string> corpus;
  torch::NoGradGuard no_grad;
  for (const bool bert : {true, false}) {
    const fs::path path = folder / (bert ? "bert" : "roformer");
    save_hf(path,
            *SequenceClassifier(fuzz_options(bert),
                                ClassifierOptions{.kind = bert ? HeadKind::bert : HeadKind::roformer}),
            {.max_length = 8});
    corpus.push_back(fuzz_bytes(path / "config.json"));
  }
  std::mt19937_64 random(fuzz_seed());
  const auto counts = fuzz(corpus, fuzz_json_words(), [&](const std::string& bytes) {
    const fs::path path = folder / (random() % 2 ? "bert" : "roformer");
    fuzz_write(path / "config.json", bytes);
    load_pretrained(open_hf(path));
  });
  REQUIRE(counts.first > 0);
  REQUIRE(counts.second > 0);
}

TEST_CASE("fuzz: config.json of a LLaMA") {
  test::TempDir folder;
  torch::NoGradGuard no_grad;
  CausalLmOptions options;
  options.dim = 4;
  options.layers = 1;
  options.heads = 2;
  options.kv_heads = 1;
  options.ffn = 4;
  options.vocab_size = 5;
  options.norm = NormKind::rms;
  options.gated = true;
  options.bias = false;
  std::vector<std::string> corpus;
  for (const RotaryScaling& scaling : std::initializer_list<RotaryScaling>{
           NoScaling{}, DynamicNtkScaling{}, YarnScaling{.attention_factor = 1.1}, Llama3Scaling{}}) {
    RotaryOptions rotary;
    rotary.scaling = scaling;
    options.positions = {rotary};
    save_hf_llama(folder.path(), *CausalLm(options), {.eos_tokens = {2, 3}});
    corpus.push_back(fuzz_bytes(folder / "config.json"));
  }
  const torch::Tensor tokens = torch::zeros({1, 3}, torch::kInt64);
  const auto counts = fuzz(corpus, fuzz_json_words(), [&](const std::string& bytes) {
    fuzz_write(folder / "config.json", bytes);
    load_llama(open_hf_llama(folder.path()))->forward(tokens);
  });
  REQUIRE(counts.first > 0);
  REQUIRE(counts.second > 0);
}
