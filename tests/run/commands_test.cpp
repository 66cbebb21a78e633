#include "roformer/torch.h"

#include <fmt/ranges.h>

#include "roformer/core/files.h"
#include "roformer/hf/safetensors.h"
#include "roformer/run.h"
#include "tests/catch.h"
#include "tests/run/process.h"

using namespace roformer;
using namespace roformer::test;

namespace {

/// A tiny BERT pretrained with word pieces, and a GLUE task (SST-2) of its words.
struct CommandsFixture {
  CommandsFixture() {
    const std::string vocab = (source_dir() / "data/fixtures/vocab.txt").string();
    std::string text;
    for (int i = 0; i < 200; ++i)
      text += i % 2 ? "the wanted hello , naive cafe\n\n" : "hello running the cafe ! a b\n\n";
    write_text(folder / "text.txt", text);
    write_text(folder / "tokenizer.yaml", "tokenizer: {type: wordpiece, vocab: " + vocab + "}\n");
    write_text(folder / "mlm.yaml",
               "base: tokenizer.yaml\ntask: {type: mlm, whole_words: true}\n"
               "data: {train: text.txt, length: 16, valid_fraction: 0.1, eval_sequences: 8}\n"
               "model: {dim: 32, layers: 1, heads: 2, ffn: 32, dropout: 0.1, positions: {type: learned, "
               "max_length: 32}}\n"
               "trainer: {batch: 4, evaluate_every: 0, device: cpu, threads: 1,\n"
               "          stages: [{length: 16, batch: 4, steps: 6}, {length: 24, batch: 2, steps: 4}]}\n");
    std::filesystem::create_directories(folder / "SST-2");
    std::string rows = "sentence\tlabel\n", test = "index\tsentence\n";
    for (int i = 0; i < 24; ++i) {
      rows += std::string(i % 2 ? "the wanted cafe" : "hello running !") + (i % 3 ? " ," : "") + "\t" +
              (i % 2 ? "1" : "0") + "\n";
      test += std::to_string(i) + "\t" + (i % 2 ? "wanted" : "running") + "\n";
    }
    write_text(folder / "SST-2/train.tsv", rows);
    write_text(folder / "SST-2/dev.tsv", rows);
    write_text(folder / "SST-2/test.tsv", test);
    write_text(
        folder / "glue.yaml",
        "task: {type: glue, name: sst2, folder: SST-2, length: 16, head: bert}\nmodel: {path: hf}\n"
        "trainer: {epochs: 4, batch: 4, evaluate_every: 0, device: cpu, threads: 1, optimizer: {lr: 1e-3}}\n"
        "arms:\n  tuned: {}\ngrid: {trainer.optimizer.lr: [1e-3, 3e-3]}\nseeds: [1, 2]\n");
  }
  Outcome run(std::vector<std::string> arguments) const { return run_program(arguments, folder); }
  Outcome must(std::vector<std::string> arguments) const {
    const Outcome outcome = run(arguments);
    INFO(fmt::format("{}\n{}", fmt::join(arguments, " "), outcome.output));
    REQUIRE(outcome.status == 0);
    return outcome;
  }
  std::string path(const std::string& name) const { return (folder / name).string(); }
  std::string content(const std::string& name) const { return read_file(folder / name, 64 << 20); }
  TempDir folder;
};

}  // namespace

