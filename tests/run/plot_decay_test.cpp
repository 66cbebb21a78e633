#include "roformer/torch.h"

#include "roformer/core/files.h"
#include "tests/catch.h"
#include "tests/run/process.h"

using namespace roformer;
using namespace roformer::test;

namespace {

/// The column "trained" of the printed table.
std::vector<double> trained_column(const std::string& output) {
  std::vector<double> values;
  std::istringstream lines(output);
  size_t column = 0;
  for (std::string line; std::getline(lines, line);) {
    if (!line.starts_with("|")) continue;
    std::istringstream cells(line.substr(1));
    size_t index = 0;
    for (std::string cell; std::getline(cells, cell, '|'); ++index) {
      if (cell.find("trained") != std::string::npos)
        column = index;
      else if (column > 0 && index == column && cell.find_first_of("0123456789") != std::string::npos)
        values.push_back(std::stod(cell));
    }
  }
  return values;
}

}  // namespace

TEST_CASE("plot decay measures the weights of the checkpoint it is given, and refuses eq. 19") {
  TempDir folder;
  write_text(folder / "text.txt", made_up_text(6000));
  write_text(folder / "run.yaml", tiny_config(folder / "text.txt"));
  auto must = [&](const std::vector<std::string>& arguments) {
    const Outcome outcome = run_program(arguments, folder);
    INFO(outcome.output);
    REQUIRE(outcome.status == 0);
    return outcome.output;
  };
  const std::string run = (folder / "run").string(), config = (folder / "run.yaml").string();
  must({"train", config, "--run", run, "--set", "trainer.steps=9", "--set", "trainer.optimizer.lr=3e-2",
        "--set", "trainer.keep=3", "--quiet"});
  auto measured = [&](const std::string& checkpoint) {
    return trained_column(must({"plot", "decay", "--dim", "16", "--max", "40", "--run", checkpoint, "--out",
                                (folder / "p").string()}));
  };
  const std::string checkpoints = run + "/checkpoints/";
  std::vector<std::vector<double>> curves;
  for (const auto& entry : std::filesystem::directory_iterator(checkpoints)) {
    const std::string name = entry.path().filename();
    if (name != "best.safetensors") curves.push_back(measured(entry.path()));
  }
  REQUIRE(curves.size() >= 2);
  for (const std::vector<double>& curve : curves) {
    REQUIRE(curve.size() == 7);  // m = 0, 1, 2, 4 .. 32
    for (const double value : curve) CHECK(value > 0.0);
  }
  CHECK(curves[0] != curves[1]);  // other weights
  // As a mean of products, not of their absolute values, it would be far below them somewhere.
  const auto [low, high] = std::minmax_element(curves[0].begin(), curves[0].end());
  CHECK(*low > 0.2 * *high);

  write_text(folder / "bytes.yaml",
             "task: {type: byte_lm, file: text.txt, length: 32, eval_windows: 2}\n"
             "model: {type: causal, dim: 16, layers: 1, heads: 2, ffn: 16,\n"
             "        attention: {type: linear, features: {type: favor, features: 8}, rotary: after}}\n"
             "trainer: {steps: 2, batch: 2, device: cpu, threads: 1}\n");
  const std::string after = (folder / "after").string();
  must({"train", (folder / "bytes.yaml").string(), "--run", after, "--quiet"});
  const Outcome refused =
      run_program({"plot", "decay", "--run", after, "--out", (folder / "q").string()}, folder);
  CHECK(refused.status == 2);
  CHECK(refused.output.find("turns features (eq. 19), not queries and keys") != std::string::npos);
  CHECK_FALSE(std::filesystem::exists(folder / "q.png"));
}
