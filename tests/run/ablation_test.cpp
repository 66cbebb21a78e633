#include "roformer/torch.h"

#include <cmath>
#include <sstream>

#include "roformer/ablation_tables.h"
#include "roformer/core/files.h"
#include "tests/catch.h"
#include "tests/run/process.h"

using namespace roformer;
using namespace roformer::test;

namespace {

const std::string ablation_text =
    "task: mlm\ntokenizer: bytes\ndata: {train: text.txt, cache: cache}\n"
    "model: {dim: 32, layers: 1, heads: 2, ffn: 32, positions: {type: rotary}}\n"
    "trainer: {steps: 600, evaluate_every: 100, optimizer: {lr: 0.25}}\n";

/// Run folders as `train` leaves them, with losses that fall by 1/4 every 100 updates.
struct HandMadeAblation {
  HandMadeAblation() {
    ablation.name = "hand-made";
    ablation.command = {"roformer", "ablate", "it's.yaml"};
    ablation.folder = folder.path();
    ablation.base = read_run(parse_config(ablation_text, "base"));
    ablation.base.trainer.seed = 9;
  }
  AblationRun& add(const std::string& arm, int64_t seed, const std::string& change = "model.dim: 32") {
    ConfigNode config = parse_config(ablation_text, "base");
    set_values(config, parse_config(change, "arm"));
    AblationRun& run = ablation.runs.emplace_back();
    run.arm = arm;
    run.seed = seed;
    run.options = read_run(config);
    run.options.trainer.seed = seed;
    run.folder = folder / fmt::format("{}-seed{}", arm, seed);
    std::filesystem::create_directories(run.folder);
    return run;
  }
  void finish(const AblationRun& run, double loss, double accuracy, double seconds, int64_t parameters) {
    std::string records;
    for (int64_t step = 100; step <= 600; step += 100) {
      records += fmt::format("{{\"step\":{},\"split\":\"train\",\"loss\":9,\"tokens\":1}}\n", step);
      records +=
          fmt::format("{{\"step\":{},\"split\":\"valid\",\"accuracy\":{},\"loss\":{},\"tokens\":{}}}\n", step,
                      accuracy, loss + static_cast<double>(600 - step) / 400, 10 * step);
    }
    write_text(run.folder / "metrics.jsonl", records);
    const nlohmann::json result = {{"finished", true},
                                   {"asked_steps", 600},
                                   {"step", 600},
                                   {"metrics", {{"loss", loss}, {"accuracy", accuracy}}},
                                   {"parameters", parameters},
                                   {"tokens", 6000},
                                   {"seconds", seconds}};
    write_text(run.folder / "result.json", result.dump());
    write_text(run.folder / "environment.json",
               fmt::format("{{\"processor\": \"Slide <rule>\", \"threads\": 2, \"date\": \"2026-01-0{}\"}}",
                           run.seed));
  }
  std::string content(const std::string& name) const { return read_file(folder / name, 64 << 20); }
  std::string write_all() {
    std::ostringstream out;
    write_report(ablation, write_results(ablation, out));
    return out.str();
  }
  TempDir folder;
  Ablation ablation;
};

/// Two arms of four seeds (values of the paired test in tables_test.cpp); one with a failed and a missing
/// run; one that failed altogether.
struct FourArms : HandMadeAblation {
  FourArms() {
    const std::vector<double> first = {2.5, 2.25, 2.75, 2.0}, second = {2.25, 2.0, 2.625, 1.5};
    ablation.runs.reserve(16);
    for (int64_t seed = 1; seed <= 4; ++seed) {
      const auto i = static_cast<size_t>(seed - 1);
      finish(add("rotary", seed), first[i], 0.25, 10, 1000);
      finish(add("learned", seed, "model.positions: {type: learned, max_length: 256}"), second[i], 0.5,
             seed == 1 ? 40 : 20, 2000);
      AblationRun& third = add("part", seed, "trainer.optimizer.lr: 0.5");
      if (seed > 2) finish(third, first[i] + 1, 0.25, 30, 1000);
      if (seed == 2) {
        third.failed = true;
        third.error = "loss <b>is</b> \"NaN\" & \x1b, gone";
      }
      AblationRun& fourth = add("none", seed, "model.positions.type: none");
      fourth.failed = true;
      fourth.error = "no memory";
    }
    ablation.reach = {2.4375, 1};
  }
};

std::vector<std::string> lines_with(const std::string& text, const std::string& beginning) {
  std::vector<std::string> lines;
  std::istringstream in(text);
  for (std::string line; std::getline(in, line);) {
    if (line.starts_with(beginning)) lines.push_back(line);
  }
  return lines;
}

/// The cells of a Markdown row.
std::vector<std::string> markdown_cells(const std::string& row) {
  std::vector<std::string> cells;
  for (size_t at = 1, end = row.find('|', at); end != std::string::npos;
       at = end + 1, end = row.find('|', at)) {
    std::string cell = row.substr(at, end - at);
    cell.erase(0, cell.find_first_not_of(' '));
    cell.erase(cell.find_last_not_of(' ') + 1);
    cells.push_back(cell);
  }
  return cells;
}

std::vector<double> csv_numbers(const std::string& line) {
  std::vector<double> numbers;
  std::istringstream in(line);
  for (std::string cell; std::getline(in, cell, ',');) {
    size_t used = 0;
    double value = NAN;
    try {
      value = std::stod(cell, &used);
    } catch (const std::exception&) {
    }
    numbers.push_back(used == cell.size() ? value : NAN);
  }
  return numbers;
}

}  // namespace

