#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iostream>
#include <thread>

#include "roformer/ablation_lengths.h"
#include "roformer/ablation_tables.h"
#include "roformer/core/files.h"
#include "roformer/core/interrupt.h"
#include "roformer/core/log.h"
#include "roformer/core/metrics_log.h"
#include "roformer/run_folder.h"

// Ablation: arms x seeds, each a child process that runs `train` in a folder of its own.

namespace roformer {
namespace {

struct ArmRun : AblationRun {
  pid_t process = 0;  ///< 0 = not running
  bool done = false, end_shown = false;
  uintmax_t seen_bytes = 0;  ///< of metrics.jsonl, when `seen` was read from it
  log::ProgressState seen;
  int64_t start_step = 0;  ///< where it stood when its process began
  double memory = 0;       ///< GiB, the most it has used

  std::string name() const { return fmt::format("{}-seed{}", label(), seed); }
};

bool is_plain_name(const std::string& name) {
  return !name.empty() && name.size() <= 64 && name.front() != '.' &&
         name.find_first_not_of("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-") ==
             std::string::npos;
}

/// A combination of the grid's values.
struct GridPoint {
  std::string name;      ///< "lr2e-5-epochs3"; empty without a grid
  ConfigNode overrides;  ///< option -> value
};

std::vector<GridPoint> grid_points(const ConfigNode& grid) {
  std::vector<GridPoint> points{{"", make_map()}};
  for (const auto& [option, values] : grid.entries) {
    if (values.kind != ConfigNode::Kind::sequence || values.items.empty()) {
      fail_at(values.mark, "grid: '{}' must be a list of values, e.g. [2e-5, 5e-5]", option);
    }
    const std::string key = option.substr(option.rfind('.') + 1);
    std::vector<GridPoint> longer;
    for (const GridPoint& point : points) {
      for (const ConfigNode& value : values.items) {
        const std::string name = (point.name.empty() ? "" : point.name + "-") + key + value.text;
        if (value.kind != ConfigNode::Kind::scalar || !is_plain_name(name)) {
          fail_at(value.mark,
                  "grid: the values of '{}' become names of folders: plain numbers or words, please", option);
        }
        if (std::any_of(longer.begin(), longer.end(),
                        [&](const GridPoint& each) { return each.name == name; })) {
          fail_at(value.mark, "grid: '{}' has the value {} twice", option, value.text);
        }
        GridPoint next = point;
        next.name = name;
        next.overrides.entries.emplace_back(option, value);
        longer.push_back(std::move(next));
      }
    }
    points = std::move(longer);
    if (points.size() > 1000) fail_at(values.mark, "grid: more than 1000 combinations");
  }
  return points;
}

struct AblationPlan {
  std::vector<ArmRun> runs;
  std::vector<int64_t> lengths;  ///< to evaluate at afterwards
  std::vector<double> reach;     ///< losses that the table says the updates to
  RunOptions base;               ///< the options before the arms change them
};

/// A file's options for one of the runs below `folder`, which share what they read of the text.
RunOptions of_one_run(const RunOptions& file, const std::filesystem::path& folder) {
  RunOptions options = single_run(file);
  if (options.data.cache.empty()) options.data.cache = std::filesystem::absolute(folder) / "cache";
  return options;
}

/// What is the same for all runs must not be changed by one of them.
void check_shared(const RunOptions& row, const RunOptions& base, const std::string& arm, const Mark& mark) {
  const char* name = row.trainer.seed != base.trainer.seed ? "trainer.seed"
                     : row.seeds != base.seeds             ? "seeds"
                     : row.lengths != base.lengths         ? "lengths"
                     : row.reach != base.reach             ? "reach"
                     : !(row.arms == base.arms)            ? "arms"
                     : !(row.grid == base.grid)            ? "grid"
                                                           : nullptr;
  if (name)
    fail_at(mark, "arm '{}': '{}' cannot differ between runs; seeds are listed at the top: 'seeds: [1, 2]'",
            arm, name);
}

/// All runs with their options, checked before the first one starts.
AblationPlan plan_runs(const AblateRequest& request, const std::filesystem::path& folder) {
  const ConfigNode config = load_config(request.config, request.sets);
  const RunOptions base = read_run(config);
  if (base.arms.entries.empty()) {
    fail("{}: has no arms; add e.g. 'arms: {{rotary: {{}}, learned: {{model.positions.type: learned}}}}'",
         request.config.string());
  }
  std::vector<int64_t> seeds = base.seeds;
  if (seeds.empty()) seeds.push_back(base.trainer.seed);
  for (size_t i = 1; i < seeds.size(); ++i) {
    if (std::find(seeds.begin(), seeds.begin() + static_cast<int64_t>(i), seeds[i]) !=
        seeds.begin() + static_cast<int64_t>(i)) {
      fail("{}: seed {} is given twice", request.config.string(), seeds[i]);
    }
  }
  // Every arm at every point is read and checked once, whatever the seeds.
  std::vector<ArmRun> rows;
  const std::vector<GridPoint> points = grid_points(base.grid);
  for (const auto& [arm, overrides] : base.arms.entries) {
    if (!is_plain_name(arm)) {
      fail_at(overrides.mark,
              "an arm's name becomes a folder: letters, digits, '.', '_' and '-' only, got '{}'", arm);
    }
    if (overrides.kind != ConfigNode::Kind::map && overrides.kind != ConfigNode::Kind::null) {
      fail_at(overrides.mark, "arm '{}' must be a map of options, e.g. {{model.positions.type: learned}}",
              arm);
    }
    for (const GridPoint& point : points) {
      ConfigNode node = config;
      set_values(node, overrides);
      set_values(node, point.overrides);
      ArmRun row;
      row.arm = arm;
      row.point = point.name;
      const RunOptions options = read_run(node);
      check_shared(options, base, arm, overrides.mark);
      row.options = of_one_run(options, folder);
      check_inputs(row.options);
      rows.push_back(std::move(row));
    }
  }
  AblationPlan plan{{}, base.lengths, base.reach, of_one_run(base, folder)};
  for (const int64_t seed : seeds) {
    for (const ArmRun& row : rows) {
      ArmRun& run = plan.runs.emplace_back(row);
      run.seed = seed;
      run.options.trainer.seed = seed;
      run.folder = folder / run.name();
    }
  }
  return plan;
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
  execl(program.c_str(), program.c_str(), "train", config.c_str(), "--run", folder.c_str(), "--resume",
        "--quiet", "--threads", thread_count.c_str(), nullptr);
  _exit(127);
}

/// The most memory that a process has used, in GiB; 0 if it has ended.
double peak_memory(pid_t process) {
  std::ifstream status(fmt::format("/proc/{}/status", process));
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with("VmHWM:")) return std::strtod(line.c_str() + 6, nullptr) / (1 << 20);  // from KiB
  }
  return 0;
}

