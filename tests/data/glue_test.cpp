#include "roformer/data/glue.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <stdexcept>
#include <string>
#include <vector>

#include "roformer/core/error.h"
#include "roformer/core/files.h"
#include "roformer/core/random.h"
#include "tests/catch.h"
#include "tests/fuzz.h"
#include "tests/support.h"

using roformer::glue_files;
using roformer::glue_info;
using roformer::GlueFile;
using roformer::GluePart;
using roformer::GlueTask;
using roformer::read_glue;
using roformer::read_tsv;

namespace {

namespace fs = std::filesystem;

std::string glue_error(const std::function<void()>& call) {
  try {
    call();
  } catch (const roformer::Error& error) {
    return error.what();
  }
  return "no error";
}

bool says(const std::string& text, const std::string& part) {
  if (text.find(part) != text.npos) return true;
  WARN("'" << text << "' lacks '" << part << "'");
  return false;
}

// A file in a folder of its own.
struct MadeTsv {
  explicit MadeTsv(std::string_view text, const std::string& name = "made.tsv") : path(folder / name) {
    roformer::write_file_atomically(path, text);
  }
  roformer::test::TempDir folder;
  fs::path path;
};

int64_t count_label(const GlueFile& file, int64_t label) {
  return std::count_if(file.examples.begin(), file.examples.end(),
                       [&](const auto& e) { return e.label == label; });
}

}  // namespace

TEST_CASE("every GLUE file has its number of rows") {
  const auto data = roformer::test::require_data();
  if (!data) return;
  struct Count {
    GlueTask task;
    const char* file;
    std::size_t rows;
    bool labelled;
  };
  const std::vector<Count> counts = {{GlueTask::cola, "CoLA/train.tsv", 8551, true},
                                     {GlueTask::cola, "CoLA/dev.tsv", 1043, true},
                                     {GlueTask::cola, "CoLA/test.tsv", 1063, false},
                                     {GlueTask::sst2, "SST-2/train.tsv", 67349, true},
                                     {GlueTask::sst2, "SST-2/dev.tsv", 872, true},
                                     {GlueTask::sst2, "SST-2/test.tsv", 1821, false},
                                     {GlueTask::mrpc, "MRPC/train.tsv", 3667, true},
                                     {GlueTask::mrpc, "MRPC/dev.tsv", 408, true},
                                     {GlueTask::mrpc, "MRPC/test.tsv", 1725, false},
                                     {GlueTask::mrpc, "MRPC/msr_paraphrase_train.txt", 4076, true},
                                     {GlueTask::mrpc, "MRPC/msr_paraphrase_test.txt", 1725, true},
                                     {GlueTask::stsb, "STS-B/train.tsv", 5749, true},
                                     {GlueTask::stsb, "STS-B/dev.tsv", 1500, true},
                                     {GlueTask::stsb, "STS-B/test.tsv", 1379, false},
                                     {GlueTask::qnli, "QNLI/dev.tsv", 5463, true},
                                     {GlueTask::qnli, "QNLI/test.tsv", 5463, false},
                                     {GlueTask::rte, "RTE/train.tsv", 2490, true},
                                     {GlueTask::rte, "RTE/dev.tsv", 277, true},
                                     {GlueTask::rte, "RTE/test.tsv", 3000, false},
                                     {GlueTask::wnli, "WNLI/train.tsv", 635, true},
                                     {GlueTask::wnli, "WNLI/dev.tsv", 71, true},
                                     {GlueTask::wnli, "WNLI/test.tsv", 146, false}};
  for (const Count& count : counts) {
    INFO(count.file);
    const GlueFile file = read_glue(count.task, *data / "glue" / count.file);
    CHECK(file.examples.size() == count.rows);
    CHECK(file.labelled == count.labelled);
    CHECK(file.dropped == 0);
    CHECK(file.notes.empty());
    CHECK(file.pair == glue_info(count.task).pair);
    bool filled = true, labels = true;
    for (std::size_t i = 0; i < file.examples.size(); ++i) {
      const auto& e = file.examples[i];
      filled = filled && !e.first.empty() && e.second.empty() != file.pair;
      const bool known = e.label >= 0 && e.label < std::ssize(file.labels);
      labels = labels && (known == (count.labelled && !glue_info(count.task).regression())) && e.score >= 0 &&
               e.score <= 5;
      // What write_submission relies on.
      if (!count.labelled) filled = filled && e.id == std::to_string(i);
    }
    CHECK(filled);
    CHECK(labels);
  }
}

