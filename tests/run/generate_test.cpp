#include "roformer/torch.h"

#include <algorithm>
#include <sstream>

#include "roformer/core/error.h"
#include "roformer/core/log.h"
#include "roformer/run.h"
#include "tests/catch.h"
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
  request.run = folder / "run";
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
