#include "roformer/torch.h"

#include <sentencepiece_trainer.h>
#include <algorithm>
#include <sstream>

#include "roformer/core/error.h"
#include "roformer/core/log.h"
#include "roformer/eval/search.h"
#include "roformer/hf/llama.h"
#include "roformer/run.h"
#include "tests/catch.h"
#include "tests/models/causal_models.h"
#include "tests/run/process.h"

using namespace roformer;
using namespace roformer::test;

namespace {

/// A small language model, softmax or linear, after a few updates.
struct GenerateFixture {
  GenerateFixture() {
    log::set_quiet(true);
    write_text(folder / "text.txt", made_up_text(6000));
    write_text(folder / "lm.yaml",
               "task: {type: byte_lm, file: text.txt, length: 32, eval_windows: 4}\n"
               "model: {type: causal, dim: 32, layers: 2, heads: 2, ffn: 32, positions: {type: rotary}}\n"
               "trainer: {steps: 60, batch: 8, evaluate_every: 0, device: cpu, threads: 1,\n"
               "          optimizer: {lr: 1e-2}}\n");
  }
  ~GenerateFixture() { log::set_quiet(false); }
  std::string path(const std::string& name) const { return (folder / name).string(); }
  void train(const std::string& run, std::vector<std::string> sets = {}) const {
    std::vector<std::string> arguments = {"train", path("lm.yaml"), "--run", path(run), "--quiet"};
    for (const std::string& each : sets) arguments.insert(arguments.end(), {"--set", each});
    const Outcome outcome = run_program(arguments, folder);
    INFO(outcome.output);
    REQUIRE(outcome.status == 0);
  }
  Outcome generate(const std::string& run, std::vector<std::string> more) const {
    more.insert(more.begin(), {"generate", path(run)});
    return run_program(more, folder);
  }
  /// The text alone.
  std::string text(const std::string& run, std::vector<std::string> more) const {
    more.push_back("--quiet");
    const Outcome outcome = generate(run, more);
    INFO(outcome.output);
    REQUIRE(outcome.status == 0);
    return outcome.output;
  }
  TempDir folder;
};

}  // namespace

TEST_CASE_METHOD(GenerateFixture, "generate: the same seed gives the same text, with and without cache") {
  const std::string linear = "model.attention={type: linear, features: {type: favor, features: 16}}";
  for (const std::string& sets : {std::string(), linear}) {
    const std::string run = sets.empty() ? "softmax" : "linear";
    INFO(run);
    train(run, sets.empty() ? std::vector<std::string>{} : std::vector<std::string>{sets});
    const std::vector<std::string> asked = {"--prompt", "the cat ", "--max-new", "100", "--seed", "3"};
    const std::string drawn = text(run, asked);
    CHECK(drawn.size() == 100);
    CHECK(text(run, asked) == drawn);
    auto with = [&](std::vector<std::string> more) {
      more.insert(more.begin(), asked.begin(), asked.end());
      return text(run, more);
    };
    CHECK(with({"--no-cache"}) == drawn);
    CHECK(with({"--threads", "2"}) == drawn);
    CHECK(text(run, {"--prompt", "the cat ", "--max-new", "100", "--seed", "4"}) != drawn);
    // It has learned words: greedy text is made of the letters of its corpus.
    const std::string greedy = with({"--temperature", "0"});
    CHECK(greedy.find_first_not_of("abcdefghilmnorstuwy. \n") == std::string::npos);
    CHECK(with({"--temperature", "0", "--no-cache"}) == greedy);
    CHECK(with({"--top-k", "1"}) == greedy);
    CHECK(with({"--top-p", "1e-9"}) == greedy);
    CHECK(with({"--temperature", "5"}) != greedy);
  }
  CHECK(text("softmax", {"--max-new", "0"}).empty());

  // A prompt from a file is the same prompt, and so is a checkpoint of the run.
  write_text(folder / "prompt.txt", "the cat ");
  const std::string drawn = text("softmax", {"--prompt", "the cat ", "--max-new", "20"});
  CHECK(text("softmax", {"--prompt-file", path("prompt.txt"), "--max-new", "20"}) == drawn);
  CHECK(text("softmax/checkpoints/best.safetensors", {"--prompt", "the cat ", "--max-new", "20"}) == drawn);

  // Nothing to continue: after a line break, and said.
  const Outcome empty = generate("softmax", {"--max-new", "20"});
  CHECK(empty.status == 0);
  CHECK(empty.output.find("after a line break") != std::string::npos);
  CHECK(text("softmax", {"--max-new", "20"}) == text("softmax", {"--prompt", "\n", "--max-new", "20"}));
  CHECK(empty.output.find("tokens/s") != std::string::npos);
}