TEST_CASE("the official single rows of all nine tasks") {
  const auto data = roformer::test::require_data();
  if (!data) return;
  const fs::path folder = *data / "glue" / "mtdnn_samples";
  int files = 0;
  for (const auto& [task, name] : roformer::enum_names(GlueTask{})) {
    if (task == GlueTask::ax) continue;
    for (const GluePart part : {GluePart::train, GluePart::dev, GluePart::test}) {
      for (const auto& source : glue_files(task, folder, part)) {
        INFO(source.file.string());
        const GlueFile file = read_glue(task, source);
        CHECK(file.examples.size() == (task == GlueTask::cola && part != GluePart::test ? 2 : 1));
        CHECK(file.labelled == (part != GluePart::test));
        CHECK(source.submission.empty() == (part != GluePart::test));
        ++files;
      }
    }
  }
  CHECK(files == 29);
  const GlueFile mnli = read_glue(GlueTask::mnli, folder / "MNLI" / "dev_matched.tsv");
  CHECK(mnli.examples[0].first == "The new rights are nice enough");
  CHECK(mnli.examples[0].second == "Everyone really likes the newest benefits ");
  CHECK(mnli.labels.at(static_cast<std::size_t>(mnli.examples[0].label)) == "neutral");
  const GlueFile qqp = read_glue(GlueTask::qqp, folder / "QQP" / "dev.tsv");
  CHECK(qqp.examples[0].second == "Why are hispanics so beautiful?");
  CHECK(qqp.examples[0].label == 0);
  CHECK(qqp.examples[0].id == "201359");
  CHECK(glue_files(GlueTask::mnli, folder, GluePart::test)[1].submission == "MNLI-mm.tsv");
}

TEST_CASE("MRPC's original files part into train and dev") {
  const auto data = roformer::test::require_data();
  if (!data) return;
  const fs::path mrpc = *data / "glue" / "MRPC";
  roformer::test::TempDir folder;
  for (const char* name : {"msr_paraphrase_train.txt", "msr_paraphrase_test.txt", "dev_ids.tsv"})
    fs::copy_file(mrpc / name, folder / name);
  const auto read_part = [&](GluePart part) {
    const auto sources = glue_files(GlueTask::mrpc, folder.path(), part);
    REQUIRE(sources.size() == 1);
    return read_glue(GlueTask::mrpc, sources[0]);
  };
  const GlueFile train = read_part(GluePart::train), dev = read_part(GluePart::dev);
  CHECK(train.examples.size() == 3668);
  CHECK(count_label(train, 1) == 2474);
  CHECK(count_label(train, 0) == 1194);
  CHECK(dev.examples.size() == 408);
  CHECK(count_label(dev, 1) == 279);
  const auto by_id = [](const auto& a, const auto& b) { return a.id < b.id; };
  const auto sorted = [&](GlueFile file) {
    std::sort(file.examples.begin(), file.examples.end(), by_id);
    return file;
  };
  const GlueFile official = sorted(read_glue(GlueTask::mrpc, mrpc / "dev.tsv")), ours = sorted(dev);
  for (std::size_t i = 0; i < 408; ++i) {
    CHECK(ours.examples[i].id == official.examples[i].id);
    CHECK(ours.examples[i].second == official.examples[i].second);
  }
  CHECK(read_part(GluePart::test).examples.size() == 1725);

  roformer::write_file_atomically(folder / "dev_ids.tsv", "1\t2\n");
  CHECK(says(glue_error([&] { read_part(GluePart::dev); }), "has no pair 1/2"));
  fs::remove(folder / "dev_ids.tsv");
  CHECK(says(glue_error([&] { read_part(GluePart::train); }), "holds train and dev together"));
}

