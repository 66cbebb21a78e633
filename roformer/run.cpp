#include "roformer/run.h"

#include <torch/version.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <ctime>
#include <iostream>
#include <map>
#include <thread>

#include "roformer/core/files.h"
#include "roformer/core/interrupt.h"
#include "roformer/core/log.h"
#include "roformer/hf/folder.h"
#include "roformer/hf/llama.h"
#include "roformer/report/tables.h"
#include "roformer/run_folder.h"
#include "roformer/text/pretrained.h"

namespace roformer {
namespace {

/// First line of what a command prints; empty when it fails.
std::string first_line_of(const std::string& command) {
  std::string line;
  if (FILE* pipe = popen(command.c_str(), "r")) {
    char buffer[256];
    if (std::fgets(buffer, sizeof buffer, pipe)) line = buffer;
    if (pclose(pipe) != 0) line.clear();
  }
  while (!line.empty() && (line.back() == '\n' || line.back() == '\r')) line.pop_back();
  return line;
}

std::string processor_name() {
  return first_line_of("sed -n 's/^model name[^:]*: //p' /proc/cpuinfo 2>/dev/null | head -n 1");
}

/// The commit of the sources that the program was built in, where it still lies among them.
std::string git_commit() {
  std::error_code ignored;
  const std::filesystem::path program = std::filesystem::read_symlink("/proc/self/exe", ignored);
  std::string folder = program.parent_path().string();
  if (folder.find('\'') != std::string::npos) return "";
  return first_line_of("git -C '" + folder + "' rev-parse HEAD 2>/dev/null");
}

/// "2026-01-31T23:59:59Z".
std::string utc_date() {
  const std::time_t now = std::time(nullptr);
  std::tm parts{};
  gmtime_r(&now, &parts);
  char text[32];
  std::strftime(text, sizeof text, "%FT%TZ", &parts);
  return text;
}

void write_environment(const std::filesystem::path& folder, const World& world) {
  char host[256] = "";
  gethostname(host, sizeof host - 1);
  nlohmann::ordered_json environment = {{"roformer", ROFORMER_VERSION},
                                        {"libtorch", TORCH_VERSION},
                                        {"compiler", __VERSION__},
                                        {"device", world.device.str()},
                                        {"threads", at::get_num_threads()},
                                        {"cores", std::thread::hardware_concurrency()},
                                        {"processor", processor_name()},
                                        {"host", host},
                                        {"date", utc_date()}};
  if (const std::string commit = git_commit(); !commit.empty()) environment["git_commit"] = commit;
  write_file_atomically(folder / "environment.json", environment.dump(2) + "\n");
}

int64_t parameter_count(const torch::nn::Module& module) {
  int64_t count = 0;
  for (const torch::Tensor& parameter : module.parameters()) count += parameter.numel();
  return count;
}

/// Weights of another run, also under another position encoding: what is not taken over is said.
void warm_start(Task& task, const std::filesystem::path& source) {
  const std::filesystem::path path = find_checkpoint(source);
  NamedTensors tensors = load_checkpoint(path).tensors;
  // Heads of different tasks may have names and shapes in common, but nothing else.
  if (dynamic_cast<const FineTuneTask*>(&task)) {
    std::erase_if(tensors, [](const auto& item) { return !item.first.starts_with("model.encoder."); });
  }
  const LoadReport report = load_weights(task.model(), tensors, "model.");
  log::info("weights from {}", path.string());
  for (const std::string& name : report.missing) log::info("  new, not in it: {}", name);
  for (const std::string& name : report.unexpected) log::info("  not taken over: {}", name);
  for (const std::string& text : report.misshapen) log::info("  not taken over, another shape: {}", text);
  const size_t wanted = named_state(task.model(), "").size();
  if (report.missing.size() + report.misshapen.size() == wanted) {
    fail("model.init_from: {} has no tensor that fits this model", path.string());
  }
}

/// The Hugging Face folder that a run starts from, or nothing.
std::filesystem::path model_path(const RunOptions& run) {
  return std::visit([](const auto& model) { return model.path; }, run.model);
}

void start_from_folder(Task& task, const std::filesystem::path& path) {
  HfReport report;
  if (auto* causal = task.model().as<CausalLmImpl>()) {
    load_hf_llama(*causal, open_hf_llama(path));
  } else {
    report = load_hf(task.model(), open_hf(path));
  }
  log::info("weights from {}", path.string());
  for (const std::string& name : report.fresh) log::info("  newly initialised: {}", name);
}

void plot_curve(const std::filesystem::path& folder) {
  Figure figure{"", "update", "loss (nats per target)", {}, {}, {}};
  for (const char* split : {"train", "valid"}) {
    Curve curve = read_curve(folder, split, "loss");
    if (!curve.x.empty()) figure.curves.push_back(std::move(curve));
  }
  if (!figure.curves.empty()) plot(figure, folder / "curve");
}

/// What the model said of each validation example, for intervals and paired tests over them.
void write_predictions(const std::filesystem::path& folder, const Evaluation& evaluation) {
  if (evaluation.predictions.empty()) return;
  std::vector<Prediction> sorted = evaluation.predictions;
  std::sort(sorted.begin(), sorted.end(), [](const Prediction& a, const Prediction& b) {
    return std::pair(a.set, a.example) < std::pair(b.set, b.example);
  });
  std::string text = "set\texample\tlabel\tprediction\n";
  for (const Prediction& each : sorted) {
    text += fmt::format("{}\t{}\t{}\t{}\n", each.set, each.example, each.label, each.value);
  }
  write_file_atomically(folder / "predictions.tsv", text);
}

/// A path of the configuration that does not exist, said by the option's name.
void check_text(const char* option, const std::vector<std::filesystem::path>& paths) {
  if (paths.empty()) return;
  try {
    list_text_files(paths);
  } catch (const Error& error) {
    fail("{}: {}", option, error.what());
  }
}

}  // namespace

const EncoderModelOptions& RunOptions::encoder() const {
  if (const auto* encoder = std::get_if<EncoderModelOptions>(&model)) return *encoder;
  fail("this run holds a language model (model.type: causal), and an encoder is needed here");
}

const std::vector<PositionOptions>& RunOptions::positions() const {
  return std::visit(
      [](const auto& m) -> const auto& { return m.positions; }, model);
}

CausalLmOptions RunOptions::causal() const {
  const auto* causal = std::get_if<CausalModelOptions>(&model);
  if (!causal) fail("this run trains an encoder, and a language model (model.type: causal) is needed here");
  CausalLmOptions options = *causal;
  if (options.vocab_size == 0) options.vocab_size = 256;
  if (options.vocab_size < 256) {
    fail("model.vocab_size {} is less than the 256 values of a byte", options.vocab_size);
  }
  return options;
}

const std::filesystem::path& RunOptions::init_from() const {
  return std::visit(
      [](const auto& m) -> const auto& { return m.init_from; }, model);
}

void check_inputs(const RunOptions& run) {
  if (const auto* bytes = std::get_if<ByteLmOptions>(&run.task)) check_text("task.file", {bytes->file});
  check_text("data.train", run.data.train);
  check_text("data.valid", run.data.valid);
  if (const auto* glue = std::get_if<GlueOptions>(&run.task)) {
    try {
      for (const GluePart part : {GluePart::train, GluePart::dev}) glue_files(glue->name, glue->folder, part);
    } catch (const Error& error) {
      fail("task.folder: {}", error.what());
    }
  }
  if (run.init_from().empty()) return;
  try {
    load_checkpoint_state(find_checkpoint(run.init_from()));
  } catch (const Error& error) {
    fail("model.init_from: {}", error.what());
  }
}

namespace {

/// Every sequence length of a run, with the option that says so.
std::vector<std::pair<std::string, int64_t>> lengths_of(const RunOptions& run) {
  if (const auto* glue = std::get_if<GlueOptions>(&run.task)) return {{"task.length", glue->length}};
  const auto* bytes = std::get_if<ByteLmOptions>(&run.task);
  if (run.trainer.stages.empty()) {
    return {bytes ? std::pair("task.length", bytes->length) : std::pair("data.length", run.data.length)};
  }
  std::vector<std::pair<std::string, int64_t>> lengths;
  for (const StageOptions& stage : run.trainer.stages)
    lengths.emplace_back("trainer.stages: length", stage.length);
  return lengths;
}

}  // namespace

int64_t training_length(const RunOptions& run) {
  int64_t longest = 0;
  if (std::holds_alternative<GlueOptions>(run.task)) return longest;
  for (const auto& [name, length] : lengths_of(run)) longest = std::max(longest, length);
  return longest;
}

std::optional<int64_t> longest_length(const RunOptions& run) {
  std::optional<int64_t> rows;
  for (const PositionOptions& positions : run.positions()) {
    const auto* learned = std::get_if<LearnedOptions>(&positions);
    const auto* tupe = std::get_if<TupeOptions>(&positions);
    if (!learned && !tupe) continue;
    const int64_t here = learned ? learned->max_length : tupe->max_length;
    rows = rows ? std::min(*rows, here) : here;
  }
  return rows;
}

void validate(const RunOptions& options) {
  if (const auto rows = longest_length(options)) {
    for (const auto& [name, length] : lengths_of(options)) {
      if (length <= *rows) continue;
      fail("{} {} is beyond the table of {} positions (model.positions.max_length)", name, length, *rows);
    }
  }
  if (!options.lengths.empty() && std::holds_alternative<GlueOptions>(options.task))
    fail("lengths: this task has no sequences of a fixed length");
  if (!options.reach.empty() && std::holds_alternative<GlueOptions>(options.task))
    fail("reach: this task is compared by its metrics, not by losses on the way");
  const bool bytes = std::holds_alternative<ByteLmOptions>(options.task);
  const bool causal = std::holds_alternative<CausalModelOptions>(options.model);
  if (bytes && !causal) fail("task byte_lm trains a language model: write model.type: causal");
  if (!bytes && causal) fail("model.type: causal is for the task byte_lm; this task trains an encoder");
  // The runner of an ablation names a cache for all tasks alike.
  DataOptions unused;
  unused.cache = options.data.cache;
  if (!std::holds_alternative<MlmOptions>(options.task) && !(write(options.data) == write(unused)))
    fail("data: is not read by this task, which has texts and lengths of its own (task.*); remove it");
  if (bytes) {
    options.causal();
    if (!std::holds_alternative<BytesOptions>(options.tokenizer)) fail("tokenizer.type: byte_lm reads bytes");
  } else if (std::holds_alternative<MlmOptions>(options.task)) {
    if (options.data.train.empty()) fail("data.train must name a file or a folder");
  } else {
    if (!options.trainer.stages.empty()) fail("trainer.stages: this task has no sequences of a fixed length");
  }
  if (options.grid.kind != ConfigNode::Kind::null && options.grid.kind != ConfigNode::Kind::map) {
    fail("'grid' must be a map: option -> list of values");
  }
  if (options.arms.kind != ConfigNode::Kind::null && options.arms.kind != ConfigNode::Kind::map) {
    fail_at(options.arms.mark, "'arms' must be a map: name -> options that differ");
  }
}

RunOptions read_run(const ConfigNode& config) {
  RunOptions run;
  read(config, run);
  const std::filesystem::path path = model_path(run);
  if (path.empty()) return run;
  // Once more, on top of what the folder says.
  if (std::holds_alternative<CausalModelOptions>(run.model)) {
    run = {};
    static_cast<CausalLmOptions&>(run.model.emplace<CausalModelOptions>()) = open_hf_llama(path).options;
  } else {
    run = {};
    static_cast<EncoderOptions&>(std::get<EncoderModelOptions>(run.model)) = open_hf(path).encoder;
    run.tokenizer = tokenizer_of_folder(path);
  }
  read(config, run);
  return run;
}

RunOptions single_run(RunOptions options) {
  options.arms = {};
  options.grid = {};
  options.seeds.clear();
  options.lengths.clear();
  options.reach.clear();
  return options;
}

RunOptions load_run(const std::filesystem::path& config, const std::vector<std::string>& sets) {
  return read_run(load_config(config, sets));
}

namespace {

/// Tokenised, at one of the run's lengths.
Corpus read_corpus(DataOptions data, int64_t length, const Tokenizer& tokenizer,
                   const std::filesystem::path& cache) {
  data.length = length;
  std::optional<log::Progress> progress;
  return prepare_corpus(data, tokenizer, cache, [&](int64_t done, int64_t total) {
    if (interrupted()) throw Interrupted();
    if (total < (int64_t{64} << 20)) return;  // done in a moment
    if (!progress) progress.emplace(std::vector<std::string>{"reading text"});
    log::ProgressState state;
    state.state = fmt::format("{} of {} MB", done >> 20, total >> 20);
    progress->update(0, state);
  });
}

/// The tasks that train an encoder on a tokenizer's ids.
std::unique_ptr<Task> make_encoder_task(const RunOptions& run, const std::filesystem::path& cache) {
  const std::unique_ptr<Tokenizer> tokenizer = make_tokenizer(run.tokenizer);
  EncoderOptions model = run.encoder();
  if (model.vocab_size == 0) model.vocab_size = tokenizer->vocab_size();
  if (model.vocab_size < tokenizer->vocab_size()) {
    fail("model.vocab_size {} is less than the {} tokens of the tokenizer", model.vocab_size,
         tokenizer->vocab_size());
  }
  if (const auto* glue = std::get_if<GlueOptions>(&run.task)) {
    return std::make_unique<FineTuneTask>(*glue, model, *tokenizer);
  }
  std::map<int64_t, Corpus> corpora;
  for (const auto& [name, length] : lengths_of(run)) {
    if (!corpora.contains(length)) corpora.emplace(length, read_corpus(run.data, length, *tokenizer, cache));
  }
  return std::make_unique<MlmTask>(std::get<MlmOptions>(run.task), model, *tokenizer, corpora,
                                   lengths_of(run).front().second, run.data.eval_sequences);
}

}  // namespace

std::unique_ptr<Task> make_task(const RunOptions& run, const World& world,
                                const std::filesystem::path& cache) {
  require_precision(run.trainer.precision, world.device);
  set_matmul_precision(run.trainer.matmul_precision, world.device);
  torch::manual_seed(static_cast<uint64_t>(run.trainer.seed));
  std::unique_ptr<Task> task;
  if (const auto* bytes = std::get_if<ByteLmOptions>(&run.task)) {
    task = std::make_unique<ByteLmTask>(*bytes, run.causal());
  } else {
    task = make_encoder_task(run, cache);
  }
  task->model().to(world.device);
  return task;
}

std::filesystem::path default_folder(const std::filesystem::path& config) {
  return std::filesystem::path("runs") / config.stem();
}

int train(const TrainRequest& request) {
  const RunOptions run = single_run(load_run(request.config, request.sets));  // of an ablation: its base
  const std::filesystem::path folder =
      request.folder.empty() ? default_folder(request.config) / fmt::format("base-seed{}", run.trainer.seed)
                             : request.folder;
  if (!request.resume && !CheckpointFolder(folder).steps().empty()) {
    fail("{}: holds a run already; add --resume to go on with it, or choose another folder with --run",
         folder.string());
  }
  check_inputs(run);
  const World world = World::open(run.trainer.device, run.trainer.threads);
  require_precision(run.trainer.precision, world.device);  // before a folder is made
  std::error_code problem;
  std::filesystem::create_directories(folder, problem);
  if (problem) fail("{}: cannot be created: {}", folder.string(), problem.message());
  const FileLock lock(folder);
  remove_leftovers(folder / "checkpoints");
  claim_run_folder(folder, run);
  log::open_file(folder / "log.txt");
  write_environment(folder, world);

  const std::unique_ptr<Task> task =
      make_task(run, world, run.data.cache.empty() ? folder / "cache" : run.data.cache);
  for (const std::string& note : task->notes()) log::info("{}", note);
  const TrainerOptions options = resolve(run.trainer, *task, world);
  Trainer trainer(*task, options, world, folder);
  if (request.resume && trainer.resume()) {
    if (trainer.step() > options.steps)
      fail("{}: has {} updates already, and {} are asked for; raise trainer.steps, or choose another folder",
           folder.string(), trainer.step(), options.steps);
    log::info("goes on after update {}", trainer.step());
  } else if (!run.init_from().empty()) {
    warm_start(*task, run.init_from());
  } else if (const std::filesystem::path path = model_path(run); !path.empty()) {
    start_from_folder(*task, path);
  }
  const int64_t parameters = parameter_count(task->model());
  log::info("{}: {} parameters, {} on {} thread(s)", folder.string(), parameters, world.device.str(),
            at::get_num_threads());

  log::Progress progress({folder.filename().string()});
  const Trainer::Result result = trainer.fit([&](int64_t step, double loss, double tokens_per_second) {
    progress.update(0, {step, options.steps, loss, tokens_per_second, ""});
  });
  if (!result.finished) {
    log::info("ended after update {}, saved; the same command with --resume goes on", result.step);
    return interrupted_status;
  }
  const nlohmann::ordered_json summary = {{"finished", true},         {"asked_steps", run.trainer.steps},
                                          {"step", result.step},      {"metrics", result.metrics},
                                          {"parameters", parameters}, {"tokens", result.tokens},
                                          {"seconds", result.seconds}};
  plot_curve(folder);
  write_predictions(folder, result.evaluation);
  write_file_atomically(folder / "result.json", summary.dump(2) + "\n");
  for (const auto& [name, value] : result.metrics) log::info("valid {} {:.4f}", name, value);
  log::info("{} updates in {:.0f} s; results are in {}", result.step, result.seconds, folder.string());
  return 0;
}

CheckpointMetrics evaluate_checkpoint(RunOptions run, const std::filesystem::path& checkpoint) {
  run.trainer.stages.clear();
  const std::filesystem::path folder = checkpoint.parent_path().parent_path();
  const World world = World::open(run.trainer.device, run.trainer.threads);
  const std::unique_ptr<Task> task =
      make_task(run, world, run.data.cache.empty() ? folder / "cache" : run.data.cache);
  const Checkpoint stored = load_checkpoint(checkpoint);
  const LoadReport report = load_weights(task->model(), stored.tensors, "model.");
  for (const std::string& name : report.missing)
    log::warn("{} is not in the checkpoint: keeps its initial value", name);
  for (const std::string& name : report.unexpected) log::warn("{} of the checkpoint is not used", name);
  if (!report.misshapen.empty())
    fail("{}: does not fit the model: {}", checkpoint.string(), report.misshapen.front());
  const Stage stage{run.trainer.batch, static_cast<uint64_t>(run.trainer.seed)};
  const Evaluation evaluation = evaluate_task(*task, stage, run.trainer.precision, world);
  if (evaluation.count == 0)
    fail("{}: no validation text: set data.valid or data.valid_fraction", folder.string());
  return {task->metrics(evaluation), stored.state["step"]};
}

int evaluate(const std::filesystem::path& run_or_file, const std::vector<std::string>& sets,
             std::ostream& out) {
  const std::filesystem::path checkpoint = find_checkpoint(run_or_file);
  const RunOptions run = load_run_folder(checkpoint.parent_path().parent_path(), sets);
  const CheckpointMetrics result = evaluate_checkpoint(run, checkpoint);
  out << "checkpoint " << checkpoint.string() << " (update " << result.step << ")\n";
  for (const auto& [name, value] : result.metrics) out << fmt::format("{} {:.6f}\n", name, value);
  return 0;
}

int plot_runs(const std::vector<std::filesystem::path>& runs, const std::string& metric,
              const std::filesystem::path& stem, std::ostream& out) {
  Figure figure{"", "update", "validation " + metric, {}, {}, {}};
  for (const std::filesystem::path& run : runs) {
    Curve curve = read_curve(run, "valid", metric);
    if (curve.x.empty()) fail("{}: its metrics.jsonl has no validation '{}'", run.string(), metric);
    curve.label = (run / "").parent_path().filename().string();
    figure.curves.push_back(std::move(curve));
  }
  plot(figure, stem);
  out << stem.string() << ".png\n" << stem.string() << ".svg\n";
  return 0;
}

int print_options(const std::string& path, std::ostream& out) {
  const std::vector<OptionHelp> options = describe<RunOptions>(path);
  if (options.empty()) {
    std::vector<std::string> known;
    for (const OptionHelp& option : describe<RunOptions>())
      known.push_back(without_alternatives(option.path));
    fail("no option '{}'{}; 'roformer options' lists all", path, did_you_mean(path, known));
  }
  for (const OptionHelp& option : options) {
    out << option.path << "  (" << option.type;
    if (!option.constraint.empty()) out << ", " << option.constraint;
    out << ")";
    if (!option.default_value.empty()) out << "  default " << option.default_value;
    out << "\n    " << option.help << "\n";
  }
  return 0;
}

int print_info(const std::filesystem::path& run_or_checkpoint, std::ostream& out) {
  const std::filesystem::path path = find_checkpoint(run_or_checkpoint);
  const Checkpoint checkpoint = load_checkpoint(path);
  // One row for each part of the model: an embedding, a layer, a head.
  Table table{"", {"module", "tensors", "parameters"}, {}, {}};
  std::vector<std::string> order;
  std::map<std::string, std::pair<int64_t, int64_t>> modules;
  int64_t total = 0;
  for (const auto& [name, tensor] : checkpoint.tensors) {
    if (!name.starts_with("model.")) continue;
    const std::string inner = name.substr(6);
    size_t end = inner.find('.');
    for (int depth = inner.starts_with("encoder.layers.") ? 2 : 1; depth > 0 && end != std::string::npos;
         --depth) {
      end = inner.find('.', end + 1);
    }
    const std::string module =
        end == std::string::npos ? inner.substr(0, inner.rfind('.')) : inner.substr(0, end);
    if (!modules.contains(module)) order.push_back(module);
    auto& [tensors, parameters] = modules[module];
    ++tensors;
    parameters += tensor.numel();
    total += tensor.numel();
  }
  std::sort(order.begin(), order.end());
  for (const std::string& module : order) {
    const auto& [tensors, parameters] = modules[module];
    table.rows.push_back({module, std::to_string(tensors), std::to_string(parameters)});
  }
  table.rows.push_back({"all", "", std::to_string(total)});
  out << path.string() << "\nupdate " << checkpoint.state["step"] << ", "
      << fmt::format("{:.1f} MB", static_cast<double>(std::filesystem::file_size(path)) / 1e6) << "\n\n"
      << to_markdown(table);
  return 0;
}

}  // namespace roformer