TEST_CASE_METHOD(FourArms, "an ablation's table: intervals, paired tests, updates to a loss, failures") {
  const std::string out = write_all(), table = content("results.md");
  INFO(table);
  CHECK(out.starts_with(table));
  using Cells = std::vector<std::string>;
  CHECK(markdown_cells(lines_with(table, "| arm").at(0)) ==
        Cells{"arm", "seeds", "update 200", "update 400", "update 600", "each seed", "minus rotary", "p",
              "updates to loss 2.4375", "updates to loss 1", "accuracy", "tokens/s", "parameters",
              "seconds"});
  CHECK(markdown_cells(lines_with(table, "| rotary").at(0)) ==
        Cells{"rotary", "1 / 2 / 3 / 4", "3.375 ± 0.514", "2.875 ± 0.514", "2.375 ± 0.514",
              "2.500 / 2.250 / 2.750 / 2.000", "–", "–", "475 (2 of 4 seeds)", "not reached", "0.250 ± 0.000",
              "600", "1000", "10"});
  CHECK(markdown_cells(lines_with(table, "| learned").at(0)) ==
        Cells{"learned", "1 / 2 / 3 / 4", "3.094 ± 0.751", "2.594 ± 0.751", "2.094 ± 0.751",
              "2.250 / 2.000 / 2.625 / 1.500", "-0.2812 ± 0.2503", "0.037", "392 (3 of 4 seeds)",
              "not reached", "0.500 ± 0.000", "300", "2000", "20"});
  // Differences of exactly 1: no spread, so an infinite t.
  CHECK(markdown_cells(lines_with(table, "| part").at(0)) ==
        Cells{"part", "1 (missing) / 2 (failed) / 3 / 4", "4.375 ± 4.765", "3.875 ± 4.765", "3.375 ± 4.765",
              "– / – / 3.750 / 3.000", "+1.0000 ± 0.0000", "0e+00", "not reached", "not reached",
              "0.250 ± 0.000", "200", "1000", "30"});
  CHECK(markdown_cells(lines_with(table, "| none").at(0)) ==
        Cells{"none", "1 (failed) / 2 (failed) / 3 (failed) / 4 (failed)", "–", "–", "–", "– / – / – / –",
              "–", "–", "–", "–", "–", "–", "–", "–"});
  for (const char* note :
       {"paired t test, not corrected for the number of comparisons", "linear between evaluations",
        "part: seed 1 is missing.", "part: seed 2 failed: loss <b>is</b> \"NaN\" &  , gone.",
        "none: seed 4 failed: no memory."}) {
    INFO(note);
    CHECK(table.find(note) != std::string::npos);
  }
}

