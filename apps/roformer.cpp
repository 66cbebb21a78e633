// The program: arguments and exit codes only. 0 = done, 130 = ended by Ctrl-C (saved), 2 = the user can fix it,
// 1 = a mistake of this program.

#include <malloc.h>

#include <CLI/CLI.hpp>
#include <climits>
#include <iostream>

#include "roformer/core/interrupt.h"
#include "roformer/core/log.h"
#include "roformer/run.h"

namespace {

/// Large tensors come back from the heap instead of being mapped and cleared anew each time.
void tune_allocator() {
  mallopt(M_MMAP_MAX, 0);
  mallopt(M_TRIM_THRESHOLD, INT_MAX);
  mallopt(M_TOP_PAD, 64 << 20);
}

int run_command(int argc, char** argv) {
  CLI::App app{"Rotary position embedding experiments: train, compare and look at BERT, RoFormer and their kin.\n"
               "Start with: roformer ablate configs/quickstart.yaml"};
  app.require_subcommand(1);
  app.set_version_flag("--version", ROFORMER_VERSION);

  std::string config, run, device, option, metric = "loss", stem = "curves";
  std::vector<std::string> sets;
  std::vector<std::filesystem::path> runs;
  int64_t threads = 0, jobs = 0;
  bool resume = false, quiet = false;

  auto add_sets = [&](CLI::App* command) {
    command->add_option("--set", sets, "change an option: --set trainer.steps=200 (repeats)")->allow_extra_args(false);
    command->add_option("--device", device, "auto, cpu, cuda or cuda:N (trainer.device)");
    command->add_option("--threads", threads, "CPU threads (trainer.threads)")->check(CLI::Range(1, 1024));
    command->add_flag("--quiet", quiet, "only warnings and errors");
  };

  CLI::App* train = app.add_subcommand("train", "train one run; a file with arms trains its base");
  train->add_option("config", config, "YAML file")->required();
  train->add_option("--run", run, "run folder (default: runs/<config name>/base-seed<k>)");
  train->add_flag("--resume", resume, "go on with the run in the folder; starts afresh if there is none");
  add_sets(train);

  CLI::App* eval = app.add_subcommand("eval", "validation metrics of a run's best checkpoint");
  eval->add_option("run", run, "run folder, or a checkpoint file in one")->required();
  add_sets(eval);

  CLI::App* ablate = app.add_subcommand("ablate", "train all arms x seeds of a file, side by side; rerun to go on");
  ablate->add_option("config", config, "YAML file with 'arms'")->required();
  ablate->add_option("--run", run, "folder of the runs (default: runs/<config name>)");
  ablate->add_option("--jobs", jobs, "runs side by side (default: one per core)")->check(CLI::Range(1, 1024));
  add_sets(ablate);

  CLI::App* plot = app.add_subcommand("plot", "one picture of several runs");
  plot->add_option("runs", runs, "run folders")->required();
  plot->add_option("--metric", metric, "what to draw (loss, accuracy)")->capture_default_str();
  plot->add_option("--out", stem, "picture without its ending: <out>.png and <out>.svg")->capture_default_str();

  CLI::App* options = app.add_subcommand("options", "every option with type, default and meaning");
  options->add_option("path", option, "only this option and those below it, e.g. model.positions");

  CLI::App* info = app.add_subcommand("info", "parameters by module, size and update of a run or checkpoint");
  info->add_option("run", run, "run folder or checkpoint file")->required();

  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() == 0) return app.exit(error);  // --help, --version
    const std::string first = argc > 1 ? argv[1] : "-";
    if (!first.starts_with("-") && app.get_subcommands().empty()) {
      std::cerr << "roformer: unknown command '" << first << "'; see 'roformer --help'\n";
      return 2;
    }
    std::cerr << "roformer: " << error.what() << "; see 'roformer --help'\n";
    return 2;
  }
  roformer::log::set_quiet(quiet);
  if (!device.empty()) sets.push_back("trainer.device=" + device);
  if (threads > 0) sets.push_back("trainer.threads=" + std::to_string(threads));

  if (*train) return roformer::train({config, sets, run, resume});
  if (*eval) return roformer::evaluate(run, sets, std::cout);
  if (*ablate) return roformer::ablate({config, sets, run, jobs}, std::cout);
  if (*plot) return roformer::plot_runs(runs, metric, stem, std::cout);
  if (*options) return roformer::print_options(option, std::cout);
  return roformer::print_info(run, std::cout);
}

}  // namespace

int main(int argc, char** argv) {
  tune_allocator();
  roformer::catch_interrupts();
  try {
    const int status = run_command(argc, argv);
    std::cout.flush();
    if (!std::cout) roformer::fail("cannot write to standard output: the results are incomplete");
    return status;
  } catch (const roformer::Interrupted&) {
    return roformer::interrupted_status;
  } catch (const roformer::Error& error) {
    roformer::log::error("{}", error.what());
    return 2;
  } catch (const c10::Error& error) {
    const std::string message = error.what_without_backtrace();
    if (message.find("DefaultCPUAllocator") != std::string::npos || message.find("out of memory") != std::string::npos) {
      roformer::log::error("not enough memory for this model and batch; lower model.dim, model.layers, trainer.batch or "
                           "data.length");
      return 2;
    }
    roformer::log::error("mistake in the program: {}", message);
  } catch (const std::exception& error) {
    roformer::log::error("mistake in the program: {}", error.what());
  }
  return 1;
}