TEST_CASE_METHOD(CommandsFixture,
                 "pretrain, convert, fine-tune a grid, predict, convert: nothing is lost on the way") {
  must({"train", path("mlm.yaml"), "--run", path("mlm")});
  must({"convert", path("mlm"), path("hf")});
  for (const char* name : {"config.json", "model.safetensors", "vocab.txt", "tokenizer_config.json"}) {
    INFO(name);
    CHECK(std::filesystem::exists(folder / "hf" / name));
  }
  must({"convert", path("hf"), path("hf2")});
  CHECK(content("hf/model.safetensors") == content("hf2/model.safetensors"));
  CHECK(content("hf/config.json") == content("hf2/config.json"));

  // A run, its folder and its YAML tokenize alike.
  write_text(folder / "lines.txt", "the wanted cafe\n\nhello [MASK] running!\n");
  const std::string ids = must({"tokenize", path("mlm"), path("lines.txt")}).output;
  CHECK(std::count(ids.begin(), ids.end(), '\n') == 3);
  CHECK(must({"tokenize", path("hf"), path("lines.txt")}).output == ids);
  CHECK(must({"tokenize", path("tokenizer.yaml"), path("lines.txt"), "--threads", "3"}).output == ids);
  CHECK(must({"tokenize", path("hf"), path("lines.txt"), "--tokens"}).output ==
        "[CLS] the want ##ed cafe [SEP]\n[CLS] [SEP]\n[CLS] hello [MASK] runn ##ing ! [SEP]\n");

  // Run and folder give the same states and logits, bit for bit.
  must({"encode", path("mlm"), path("lines.txt"), path("a.safetensors")});
  must({"encode", path("hf"), path("lines.txt"), path("b.safetensors")});
  CHECK(content("a.safetensors") == content("b.safetensors"));
  CHECK(SafetensorsFile(folder / "a.safetensors").contains("logits"));

  const Outcome ablated = must({"ablate", path("glue.yaml"), "--run", path("glue"), "--jobs", "2"});
  INFO(ablated.output);
  const auto results = nlohmann::json::parse(content("glue/results.json"))["numbers"];
  CHECK(results["headline"] == "accuracy");
  CHECK(results["rows"].size() == 2);
  double best_mean = -1, chosen_mean = -2;
  for (const auto& [label, entry] : results["rows"].items()) {
    CHECK(entry["arm"] == "tuned");
    REQUIRE(entry["seeds"].size() == 2);
    double mean = 0;
    for (const auto& [seed, result] : entry["seeds"].items())
      mean += result["metrics"]["accuracy"].get<double>() / 2;
    best_mean = std::max(best_mean, mean);
    if (entry.value("best", false)) chosen_mean = mean;
    CHECK(entry["interval"][0] <= mean);
    CHECK(entry["interval"][1] >= mean);
  }
  CHECK(chosen_mean == best_mean);
  CHECK(ablated.output.find("(best)") != std::string::npos);
  CHECK(must({"report", "table2", path("glue")}).output.find("tuned") != std::string::npos);

  // predictions.tsv holds what the accuracy was counted from.
  const std::string tuned = "glue/tuned-lr3e-3-seed1";
  std::istringstream predictions(content(tuned + "/predictions.tsv"));
  std::string header;
  std::getline(predictions, header);
  int right = 0, rows = 0;
  for (int64_t set, example, label, prediction; predictions >> set >> example >> label >> prediction;
       ++rows) {
    right += label == prediction;
    CHECK(label == example % 2);
  }
  CHECK(rows == 24);
  CHECK(right / 24.0 == nlohmann::json::parse(content(tuned + "/result.json"))["metrics"]["accuracy"]);

  const Outcome predicted = must({"predict", path(tuned), path("submission")});
  const std::string submission = content("submission/SST-2.tsv");
  CHECK(submission.starts_with("index\tprediction\n0\t"));
  CHECK(std::count(submission.begin(), submission.end(), '\n') == 25);
  write_text(folder / "mine.tsv", "id\ttext\nx\tthe wanted cafe\ny\thello running !\n");
  must({"predict", path(tuned), path("labelled.tsv"), "--input", path("mine.tsv")});
  CHECK(content("labelled.tsv").starts_with("id\ttext\tprediction\nx\tthe wanted cafe\t"));

  must({"convert", path(tuned), path("tuned-hf")});
  must({"encode", path(tuned), path("lines.txt"), path("c.safetensors")});
  must({"encode", path("tuned-hf"), path("lines.txt"), path("d.safetensors")});
  const torch::Tensor logits = SafetensorsFile(folder / "c.safetensors").tensor("logits");
  CHECK(logits.size(1) == 2);
  CHECK(torch::equal(logits, SafetensorsFile(folder / "d.safetensors").tensor("logits")));
}