TEST_CASE_METHOD(FourArms, "an ablation's CSV and JSON hold the numbers unrounded") {
  write_all();
  const std::string csv = content("results.csv");
  INFO(csv);
  CHECK(
      lines_with(csv, "arm,").at(0) ==
      "arm,finished,failed,missing,loss_200,loss_200_interval,loss_400,loss_400_interval,loss,loss_interval,"
      "difference,difference_interval,difference_p,pairs,reach_2.4375,reach_2.4375_seeds,reach_1,reach_1_"
      "seeds,"
      "accuracy,accuracy_interval,tokens_per_second,parameters,seconds,error\r");
  // scipy 1.17.1: half of t.interval(0.95, 3) of the mean; the paired test as in tables_test.cpp.
  const std::vector<double> expected = {NAN,       4,          0,           0,          3.09375,  0.75084196,
                                        2.59375,   0.75084196, 2.09375,     0.75084196, -0.28125, 0.2502807,
                                        0.0373861, 4,          391.6666667, 3,          NAN,      0,
                                        0.5,       0,          300,         2000,       20};
  const std::vector<double> found = csv_numbers(lines_with(csv, "learned,").at(0));
  REQUIRE(found.size() >= expected.size());
  for (size_t i = 0; i < expected.size(); ++i) {
    INFO("column " << i);
    if (std::isnan(expected[i]))
      CHECK(std::isnan(found[i]));
    else
      CHECK(found[i] == Approx(expected[i]).epsilon(1e-6).margin(1e-12));
  }
  CHECK(lines_with(csv, "rotary,").at(0).find(",,,,") !=
        std::string::npos);  // the first row has no difference
  CHECK(csv.find("\"seed 1 is missing; seed 2 failed: loss <b>is</b> \"\"NaN\"\" &  , gone\"\r\n") !=
        std::string::npos);
  CHECK(lines_with(csv, "none,").at(0).starts_with("none,0,4,0,,,"));

  const std::string runs = content("runs.csv");
  CHECK(runs.starts_with("arm,seed,update,loss,accuracy,tokens\r\nrotary,1,100,3.75,0.25,1000\r\n"));
  CHECK(lines_with(runs, "learned,4,600,").at(0) == "learned,4,600,1.5,0.5,6000\r");
  CHECK(std::count(runs.begin(), runs.end(), '\n') == 1 + 10 * 6);

  const auto numbers = nlohmann::json::parse(content("results.json"))["numbers"];
  CHECK(numbers["first"] == "rotary");
  const auto& learned = numbers["rows"]["learned"];
  CHECK(learned["loss"]["mean"] == 2.09375);
  CHECK(learned["loss"]["seeds"]["3"] == 2.625);
  CHECK(learned["loss_at"]["400"]["mean"] == 2.59375);
  CHECK(learned["difference"]["to"] == "rotary");
  CHECK(learned["difference"]["p_value"].get<double>() == Approx(0.037386073468498635).epsilon(1e-12));
  CHECK(learned["difference"]["pairs"] == 4);
  CHECK(learned["reach"]["2.4375"]["seeds"] == nlohmann::json{{"1", 525.0}, {"2", 425.0}, {"4", 225.0}});
  CHECK(learned["reach"]["1"]["mean"].is_null());
  CHECK(learned["seeds"]["4"]["loss"].back() == 1.5);
  CHECK(learned["seeds"]["4"]["parameters"] == 2000);
  CHECK(learned["seconds"] == 20);
  CHECK_FALSE(numbers["rows"]["rotary"].contains("difference"));
  CHECK(numbers["rows"]["part"]["difference"]["pairs"] == 2);
  CHECK(numbers["rows"]["part"]["seeds"]["1"] == nlohmann::json{{"missing", true}});
  CHECK(numbers["rows"]["none"]["seeds"]["3"] == nlohmann::json{{"failed", "no memory"}});
}

