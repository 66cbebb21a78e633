#include "roformer/torch.h"

#include <nlohmann/json.hpp>

#include "roformer/core/files.h"
#include "tests/catch.h"
#include "tests/run/process.h"

using namespace roformer;
using namespace roformer::test;

// Results are believed for the options that made them, and for no others.

namespace {

struct RunFolderFixture {
  RunFolderFixture() {
    write_text(folder / "text.txt", made_up_text(6000));
    write_text(folder / "run.yaml", tiny_config(folder / "text.txt"));
    write_text(folder / "ablate.yaml",
               "base: run.yaml\narms: {rotary: {}, none: {model.positions.type: none}}\n");
  }
  Outcome ablate(std::vector<std::string> more = {}, const std::string& file = "ablate.yaml") const {
    std::vector<std::string> all = {"ablate", (folder / file).string(), "--run", (folder / "all").string(),
                                    "--set",  "trainer.steps=6"};
    all.insert(all.end(), more.begin(), more.end());
    return run_program(all, folder);
  }
  void refused(const Outcome& outcome, const std::string& why) const {
    INFO(outcome.output);
    CHECK(outcome.status == 2);
    CHECK(outcome.output.find(why) != std::string::npos);
  }
  std::string config() const { return read_file(folder / "all/rotary-seed1/config.yaml", 1 << 20); }
  TempDir folder;
};

}  // namespace

TEST_CASE_METHOD(RunFolderFixture, "finished runs are not believed under other options") {
  REQUIRE(ablate().status == 0);
  const std::string before = config();
  refused(ablate({"--set", "trainer.optimizer.lr=1e-5"}),
          "holds a run with other options (trainer.optimizer.lr");
  refused(ablate({"--set", "data.eval_sequences=4"}), "data.eval_sequences was 8, now 4");
  for (const char* name : {"rotary-seed1", "none-seed1"})
    std::filesystem::remove_all(folder / "all" / name / "checkpoints");
  refused(ablate({"--set", "trainer.optimizer.lr=1e-5"}),
          "holds a run with other options (trainer.optimizer.lr");
  CHECK(config() == before);
  CHECK(ablate().status == 0);  // the results are still there
  std::filesystem::remove(folder / "all/rotary-seed1/config.yaml");
  refused(ablate(), "holds results, but no config.yaml that says of what");
}

TEST_CASE_METHOD(RunFolderFixture, "fewer updates than a run has are refused, more go on") {
  REQUIRE(ablate().status == 0);
  const Outcome fewer = ablate({"--set", "trainer.steps=3"});
  refused(fewer, "has 6 updates already, and 3 are asked for");
  CHECK(read_file(folder / "all/results.md", 1 << 20).find("failed") != std::string::npos);
  CHECK(ablate({"--set", "trainer.steps=9"}).status == 0);
}

TEST_CASE_METHOD(RunFolderFixture, "damaged results are made again, damaged metrics are named") {
  REQUIRE(ablate().status == 0);
  const std::filesystem::path run = folder / "all/rotary-seed1";
  const nlohmann::json whole = nlohmann::json::parse(read_file(run / "result.json", 1 << 20));
  auto metrics = whole, finished = whole, seconds = whole, steps = whole;
  metrics["metrics"]["loss"] = "x";
  finished["finished"] = "x";
  seconds["seconds"] = nullptr;
  auto parameters = whole, tokens = whole, step = whole, absent = whole;
  parameters["parameters"] = "x";
  tokens["tokens"] = nlohmann::json::array();
  step["step"] = "6";
  absent.erase("metrics");
  steps["asked_steps"] = "6";
  for (const auto& damaged : {metrics, finished, seconds, steps, parameters, tokens, step, absent,
                              nlohmann::json(3), nlohmann::json::array()}) {
    write_text(run / "result.json", damaged.dump());
    const Outcome again = ablate();
    INFO(damaged.dump() << "\n" << again.output);
    CHECK(again.status == 0);
    const auto made = nlohmann::json::parse(read_file(run / "result.json", 1 << 20));
    CHECK(made["metrics"] == whole["metrics"]);
    CHECK(made["finished"] == true);
  }
  const std::string records = read_file(run / "metrics.jsonl", 1 << 20);
  for (const char* line :
       {R"({"split":5,"step":1})", R"({"split":"train","step":1,"tokens":"x"})",
        R"({"split":"train","step":1,"seconds":null})", R"({"split":"train","step":"1"})"}) {
    write_text(run / "metrics.jsonl", std::string(line) + "\n" + records);
    const Outcome plot = run_program({"plot", run.string(), "--out", (folder / "p").string()}, folder);
    INFO(line);
    refused(plot, "metrics.jsonl:1: not a record of metrics");
    CHECK(std::count(plot.output.begin(), plot.output.end(), '\n') == 1);
  }
  write_text(run / "metrics.jsonl", R"({"split":"train","step":1})"
                                    "\n" +
                                        records);  // no loss: shown as none
  CHECK(ablate().status == 0);
}

