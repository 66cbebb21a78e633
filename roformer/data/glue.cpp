#include "roformer/data/glue.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <map>
#include <set>
#include <stdexcept>

#include "roformer/core/display.h"
#include "roformer/core/error.h"
#include "roformer/core/files.h"
#include "roformer/text/unicode.h"

namespace roformer {
namespace {

namespace fs = std::filesystem;
using Cells = std::vector<std::string_view>;

constexpr std::size_t tsv_file_limit = std::size_t{1} << 30;
constexpr std::size_t tsv_line_limit = std::size_t{1} << 20;

template <class Names>
std::string quoted_list(const Names& names) {
  std::string out;
  for (const std::string_view name : names) {
    if (!out.empty()) out += ", ";
    out += fmt::format("'{}'", shown(name));
  }
  return out;
}

// One pass over the rows of a TSV file.
class TsvReader {
 public:
  explicit TsvReader(const fs::path& file) : file_(file), text_(read_file(file, tsv_file_limit)) {
    rewind();
    if (rest_.empty()) fail("{}: the file is empty", file_.string());
  }

  // The cells point into the file's text, which lives as long as the reader.
  bool next(Cells& cells) {
    if (rest_.empty()) return false;
    ++line_;
    std::string_view row = rest_.substr(0, rest_.find('\n'));
    rest_.remove_prefix(std::min(row.size() + 1, rest_.size()));
    if (row.ends_with('\r')) row.remove_suffix(1);
    if (row.size() > tsv_line_limit) fail_here("the line is longer than 1 MiB");
    if (const std::size_t good = valid_utf8_prefix(row); good < row.size())
      fail_here("byte {} is not UTF-8; convert the file, for instance with iconv", good + 1);
    if (row.find('\0') != row.npos) fail_here("there is a NUL byte; is this a text file?");
    row_ = row;
    cells.clear();
    for (std::size_t begin = 0;;) {
      const std::size_t end = row.find('\t', begin);
      cells.push_back(row.substr(begin, end - begin));
      if (end == row.npos) return true;
      begin = end + 1;
    }
  }

  // Goes back to the first line.
  void rewind() {
    rest_ = text_;
    if (rest_.starts_with("\xEF\xBB\xBF")) rest_.remove_prefix(3);
    line_ = 0;
  }

  int64_t line() const { return line_; }
  std::string_view row() const { return row_; }
  const fs::path& file() const { return file_; }

  template <class... A>
  [[noreturn]] void fail_here(fmt::format_string<A...> format, A&&... arguments) const {
    fail("{}:{}: {}", file_.string(), line_, fmt::format(format, std::forward<A>(arguments)...));
  }