TEST_CASE("quotes, byte order marks, CRLF and odd white space") {
  const MadeTsv made(
      "\xEF\xBB\xBFQuality\t#1 ID\t#2 ID\t#1 String\t#2 String\r\n"
      "1\t10\t11\t\"It began \t said \" he\r\n"
      "0\t12\t13\tone \xC2\x85two\x0B \t\"\"three");
  const GlueFile file = read_glue(GlueTask::mrpc, made.path);
  REQUIRE(file.examples.size() == 2);
  CHECK(file.examples[0].first == "\"It began ");
  CHECK(file.examples[0].second == " said \" he");
  CHECK(file.examples[0].label == 1);
  CHECK(file.examples[0].id == "10/11");
  CHECK(file.examples[0].line == 2);
  CHECK(file.examples[1].first == "one \xC2\x85two\x0B ");
  CHECK(file.examples[1].second == "\"\"three");
  CHECK(file.examples[1].line == 3);
}

TEST_CASE("CoLA has a header in its test file only") {
  const GlueFile train = read_glue(GlueTask::cola, MadeTsv("gj04\t1\t\tOne.\ngj04\t0\t*\tTwo a.").path);
  REQUIRE(train.examples.size() == 2);
  CHECK(train.examples[0].label == 1);
  CHECK(train.examples[0].first == "One.");
  CHECK(train.examples[1].label == 0);
  CHECK(train.examples[1].id == "1");
  const GlueFile test = read_glue(GlueTask::cola, MadeTsv("index\tsentence\n0\tOne.\n").path);
  CHECK(test.examples.size() == 1);
  CHECK_FALSE(test.labelled);
}

TEST_CASE("broken rows of QQP are dropped and counted, elsewhere they are errors") {
  const std::string header = "id\tqid1\tqid2\tquestion1\tquestion2\tis_duplicate\n";
  const MadeTsv made(
      header +
      "1\t2\t3\ta\tb\t1\n4\t5\t6\n7\t8\t9\tc\td\t\n\n10\t11\t12\te\tf\t0\textra\n13\t1\t2\tg\t\t0\n");
  const GlueFile file = read_glue(GlueTask::qqp, made.path);
  REQUIRE(file.examples.size() == 2);
  CHECK(file.examples[1].id == "13");
  CHECK(file.examples[1].line == 7);
  CHECK(file.dropped == 4);
  REQUIRE(file.notes.size() == 1);
  CHECK(says(file.notes[0], "4 of 6 rows dropped"));
  CHECK(says(file.notes[0], "the first is line 3"));
  // A test file must not lose rows.
  const MadeTsv test("id\tquestion1\tquestion2\n0\ta\tb\n1\tc\n");
  CHECK(says(glue_error([&] { read_glue(GlueTask::qqp, test.path); }),
             "made.tsv:3: 2 columns, but 3 are expected"));
  const MadeTsv only_broken(header + "1\n");
  CHECK(says(glue_error([&] { read_glue(GlueTask::qqp, only_broken.path); }), "no rows"));
  const MadeTsv label(header + "1\t2\t3\ta\tb\t2\n");
  CHECK(says(glue_error([&] { read_glue(GlueTask::qqp, label.path); }),
             "made.tsv:2: unknown label '2'; known are '0', '1'"));
}

TEST_CASE("MNLI's label is gold_label, however many annotators there are") {
  std::string head = "index\tpromptID\tpairID\tgenre\ta\tb\tc\td\tsentence1\tsentence2\t";
  std::string row = "0\t1\t1n\tgenre\ta\tb\tc\td\tfirst\tsecond\t";
  const GlueFile train = read_glue(
      GlueTask::mnli, MadeTsv(head + "label1\tgold_label\n" + row + "neutral\tcontradiction\n").path);
  CHECK(train.examples[0].label == 2);
  CHECK(train.examples[0].second == "second");
  const GlueFile dev =
      read_glue(GlueTask::mnli,
                MadeTsv(head + "label1\tlabel2\tgold_label\n" + row + "neutral\tneutral\tentailment\n").path);
  CHECK(dev.examples[0].label == 0);
}

