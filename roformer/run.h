#pragma once

#include <filesystem>
#include <iosfwd>
#include <memory>
#include <string>
#include <vector>

#include "roformer/eval/search.h"
#include "roformer/tasks/byte_lm.h"
#include "roformer/tasks/glue.h"
#include "roformer/tasks/mlm.h"
#include "roformer/text/train.h"
#include "roformer/train/trainer.h"

// What the program does: each command of apps/roformer.cpp is one function here. From YAML to numbers:
//
//   RunOptions run = load_run(file, sets);        // YAML -> checked options
//   World world = World::open(...);               // device, threads
//   auto task = make_task(run, ...);              // tokenizer, data, model, loss
//   Trainer trainer(*task, run.trainer, world, folder);
//   trainer.fit();

namespace roformer {

using TaskOptions = std::variant<MlmOptions, GlueOptions, ByteLmOptions>;

struct EncoderModelOptions : EncoderOptions {
  static constexpr std::string_view type = "encoder";
  std::filesystem::path path;
  std::filesystem::path init_from;
};
template <class V>
void fields(V& v, EncoderModelOptions& o) {
  v("path", o.path,
    "Hugging Face folder (BERT, RoFormer, NEZHA): its weights, and its options and tokenizer where this file "
    "names "
    "none");
  fields(v, static_cast<EncoderOptions&>(o));
  v("vocab_size", o.vocab_size, "rows of the token embedding; 0 = as many as the tokenizer has tokens",
    within(0, 1 << 24));
  v("init_from", o.init_from,
    "run folder or checkpoint whose weights are taken over where name and shape fit (its encoder alone where "
    "the task "
    "is another one)");
}

struct CausalModelOptions : CausalLmOptions {
  static constexpr std::string_view type = "causal";
  std::filesystem::path path;
  std::filesystem::path init_from;
};
template <class V>
void fields(V& v, CausalModelOptions& o) {
  v("path", o.path, "Hugging Face folder (LLaMA): its weights, and its options where this file names none");
  fields(v, static_cast<CausalLmOptions&>(o));
  v("vocab_size", o.vocab_size, "rows of the token embedding; 0 = 256, one for each byte",
    within(0, 1 << 24));
  v("init_from", o.init_from,
    "run folder or checkpoint whose weights are taken over where name and shape fit");
}

/// An encoder for mlm and glue, a causal model for byte_lm.
using ModelOptions = std::variant<EncoderModelOptions, CausalModelOptions>;

struct RunOptions {
  TaskOptions task;
  TokenizerOptions tokenizer;
  DataOptions data;
  ModelOptions model;
  TrainerOptions trainer;
  ConfigNode arms;
  ConfigNode grid;
  std::vector<int64_t> seeds;
  std::vector<int64_t> lengths;
  std::vector<double> reach;

