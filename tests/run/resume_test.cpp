#include "roformer/torch.h"

#include "roformer/train/checkpoint.h"

#include <random>

#include "roformer/core/metrics_log.h"
#include "tests/catch.h"
#include "tests/run/process.h"

using namespace roformer;
using namespace roformer::test;

namespace {

/// metrics.jsonl without the clock.
std::vector<std::string> resume_records(const std::filesystem::path& run) {
  std::vector<std::string> lines;
  for (nlohmann::json record : MetricsLog::read(run / "metrics.jsonl")) {
    record.erase("seconds");
    lines.push_back(record.dump());
  }
  return lines;
}

bool writing_checkpoint(const std::filesystem::path& run) {
  std::error_code ignored;
  for (const auto& entry : std::filesystem::directory_iterator(run / "checkpoints", ignored)) {
    if (entry.path().filename().string().ends_with(".tmp")) return true;
  }
  return false;
}

}  // namespace

TEST_CASE("killed with SIGKILL twenty times and resumed, a run equals an uninterrupted one bit for bit") {
  TempDir folder;
  write_text(folder / "text.txt", made_up_text(6000));
  write_text(folder / "run.yaml", tiny_config(folder / "text.txt"));
  const std::vector<std::string> sets = {"--set", "trainer.steps=900", "--set", "trainer.evaluate_every=50"};
  auto command = [&](const std::string& run) {
    std::vector<std::string> arguments = {"train", (folder / "run.yaml").string(), "--run", (folder / run).string(),
                                          "--resume", "--quiet"};
    arguments.insert(arguments.end(), sets.begin(), sets.end());
    return arguments;
  };
  const Outcome whole = run_program(command("whole"), folder);
  INFO(whole.output);
  REQUIRE(whole.status == 0);

  const std::filesystem::path run = folder / "killed";
  std::mt19937 random(std::random_device{}());
  int kills = 0, during_save = 0;
  bool finished = false;
  while (!finished) {
    Process process(command("killed"), folder / "output.txt");
    if (kills < 20) {
      // Every other kill waits for a checkpoint to be in the writing; the rest come at any moment, also at the start.
      if (kills % 2 == 0) {
        wait_for([&] { return writing_checkpoint(run) || !process.running(); }, 60);
        during_save += process.running();
      } else {
        const int delay = std::uniform_int_distribution<int>(0, 700)(random);
        std::this_thread::sleep_for(std::chrono::milliseconds(delay));
      }
      REQUIRE(process.running());  // else the run was too short to be killed often enough
      process.kill(SIGKILL);
      process.wait();
      ++kills;
      continue;
    }
    const int status = process.wait();
    INFO(process.output());
    REQUIRE(status == 0);
    finished = true;
  }
  CHECK(kills == 20);
  CHECK(during_save == 10);

  CHECK(resume_records(folder / "whole") == resume_records(run));
  const Checkpoint a = load_checkpoint(CheckpointFolder(folder / "whole").path(900));
  const Checkpoint b = load_checkpoint(CheckpointFolder(run).path(900));
  REQUIRE(a.tensors.size() == b.tensors.size());
  for (size_t i = 0; i < a.tensors.size(); ++i) {
    INFO(a.tensors[i].first);
    CHECK(a.tensors[i].first == b.tensors[i].first);
    CHECK(torch::equal(a.tensors[i].second, b.tensors[i].second));
  }
  CHECK(a.state["samples"] == b.state["samples"]);
  const int64_t samples = a.state["samples"];
  CHECK(samples > 6000 / 32 * 2);  // the corpus was passed more than once
  CHECK_FALSE(writing_checkpoint(run));  // what killed writers left is gone
}

TEST_CASE("Ctrl-C saves and exits 130; resuming gives the uninterrupted result; twice leaves at once") {
  TempDir folder;
  write_text(folder / "text.txt", made_up_text(6000));
  write_text(folder / "run.yaml", tiny_config(folder / "text.txt"));
  const std::filesystem::path run = folder / "run";
  auto command = [&](const std::string& name, const std::string& steps) {
    return std::vector<std::string>{"train", (folder / "run.yaml").string(), "--run", (folder / name).string(),
                                    "--resume", "--quiet", "--set", "trainer.steps=" + steps,
                                    "--set", "trainer.checkpoint_every=1000000"};
  };
  {
    Process process(command("run", "400"), folder / "output.txt");
    REQUIRE(wait_for([&] { return std::filesystem::exists(run / "metrics.jsonl") &&
                                  !MetricsLog::read(run / "metrics.jsonl").empty(); }, 60));
    process.kill(SIGINT);
    CHECK(process.wait() == 130);
  }
  const std::vector<int64_t> saved = CheckpointFolder(run).steps();
  REQUIRE(saved.size() == 1);
  CHECK(saved[0] < 400);
  REQUIRE(run_program(command("run", "400"), folder).status == 0);
  REQUIRE(run_program(command("whole", "400"), folder).status == 0);
  CHECK(resume_records(run) == resume_records(folder / "whole"));

  Process process(command("twice", "1000000"), folder / "output.txt");
  REQUIRE(wait_for([&] { return std::filesystem::exists(folder / "twice" / "metrics.jsonl"); }, 60));
  process.kill(SIGINT);
  process.kill(SIGINT);
  CHECK(process.wait() == 130);
}

TEST_CASE("a full disk ends the run with one line and leaves the older checkpoint intact") {
  TempDir folder;
  write_text(folder / "text.txt", made_up_text(6000));
  write_text(folder / "run.yaml", tiny_config(folder / "text.txt"));
  const std::filesystem::path run = folder / "run";
  const std::vector<std::string> command = {"train", (folder / "run.yaml").string(), "--run", run.string(), "--resume"};
  std::vector<std::string> first = command;
  first.insert(first.end(), {"--set", "trainer.steps=9"});
  REQUIRE(run_program(first, folder).status == 0);
  const uintmax_t size = std::filesystem::file_size(CheckpointFolder(run).path(9));

  Process process(command, folder / "output.txt", size / 2);  // no file may grow to a checkpoint's size
  CHECK(process.wait() == 2);
  CHECK(process.output().find("step-00000012.safetensors") != std::string::npos);
  CHECK(CheckpointFolder(run).steps().front() == 9);
  CHECK_NOTHROW(load_checkpoint(CheckpointFolder(run).path(9)));
  CHECK_FALSE(writing_checkpoint(run));
  CHECK(run_program(command, folder).status == 0);  // with room again it goes on
}