/// Whether one more run fits into `budget` GiB. What a run needs is taken from the largest seen, so the first
/// always may start, and the next ones when those before them have made updates.
bool fits_in_memory(const std::vector<ArmRun>& runs, double budget, bool& told) {
  double used = 0, largest = 0;
  int running = 0;
  bool all_known = true;
  for (const ArmRun& run : runs) {
    largest = std::max(largest, run.memory);
    if (!run.process) continue;
    ++running;
    used += run.memory;
    all_known = all_known && run.seen.step > run.start_step;
  }
  if (running == 0) return true;
  if (used + largest <= budget) return all_known;
  if (!told)
    log::info(
        "{} run(s) use {:.3g} GiB and one more may need {:.3g}: others wait, for --memory is {:.3g} GiB",
        running, used, largest, budget);
  told = true;
  return false;
}

/// What the run's metrics.jsonl tells of it, read when it has changed.
log::ProgressState progress_of(ArmRun& run) {
  log::ProgressState& state = run.seen;
  state.steps = run.options.trainer.epochs ? 0 : run.options.trainer.steps;  // epochs: the run alone knows
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
    if (record.contains("loss") && record["loss"].is_number()) state.loss = record["loss"];
    if (seconds > before_seconds)
      state.tokens_per_second = (tokens - before_tokens) / (seconds - before_seconds);
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
  std::string line = text.substr(text.rfind('\n') + 1);
  if (line.starts_with("error: ")) line.erase(0, 7);
  return line;
}