  /// The model of a run that must hold an encoder; an Error otherwise.
  const EncoderModelOptions& encoder() const;
  const std::vector<PositionOptions>& positions() const;
  const std::filesystem::path& init_from() const;
  /// The language model of a run of byte_lm, its vocabulary set; an Error where it cannot read bytes.
  CausalLmOptions causal() const;
};
template <class V>
void fields(V& v, RunOptions& o) {
  v("task", o.task, "what is learned");
  v("tokenizer", o.tokenizer, "how text becomes tokens");
  v("data", o.data, "the text that mlm reads");
  v("model", o.model, "what is trained");
  v("trainer", o.trainer, "how it is trained");
  v("arms", o.arms, "for ablate: name -> options that differ, e.g. bert: {model.positions.type: learned}");
  v("grid", o.grid,
    "for ablate: option -> values to try, e.g. {trainer.optimizer.lr: [2e-5, 5e-5]}; every arm runs with "
    "every "
    "combination");
  v("seeds", o.seeds, "for ablate: every arm runs once with each; default: trainer.seed", at_least(0));
  v("lengths", o.lengths,
    "for ablate: sequence lengths at which every arm's last checkpoint is evaluated too, rotary arms also "
    "with "
    "linear, ntk, dynamic and yarn scaling put on then",
    within(3, 1 << 20));
  v("reach", o.reach,
    "for ablate: validation losses; the table shows the update at which every arm gets there, e.g. [2.0]");
}
/// Relations between sections: the length must fit the position encoding, arms are maps of options.
void validate(const RunOptions& options);

/// The longest sequence that is trained on; 0 where sequences have no length of their own (GLUE).
int64_t training_length(const RunOptions& run);
/// The longest sequence that the position encoding can place; empty = any.
std::optional<int64_t> longest_length(const RunOptions& run);

/// Reads, merges and checks a configuration: whatever is wrong in it is found here, before data or model.
RunOptions load_run(const std::filesystem::path& config, const std::vector<std::string>& sets = {});
/// The same for a configuration that is read already.
RunOptions read_run(const ConfigNode& config);
/// The options without those that `ablate` alone reads.
RunOptions single_run(RunOptions options);

/// The files that a run names are there; an Error that names the option otherwise. Before anything is made.
void check_inputs(const RunOptions& run);

/// Tokenizer, data and model of a run, the model on `world`'s device, initialised from trainer.seed. `cache`
/// receives the tokenised corpus.
std::unique_ptr<Task> make_task(const RunOptions& run, const World& world,
                                const std::filesystem::path& cache);

/// Where runs of a configuration lie: runs/<config name>.
std::filesystem::path default_folder(const std::filesystem::path& config);

struct TrainRequest {
  std::filesystem::path config;
  std::vector<std::string> sets;
  std::filesystem::path folder;  ///< empty = runs/<config name>/base-seed<k>
  bool resume = false;
};
/// Trains, and leaves in the run folder: config.yaml, environment.json, metrics.jsonl, log.txt, TensorBoard
/// events, curve.png, checkpoints/, result.json. Returns the program's exit status: 0, or 130 when asked to
/// end.
int train(const TrainRequest& request);

struct CheckpointMetrics {
  Metrics metrics;
  int64_t step = 0;
};
/// The validation metrics of a checkpoint under a run's options, at data.length whatever the stages were.
CheckpointMetrics evaluate_checkpoint(RunOptions run, const std::filesystem::path& checkpoint);

/// The validation metrics of a run's best checkpoint (or of a checkpoint file in a run folder), with options
/// changed.
int evaluate(const std::filesystem::path& run, const std::vector<std::string>& sets, std::ostream& out);

struct AblateRequest {
  std::filesystem::path config;
  std::vector<std::string> sets;
  std::filesystem::path folder;  ///< empty = runs/<config name>
  int64_t jobs = 0;              ///< runs side by side; 0 = one per core
  double memory = 0;             ///< GiB that they may use together; 0 = no limit
};
/// Trains every arm with every seed, each in a process of its own, and leaves results.{md,csv,json},
/// runs.csv, curves.{png,svg} and report.html in the folder. Runs that are finished are not run again;
/// unfinished ones go on where they stopped.
int ablate(const AblateRequest& request, std::ostream& out);

struct TokenizeRequest {
  std::filesystem::path tokenizer;  ///< Hugging Face folder, run folder, or YAML with a `tokenizer:` block
  std::filesystem::path input;      ///< empty = standard input
  bool jsonl = false;               ///< objects in and out, instead of lines
  bool tokens = false;              ///< tokens instead of ids
  bool special = true;              ///< [CLS] and [SEP] around
  int64_t max_length = 0;           ///< 0 = no limit
  int64_t threads = 1;
};
/// One line out for each line in, in their order.
int tokenize(const TokenizeRequest& request, std::ostream& out);

/// The tokenizer that TokenizeRequest::tokenizer names.
TokenizerOptions find_tokenizer(const std::filesystem::path& source);

/// Learns a WordPiece vocabulary or a SentencePiece model from text files and folders.
int train_tokenizer(const TokenizerTrainingOptions& options, std::ostream& out);

/// Writes a run or a Hugging Face folder as a Hugging Face folder that Python opens.
int convert(const std::filesystem::path& source, const std::filesystem::path& folder, std::ostream& out);

struct EncodeRequest {
  std::filesystem::path model;  ///< run or Hugging Face folder
  std::filesystem::path
      input;  ///< lines of text; .jsonl: {"text", "text_pair"}; .safetensors: input_ids, ...
  std::filesystem::path output;  ///< .safetensors
  bool states_only = false;      ///< no pooler_output, no logits
  int64_t max_length = 512;
  std::string device = "auto";
  int64_t threads = 0;
};
/// last_hidden_state [N, L, dim] and, where the model has them, pooler_output and logits, with the input_ids
/// and attention_mask they belong to.
int encode(const EncodeRequest& request, std::ostream& out);

struct PredictRequest {
  std::filesystem::path run;  ///< fine-tuned on a GLUE task
  std::filesystem::path out;  ///< folder for submission files; a file with `input`
  std::vector<std::string> sets;
  std::filesystem::path input;  ///< the user's TSV; empty = the task's test files
  TsvOptions columns;           ///< of it
  std::filesystem::path data;   ///< where the test files are; empty = where the run found its data
  bool diagnostic = false;      ///< the diagnostic set instead of the task's own test files
};
int predict(const PredictRequest& request, std::ostream& out);

struct GenerateRequest {
  std::filesystem::path model;  ///< run of a causal model, a checkpoint file in one, or a LLaMA folder
  std::vector<std::string> sets;
  std::string prompt;
  std::filesystem::path prompt_file;  ///< "-" = standard input; empty = `prompt`
  SamplingOptions sampling;
  bool cached = true;     ///< false: every token reads the whole text anew, which gives the same
  bool terminal = false;  ///< `out` is one: what a terminal must not get is replaced
};
/// Continues a text: its tokens go to `out` as they come.
int generate(const GenerateRequest& request, std::ostream& out);

/// One picture of a metric over the updates of several runs: <stem>.png and <stem>.svg.
int plot_runs(const std::vector<std::filesystem::path>& runs, const std::string& metric,
              const std::filesystem::path& stem, std::ostream& out);

struct DecayRequest {
  int64_t dim = 128;                     ///< width of a head; 64 is drawn beside the default
  int64_t max = 256;                     ///< largest distance
  std::filesystem::path csv;             ///< `m,bound`; empty = none
  std::filesystem::path stem = "decay";  ///< of the picture
  std::filesystem::path run;             ///< whose queries and keys are measured too; empty = none
};
/// Figure 2: the bound of eq. 37, and measured mean |q^T R_m k|.
int plot_decay(const DecayRequest& request, std::ostream& out);

/// Table 2: the published rows, and ours from folders of `ablate` on GLUE tasks. `stem`: also a file; empty =
/// none.
int report_table2(const std::vector<std::filesystem::path>& folders, const std::filesystem::path& stem,
                  std::ostream& out);

/// Every option at or below `path`.
int print_options(const std::string& path, std::ostream& out);

/// Parameters by module, size and step of a run or checkpoint.
int print_info(const std::filesystem::path& run_or_checkpoint, std::ostream& out);

}  // namespace roformer