 private:
  fs::path file_;
  std::string text_;
  std::string_view rest_, row_;
  int64_t line_ = 0;
};

// Where the columns are; -1: nowhere.
struct TsvColumns {
  int64_t first = -1, second = -1, label = -1;
  std::vector<int64_t> id;
};

int64_t column_named(const Cells& header, std::string_view name) {
  const auto found = std::find(header.begin(), header.end(), name);
  return found == header.end() ? -1 : found - header.begin();
}

std::optional<double> parse_number(std::string_view text) {
  double value = 0;
  const auto [end, code] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (code != std::errc() || end != text.data() + text.size() || !std::isfinite(value)) return std::nullopt;
  return value;
}

// Column names of one layout. `label` is looked for, not required.
struct GlueLayout {
  std::string_view first, second, label;
};

std::vector<GlueLayout> glue_layouts(GlueTask task) {
  switch (task) {
    case GlueTask::cola:
    case GlueTask::sst2:
      return {{"sentence", "", "label"}};
    case GlueTask::mrpc:
      return {{"#1 String", "#2 String", "Quality"}};
    case GlueTask::stsb:
      return {{"sentence1", "sentence2", "score"}};
    case GlueTask::qqp:
      return {{"question1", "question2", "is_duplicate"}};
    case GlueTask::mnli:
      return {{"sentence1", "sentence2", "gold_label"}};
    case GlueTask::qnli:
      return {{"question", "sentence", "label"}};
    case GlueTask::rte:
    case GlueTask::wnli:
      return {{"sentence1", "sentence2", "label"}};
    case GlueTask::ax:
      return {{"sentence1", "sentence2", "label"}, {"Premise", "Hypothesis", "Label"}};
  }
  throw std::logic_error("no such GLUE task");
}

TsvColumns glue_columns(GlueTask task, const TsvReader& reader, const Cells& header) {
  TsvColumns columns;
  const auto layouts = glue_layouts(task);
  for (const GlueLayout& layout : layouts) {
    columns.first = column_named(header, layout.first);
    columns.second = layout.second.empty() ? -1 : column_named(header, layout.second);
    columns.label = column_named(header, layout.label);
    if (columns.first >= 0 && (layout.second.empty() || columns.second >= 0)) break;
    columns.first = -1;
  }
  if (columns.first < 0) {
    std::vector<std::string_view> wanted = {layouts[0].first};
    if (!layouts[0].second.empty()) wanted.push_back(layouts[0].second);
    reader.fail_here("this is no header of {}: it needs columns named {}, separated by tabs; found {}",
                     glue_info(task).name, quoted_list(wanted), shown(reader.row()));
  }
  for (const std::string_view name : {"index", "id"}) {
    const int64_t column = column_named(header, name);
    if (column >= 0 && columns.id.empty()) columns.id = {column};
  }
  if (task == GlueTask::mrpc && columns.id.empty()) {
    columns.id = {column_named(header, "#1 ID"), column_named(header, "#2 ID")};
    if (columns.id[0] < 0 || columns.id[1] < 0) columns.id.clear();
  }
  return columns;
}

std::string row_id(const TsvColumns& columns, const Cells& cells, std::size_t row) {
  if (columns.id.empty()) return std::to_string(row);
  std::string id;
  for (const int64_t column : columns.id) {
    if (!id.empty()) id += '/';
    id += cells[static_cast<std::size_t>(column)];
  }
  return id;
}

// Reads what is left of the reader's file.
class ExampleReader {
 public:
  ExampleReader(TsvReader& reader, TsvColumns columns, std::size_t width, GlueFile& out)
      : reader_(reader), columns_(std::move(columns)), width_(width), out_(out) {
    out_.pair = columns_.second >= 0;
    out_.labelled = columns_.label >= 0;
    for (std::size_t i = 0; i < out_.labels.size(); ++i) classes_[out_.labels[i]] = static_cast<int64_t>(i);
  }

  bool drop_broken = false;
  bool regression = false;
  double low = -INFINITY, high = INFINITY;  // of a score

  void read() {
    Cells cells;
    while (reader_.next(cells)) read(cells);
  }

  void read(const Cells& cells) {
    if (cells.size() != width_ || (drop_broken && cell(cells, columns_.label).empty())) {
      if (!drop_broken)
        reader_.fail_here("{} columns, but {} are expected; they are separated by tabs", cells.size(),
                          width_);
      if (out_.dropped++ == 0) first_dropped_ = reader_.line();
      return;
    }
    TextExample example;
    example.first = cell(cells, columns_.first);
    if (columns_.second >= 0) example.second = cell(cells, columns_.second);
    if (columns_.label >= 0) read_label(cell(cells, columns_.label), example);
    example.id = row_id(columns_, cells, out_.examples.size());
    example.line = reader_.line();
    out_.examples.push_back(std::move(example));
  }

  void finish() {
    if (out_.examples.empty()) fail("{}: there are no rows with examples", reader_.file().string());
    if (out_.dropped > 0)
      out_.notes.push_back(fmt::format(
          "{}: {} of {} rows dropped, whose number of columns is not {} or whose label is empty; the "
          "first is line {}",
          reader_.file().string(), out_.dropped, out_.dropped + static_cast<int64_t>(out_.examples.size()),
          width_, first_dropped_));
  }

 private:
  static std::string_view cell(const Cells& cells, int64_t column) {
    return cells[static_cast<std::size_t>(column)];
  }

  void read_label(std::string_view text, TextExample& example) {
    if (regression) {
      const std::optional<double> score = parse_number(text);
      if (!score) reader_.fail_here("the score '{}' is not a number", shown(text));
      if (*score < low || *score > high)
        reader_.fail_here("the score {} is not between {} and {}", shown(text), low, high);
      example.score = *score;
      return;
    }
    const auto found = classes_.find(text);
    if (found == classes_.end())
      reader_.fail_here("unknown label '{}'; known are {}", shown(text), quoted_list(out_.labels));
    example.label = found->second;
  }