/// Runs of an ablation that was killed end by themselves, but not before their update does and is saved.
void wait_for_others(const std::vector<ArmRun>& runs) {
  constexpr std::chrono::seconds longest{60};
  const auto start = std::chrono::steady_clock::now();
  for (const ArmRun& run : runs) {
    bool told = false;
    while (FileLock::is_held(run.folder) && !interrupted() &&
           std::chrono::steady_clock::now() - start < longest) {
      if (!told) log::info("{}: waits for the process that still writes into it", run.name());
      told = true;
      std::this_thread::sleep_for(std::chrono::milliseconds(100));
    }
  }
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
      run.error = last_words(run);
      if (run.error.empty())
        run.error = WIFSIGNALED(status) ? fmt::format("killed by signal {}", WTERMSIG(status)) : "no message";
      log::error("{} failed: {} (all of it: {})", run.name(), run.error,
                 (run.folder / "output.txt").string());
    }
  }
  return any;
}

/// Runs what is left, `jobs` at a time and within `memory` GiB; 0 = no limit.
void run_all(std::vector<ArmRun>& runs, int64_t jobs, double memory) {
  const int64_t cores = std::max<int64_t>(1, std::thread::hardware_concurrency());
  std::vector<std::string> names;
  for (const ArmRun& run : runs) names.push_back(run.name());
  log::Progress progress(names);
  bool told = false, told_memory = false;
  while (true) {
    for (ArmRun& run : runs) {
      if (run.process) run.memory = std::max(run.memory, peak_memory(run.process));
    }
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
        if (memory > 0 && !fits_in_memory(runs, memory, told_memory)) break;
        run.start_step = progress_of(run).step;
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

}  // namespace

int ablate(const AblateRequest& request, std::ostream& out) {
  const std::filesystem::path folder =
      request.folder.empty() ? default_folder(request.config) : request.folder;
  AblationPlan plan = plan_runs(request, folder);
  std::vector<ArmRun>& runs = plan.runs;
  std::error_code problem;
  std::filesystem::create_directories(folder, problem);
  if (problem) fail("{}: cannot be created: {}", folder.string(), problem.message());
  const FileLock lock(folder);
  wait_for_others(runs);
  for (ArmRun& run : runs) {
    claim_run_folder(run.folder, run.options);
    run.done = finished_result(run.folder, run.options.trainer.steps).has_value();
  }
  const int64_t cores = std::max<int64_t>(1, std::thread::hardware_concurrency());
  run_all(runs, request.jobs > 0 ? request.jobs : std::min<int64_t>(cores, static_cast<int64_t>(runs.size())),
          request.memory);
  if (interrupted()) {
    log::info("ended; the same command goes on where it stopped");
    return interrupted_status;
  }
  Ablation ablation{request.config.stem().string(), {}, folder, plan.base, plan.reach, {}};
  ablation.command = {"roformer", "ablate", request.config.string(), "--run", folder.string()};
  for (const std::string& set : request.sets) ablation.command.insert(ablation.command.end(), {"--set", set});
  ablation.runs.assign(runs.begin(), runs.end());
  std::vector<HtmlSection> results = write_results(ablation, out);
  int64_t failed_evaluations = 0;
  if (!plan.lengths.empty()) {
    const LengthStudy study = study_lengths(ablation, plan.lengths, out);
    failed_evaluations = study.failed;
    HtmlSection& section = results.emplace_back();
    section.title = "Other lengths";
    section.table = study.table;
    for (std::filesystem::path picture : study.pictures)
      section.pictures.push_back(read_file(picture += ".svg", 64 << 20));
  }
  write_report(ablation, results);
  out << "page    " << (folder / "report.html").string() << "\n";
  const auto failed = std::count_if(runs.begin(), runs.end(), [](const ArmRun& run) { return run.failed; });
  if (failed > 0) log::error("{} of {} runs failed", failed, runs.size());
  if (failed_evaluations > 0) log::error("{} evaluations at other lengths failed", failed_evaluations);
  return failed > 0 || failed_evaluations > 0 ? 2 : 0;
}

}  // namespace roformer
