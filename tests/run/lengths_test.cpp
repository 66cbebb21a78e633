#include "roformer/torch.h"

#include <fmt/ranges.h>

#include <nlohmann/json.hpp>

#include "roformer/core/files.h"
#include "tests/catch.h"
#include "tests/run/process.h"

using namespace roformer;
using namespace roformer::test;

namespace {

double printed_loss(const std::string& text) {
  const size_t at = text.find("\nloss ");
  REQUIRE(at != std::string::npos);
  return std::stod(text.substr(at + 6));
}

}  // namespace

TEST_CASE("lengths: every arm's last checkpoint beyond its training length, scaled and not") {
  TempDir folder;
  std::string text, other;
  for (int i = 0; i < 3000; ++i)
    text += fmt::format("{} times {} is {}\n", i % 13, i % 7, (i % 13) * (i % 7));
  for (int i = 0; i < 99; ++i) other += fmt::format("{} plus {} is {}\n", i, i + 2, 2 * i + 2);
  write_text(folder / "text.txt", text);
  write_text(folder / "other.txt", other);
  write_text(
      folder / "run.yaml",
      "task: {type: mlm}\ntokenizer: {type: bytes}\n"
      "data: {train: text.txt, length: 16, valid: other.txt, eval_sequences: 6}\n"
      "model: {dim: 16, layers: 1, heads: 2, ffn: 16, dropout: 0.0}\n"
      "trainer: {steps: 12, batch: 4, evaluate_every: 4, checkpoint_every: 6, device: cpu, threads: 1,\n"
      "          optimizer: {lr: 1e-2}, schedule: {type: constant}}\n"
      "arms:\n  rotary: {}\n  learned: {model.positions: {type: learned, max_length: 20}}\n"
      "  trained: {model.positions: {type: rotary, trainable: true}}\n"
      "seeds: [1, 2]\nlengths: [16, 32, 64]\nreach: [3.0]\n");
  const std::vector<std::string> command = {
      "ablate", (folder / "run.yaml").string(), "--run", (folder / "all").string(), "--jobs", "2"};
  const Outcome outcome = run_program(command, folder);
  INFO(outcome.output);
  REQUIRE(outcome.status == 0);
  for (const char* name : {"lengths.md", "lengths.csv", "lengths.png", "lengths-scaling.svg"}) {
    INFO(name);
    CHECK(std::filesystem::exists(folder / "all" / name));
  }
  // A run's own file is of that run alone.
  const std::string config = read_file(folder / "all/rotary-seed1/config.yaml", 1 << 20);
  for (const char* option : {"\nseeds: []", "\nlengths: []", "\nreach: []", "\narms: null", "\ngrid: null"}) {
    INFO(option << " in\n" << config);
    CHECK(config.find(option) != std::string::npos);
  }
  const auto numbers = nlohmann::json::parse(read_file(folder / "all/lengths.json", 1 << 20))["numbers"];
  auto find = [&](const std::string& arm, const std::string& scaling, int64_t length, int64_t seed) {
    std::optional<double> loss;
    for (const auto& each : numbers) {
      if (each["arm"] == arm && each["scaling"] == scaling && each["length"] == length &&
          each["seed"] == seed)
        loss = each["loss"].get<double>();
    }
    return loss;
  };
  CHECK(numbers.size() == 2 * (3 + 1 + 3 + 4 * 2));
  CHECK_FALSE(find("learned", "none", 32, 1));
  CHECK_FALSE(find("trained", "linear", 32, 1));
  CHECK_FALSE(find("rotary", "linear", 16, 1));

  // Each is what `eval` says of the last checkpoint with the options spelt out.
  struct Case {
    std::string arm, scaling, options;
    int64_t length, sequences;
  };
  const std::vector<Case> cases = {
      {"rotary", "none", "{type: none}", 16, 24},
      {"rotary", "none", "{type: none}", 64, 6},
      {"rotary", "linear", "{type: linear, factor: 4}", 64, 6},
      {"rotary", "ntk", "{type: ntk, factor: 2}", 32, 12},
      {"rotary", "dynamic", "{type: dynamic, factor: 1, original_length: 16}", 64, 6},
      {"rotary", "yarn", "{type: yarn, factor: 4, original_length: 16}", 64, 6},
  };
  for (const Case& each : cases) {
    const std::string checkpoint =
        (folder / "all/rotary-seed2/checkpoints/step-00000012.safetensors").string();
    const Outcome evaluated =
        run_program({"eval", checkpoint, "--set", fmt::format("data.length={}", each.length), "--set",
                     fmt::format("data.eval_sequences={}", each.sequences), "--set",
                     "model.positions={type: rotary, scaling: " + each.options + "}"},
                    folder);
    INFO(fmt::format("{} {} {}\n{}", each.arm, each.scaling, each.length, evaluated.output));
    REQUIRE(evaluated.status == 0);
    CHECK(find(each.arm, each.scaling, each.length, 2).value() ==
          Approx(printed_loss(evaluated.output)).margin(2e-6).epsilon(0));
  }
  // Scaling does something, and not the same.
  CHECK(find("rotary", "linear", 64, 2) != find("rotary", "none", 64, 2));
  CHECK(find("rotary", "ntk", 64, 2) != find("rotary", "linear", 64, 2));

  const std::string table = read_file(folder / "all/lengths.md", 1 << 20);
  CHECK(table.find("not able") != std::string::npos);
  // Again: from the files, the same to the byte.
  const auto before = std::filesystem::last_write_time(folder / "all/rotary-seed1/lengths.json");
  REQUIRE(run_program(command, folder).status == 0);
  CHECK(std::filesystem::last_write_time(folder / "all/rotary-seed1/lengths.json") == before);
  CHECK(read_file(folder / "all/lengths.md", 1 << 20) == table);
}

TEST_CASE("lengths are for sequences of a fixed length") {
  TempDir folder;
  write_text(folder / "glue.yaml",
             "task: {type: glue, name: sst2, folder: .}\nmodel: {dim: 16, layers: 1, heads: 2, ffn: 16}\n"
             "tokenizer: {type: bytes}\narms: {a: {}}\nlengths: [16]\n");
  const Outcome outcome = run_program({"ablate", (folder / "glue.yaml").string()}, folder);
  INFO(outcome.output);
  CHECK(outcome.status == 2);
  CHECK(outcome.output.find("lengths") != std::string::npos);
}