TEST_CASE_METHOD(GenerateFixture, "generate: a terminal gets no control characters, a file gets the bytes") {
  // Trained on bytes of all kinds; a high temperature makes any of them likely.
  std::string hostile;
  for (int i = 0; i < 6000; ++i) hostile += static_cast<char>(i * 7919 % 256);
  write_text(folder / "text.txt", hostile);
  train("run", {"trainer.steps=2"});
  GenerateRequest request;
  request.model = folder / "run";
  request.prompt = "a";
  request.sampling.max_new_tokens = 600;
  std::ostringstream raw, shown;
  REQUIRE(roformer::generate(request, raw) == 0);
  request.terminal = true;
  REQUIRE(roformer::generate(request, shown) == 0);
  CHECK(raw.str().size() == 600);
  CHECK(raw.str().find('\x1b') != std::string::npos);
  for (const char c : shown.str()) {
    INFO(static_cast<int>(static_cast<unsigned char>(c)));
    CHECK_FALSE((static_cast<unsigned char>(c) < 0x20 && c != '\n' && c != '\t'));
    CHECK(c != '\x7f');
  }
  CHECK(shown.str().find("\uFFFD") != std::string::npos);
  CHECK(shown.str().ends_with('\n'));
}

TEST_CASE_METHOD(GenerateFixture, "generate: a table of positions ends the text, or refuses the prompt") {
  train("run", {"model.positions={type: learned, max_length: 40}"});
  const Outcome cut = generate("run", {"--prompt", "the cat ", "--max-new", "100", "--quiet"});
  INFO(cut.output);
  CHECK(cut.status == 0);
  CHECK(cut.output.find("ends after 33 new tokens instead of 100") != std::string::npos);
  CHECK(cut.output.find("can place 40") != std::string::npos);
  // Eight tokens of the prompt, 32 read again and one more written.
  const std::string most = text("run", {"--prompt", "the cat ", "--max-new", "33"});
  CHECK(most.size() == 33);
  CHECK(text("run", {"--prompt", "the cat ", "--max-new", "33", "--no-cache"}) == most);
  CHECK(text("run", {"--prompt", std::string(40, 'a'), "--max-new", "1"}).size() == 1);
  const Outcome refused = generate("run", {"--prompt", std::string(41, 'a'), "--max-new", "1"});
  CHECK(refused.status == 2);
  CHECK(refused.output.find("the prompt has 41 tokens, and the model can place 40") != std::string::npos);
}