TEST_CASE_METHOD(CommandsFixture, "encode takes token ids, padded on either side") {
  must({"train", path("mlm.yaml"), "--run", path("mlm")});
  const torch::Tensor ids = torch::tensor({{2, 5, 6, 3, 0, 0}, {0, 0, 2, 5, 6, 3}}, torch::kInt64);
  const torch::Tensor keep = torch::tensor({{1, 1, 1, 1, 0, 0}, {0, 0, 1, 1, 1, 1}}, torch::kInt64);
  save_safetensors(folder / "in.safetensors", {{"input_ids", ids}, {"attention_mask", keep}});
  must({"encode", path("mlm"), path("in.safetensors"), path("out.safetensors"), "--states-only"});
  const SafetensorsFile out(folder / "out.safetensors");
  CHECK_FALSE(out.contains("logits"));
  CHECK(out.tensor("last_hidden_state").sizes() == torch::IntArrayRef({2, 6, 32}));
}

TEST_CASE_METHOD(CommandsFixture, "train-tokenizer makes what the tokenizers read") {
  for (const char* kind : {"wordpiece", "bpe", "unigram"}) {
    const bool pieces = std::string(kind) == "wordpiece";
    const std::string file = path(std::string(kind) + (pieces ? ".txt" : ".model"));
    must({"train-tokenizer", kind, file, path("text.txt"), "--vocab-size", "26"});
    write_text(folder / "made.yaml", std::string("tokenizer: {type: ") +
                                         (pieces ? "wordpiece, vocab: " : "sentencepiece, model: ") + file +
                                         "}\n");
    write_text(folder / "one.txt", "hello\n");
    const std::string tokens = must({"tokenize", path("made.yaml"), path("one.txt"), "--tokens"}).output;
    INFO(tokens);
    CHECK(tokens.find("[UNK]") == std::string::npos);
    CHECK(tokens.find("[CLS]") == 0);
  }
}