TEST_CASE("the diagnostic set, short and full") {
  const GlueFile plain = read_glue(GlueTask::ax, MadeTsv("index\tsentence1\tsentence2\n0\ta b\tc\n").path);
  CHECK_FALSE(plain.labelled);
  CHECK(plain.examples[0].second == "c");
  const GlueFile full =
      read_glue(GlueTask::ax, MadeTsv("Lexical Semantics\tLogic\tDomain\tPremise\tHypothesis\tLabel\n"
                                      "x\t\tNews\ta b\tc\tcontradiction\n")
                                  .path);
  CHECK(full.labelled);
  CHECK(full.examples[0].first == "a b");
  CHECK(full.examples[0].label == 2);
  const MadeTsv named("index\tsentence1\tsentence2\n0\ta b\tc\n", "diagnostic.tsv");
  CHECK(glue_files(GlueTask::ax, named.folder.path(), GluePart::test)[0].submission == "AX.tsv");
  CHECK(says(glue_error([&] { glue_files(GlueTask::ax, named.folder.path(), GluePart::train); }),
             "train on MNLI"));
}

TEST_CASE("mistakes in GLUE files name file and line") {
  const auto message = [](GlueTask task, std::string_view text) {
    const MadeTsv made(text);
    return glue_error([&] { read_glue(task, made.path); });
  };
  CHECK(says(message(GlueTask::sst2, ""), "made.tsv: the file is empty"));
  CHECK(says(message(GlueTask::sst2, "\xEF\xBB\xBF"), "made.tsv: the file is empty"));
  CHECK(says(message(GlueTask::sst2, "sentence\tlabel\n"), "made.tsv: there are no rows"));
  CHECK(says(message(GlueTask::sst2, "text\tlabel\na\t1\n"),
             "made.tsv:1: this is no header of SST-2: it needs columns named 'sentence'"));
  CHECK(says(message(GlueTask::rte, "index\tsentence1\tlabel\n"), "'sentence1', 'sentence2'"));
  CHECK(says(message(GlueTask::sst2, "sentence\tlabel\na\t1\nb\n"),
             "made.tsv:3: 1 columns, but 2 are expected"));
  CHECK(says(message(GlueTask::sst2, "sentence\tlabel\na\t1\n\nb\t1\n"), "made.tsv:3: 1 columns"));
  CHECK(says(message(GlueTask::cola, "a\t1\t\tb\na\t1\tb\n"), "made.tsv:2: 3 columns, but 4 are expected"));
  CHECK(says(message(GlueTask::rte, "index\tsentence1\tsentence2\tlabel\n0\ta\tb\tneutral\n"),
             "made.tsv:2: unknown label 'neutral'; known are 'entailment', 'not_entailment'"));
  CHECK(says(message(GlueTask::sst2, "sentence\tlabel\na\t\n"), "made.tsv:2: unknown label ''"));
  const std::string sts = "index\tsentence1\tsentence2\tscore\n0\ta\tb\t";
  CHECK(says(message(GlueTask::stsb, sts + "x\n"), "made.tsv:2: the score 'x' is not a number"));
  CHECK(says(message(GlueTask::stsb, sts + "nan\n"), "is not a number"));
  CHECK(says(message(GlueTask::stsb, sts + "5.1\n"), "the score 5.1 is not between 0 and 5"));
  CHECK(read_glue(GlueTask::stsb, MadeTsv(sts + "4.750").path).examples[0].score == 4.75);
  CHECK(
      says(message(GlueTask::sst2, "sentence\tlabel\na\t1\nb\xFF\t1\n"), "made.tsv:3: byte 2 is not UTF-8"));
  CHECK(says(message(GlueTask::sst2, std::string("sentence\tlabel\na\0\t1\n", 20)),
             "made.tsv:2: there is a NUL"));
  CHECK(says(message(GlueTask::sst2, "sentence\tlabel\n" + std::string(1 << 20, 'a') + "\t1\n"),
             "made.tsv:2: the line is longer than 1 MiB"));
  CHECK(says(glue_error([] { read_glue(GlueTask::sst2, "/nowhere/train.tsv"); }),
             "cannot read /nowhere/train.tsv"));

  const MadeTsv train("index\tsentence\n0\ta\n", "train.tsv");
  const auto sources = glue_files(GlueTask::sst2, train.folder.path(), GluePart::train);
  CHECK(says(glue_error([&] { read_glue(GlueTask::sst2, sources[0]); }),
             "train.tsv:1: there is no column with labels"));
  CHECK(says(glue_error([&] { glue_files(GlueTask::sst2, train.folder.path(), GluePart::dev); }),
             "there is no dev.tsv"));
}