TEST_CASE_METHOD(GenerateFixture, "generate: bad input: one line, exit 2") {
  train("run", {"trainer.steps=2"});
  write_text(folder / "mlm.yaml", tiny_config("text.txt"));
  REQUIRE(run_program({"train", path("mlm.yaml"), "--run", path("mlm"), "--set", "trainer.steps=2"}, folder)
              .status == 0);
  struct Case {
    std::string run;
    std::vector<std::string> arguments;
    std::string expected;
  };
  const std::vector<Case> cases = {
      {"mlm", {}, "byte_lm"},
      {"absent", {}, "absent"},
      {"text.txt", {}, "no run folder"},
      {"run", {"--temperature", "-1"}, "temperature"},
      {"run", {"--temperature", "nan"}, "temperature"},
      {"run", {"--temperature", "warm"}, "temperature"},
      {"run", {"--top-k", "-1"}, "top-k"},
      {"run", {"--top-p", "0"}, "top-p"},
      {"run", {"--top-p", "1.5"}, "top-p"},
      {"run", {"--max-new", "-1"}, "max-new"},
      {"run", {"--seed", "x"}, "seed"},
      {"run", {"--prompt", "a", "--prompt-file", path("text.txt")}, "one or the other"},
      {"run", {"--prompt-file", path("absent.txt")}, "absent.txt"},
      {"run", {"--device", "gpu"}, "device must be"},
      {"run", {"--set", "model.dim=48"}, "does not fit the options of its run"},
      {"run", {"--set", "model.dmi=48"}, "dmi"},
  };
  for (const Case& each : cases) {
    const Outcome outcome = generate(each.run, each.arguments);
    for (const std::string& argument : each.arguments) UNSCOPED_INFO(argument);
    INFO(each.run << "\n" << outcome.output);
    CHECK(outcome.status == 2);
    CHECK(std::count(outcome.output.begin(), outcome.output.end(), '\n') == 1);
    CHECK(outcome.output.find(each.expected) != std::string::npos);
  }
}

namespace {

/// A SentencePiece model as LLaMA's: <unk> 0, <s> 1, </s> 2, then all bytes.
void write_llama_tokenizer(const std::filesystem::path& file, const std::filesystem::path& text) {
  const auto status = sentencepiece::SentencePieceTrainer::Train(
      "--input=" + text.string() +
      " --model_prefix=" + std::filesystem::path(file).replace_extension().string() +
      " --vocab_size=300 --model_type=bpe --byte_fallback=true --minloglevel=3");
  INFO(status.ToString());
  REQUIRE(status.ok());
}

/// An untrained LLaMA with five tokens more than the tokenizer, which draws nearly evenly from all.
void write_llama(const std::filesystem::path& folder, const HfLlamaSettings& settings) {
  CausalLmOptions options = small_llama(305);
  options.positions = {RotaryOptions{.layout = RotaryLayout::halves}};
  torch::manual_seed(1);
  save_hf_llama(folder, *CausalLm(options), settings);
}

}  // namespace