TEST_CASE_METHOD(FourArms, "an ablation's page says what differs and how to train every line again") {
  write_all();
  const std::string page = content("report.html");
  const std::string root = folder.path().string();
  for (const std::string& piece : std::vector<std::string>{
           "<h1>Ablation hand-made</h1>",
           "4 arm(s) with 4 seed(s) each: 10 of 16 runs finished, 5 failed, 1 missing.",
           "roformer ablate &#39;it&#39;\\&#39;&#39;s.yaml&#39;\n", "2.094 ± 0.751",
           "data:image/svg+xml;base64,", "The base: no option differs.",
           "<tr><td>model.positions.type</td><td>rotary</td><td>learned</td></tr>",
           "<tr><td>model.positions.max_length</td><td>–</td><td>256</td></tr>",
           "<td>trainer.optimizer.lr</td><td class=\"number\">0.25</td><td class=\"number\">0.5</td>",
           "seed 2 failed: loss &lt;b&gt;is&lt;/b&gt; &quot;NaN&quot; &amp;  , gone.",
           "roformer train " + root + "/learned-seed2/config.yaml --run NEW --threads 2\n",
           "roformer train " + root + "/none-seed2/config.yaml --run NEW\n",
           "<summary>All options, seed 1</summary>\n<pre>\ntask:\n  type: mlm\n", "  lr: 0.5\n",
           "<tr><td>processor</td><td>Slide &lt;rule&gt;</td></tr>",
           "<tr><td>date</td><td>2026-01-01 to 2026-01-04</td></tr>"}) {
    INFO(piece);
    CHECK(page.find(piece) != std::string::npos);
  }
  CHECK(page.find("<b>") == std::string::npos);
  // What every run has of its own is no difference of its arm.
  for (const char* own : {"<td>trainer.seed</td>", "<td>data.cache</td>"})
    CHECK(page.find(own) == std::string::npos);
}

TEST_CASE_METHOD(FourArms, "the same runs give the same files, byte for byte") {
  const std::vector<std::string> names = {"results.md", "results.csv", "results.json", "runs.csv",
                                          "curves.png", "curves.svg",  "report.html"};
  std::vector<std::string> before;
  write_all();
  for (const std::string& name : names) {
    before.push_back(content(name));
    std::filesystem::remove(folder / name);
  }
  write_all();
  for (size_t i = 0; i < names.size(); ++i) {
    INFO(names[i]);
    CHECK(content(names[i]) == before[i]);
  }
}

TEST_CASE_METHOD(FourArms, "curves have bands: t intervals, for two seeds their range") {
  const Figure figure = loss_results(ablation).curves;
  CHECK(figure.title ==
        "Mean of 2 to 4 seeds; band: 95 % t interval (of 2 seeds: from the lower to the higher)");
  REQUIRE(figure.curves.size() == 3);  // nothing of the arm that failed
  const Curve &four = figure.curves[0], &two = figure.curves[2];
  CHECK(four.label == "rotary");
  CHECK(four.x == std::vector<double>{100, 200, 300, 400, 500, 600});
  CHECK(four.y.back() == 2.375);
  CHECK(four.low.back() == Approx(2.375 - 0.5135651).epsilon(1e-6));
  CHECK(four.high.back() == Approx(2.375 + 0.5135651).epsilon(1e-6));
  CHECK(two.low.front() == 4.25);
  CHECK(two.high.front() == 5.0);
}

TEST_CASE_METHOD(HandMadeAblation, "one seed: differences without a test; runs of unlike length") {
  ablation.runs.reserve(2);
  finish(add("long", 1), 2, 0.5, 10, 1);
  AblationRun& brief = add("brief", 1, "trainer.steps: 300");
  finish(brief, 2.5, 0.5, 5, 1);
  auto result = nlohmann::json::parse(read_file(brief.folder / "result.json", 1 << 20));
  result["asked_steps"] = result["step"] = 300;
  write_text(brief.folder / "result.json", result.dump());
  write_all();
  const std::string table = content("results.md");
  INFO(table);
  using Cells = std::vector<std::string>;
  CHECK(markdown_cells(lines_with(table, "| arm").at(0)) == Cells{"arm", "seeds", "update 200", "update 400",
                                                                  "last update", "minus long", "accuracy",
                                                                  "tokens/s", "parameters", "seconds"});
  CHECK(markdown_cells(lines_with(table, "| brief").at(0)) ==
        Cells{"brief", "1", "3.500", "3.000", "2.500", "+0.5000", "0.500", "1200", "1", "5"});
  CHECK(table.find("one seed, so no interval and no test") != std::string::npos);
  CHECK(table.find("t test") == std::string::npos);
  CHECK(loss_results(ablation).curves.title.empty());
  CHECK(loss_results(ablation).curves.curves[0].low.empty());
}