TEST_CASE("a user's own TSV") {
  const MadeTsv single("id\ttext\tlabel\n7\tone\tgood\n8\ttwo\tbad\n9\tthree\tgood\n");
  const GlueFile file = read_tsv(single.path);
  CHECK(file.labels == std::vector<std::string>{"bad", "good"});
  REQUIRE(file.examples.size() == 3);
  CHECK(file.examples[0].label == 1);
  CHECK(file.examples[1].first == "two");
  CHECK(file.examples[2].id == "2");
  CHECK_FALSE(file.pair);

  roformer::TsvOptions known;
  known.labels = {"good"};
  CHECK(says(glue_error([&] { read_tsv(single.path, known); }),
             "made.tsv:3: unknown label 'bad'; known are 'good'"));
  roformer::TsvOptions named;
  named.text = "label";
  named.text_pair = "text";
  named.label = "id";
  const GlueFile other = read_tsv(single.path, named);
  CHECK(other.labels == std::vector<std::string>{"7", "8", "9"});
  CHECK(other.examples[0].first == "good");
  CHECK(other.examples[0].second == "one");
  named.label = "class";
  CHECK(says(glue_error([&] { read_tsv(single.path, named); }),
             "made.tsv:1: there is no column 'class'; the header has 'id', 'text', 'label'"));

  CHECK(read_tsv(MadeTsv("text\tlabel\na\t10\nb\t9\n").path).labels == std::vector<std::string>{"9", "10"});
  const GlueFile pair = read_tsv(MadeTsv("text_a\ttext_b\na\tb\n").path);
  CHECK(pair.pair);
  CHECK_FALSE(pair.labelled);
  CHECK(pair.examples[0].second == "b");
  CHECK(pair.examples[0].label == -1);
  roformer::TsvOptions numbers;
  numbers.regression = true;
  const GlueFile scores = read_tsv(MadeTsv("text\tlabel\na\t-2.5e1\n").path, numbers);
  CHECK(scores.examples[0].score == -25);
  CHECK(scores.labels.empty());
  CHECK(
      says(glue_error([&] { read_tsv(MadeTsv("sentence\nx\n").path); }), "the header needs a column 'text'"));
  CHECK(says(glue_error([&] { read_tsv(MadeTsv("text_a\nx\n").path); }), "the header needs a column 'text'"));
  CHECK(says(glue_error([&] { read_tsv(MadeTsv("text\tlabel\na\t\n").path); }),
             "made.tsv:2: the label is empty"));
  CHECK(says(glue_error([&] { read_tsv(MadeTsv("text\tlabel\na\tb\tc\n").path); }), "made.tsv:2: 3 columns"));
}

TEST_CASE("the columns of a user's TSV can be named in YAML") {
  roformer::TsvOptions options;
  roformer::read(
      roformer::parse_config("text: body\ntext_pair: null\nlabels: [no, yes]\nregression: true\n", "here"),
      options);
  CHECK(options.text == "body");
  CHECK_FALSE(options.text_pair);
  CHECK_FALSE(options.label);
  CHECK(options.labels == std::vector<std::string>{"no", "yes"});
  CHECK(options.regression);
}

TEST_CASE("predictions beside a user's texts") {
  const MadeTsv input("\xEF\xBB\xBFtext\tlabel\r\none \"\tgood\r\ntwo\tbad");
  const fs::path output = input.folder / "out.tsv";
  const std::vector<std::string> predictions = {"bad", "good"};
  roformer::write_labelled_tsv(input.path, output, predictions);
  CHECK(roformer::read_file(output, 1000) == "text\tlabel\tprediction\none \"\tgood\tbad\ntwo\tbad\tgood\n");
  CHECK(says(glue_error([&] { roformer::write_labelled_tsv(input.path, input.path, predictions); }),
             "replace its input"));
  CHECK(says(glue_error([&] { roformer::write_labelled_tsv(output, input.folder / "b.tsv", predictions); }),
             "out.tsv:1: there is a column 'prediction' already"));
  CHECK_THROWS_AS(
      roformer::write_labelled_tsv(input.path, input.folder / "b.tsv", std::vector<std::string>{"x"}),
      std::logic_error);
  CHECK_FALSE(fs::exists(input.folder / "b.tsv"));
}

