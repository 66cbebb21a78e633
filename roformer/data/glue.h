#pragma once

#include <array>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "roformer/core/config.h"

namespace roformer {

/// The nine tasks of GLUE (Wang et al. 2019, arXiv 1804.07461) and its diagnostic set, which a model of MNLI
/// answers.
enum class GlueTask { cola, sst2, mrpc, stsb, qqp, mnli, qnli, rte, wnli, ax };
inline auto enum_names(GlueTask) {
  return std::array<std::pair<GlueTask, std::string_view>, 10>{{{GlueTask::cola, "cola"},
                                                                {GlueTask::sst2, "sst2"},
                                                                {GlueTask::mrpc, "mrpc"},
                                                                {GlueTask::stsb, "stsb"},
                                                                {GlueTask::qqp, "qqp"},
                                                                {GlueTask::mnli, "mnli"},
                                                                {GlueTask::qnli, "qnli"},
                                                                {GlueTask::rte, "rte"},
                                                                {GlueTask::wnli, "wnli"},
                                                                {GlueTask::ax, "ax"}}};
}

enum class GluePart { train, dev, test };
inline auto enum_names(GluePart) {
  return std::array<std::pair<GluePart, std::string_view>, 3>{
      {{GluePart::train, "train"}, {GluePart::dev, "dev"}, {GluePart::test, "test"}}};
}

struct GlueInfo {
  std::string name;                      ///< "SST-2"
  std::string folder;                    ///< of the official download: "SST-2", "diagnostic"
  bool pair = false;                     ///< two texts
  std::vector<std::string> labels;       ///< by class index; empty: a score from 0 to 5
  std::vector<std::string> submissions;  ///< file names that the server expects, one a test file
  std::vector<std::string> metrics;      ///< names of `Metric`s, the headline first
  bool regression() const { return labels.empty(); }
};
const GlueInfo& glue_info(GlueTask task);

struct TextExample {
  std::string first, second;  ///< `second` empty for single texts
  int64_t label = -1;         ///< class index; -1: none
  double score = 0;           ///< of a regression; 0 without a label
  std::string
      id;  ///< the `index` or `id` column; in MRPC's labelled files "#1 ID/#2 ID"; else the row from 0
  int64_t line = 0;  ///< in the file, from 1
};

struct GlueFile {
  std::vector<TextExample> examples;  ///< never empty
  bool pair = false;
  bool labelled = false;
  std::vector<std::string> labels;  ///< names of the classes; empty for a regression or without labels
  int64_t dropped = 0;              ///< broken rows of QQP that were left out
  std::vector<std::string> notes;   ///< what the user should know, a line each
};

/// One file of a part; MNLI has two for dev and test.
struct GlueSource {
  std::string name;  ///< "dev", "dev_matched"
  std::filesystem::path file;
  std::string submission;  ///< name of the submission file, for test files
  std::filesystem::path
      dev_ids;  ///< MRPC's msr_paraphrase_train.txt holds train and dev: the list that parts them
  GluePart part = GluePart::train;
};

/// The files of one part, in `folder` or in the task's folder below it (so both glue/ and glue/MRPC will do).
/// MRPC without train.tsv and dev.tsv: msr_paraphrase_train.txt and dev_ids.tsv (or mrpc_dev_ids.tsv). Error:
/// missing files.
std::vector<GlueSource> glue_files(GlueTask task, const std::filesystem::path& folder, GluePart part);

/// Reads a file in the official layout: lines end at \n (a \r before it goes), columns at TAB and nowhere
/// else, no quoting, a byte order mark is dropped. Columns are found by the names in the header; CoLA's train
/// and dev have none. Files without a label column are read as unlabelled. In QQP's labelled files rows with
/// a wrong number of columns or without a label are dropped, counted and noted. Error "file:line: ..": a
/// header without the task's columns, a wrong number of columns, a label that is none of the task's, a score
/// outside [0, 5], text that is not UTF-8 or holds NUL, a line above 1 MiB, a file above 1 GiB or without
/// rows.
GlueFile read_glue(GlueTask task, const std::filesystem::path& file);

/// The same, and MRPC's original file parted. Error also: a train or dev file without labels.
GlueFile read_glue(GlueTask task, const GlueSource& source);

/// The user's own file: TSV with a header, under the same rules.
struct TsvOptions {
  std::optional<std::string> text, text_pair, label;
  std::vector<std::string> labels;
  bool regression = false;
};
template <class V>
void fields(V& v, TsvOptions& o) {
  v("text", o.text, "column with the text; null = `text`, or else `text_a` with `text_b` as its pair");
  v("text_pair", o.text_pair, "column with the second text of a pair; null = none, but see text");
  v("label", o.label, "column with the label; null = `label` where there is one");
  v("labels", o.labels,
    "names of the classes in the order of their indices; empty = those in the file, sorted");
  v("regression", o.regression, "labels are numbers to predict, not names of classes");
}

/// Error also: a column that the options name and the header lacks, a header without text.
GlueFile read_tsv(const std::filesystem::path& file, const TsvOptions& options = {});

/// `input` (TSV with a header) with one more column at the end, `prediction`. Error: there is such a column
/// already, or `output` is `input`. `predictions`: one a row.
void write_labelled_tsv(const std::filesystem::path& input, const std::filesystem::path& output,
                        std::span<const std::string> predictions);

/// A file for the GLUE server: "index\tprediction", rows from 0, classes by name. The file must be named as
/// the server wants it (GlueInfo::submissions).
void write_submission(GlueTask task, const std::filesystem::path& file, std::span<const int64_t> classes);
/// STS-B: scores, clipped to [0, 5], three decimals. Error: a score that is not a number.
void write_submission(GlueTask task, const std::filesystem::path& file, std::span<const double> scores);

/// Error, with file and line, unless the server would take `submission` for `test`: its name, header, number
/// of rows, indices and predictions.
void check_submission(GlueTask task, const std::filesystem::path& submission,
                      const std::filesystem::path& test);

}  // namespace roformer