TEST_CASE_METHOD(HandMadeAblation, "a loss that the first evaluation is below is reached there") {
  finish(add("only", 7), 2, 0.5, 10, 1);
  ablation.reach = {3.25, 2.0};
  write_all();
  const auto reach = nlohmann::json::parse(content("results.json"))["numbers"]["rows"]["only"]["reach"];
  CHECK(reach["3.25"]["mean"] == 100);  // there it is 3.25
  CHECK(reach["2"]["mean"] == 600);
  CHECK(content("results.md").find("minus") == std::string::npos);  // nothing to compare with
}

TEST_CASE_METHOD(HandMadeAblation, "fine-tuned runs: scores for each row, the best of each arm") {
  const std::string glue = "task: {type: glue, name: sst2, folder: SST-2}\ntokenizer: bytes\n";
  ablation.base = read_run(parse_config(glue, "base"));
  const std::vector<std::pair<std::string, std::string>> predicted = {
      {"lr1", "0 1 1 1"}, {"lr2", "0 1 0 1"}};  // of the labels 0 1 0 1
  for (const auto& [point, predictions] : predicted) {
    for (const int64_t seed : {1, 2}) {
      AblationRun& run = add("tuned", seed);
      run.options = ablation.base;
      run.options.trainer.seed = seed;
      run.point = point;
      run.folder = folder / fmt::format("{}-seed{}", run.label(), seed);
      std::filesystem::create_directories(run.folder);
      std::string text = "set\texample\tlabel\tprediction\n";
      for (int i = 0; i < 4; ++i)
        text += fmt::format("0\t{}\t{}\t{}\n", i, i % 2, predictions.at(static_cast<size_t>(2 * i)));
      write_text(run.folder / "predictions.tsv", text);
      const double accuracy = point == "lr1" ? 0.75 : 1;
      const nlohmann::json result = {{"finished", true},
                                     {"asked_steps", run.options.trainer.steps},
                                     {"metrics", {{"accuracy", accuracy}}},
                                     {"seconds", 2 * seed}};
      write_text(run.folder / "result.json", result.dump());
      write_text(run.folder / "metrics.jsonl",
                 fmt::format("{{\"step\":9,\"split\":\"valid\",\"accuracy\":{}}}\n", accuracy));
    }
  }
  AblationRun& failed = add("broken", 1);
  failed.options = ablation.base;
  failed.failed = true;
  failed.error = "no <luck>";
  write_all();
  const std::string table = content("results.md"), csv = content("results.csv");
  INFO(table << csv);
  using Cells = std::vector<std::string>;
  CHECK(markdown_cells(lines_with(table, "| tuned-lr2").at(0)) ==
        Cells{"tuned-lr2 (best)", "1 / 2", "100.00 / 100.00", "100.00 ± 0.00", "100.00 to 100.00", "2 / 4"});
  CHECK(markdown_cells(lines_with(table, "| broken").at(0)) ==
        Cells{"broken", "1 (failed)", "–", "–", "–", "–"});
  CHECK(table.find("broken: seed 1 failed: no <luck>.") != std::string::npos);
  CHECK(csv.starts_with(
      "row,arm,finished,best,accuracy,accuracy_sd,accuracy_low,accuracy_high,seconds,error\r\n"
      "tuned-lr1,tuned,2,0,0.75,0,"));
  CHECK(csv.find("tuned-lr2,tuned,2,1,1,0,1,1,3,\r\nbroken,broken,0,0,,,,,,seed 1 failed: no <luck>\r\n") !=
        std::string::npos);
  CHECK(content("runs.csv").starts_with("arm,seed,update,loss,accuracy\r\ntuned-lr1,1,9,,0.75\r\n"));
  const auto rows = nlohmann::json::parse(content("results.json"))["numbers"]["rows"];
  CHECK(rows["tuned-lr2"]["best"] == true);
  CHECK_FALSE(rows["tuned-lr1"].contains("best"));
  CHECK(rows["tuned-lr1"]["seeds"]["2"]["seconds"] == 4);
  const std::string page = content("report.html");
  CHECK(page.find("100.00 ± 0.00") != std::string::npos);
  CHECK(page.find("no &lt;luck&gt;") != std::string::npos);
  CHECK(page.find("<img") == std::string::npos);
}