TEST_CASE("submissions are what the GLUE server takes") {
  roformer::test::TempDir folder;
  const MadeTsv rte("index\tsentence1\tsentence2\n0\ta\tb\n1\tc\td\n"),
      sts("index\tsentence1\tsentence2\n0\ta\tb\n1\tc\td\n2\te\tf\n");
  const fs::path rte_file = folder / "RTE.tsv", sts_file = folder / "STS-B.tsv";
  const std::vector<int64_t> classes = {1, 0};
  roformer::write_submission(GlueTask::rte, rte_file, classes);
  CHECK(roformer::read_file(rte_file, 1000) == "index\tprediction\n0\tnot_entailment\n1\tentailment\n");
  CHECK_NOTHROW(roformer::check_submission(GlueTask::rte, rte_file, rte.path));
  const std::vector<double> scores = {-0.7, 4.56789, 5.2};
  roformer::write_submission(GlueTask::stsb, sts_file, scores);
  CHECK(roformer::read_file(sts_file, 1000) == "index\tprediction\n0\t0.000\n1\t4.568\n2\t5.000\n");
  CHECK_NOTHROW(roformer::check_submission(GlueTask::stsb, sts_file, sts.path));

  CHECK(says(glue_error([&] { roformer::write_submission(GlueTask::rte, folder / "rte.tsv", classes); }),
             "only as 'RTE.tsv'"));
  CHECK(says(glue_error([&] { roformer::write_submission(GlueTask::mnli, folder / "MNLI.tsv", classes); }),
             "'MNLI-m.tsv', 'MNLI-mm.tsv'"));
  CHECK(says(
      glue_error([&] { roformer::write_submission(GlueTask::stsb, sts_file, std::vector<double>{NAN}); }),
      "the prediction for row 0 is not a number"));
  CHECK_THROWS_AS(roformer::write_submission(GlueTask::rte, rte_file, scores), std::logic_error);
  CHECK_THROWS_AS(roformer::write_submission(GlueTask::stsb, sts_file, classes), std::logic_error);
  CHECK_THROWS(roformer::write_submission(GlueTask::rte, rte_file, std::vector<int64_t>{2}));
  CHECK_THROWS(roformer::write_submission(GlueTask::rte, rte_file, std::vector<int64_t>{-1}));

  const auto refused = [&](std::string_view text) {
    roformer::write_file_atomically(rte_file, text);
    return glue_error([&] { roformer::check_submission(GlueTask::rte, rte_file, rte.path); });
  };
  CHECK(says(refused("id\tprediction\n0\tentailment\n1\tentailment\n"), "RTE.tsv:1: the header must be"));
  CHECK(says(refused("index\tprediction\n0\tentailment\n"), "1 predictions for the 2 rows"));
  CHECK(says(refused("index\tprediction\n0\tentailment\n1\tentailment\n2\tentailment\n"),
             "RTE.tsv:4: more rows than the 2"));
  CHECK(says(refused("index\tprediction\n1\tentailment\n2\tentailment\n"),
             "RTE.tsv:2: the index is '1' and should be '0'"));
  CHECK(says(refused("index\tprediction\n0\t1\n1\tentailment\n"),
             "RTE.tsv:2: the prediction '1' is none of 'entailment'"));
  CHECK(says(refused("index\tprediction\n0\n"), "RTE.tsv:2: expected an index and a prediction"));
  roformer::write_file_atomically(sts_file, "index\tprediction\n0\t5.5\n");
  CHECK(says(glue_error([&] { roformer::check_submission(GlueTask::stsb, sts_file, sts.path); }),
             "no score from 0 to 5"));
}

TEST_CASE("every GLUE task has submissions, metrics and names of its own") {
  std::map<std::string, int> names;
  for (const auto& [task, name] : roformer::enum_names(GlueTask{})) {
    const auto& info = glue_info(task);
    for (const std::string& file : info.submissions) ++names[file];
    CHECK_FALSE(info.metrics.empty());
    CHECK(info.regression() == (task == GlueTask::stsb));
  }
  CHECK(names.size() == 11);  // the server's eleven files
  CHECK(glue_info(GlueTask::mrpc).metrics[0] == "f1");
  CHECK(glue_info(GlueTask::stsb).metrics[0] == "spearman");
  CHECK(glue_info(GlueTask::ax).labels == glue_info(GlueTask::mnli).labels);
}

