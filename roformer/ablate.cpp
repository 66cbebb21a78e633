#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <fmt/ranges.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cmath>
#include <csignal>
#include <cstring>
#include <iostream>
#include <thread>

#include "roformer/core/files.h"
#include "roformer/core/interrupt.h"
#include "roformer/core/log.h"
#include "roformer/core/metrics_log.h"
#include "roformer/report/tables.h"
#include "roformer/run_folder.h"

// Ablation: arms x seeds, each a child process that runs `train` in a folder of its own.

namespace roformer {
namespace {

struct ArmRun {
  std::string arm;
  int64_t seed = 0;
  RunOptions options;
  std::filesystem::path folder;
  pid_t process = 0;  ///< 0 = not running
  bool done = false, failed = false, end_shown = false;
  uintmax_t seen_bytes = 0;  ///< of metrics.jsonl, when `seen` was read from it
  log::ProgressState seen;

  std::string name() const { return fmt::format("{}-seed{}", arm, seed); }
};

bool is_plain_name(const std::string& name) {
  return !name.empty() && name.size() <= 64 && name.front() != '.' &&
         name.find_first_not_of("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-") ==
             std::string::npos;
}

/// All runs with their options, checked before the first one starts.
std::vector<ArmRun> plan_runs(const AblateRequest& request, const std::filesystem::path& folder) {
  const ConfigNode config = load_config(request.config, request.sets);
  RunOptions base;
  read(config, base);
  if (base.arms.entries.empty()) {
    fail("{}: has no arms; add e.g. 'arms: {{rotary: {{}}, learned: {{model.positions.type: learned}}}}'",
         request.config.string());
  }
  std::vector<int64_t> seeds = base.seeds;
  if (seeds.empty()) seeds.push_back(base.trainer.seed);
  for (size_t i = 1; i < seeds.size(); ++i) {
    if (std::find(seeds.begin(), seeds.begin() + static_cast<int64_t>(i), seeds[i]) != seeds.begin() + static_cast<int64_t>(i)) {
      fail("{}: seed {} is given twice", request.config.string(), seeds[i]);
    }
  }
  std::vector<ArmRun> runs;
  for (const int64_t seed : seeds) {
    for (const auto& [arm, overrides] : base.arms.entries) {
      if (!is_plain_name(arm)) {
        fail_at(overrides.mark, "an arm's name becomes a folder: letters, digits, '.', '_' and '-' only, got '{}'", arm);
      }
      if (overrides.kind != ConfigNode::Kind::map && overrides.kind != ConfigNode::Kind::null) {
        fail_at(overrides.mark, "arm '{}' must be a map of options, e.g. {{model.positions.type: learned}}", arm);
      }
      ConfigNode node = config;
      set_values(node, overrides);
      ArmRun run;
      run.arm = arm;
      run.seed = seed;
      run.folder = folder / run.name();
      read(node, run.options);
      check_inputs(run.options);
      run.options.trainer.seed = seed;
      run.options.arms = {};
      run.options.seeds.clear();
      if (run.options.data.cache.empty()) run.options.data.cache = std::filesystem::absolute(folder) / "cache";
      runs.push_back(std::move(run));
    }
  }
  return runs;
}

void start(ArmRun& run, int64_t threads) {
  const std::filesystem::path program = std::filesystem::read_symlink("/proc/self/exe");
  const std::string config = run.folder / "config.yaml", output = run.folder / "output.txt";
  const std::string folder = run.folder, thread_count = std::to_string(threads);
  const pid_t parent = getpid();
  run.process = fork();
  if (run.process < 0) fail("cannot start a process for {}: {}", run.name(), std::strerror(errno));
  if (run.process > 0) return;
  // The child: dies with its parent, and hears of Ctrl-C from it alone.
  setpgid(0, 0);
  prctl(PR_SET_PDEATHSIG, SIGTERM);
  if (getppid() != parent) _exit(1);
  const int file = open(output.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  if (file >= 0) {
    dup2(file, STDOUT_FILENO);
    dup2(file, STDERR_FILENO);
  }
  execl(program.c_str(), program.c_str(), "train", config.c_str(), "--run", folder.c_str(), "--resume", "--quiet",
        "--threads", thread_count.c_str(), nullptr);
  _exit(127);
}

/// What the run's metrics.jsonl tells of it, read when it has changed.
log::ProgressState progress_of(ArmRun& run) {
  log::ProgressState& state = run.seen;
  state.steps = run.options.trainer.steps;
  state.state = run.failed ? "failed" : run.done ? "done" : run.process ? "" : "waiting";
  std::error_code absent;
  const uintmax_t bytes = std::filesystem::file_size(run.folder / "metrics.jsonl", absent);
  if (absent || bytes == run.seen_bytes) return state;
  run.seen_bytes = bytes;
  double before_tokens = 0, before_seconds = 0;
  for (const nlohmann::json& record : MetricsLog::read(run.folder / "metrics.jsonl")) {
    if (record.value("split", "") != "train") continue;
    const double tokens = record.value("tokens", 0.0), seconds = record.value("seconds", 0.0);
    state.step = record.value("step", int64_t{0});
    if (record["loss"].is_number()) state.loss = record["loss"];
    if (seconds > before_seconds) state.tokens_per_second = (tokens - before_tokens) / (seconds - before_seconds);
    before_tokens = tokens;
    before_seconds = seconds;
  }
  return state;
}

/// The last line that a failed child printed.
std::string last_words(const ArmRun& run) {
  std::string text;
  try {
    text = read_file(run.folder / "output.txt", 1 << 20);
  } catch (const Error&) {
    return "";
  }
  while (!text.empty() && text.back() == '\n') text.pop_back();
  return text.substr(text.rfind('\n') + 1);
}

/// Collects children that have ended. Returns whether any did.
bool collect(std::vector<ArmRun>& runs) {
  bool any = false;
  for (ArmRun& run : runs) {
    int status = 0;
    if (!run.process || waitpid(run.process, &status, WNOHANG) != run.process) continue;
    run.process = 0;
    any = true;
    if (WIFEXITED(status) && WEXITSTATUS(status) == 0) {
      run.done = true;
    } else if (!(interrupted() && WIFEXITED(status) && WEXITSTATUS(status) == interrupted_status)) {
      run.failed = true;
      log::error("{} failed: {} (all of it: {})", run.name(), last_words(run), (run.folder / "output.txt").string());
    }
  }
  return any;
}

/// Runs what is left, `jobs` at a time.
void run_all(std::vector<ArmRun>& runs, int64_t jobs) {
  const int64_t cores = std::max<int64_t>(1, std::thread::hardware_concurrency());
  std::vector<std::string> names;
  for (const ArmRun& run : runs) names.push_back(run.name());
  log::Progress progress(names);
  bool told = false;
  while (true) {
    collect(runs);
    int64_t running = 0, waiting = 0;
    for (const ArmRun& run : runs) {
      running += run.process != 0;
      waiting += !run.process && !run.done && !run.failed;
    }
    if (interrupted()) {
      for (ArmRun& run : runs) {
        if (run.process && !told) kill(run.process, SIGINT);
      }
      told = true;
      if (running == 0) return;
    } else if (running == 0 && waiting == 0) {
      return;
    } else {
      for (ArmRun& run : runs) {
        if (running >= jobs || run.process || run.done || run.failed) continue;
        const int64_t asked = run.options.trainer.threads;
        start(run, asked > 0 ? asked : std::max<int64_t>(1, cores / jobs));
        ++running;
      }
    }
    for (size_t i = 0; i < runs.size(); ++i) {
      if (runs[i].end_shown) continue;
      progress.update(i, progress_of(runs[i]));
      runs[i].end_shown = runs[i].done || runs[i].failed;
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(500));
  }
}

/// Three updates that the table shows: about a third, two thirds, and the last.
std::vector<int64_t> shown_steps(const TrainerOptions& options) {
  std::vector<int64_t> steps;
  for (const int64_t share : {1, 2}) {
    const int64_t wanted = options.steps * share / 3;
    const int64_t step = wanted / options.evaluate_every * options.evaluate_every;
    if (step > 0 && step < options.steps && (steps.empty() || steps.back() != step)) steps.push_back(step);
  }
  steps.push_back(options.steps);
  return steps;
}

double value_at(const Curve& curve, int64_t step) {
  for (size_t i = 0; i < curve.x.size(); ++i) {
    if (static_cast<int64_t>(curve.x[i]) == step) return curve.y[i];
  }
  return std::numeric_limits<double>::quiet_NaN();
}

/// One curve for each arm: the mean over its seeds, between the lowest and the highest.
Curve mean_curve(const std::string& arm, const std::vector<Curve>& curves) {
  Curve mean_of{arm, {}, {}, {}, {}};
  for (const double step : curves.front().x) {
    std::vector<double> values;
    for (const Curve& curve : curves) values.push_back(value_at(curve, static_cast<int64_t>(step)));
    if (std::any_of(values.begin(), values.end(), [](double v) { return std::isnan(v); })) continue;
    mean_of.x.push_back(step);
    mean_of.y.push_back(mean(values));
    if (curves.size() > 1) {
      mean_of.low.push_back(*std::min_element(values.begin(), values.end()));
      mean_of.high.push_back(*std::max_element(values.begin(), values.end()));
    }
  }
  return mean_of;
}

void write_results(const std::vector<ArmRun>& runs, const AblateRequest& request, const std::filesystem::path& folder,
                   std::ostream& out) {
  std::vector<std::string> arms;
  for (const ArmRun& run : runs) {
    if (std::find(arms.begin(), arms.end(), run.arm) == arms.end()) arms.push_back(run.arm);
  }
  const std::vector<int64_t> steps = shown_steps(runs.front().options.trainer);
  Table table{"Validation loss of " + request.config.stem().string(), {"arm", "seeds"}, {}, {}};
  for (const int64_t step : steps) table.columns.push_back(fmt::format("update {}", step));
  for (const char* column : {"accuracy", "parameters", "tokens/s", "seconds"}) table.columns.emplace_back(column);

  nlohmann::ordered_json numbers = nlohmann::ordered_json::object();
  Figure figure{"", "update", "validation loss (nats per target)", {}, {}, {}};
  for (const std::string& arm : arms) {
    std::vector<std::string> seeds, accuracy, speed, seconds;
    std::vector<std::vector<std::string>> losses(steps.size());
    std::vector<Curve> curves;
    std::string parameters;
    for (const ArmRun& run : runs) {
      if (run.arm != arm) continue;
      const auto result = finished_result(run.folder, run.options.trainer.steps);
      seeds.push_back(run.failed ? fmt::format("{} (failed)", run.seed) : std::to_string(run.seed));
      if (!result) continue;
      const Curve curve = read_curve(run.folder, "valid", "loss");
      for (size_t i = 0; i < steps.size(); ++i) {
        const double value = value_at(curve, steps[i]);
        losses[i].push_back(std::isnan(value) ? "–" : fmt::format("{:.3f}", value));
      }
      if (!curve.x.empty()) curves.push_back(curve);
      const double tokens = result->value("tokens", 0.0), time = result->value("seconds", 0.0);
      accuracy.push_back(result->at("metrics").contains("accuracy")
                             ? fmt::format("{:.3f}", result->at("metrics")["accuracy"].get<double>())
                             : "–");
      speed.push_back(time > 0 ? fmt::format("{:.0f}", tokens / time) : "–");
      seconds.push_back(fmt::format("{:.0f}", time));
      parameters = std::to_string(result->value("parameters", int64_t{0}));
      nlohmann::ordered_json entry = *result;
      entry["steps"] = curve.x;
      entry["loss"] = curve.y;
      numbers[arm][std::to_string(run.seed)] = entry;
    }
    auto join = [](const std::vector<std::string>& texts) {
      return texts.empty() ? std::string("–") : fmt::format("{}", fmt::join(texts, " / "));
    };
    std::vector<std::string> row = {arm, join(seeds)};
    for (const auto& loss : losses) row.push_back(join(loss));
    row.insert(row.end(), {join(accuracy), parameters.empty() ? "–" : parameters, join(speed), join(seconds)});
    table.rows.push_back(std::move(row));
    if (!curves.empty()) figure.curves.push_back(mean_curve(arm, curves));
  }
  table.notes.push_back("Nats per target; one number for each seed. Speed and seconds with other runs side by side.");
  write_table(table, numbers, folder / "results");
  out << to_markdown(table) << "\n";
  if (!figure.curves.empty()) {
    plot(figure, folder / "curves");
    out << "table   " << (folder / "results.md").string() << "\npicture " << (folder / "curves.png").string() << "\n";
  }
}

}  // namespace

int ablate(const AblateRequest& request, std::ostream& out) {
  const std::filesystem::path folder = request.folder.empty() ? default_folder(request.config) : request.folder;
  std::vector<ArmRun> runs = plan_runs(request, folder);
  std::error_code problem;
  std::filesystem::create_directories(folder, problem);
  if (problem) fail("{}: cannot be created: {}", folder.string(), problem.message());
  const FileLock lock(folder);
  for (ArmRun& run : runs) {
    claim_run_folder(run.folder, run.options);
    run.done = finished_result(run.folder, run.options.trainer.steps).has_value();
  }
  const int64_t cores = std::max<int64_t>(1, std::thread::hardware_concurrency());
  run_all(runs, request.jobs > 0 ? request.jobs : std::min<int64_t>(cores, static_cast<int64_t>(runs.size())));
  if (interrupted()) {
    log::info("ended; the same command goes on where it stopped");
    return interrupted_status;
  }
  write_results(runs, request, folder, out);
  const auto failed = std::count_if(runs.begin(), runs.end(), [](const ArmRun& run) { return run.failed; });
  if (failed > 0) log::error("{} of {} runs failed", failed, runs.size());
  return failed > 0 ? 2 : 0;
}

}  // namespace roformer