TEST_CASE_METHOD(RunFolderFixture, "an ablation waits for what still writes into its runs") {
  std::filesystem::create_directories(folder / "all/rotary-seed1");
  std::optional<FileLock> lock(folder / "all/rotary-seed1");
  CHECK(FileLock::is_held(folder / "all/rotary-seed1"));
  Process process({"ablate", (folder / "ablate.yaml").string(), "--run", (folder / "all").string(), "--set",
                   "trainer.steps=6"},
                  folder / "output.txt");
  REQUIRE(
      wait_for([&] { return process.output().find("rotary-seed1: waits for") != std::string::npos; }, 60));
  CHECK_FALSE(std::filesystem::exists(folder / "all/none-seed1/result.json"));
  lock.reset();
  CHECK_FALSE(FileLock::is_held(folder / "all/rotary-seed1"));
  CHECK(process.wait() == 0);
}

TEST_CASE_METHOD(RunFolderFixture, "what all runs of an ablation share cannot differ between arms") {
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"arms: {a: {trainer.seed: 3}}", "arm 'a': 'trainer.seed' cannot differ"},
      {"arms: {a: {trainer: {seed: 3}}}", "arm 'a': 'trainer.seed' cannot differ"},
      {"arms: {a: {seeds: [1]}}", "arm 'a': 'seeds' cannot differ"},
      {"arms: {a: {lengths: [16]}}", "arm 'a': 'lengths' cannot differ"},
      {"arms: {a: {reach: [1]}}", "arm 'a': 'reach' cannot differ"},
      {"arms: {a: {arms: {b: {}}}}", "arm 'a': 'arms' cannot differ"},
      {"arms: {a: {}}\ngrid: {trainer.seed: [1, 2]}", "'trainer.seed' cannot differ"},
  };
  for (const auto& [text, why] : cases) {
    write_text(folder / "bad.yaml", "base: run.yaml\n" + text + "\n");
    INFO(text);
    refused(ablate({}, "bad.yaml"), why);
    CHECK_FALSE(std::filesystem::exists(folder / "all"));
  }
}

TEST_CASE_METHOD(RunFolderFixture, "a length that cannot be evaluated fails alone") {
  write_text(folder / "long.yaml", "base: ablate.yaml\nlengths: [16, 100000]\n");
  const Outcome outcome = ablate({}, "long.yaml");
  refused(outcome, "100000 tokens");
  const std::string table = read_file(folder / "all/lengths.md", 1 << 20);
  INFO(table);
  CHECK(table.find("failed") != std::string::npos);
  CHECK(table.find("nearly the same") == std::string::npos);
  CHECK(std::filesystem::exists(folder / "all/report.html"));
  // The same runs, at lengths that fit: only what is missing is done.
  write_text(folder / "short.yaml", "base: ablate.yaml\nlengths: [16, 24]\n");
  const Outcome again = ablate({}, "short.yaml");
  INFO(again.output);
  CHECK(again.status == 0);
  CHECK(read_file(folder / "all/lengths.md", 1 << 20).find("nearly the same number of tokens") !=
        std::string::npos);
}

TEST_CASE_METHOD(RunFolderFixture,
                 "losses at other lengths go with the weights that they were measured with") {
  write_text(folder / "lengths.yaml", "base: ablate.yaml\nlengths: [16]\n");
  REQUIRE(ablate({}, "lengths.yaml").status == 0);
  const std::filesystem::path run = folder / "all/rotary-seed1";
  auto kept = nlohmann::json::parse(read_file(run / "lengths.json", 1 << 20));
  const double measured = kept["losses"]["16 none"];
  for (auto& loss : kept["losses"]) loss = 99.0;
  write_text(run / "lengths.json", kept.dump());
  CHECK(ablate({}, "lengths.yaml").output.find("99.000") != std::string::npos);  // not measured again
  std::filesystem::remove(run / "result.json");
  std::filesystem::remove_all(run / "checkpoints");
  const Outcome again = ablate({}, "lengths.yaml");
  INFO(again.output);
  CHECK(again.status == 0);
  CHECK(again.output.find("99.000") == std::string::npos);
  CHECK(nlohmann::json::parse(read_file(run / "lengths.json", 1 << 20))["losses"]["16 none"] == measured);
}

TEST_CASE_METHOD(RunFolderFixture, "options of text that a task does not read are refused") {
  write_text(folder / "bytes.yaml",
             "task: {type: byte_lm, file: text.txt, length: 32, eval_windows: 2}\n"
             "model: {type: causal, dim: 16, layers: 1, heads: 2, ffn: 16}\n"
             "trainer: {steps: 2, batch: 2, device: cpu, threads: 1}\n");
  const std::string run = (folder / "bytes").string();
  REQUIRE(run_program({"train", (folder / "bytes.yaml").string(), "--run", run}, folder).status == 0);
  CHECK(run_program({"eval", run, "--set", "task.length=16"}, folder).status == 0);
  refused(run_program({"eval", run, "--set", "data.length=64"}, folder), "data: is not read by this task");
}