TEST_CASE_METHOD(GenerateFixture, "generate: a LLaMA folder with its SentencePiece model") {
  write_llama(folder / "hf", {.eos_tokens = {}});
  write_llama_tokenizer(folder / "hf/tokenizer.model", folder / "text.txt");
  const auto tokenizer = make_tokenizer(SentencePieceOptions{folder / "hf/tokenizer.model"});
  CausalLm model = load_llama(open_hf_llama(folder / "hf"));
  model->eval();
  const std::string prompt = "the cat";
  std::vector<int32_t> ids = {1};
  tokenizer->encode(prompt, ids);
  SamplingOptions sampling;
  sampling.max_new_tokens = 400;
  const torch::NoGradGuard no_grad;
  std::vector<int64_t> drawn;
  generate_tokens(next_logits(model, true), torch::tensor(ids, torch::kInt64).unsqueeze(0), sampling,
                  [&](std::span<const int64_t> token) { return drawn.push_back(token[0]), true; });
  // What the program prints token by token is one decoding of all, and bytes are bytes.
  std::vector<int32_t> all(ids.begin() + 1, ids.end());
  std::string expected;
  int64_t seen_bytes = 0, beyond = 0;
  auto decoded = [&] { return tokenizer->decode(all); };
  for (const int64_t token : drawn) {
    const auto id = static_cast<int32_t>(token);
    if (id >= tokenizer->vocab_size()) {
      ++beyond;
    } else if (id >= 3 && id < 259) {  // <0x00> and so on
      expected += static_cast<char>(id - 3);
      ++seen_bytes;
      all.push_back(id);
    } else {
      const std::string before = decoded();
      all.push_back(id);
      expected += decoded().substr(before.size());
    }
  }
  CHECK(beyond > 0);
  CHECK(seen_bytes > 100);
  CHECK(static_cast<int64_t>(drawn.size()) - seen_bytes - beyond > 30);
  const std::vector<std::string> asked = {"--prompt", prompt, "--max-new", "400", "--seed", "1"};
  CHECK(text("hf", asked) == expected);

  // Nothing to continue: what begins a text is enough.
  CHECK_FALSE(text("hf", {"--prompt", "", "--max-new", "9"}).empty());
  CHECK(text("hf", {"--prompt", "the cat", "--max-new", "9", "--threads", "2", "--device", "cpu"}).size() >
        0);

  // A text ends before any of the tokens that end one.
  const int64_t third = drawn[2], seventh = drawn[6];
  write_llama(folder / "ends", {.eos_tokens = {seventh, third}});
  std::filesystem::copy(folder / "hf/tokenizer.model", folder / "ends/tokenizer.model");
  CHECK(expected.starts_with(text("ends", asked)));
  CHECK(text("ends", asked) == text("hf", {"--prompt", prompt, "--max-new", "2"}));

  // Made for 2048 tokens by config.json, here for fewer.
  write_llama(folder / "short", {.max_length = 8, .eos_tokens = {}});
  std::filesystem::copy(folder / "hf/tokenizer.model", folder / "short/tokenizer.model");
  CHECK(generate("short", {"--prompt", "a", "--max-new", "20"}).output.find("longer than the 8 tokens") !=
        std::string::npos);
  CHECK(generate("hf", {"--prompt", "a", "--max-new", "20"}).output.find("longer than") == std::string::npos);
  write_llama(folder / "stranger", {.bos_token = 500});
  std::filesystem::copy(folder / "hf/tokenizer.model", folder / "stranger/tokenizer.model");
  CHECK(
      generate("stranger", {"--prompt", "a"}).output.find("bos_token_id 500 is not one of the 305 tokens") !=
      std::string::npos);

  // Trainer options are for the machine; a folder has no others.
  const Outcome other = generate("hf", {"--set", "model.dim=4"});
  CHECK(other.status == 2);
  CHECK(other.output.find("model") != std::string::npos);
  const Outcome latin = generate("hf", {"--prompt", "caf\xe9"});
  CHECK(latin.status == 2);
  CHECK(latin.output.find("not UTF-8 from byte 4 on") != std::string::npos);
  // A model without a token that begins a text cannot go on from nothing.
  write_llama(folder / "nothing", {.bos_token = {}, .eos_tokens = {}});
  std::filesystem::copy(folder / "hf/tokenizer.model", folder / "nothing/tokenizer.model");
  CHECK(generate("nothing", {"--prompt", " "}).output.find("the prompt has no tokens") != std::string::npos);
  CHECK_FALSE(text("nothing", {"--prompt", "a", "--max-new", "9"}).empty());
  write_llama(folder / "bare", {});
  const Outcome bare = generate("bare", {"--prompt", "a"});
  CHECK(bare.status == 2);
  CHECK(bare.output.find("no .model file") != std::string::npos);
  write_text(folder / "bare/tokenizer_config.json", R"({"tokenizer_class": "LlamaTokenizerFast"})");
  CHECK(generate("bare", {"--prompt", "a"}).output.find("no .model file") != std::string::npos);
  write_text(folder / "ends/tokenizer_config.json",
             R"({"tokenizer_class": "LlamaTokenizer", "add_bos_token": false})");
  CHECK(generate("ends", {"--prompt", "a"}).output.find("'add_bos_token' is false") != std::string::npos);
}

TEST_CASE_METHOD(GenerateFixture, "generate: text comes as it is made, and Ctrl-C ends it with 130") {
  train("run", {"trainer.steps=2"});
  Process process({"generate", path("run"), "--prompt", "the ", "--max-new", "100000000"},
                  folder / "out.txt");
  REQUIRE(wait_for([&] { return process.output().size() > 100; }, 120));
  CHECK(process.running());
  process.kill(SIGINT);
  REQUIRE(wait_for([&] { return !process.running(); }, 60));
  CHECK(process.wait() == 130);
  CHECK(process.output().find("tokens/s") != std::string::npos);
}