TEST_CASE("ablate keeps to its memory, makes the same files again, and shows what failed") {
  TempDir folder;
  write_text(folder / "text.txt", made_up_text(6000));
  write_text(folder / "run.yaml", tiny_config(folder / "text.txt"));
  write_text(folder / "ablate.yaml",
             "base: run.yaml\narms:\n  rotary: {}\n  none: {model.positions.type: none}\n"
             "  bad: {trainer.optimizer.lr: 1.0e+30, trainer.clip: 0}\nseeds: [1, 2]\nreach: 5\n");
  const std::filesystem::path all = folder / "all";
  const std::vector<std::string> command = {
      "ablate", (folder / "ablate.yaml").string(), "--run", all.string(), "--jobs", "3"};
  std::vector<std::string> with_limit = command;
  with_limit.insert(with_limit.end(), {"--memory", "0.001"});
  const Outcome outcome = run_program(with_limit, folder);
  INFO(outcome.output);
  CHECK(outcome.status == 2);
  CHECK(outcome.output.find("others wait, for --memory is 0.001 GiB") != std::string::npos);
  // Each run began when the one before it had ended.
  const std::vector<std::string> order = {"rotary-seed1", "none-seed1", "rotary-seed2", "none-seed2"};
  for (size_t i = 1; i < order.size(); ++i) {
    CHECK(std::filesystem::last_write_time(all / order[i - 1] / "result.json") <
          std::filesystem::last_write_time(all / order[i] / "environment.json"));
  }
  const std::string table = read_file(all / "results.md", 1 << 20);
  CHECK(table.find("1 (failed) / 2 (failed)") != std::string::npos);
  CHECK(table.find("bad: seed 1 failed: ") != std::string::npos);
  CHECK(table.find("is not finite") != std::string::npos);
  CHECK(table.find("updates to loss 5") != std::string::npos);
  const std::string page = read_file(all / "report.html", 64 << 20);
  CHECK(page.find("<tr><td>model.positions.type</td><td>rotary</td><td>none</td></tr>") != std::string::npos);
  CHECK(page.find("<td>date</td>") != std::string::npos);

  // The failed ones fail again; the rest is not run again, and the files are the same.
  std::map<std::string, std::string> before;
  for (const char* name : {"results.md", "results.csv", "results.json", "runs.csv", "curves.png",
                           "curves.svg", "none-seed2/result.json"})
    before[name] = read_file(all / name, 64 << 20);
  const Outcome again = run_program(command, folder);
  CHECK(again.status == 2);
  CHECK(again.output.find("--memory") == std::string::npos);
  for (const auto& [name, content] : before) {
    INFO(name);
    CHECK(read_file(all / name, 64 << 20) == content);
  }
  CHECK(run_program({"ablate", (folder / "ablate.yaml").string(), "--memory", "-1"}, folder).status == 2);

  // A line of the page trains the same run again.
  const std::string line =
      "roformer train " + (all / "none-seed2/config.yaml").string() + " --run NEW --threads 1\n";
  CHECK(page.find(line) != std::string::npos);
  REQUIRE(run_program({"train", (all / "none-seed2/config.yaml").string(), "--run", (folder / "new").string(),
                       "--threads", "1"},
                      folder)
              .status == 0);
  const auto made = nlohmann::json::parse(read_file(folder / "new/result.json", 1 << 20));
  CHECK(made["metrics"] == nlohmann::json::parse(before["none-seed2/result.json"])["metrics"]);
}