  TsvReader& reader_;
  TsvColumns columns_;
  std::size_t width_;
  GlueFile& out_;
  std::map<std::string, int64_t, std::less<>> classes_;
  int64_t first_dropped_ = 0;
};

// Numbers by value, names by their bytes.
std::vector<std::string> sorted_labels(const std::set<std::string, std::less<>>& labels) {
  std::vector<std::string> out(labels.begin(), labels.end());
  if (std::all_of(out.begin(), out.end(), [](const std::string& s) { return parse_number(s).has_value(); }))
    std::stable_sort(out.begin(), out.end(), [](const std::string& a, const std::string& b) {
      return *parse_number(a) < *parse_number(b);
    });
  return out;
}

fs::path first_existing(const fs::path& folder, const std::vector<std::string>& names) {
  for (const std::string& name : names)
    if (fs::path path = folder / name; fs::is_regular_file(path)) return path;
  return {};
}

void check_submission_name(GlueTask task, const fs::path& file) {
  const auto& names = glue_info(task).submissions;
  if (std::find(names.begin(), names.end(), file.filename().string()) == names.end())
    fail("{}: the GLUE server takes {} only as {}", file.string(), glue_info(task).name, quoted_list(names));
}

constexpr std::string_view submission_header = "index\tprediction";

// Keeps the rows of MRPC's original training file that belong to `part`.
void part_mrpc(GlueFile& file, const GlueSource& source) {
  std::map<std::string, bool, std::less<>> dev;  // found in the file?
  TsvReader reader(source.dev_ids);
  Cells cells;
  while (reader.next(cells)) {
    if (cells.size() != 2) reader.fail_here("expected two ids separated by a tab");
    dev[fmt::format("{}/{}", cells[0], cells[1])] = false;
  }
  std::erase_if(file.examples, [&](const TextExample& example) {
    const auto found = dev.find(example.id);
    if (found != dev.end()) found->second = true;
    return (found != dev.end()) != (source.part == GluePart::dev);
  });
  for (const auto& [id, seen] : dev)
    if (!seen) fail("{}: {} has no pair {}", source.dev_ids.string(), source.file.string(), shown(id));
  if (file.examples.empty()) fail("{}: no row is left for training", source.file.string());
}

}  // namespace

const GlueInfo& glue_info(GlueTask task) {
  static const std::vector<std::string> binary = {"0", "1"}, nli2 = {"entailment", "not_entailment"},
                                        nli3 = {"entailment", "neutral", "contradiction"};
  static const std::map<GlueTask, GlueInfo> infos = {
      {GlueTask::cola, {"CoLA", "CoLA", false, binary, {"CoLA.tsv"}, {"matthews"}}},
      {GlueTask::sst2, {"SST-2", "SST-2", false, binary, {"SST-2.tsv"}, {"accuracy"}}},
      {GlueTask::mrpc, {"MRPC", "MRPC", true, binary, {"MRPC.tsv"}, {"f1", "accuracy"}}},
      {GlueTask::stsb, {"STS-B", "STS-B", true, {}, {"STS-B.tsv"}, {"spearman", "pearson"}}},
      {GlueTask::qqp, {"QQP", "QQP", true, binary, {"QQP.tsv"}, {"f1", "accuracy"}}},
      {GlueTask::mnli, {"MNLI", "MNLI", true, nli3, {"MNLI-m.tsv", "MNLI-mm.tsv"}, {"accuracy"}}},
      {GlueTask::qnli, {"QNLI", "QNLI", true, nli2, {"QNLI.tsv"}, {"accuracy"}}},
      {GlueTask::rte, {"RTE", "RTE", true, nli2, {"RTE.tsv"}, {"accuracy"}}},
      {GlueTask::wnli, {"WNLI", "WNLI", true, binary, {"WNLI.tsv"}, {"accuracy"}}},
      {GlueTask::ax, {"AX", "diagnostic", true, nli3, {"AX.tsv"}, {"matthews"}}}};
  return infos.at(task);
}

std::vector<GlueSource> glue_files(GlueTask task, const fs::path& folder, GluePart part) {
  const GlueInfo& info = glue_info(task);
  const std::string name(enum_name(part));
  if (task == GlueTask::ax && part != GluePart::test)
    fail("AX, GLUE's diagnostic set, has only a test file; train on MNLI and evaluate that model on AX");

  const fs::path place = fs::is_directory(folder / info.folder) ? folder / info.folder : folder;
  std::vector<std::string> endings = {""};
  if (task == GlueTask::mnli && part != GluePart::train) endings = {"_matched", "_mismatched"};
  std::vector<GlueSource> sources;
  for (std::size_t i = 0; i < endings.size(); ++i) {
    GlueSource source;
    source.part = part;
    source.name = name + endings[i];
    if (part == GluePart::test) source.submission = info.submissions[i];
    std::vector<std::string> candidates = {source.name + ".tsv"};
    if (task == GlueTask::ax) candidates = {"diagnostic.tsv", "AX.tsv", "diagnostic-full.tsv"};
    if (task == GlueTask::mrpc && part == GluePart::test) candidates.push_back("msr_paraphrase_test.txt");
    source.file = first_existing(place, candidates);
    if (source.file.empty() && task == GlueTask::mrpc && part != GluePart::test) {
      source.file = first_existing(place, {"msr_paraphrase_train.txt"});
      source.dev_ids = first_existing(place, {"dev_ids.tsv", "mrpc_dev_ids.tsv"});
      if (!source.file.empty() && source.dev_ids.empty())
        fail("{} holds train and dev together; put GLUE's dev_ids.tsv beside it", source.file.string());
    }
    if (source.file.empty()) fail("{}: there is no {} for {}", place.string(), candidates[0], info.name);
    sources.push_back(std::move(source));
  }
  return sources;
}

GlueFile read_glue(GlueTask task, const fs::path& file) {
  const GlueInfo& info = glue_info(task);
  TsvReader reader(file);
  Cells header;
  reader.next(header);
  // CoLA's train and dev start with a row: source, label, the author's mark, sentence.
  const bool headless = task == GlueTask::cola && header.size() == 4;
  TsvColumns columns;
  if (headless) {
    columns = {3, -1, 1, {}};
  } else {
    columns = glue_columns(task, reader, header);
  }
  GlueFile out;
  if (columns.label >= 0) out.labels = info.labels;
  ExampleReader examples(reader, columns, header.size(), out);
  examples.regression = info.regression();
  examples.low = 0;
  examples.high = 5;
  examples.drop_broken = task == GlueTask::qqp && out.labelled;
  if (headless) examples.read(header);
  examples.read();
  examples.finish();
  return out;
}

GlueFile read_glue(GlueTask task, const GlueSource& source) {
  GlueFile file = read_glue(task, source.file);
  if (source.part != GluePart::test && !file.labelled)
    fail("{}:1: there is no column with labels; is this a test file?", source.file.string());
  if (!source.dev_ids.empty()) part_mrpc(file, source);
  return file;
}

GlueFile read_tsv(const fs::path& file, const TsvOptions& options) {
  TsvReader reader(file);
  Cells header;
  reader.next(header);
  const auto named = [&](const std::string& name) {
    const int64_t column = column_named(header, name);
    if (column < 0)
      reader.fail_here(
          "there is no column '{}'; the header has {}", shown(name),
          quoted_list(Cells(header.begin(), header.begin() + std::min<int64_t>(std::ssize(header), 20))));
    return column;
  };
  TsvColumns columns;
  if (options.text) {
    columns.first = named(*options.text);
  } else if ((columns.first = column_named(header, "text")) < 0) {
    columns.first = column_named(header, "text_a");
    columns.second = column_named(header, "text_b");
    if (columns.first < 0 || (columns.second < 0 && !options.text_pair))
      reader.fail_here("the header needs a column 'text', or 'text_a' and 'text_b'; found {}",
                       shown(reader.row()));
  }
  if (options.text_pair) columns.second = named(*options.text_pair);
  columns.label = options.label ? named(*options.label) : column_named(header, "label");

  GlueFile out;
  if (columns.label >= 0 && !options.regression) {
    out.labels = options.labels;
    if (out.labels.empty()) {
      std::set<std::string, std::less<>> found;
      Cells cells;
      while (reader.next(cells)) {
        if (cells.size() != header.size()) continue;  // an error soon
        const std::string_view label = cells[static_cast<std::size_t>(columns.label)];
        if (label.empty()) reader.fail_here("the label is empty");
        if (found.find(label) == found.end()) found.emplace(label);
        if (found.size() > 10'000)
          reader.fail_here("more than 10000 different labels; are they numbers? then set regression: true");
      }
      out.labels = sorted_labels(found);
      reader.rewind();
      reader.next(header);
    }
  }
  ExampleReader examples(reader, columns, header.size(), out);
  examples.regression = options.regression;
  examples.read();
  examples.finish();
  return out;
}

void write_labelled_tsv(const fs::path& input, const fs::path& output,
                        std::span<const std::string> predictions) {
  std::error_code ignored;
  if (fs::equivalent(input, output, ignored)) fail("{}: the output would replace its input", output.string());
  TsvReader reader(input);
  Cells cells;
  reader.next(cells);
  if (column_named(cells, "prediction") >= 0) reader.fail_here("there is a column 'prediction' already");
  AtomicFile file(output);
  std::string text = fmt::format("{}\tprediction\n", reader.row());
  std::size_t row = 0;
  for (; reader.next(cells); ++row) {
    if (row < predictions.size()) text += fmt::format("{}\t{}\n", reader.row(), predictions[row]);
    if (text.size() > (std::size_t{1} << 20)) {
      file.write(text);
      text.clear();
    }
  }
  if (row != predictions.size())
    throw std::logic_error(fmt::format("{} predictions for {} rows", predictions.size(), row));
  file.write(text);
  file.commit();
}

void write_submission(GlueTask task, const fs::path& file, std::span<const int64_t> classes) {
  const GlueInfo& info = glue_info(task);
  if (info.regression()) throw std::logic_error("a submission of " + info.name + " holds scores");
  check_submission_name(task, file);
  std::string text = fmt::format("{}\n", submission_header);
  for (std::size_t i = 0; i < classes.size(); ++i)
    text += fmt::format("{}\t{}\n", i, info.labels.at(static_cast<std::size_t>(classes[i])));
  write_file_atomically(file, text);
}

void write_submission(GlueTask task, const fs::path& file, std::span<const double> scores) {
  const GlueInfo& info = glue_info(task);
  if (!info.regression()) throw std::logic_error("a submission of " + info.name + " holds classes");
  check_submission_name(task, file);
  std::string text = fmt::format("{}\n", submission_header);
  for (std::size_t i = 0; i < scores.size(); ++i) {
    if (std::isnan(scores[i])) fail("{}: the prediction for row {} is not a number", file.string(), i);
    // + 0: no "-0.000".
    text += fmt::format("{}\t{:.3f}\n", i, std::clamp(scores[i], 0.0, 5.0) + 0.0);
  }
  write_file_atomically(file, text);
}

void check_submission(GlueTask task, const fs::path& submission, const fs::path& test) {
  const GlueInfo& info = glue_info(task);
  check_submission_name(task, submission);
  const GlueFile expected = read_glue(task, test);
  TsvReader reader(submission);
  Cells cells;
  reader.next(cells);
  if (reader.row() != submission_header) reader.fail_here("the header must be 'index<TAB>prediction'");
  std::size_t row = 0;
  for (; reader.next(cells); ++row) {
    if (row == expected.examples.size())
      reader.fail_here("more rows than the {} of {}", expected.examples.size(), test.string());
    if (cells.size() != 2) reader.fail_here("expected an index and a prediction, separated by a tab");
    // Labelled test files number their rows otherwise or not at all.
    const std::string index = expected.labelled ? std::to_string(row) : expected.examples[row].id;
    if (cells[0] != index)
      reader.fail_here("the index is '{}' and should be '{}'", shown(cells[0]), shown(index));
    if (info.regression()) {
      const std::optional<double> score = parse_number(cells[1]);
      if (!score || *score < 0 || *score > 5)
        reader.fail_here("the prediction '{}' is no score from 0 to 5", shown(cells[1]));
    } else if (std::find(info.labels.begin(), info.labels.end(), cells[1]) == info.labels.end()) {
      reader.fail_here("the prediction '{}' is none of {}", shown(cells[1]), quoted_list(info.labels));
    }
  }
  if (row != expected.examples.size())
    fail("{}: {} predictions for the {} rows of {}", submission.string(), row, expected.examples.size(),
         test.string());
}

}  // namespace roformer
