#include "roformer/hf/llama.h"
#include "roformer/model_source.h"
#include "tests/tensors.h"
// after torch
#include "tests/fuzz.h"
#include "tests/models/causal_models.h"
#include "tests/run/process.h"

using namespace roformer;
using namespace roformer::test;

namespace {

/// A language model with LLaMA's parts, after a few updates.
struct LlamaFixture {
  LlamaFixture() {
    std::string text;
    for (int i = 0; i < 300; ++i) text += i % 3 ? "a rotation of pairs, " : "by angles that grow. ";
    write_text(folder / "text.txt", text);
    write_text(folder / "base.yaml",
               "task: {type: byte_lm, file: text.txt, length: 32, eval_windows: 4}\n"
               "trainer: {steps: 20, batch: 8, evaluate_every: 0, device: cpu, threads: 1,\n"
               "          optimizer: {lr: 1e-2}}\n");
    write_text(
        folder / "lm.yaml",
        "base: base.yaml\n"
        "model: {type: causal, dim: 32, layers: 2, heads: 4, kv_heads: 2, ffn: 40, norm: rms, gated: true,\n"
        "        activation: silu, bias: false, positions: rotary}\n");
    write_text(folder / "tuned.yaml", "base: base.yaml\nmodel: {type: causal, path: hf}\n");
    const torch::Tensor ids = torch::randint(32, 127, {3, 20}, torch::kInt64);
    torch::Tensor keep = torch::ones_like(ids);
    keep[0].slice(0, 12).zero_();
    keep[1].slice(0, 0, 5).zero_();
    keep_ = keep.to(torch::kBool);
    save_safetensors(folder / "ids.safetensors", {{"input_ids", ids}, {"attention_mask", keep}});
  }
  std::string path(const std::string& name) const { return (folder / name).string(); }
  std::string must(const std::vector<std::string>& arguments) const {
    const Outcome outcome = run_program(arguments, folder);
    INFO(outcome.output);
    REQUIRE(outcome.status == 0);
    return outcome.output;
  }
  void refused(const std::vector<std::string>& arguments, const std::string& why) const {
    const Outcome outcome = run_program(arguments, folder);
    INFO(outcome.output);
    CHECK(outcome.status == 2);
    CHECK(outcome.output.find(why) != std::string::npos);
  }
  /// Greatest difference of what `encode` writes for two models, where the mask is 1.
  double difference(const std::string& a, const std::string& b) const {
    must({"encode", path(a), path("ids.safetensors"), path("a.safetensors")});
    must({"encode", path(b), path("ids.safetensors"), path("b.safetensors")});
    const SafetensorsFile one(folder / "a.safetensors"), other(folder / "b.safetensors");
    double worst = 0;
    for (const char* name : {"last_hidden_state", "logits"}) {
      worst = std::max(worst, max_error(one.tensor(name).index({keep_}), other.tensor(name).index({keep_})));
    }
    return worst;
  }
  TempDir folder;
  torch::Tensor keep_;
};

}  // namespace

TEST_CASE_METHOD(LlamaFixture, "a language model becomes a LLaMA folder, and a run starts from one") {
  must({"train", path("lm.yaml"), "--run", path("run")});
  must({"convert", path("run"), path("hf")});
  CHECK(difference("run", "hf") < 1e-5);  // interleaved there, halves here
  must({"convert", path("hf"), path("again")});
  CHECK(fuzz_bytes(folder / "hf/model.safetensors") == fuzz_bytes(folder / "again/model.safetensors"));
  CHECK(fuzz_bytes(folder / "hf/config.json") == fuzz_bytes(folder / "again/config.json"));
  const HfLlamaFolder written = open_hf_llama(folder / "hf");
  CHECK(written.settings.max_length == 32);
  CHECK(written.settings.eos_tokens.empty());
  CHECK(holds_causal_model(folder / "run"));
  CHECK(holds_causal_model(folder / "hf"));

  // The folder says what the model is; the file may say otherwise.
  const RunOptions run =
      load_run(folder / "tuned.yaml", {"model.positions.scaling={type: linear, factor: 2}"});
  const CausalLmOptions options = run.causal();
  CHECK(options.dim == 32);
  CHECK(options.kv_heads == 2);
  CHECK(options.norm == NormKind::rms);
  CHECK(options.vocab_size == 256);
  const auto& rotary = std::get<RotaryOptions>(options.positions.at(0));
  CHECK(rotary.layout == RotaryLayout::halves);
  CHECK(std::get<LinearScaling>(rotary.scaling).factor == 2.0);
  // One update of next to nothing leaves the folder's weights.
  const std::string still = "trainer.optimizer.lr=1e-9";
  must({"train", path("tuned.yaml"), "--run", path("tuned"), "--set", "trainer.steps=1", "--set", still});
  std::filesystem::rename(folder / "hf", folder / "moved");  // the run spells everything out
  CHECK(difference("tuned", "moved") < 1e-5);
  CHECK(difference("tuned", "run") < 1e-5);
}

TEST_CASE_METHOD(LlamaFixture, "a LLaMA folder is written with its SentencePiece model") {
  must({"train", path("lm.yaml"), "--run", path("run"), "--set", "trainer.steps=1"});
  CHECK(must({"convert", path("run"), path("hf")}).find("no tokenizer is written") != std::string::npos);
  CHECK(must({"convert", path("hf"), path("bare")}).find("no tokenizer is written") != std::string::npos);

  const std::string model("any\0bytes\r\n", 11), config = "{\"tokenizer_class\": \"LlamaTokenizer\"}";
  write_text(folder / "hf/tokenizer.model", model);
  const std::string plain = must({"convert", path("hf"), path("plain")});
  CHECK(plain.find("warning") == std::string::npos);
  CHECK(fuzz_bytes(folder / "plain/tokenizer.model") == model);
  CHECK_FALSE(std::filesystem::exists(folder / "plain/tokenizer_config.json"));
  write_text(folder / "hf/tokenizer_config.json", config);
  must({"convert", path("hf"), path("both")});
  CHECK(fuzz_bytes(folder / "both/tokenizer.model") == model);
  CHECK(fuzz_bytes(folder / "both/tokenizer_config.json") == config);

  write_text(folder / "hf/other.model", model);  // which of them?
  CHECK(must({"convert", path("hf"), path("two")}).find("has not one .model file") != std::string::npos);
  CHECK_FALSE(std::filesystem::exists(folder / "two/tokenizer.model"));
}

TEST_CASE_METHOD(LlamaFixture, "a language model in the wrong place is refused in one line") {
  save_hf_llama(folder / "hf", *CausalLm(small_llama(100)));
  const std::string out = path("never");
  refused({"train", path("tuned.yaml"), "--run", out}, "model.vocab_size 100 is less than the 256 values");
  refused({"encode", path("hf"), path("text.txt"), path("out.safetensors")},
          "is a language model, whose texts are not encoded here; give token ids");
  write_text(folder / "mlm.yaml",
             "task: mlm\ntokenizer: bytes\ndata: {train: text.txt, length: 16}\nmodel: {path: hf}\n"
             "trainer: {steps: 1, device: cpu}\n");
  refused({"train", path("mlm.yaml"), "--run", out}, "is a language model, and an encoder is needed here");
  must({"train", path("lm.yaml"), "--run", path("plain"), "--set", "model.norm=layer", "--set",
        "trainer.steps=1"});
  refused({"convert", path("plain"), out}, "only model.norm: rms can be written");
  CHECK_FALSE(std::filesystem::exists(out));
}