TEST_CASE_METHOD(CommandsFixture, "bad input of these commands: one line, exit 2, nothing half-written") {
  must({"train", path("mlm.yaml"), "--run", path("mlm"), "--set", "model.positions.type=none"});
  write_text(folder / "bad.jsonl", "{\"text\": \"fine\"}\n{\"txt\": 1}\n");
  write_text(folder / "big.safetensors", std::string(8, '\xff') + "{}");
  std::filesystem::create_directories(folder / "other");
  write_text(folder / "other/config.json", "{\"model_type\": \"gpt2\"}");
  std::filesystem::create_directories(folder / "QNLI");
  write_text(folder / "QNLI/train.tsv", "index\tquestion\tsentence\tlabel\n0\ta\tb\tmaybe\n");
  write_text(folder / "QNLI/dev.tsv", "index\tquestion\tsentence\tlabel\n0\ta\tb\tentailment\n");
  write_text(folder / "qnli.yaml",
             "base: tokenizer.yaml\ntask: {type: glue, name: qnli, folder: QNLI}\n"
             "model: {dim: 32, layers: 1, heads: 2, ffn: 32}\ntrainer: {steps: 1, device: cpu}\n");
  write_text(folder / "badgrid.yaml", "base: qnli.yaml\narms: {a: {}}\ngrid: {trainer.optimizer.lr: 3}\n");
  const torch::Tensor ids = torch::full({1, 3}, 4800, torch::kInt64);
  save_safetensors(folder / "ids.safetensors", {{"input_ids", ids}});
  struct Case {
    std::vector<std::string> arguments;
    std::string expected;
  };
  const std::string out = path("never");
  const std::vector<Case> cases = {
      {{"convert", path("mlm"), out}, "positions"},
      {{"convert", path("other"), out}, "gpt2"},
      {{"convert", path("absent"), out}, "absent"},
      {{"convert", path("mlm"), path("SST-2")}, "not empty"},
      {{"encode", path("mlm"), path("bad.jsonl"), out}, "bad.jsonl:2"},
      {{"encode", path("mlm"), path("big.safetensors"), out}, "big.safetensors"},
      {{"encode", path("mlm"), path("ids.safetensors"), out}, "4800"},
      {{"encode", path("mlm"), path("absent.txt"), out}, "absent.txt"},
      {{"tokenize", path("mlm"), path("bad.jsonl"), "--jsonl"}, "bad.jsonl:2"},
      {{"tokenize", path("absent"), path("text.txt")}, "absent"},
      {{"tokenize", path("mlm"), path("absent")}, "absent"},
      {{"predict", path("mlm"), out}, "GLUE"},
      {{"train", path("qnli.yaml"), "--run", out}, "train.tsv:2"},
      {{"train", path("qnli.yaml"), "--run", out, "--set", "task.name=ax"}, "mnli"},
      {{"train", path("qnli.yaml"), "--run", out, "--set", "data.train=text.txt"},
       "data: is not read by this task"},
      {{"train", path("qnli.yaml"), "--run", out, "--set", "task.folder=" + path("absent")}, "absent"},
      {{"train", path("qnli.yaml"), "--run", out, "--set", "model.path=" + path("other")}, "gpt2"},
      {{"train", path("mlm.yaml"), "--run", out, "--set", "data.train=[]"}, "data.train"},
      {{"train", path("mlm.yaml"), "--run", out, "--set", "trainer.epochs=2"}, "epochs"},
      {{"train", path("mlm.yaml"), "--run", out, "--set", "task.span=3"}, "whole_words"},
      {{"train", path("mlm.yaml"), "--run", out, "--set", "model.positions.max_length=20"}, "24"},
      {{"ablate", path("badgrid.yaml"), "--run", out}, "badgrid.yaml:3"},
      {{"train-tokenizer", "wordpiece", out, path("absent.txt")}, "absent.txt"},
      {{"train-tokenizer", "letters", out, path("text.txt")}, "letters"},
      {{"report", "table2", path("mlm")}, "results.json"},
      {{"encode", path("mlm"), path("text.txt"), path("text.txt")}, "replace its input"},
      {{"encode", path("mlm"), path("text.txt"), path("SST-2")}, "is a folder"},
      {{"train-tokenizer", "wordpiece", path("text.txt"), path("text.txt")}, "replace"},
      {{"tokenize", path("mlm"), path("text.txt"), "--max-length", "2"}, "at least 4"},
      {{"ablate", path("qnli.yaml"), "--run", out, "--set", "arms={a: {}}", "--set", "grid={seeds: [1]}"},
       "'seeds' cannot differ"},
      {{"ablate", path("qnli.yaml"), "--run", out, "--set", "arms={a: {}}", "--set",
        "grid={trainer.optimizer.lr: [1e-5, 1e-5]}"},
       "twice"},
  };
  for (const Case& each : cases) {
    const Outcome outcome = run(each.arguments);
    INFO(fmt::format("{}\n{}", fmt::join(each.arguments, " "), outcome.output));
    CHECK(outcome.status == 2);
    CHECK(outcome.output.find(each.expected) != std::string::npos);
    if (each.arguments.front() != "tokenize")
      CHECK(std::count(outcome.output.begin(), outcome.output.end(), '\n') == 1);
    CHECK_FALSE(std::filesystem::exists(folder / "never" / "checkpoints"));
    CHECK_FALSE(std::filesystem::is_regular_file(folder / "never"));
    std::filesystem::remove_all(folder / "never");
  }
}