TEST_CASE("hostile files give an Error or examples, nothing else") {
  // Small files, cut, doubled, spliced and with bytes changed; ROFORMER_FUZZ_SECONDS for a longer search.
  const std::vector<std::string> seeds = {
      "gj04\t1\t\tOne.\ngj04\t0\t*\tTwo a.\n",
      "index\tsentence\n0\tOne.\n",
      "sentence\tlabel\na b \t1\n\"c\t0\r\n",
      "\xEF\xBB\xBFQuality\t#1 ID\t#2 ID\t#1 String\t#2 String\n1\t10\t11\ta\tb\n",
      "index\tsentence1\tsentence2\tscore\n0\ta\tb\t4.75\n",
      "id\tqid1\tqid2\tquestion1\tquestion2\tis_duplicate\n1\t2\t3\ta\tb\t1\n4\t5\t6\n",
      "index\tsentence1\tsentence2\tlabel\n0\ta\tb\tentailment\n1\tc\xC2\x85\td\tnot_entailment\n",
      "index\tsentence1\tsentence2\tgold_label\n0\ta\tb\tneutral\n",
      "index\tquestion\tsentence\n0\ta\tb\n",
      "Premise\tHypothesis\tLabel\na\tb\tneutral\n",
      "text_a\ttext_b\tlabel\na\tb\t1\nc\td\t\n",
      "index\tprediction\n0\t4.2\n1\tentailment\n"};
  const std::string bytes("\t\n\r\0\xFF\xC2\"01ea.-\xEF", 14);
  roformer::test::TempDir folder;
  const fs::path file = folder / "fuzz.tsv", submission = folder / "STS-B.tsv";
  const auto end =
      std::chrono::steady_clock::now() + std::chrono::duration<double>(roformer::test::fuzz_seconds());
  int64_t rounds = 0, errors = 0;
  const auto attempt = [&](const std::function<void()>& call) {
    try {
      call();
    } catch (const roformer::Error& error) {
      ++errors;
      const std::string message = error.what();
      if (message.find('\n') != message.npos) FAIL("two lines: " << message);
    }
  };
  const auto check_file = [](const GlueFile& read) {
    if (read.examples.empty()) FAIL("no examples");
    for (const auto& e : read.examples)
      if (e.label >= std::ssize(read.labels) || std::isnan(e.score)) FAIL("a label out of range");
  };
  for (; std::chrono::steady_clock::now() < end; ++rounds) {
    roformer::Random random(roformer::mix(11, static_cast<uint64_t>(rounds)));
    std::string text = seeds[random.below(seeds.size())];
    for (uint64_t changes = random.below(6); changes > 0; --changes) {
      const std::size_t at = random.below(text.size() + 1);
      switch (random.below(5)) {
        case 0:
          text.insert(at, 1, bytes[random.below(bytes.size())]);
          break;
        case 1:
          if (at < text.size()) text[at] = bytes[random.below(bytes.size())];
          break;
        case 2:
          text.erase(at, random.below(8));
          break;
        case 3:
          text.insert(at, text.substr(random.below(text.size() + 1), random.below(40)));
          break;
        default:
          text.insert(at, seeds[random.below(seeds.size())]);
          break;
      }
    }
    std::ofstream(file, std::ios::binary) << text;
    for (const auto& [task, name] : roformer::enum_names(GlueTask{}))
      attempt([&, task = task] { check_file(read_glue(task, file)); });
    attempt([&] { check_file(read_tsv(file)); });
    roformer::TsvOptions options;
    options.text = "sentence";
    options.label = "label";
    options.regression = true;
    attempt([&] { check_file(read_tsv(file, options)); });
    std::ofstream(submission, std::ios::binary) << text;
    attempt([&] { roformer::check_submission(GlueTask::stsb, submission, file); });
  }
  CHECK(rounds > 20);
  CHECK(errors > 0);
}
