#pragma once

#include <filesystem>
#include <iosfwd>
#include <memory>
#include <string>
#include <vector>

#include "roformer/tasks/mlm.h"
#include "roformer/train/trainer.h"

// What the program does: each command of apps/roformer.cpp is one function here. From YAML to numbers:
//
//   RunOptions run = load_run(file, sets);        // YAML -> checked options
//   World world = World::open(...);               // device, threads
//   auto task = make_task(run, ...);              // tokenizer, data, model, loss
//   Trainer trainer(*task, run.trainer, world, folder);
//   trainer.fit();

namespace roformer {

using TaskOptions = std::variant<MlmOptions>;

struct ModelOptions : EncoderOptions {
  std::filesystem::path init_from;
};
template <class V>
void fields(V& v, ModelOptions& o) {
  fields(v, static_cast<EncoderOptions&>(o));
  v("init_from", o.init_from, "run folder or checkpoint whose weights are taken over where name and shape fit");
}

struct RunOptions {
  TaskOptions task;
  TokenizerOptions tokenizer;
  DataOptions data;
  ModelOptions model;
  TrainerOptions trainer;
  ConfigNode arms;
  std::vector<int64_t> seeds;
};
template <class V>
void fields(V& v, RunOptions& o) {
  v("task", o.task, "what is learned");
  v("tokenizer", o.tokenizer, "how text becomes tokens");
  v("data", o.data, "what is read", required());
  v("model", o.model, "what is trained");
  v("trainer", o.trainer, "how it is trained");
  v("arms", o.arms, "for ablate: name -> options that differ, e.g. bert: {model.positions.type: learned}");
  v("seeds", o.seeds, "for ablate: every arm runs once with each; default: trainer.seed", at_least(0));
}
/// Relations between sections: the length must fit the position encoding, arms are maps of options.
void validate(const RunOptions& options);

/// Reads, merges and checks a configuration: whatever is wrong in it is found here, before data or model.
RunOptions load_run(const std::filesystem::path& config, const std::vector<std::string>& sets = {});

/// The files that a run names are there; an Error that names the option otherwise. Before anything is made.
void check_inputs(const RunOptions& run);

/// Tokenizer, data and model of a run, the model on `world`'s device, initialised from trainer.seed. `cache` receives
/// the tokenised corpus.
std::unique_ptr<Task> make_task(const RunOptions& run, const World& world, const std::filesystem::path& cache);

/// Where runs of a configuration lie: runs/<config name>.
std::filesystem::path default_folder(const std::filesystem::path& config);

struct TrainRequest {
  std::filesystem::path config;
  std::vector<std::string> sets;
  std::filesystem::path folder;  ///< empty = runs/<config name>/base-seed<k>
  bool resume = false;
};
/// Trains, and leaves in the run folder: config.yaml, environment.json, metrics.jsonl, log.txt, TensorBoard events,
/// curve.png, checkpoints/, result.json. Returns the program's exit status: 0, or 130 when asked to end.
int train(const TrainRequest& request);

/// The validation metrics of a run's best checkpoint (or of a checkpoint file in a run folder), with options changed.
int evaluate(const std::filesystem::path& run, const std::vector<std::string>& sets, std::ostream& out);

struct AblateRequest {
  std::filesystem::path config;
  std::vector<std::string> sets;
  std::filesystem::path folder;  ///< empty = runs/<config name>
  int64_t jobs = 0;              ///< runs side by side; 0 = one per core
};
/// Trains every arm with every seed, each in a process of its own, and leaves results.{md,json} and curves.{png,svg} in
/// the folder. Runs that are finished are not run again; unfinished ones go on where they stopped.
int ablate(const AblateRequest& request, std::ostream& out);

/// One picture of a metric over the updates of several runs: <stem>.png and <stem>.svg.
int plot_runs(const std::vector<std::filesystem::path>& runs, const std::string& metric,
              const std::filesystem::path& stem, std::ostream& out);

/// Every option at or below `path`.
int print_options(const std::string& path, std::ostream& out);

/// Parameters by module, size and step of a run or checkpoint.
int print_info(const std::filesystem::path& run_or_checkpoint, std::ostream& out);

}  // namespace roformer
