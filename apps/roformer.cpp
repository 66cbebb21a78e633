// The program: arguments and exit codes only. 0 = done, 130 = ended by Ctrl-C (saved), 2 = the user can fix it,
// 1 = a mistake of this program.

#include <fcntl.h>
#include <malloc.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cerrno>
#include <charconv>
#include <cmath>
#include <iostream>

#include "roformer/core/interrupt.h"
#include "roformer/core/log.h"
#include "roformer/run.h"

namespace {

/// Large tensors come back from the heap instead of being mapped and cleared anew each time.
void tune_allocator() {
  mallopt(M_MMAP_MAX, 0);
  mallopt(M_TRIM_THRESHOLD, -1);  // never
  mallopt(M_TOP_PAD, 64 << 20);
}

/// A closed standard descriptor would become the first file that is opened, and messages would go there. What
/// is written to a closed standard output still fails, as on a full disk.
void open_standard_descriptors() {
  const std::pair<const char*, int> files[] = {{"/dev/null", O_RDONLY}, {"/dev/full", O_WRONLY}, {"/dev/null", O_WRONLY}};
  for (int fd = 0; fd < 3; ++fd) {
    if (fcntl(fd, F_GETFD) != -1 || errno != EBADF) continue;
    const auto& [file, flags] = files[fd];
    if (open(file, flags) != fd) _exit(2);  // there is nobody to tell
  }
}

/// A number T, all of it and no larger than fits: CLI11 takes -1 and 1e99 for some other number.
template <class T>
CLI::Validator number(const std::string& wanted, bool (*good)(T)) {
  return CLI::Validator(
      [=](std::string& text) {
        T value{};
        const char* end = text.data() + text.size();
        const auto [stop, problem] = std::from_chars(text.data(), end, value);
        return problem == std::errc() && stop == end && good(value) ? "" : "'" + text + "' is not " + wanted;
      },
      "");
}

/// Names of an enum, for arguments.
template <class E>
std::map<std::string, E> choices() {
  std::map<std::string, E> names;
  for (const auto& [value, name] : enum_names(E{})) names.emplace(name, value);
  return names;
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
  double memory = 0;
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
  ablate->add_option("--memory", memory, "GiB that runs side by side may use, judged by the largest so far (default: no limit)")
      ->check(number<double>("a number above 0", [](double value) { return std::isfinite(value) && value > 0; }));
  add_sets(ablate);

  CLI::App* predict = app.add_subcommand(
      "predict", "label a GLUE task's test files for the server, or your own TSV, with a fine-tuned run");
  roformer::PredictRequest prediction;
  predict->add_option("run", prediction.run, "run folder, or a checkpoint file in one")->required();
  predict->add_option("out", prediction.out, "folder for submission files; with --input a TSV file")->required();
  predict->add_option("--input", prediction.input, "your own TSV with a header line; its rows get a column 'prediction'");
  predict->add_option("--text", prediction.columns.text, "column with the text (default: text, or text_a and text_b)");
  predict->add_option("--text-pair", prediction.columns.text_pair, "column with the second text");
  predict->add_option("--data", prediction.data, "folder with the test files (default: the run's)");
  predict->add_flag("--diagnostic", prediction.diagnostic, "the diagnostic set AX, by a run on MNLI");
  add_sets(predict);

  CLI::App* generate = app.add_subcommand(
      "generate",
      "continue a text with a language model; prints what comes after the prompt, as it comes.\n"
      "A model whose positions end (learned) stops there, with a notice");
  roformer::GenerateRequest text;
  text.terminal = isatty(STDOUT_FILENO) != 0;
  generate->add_option("model", text.model,
                       "run of the task byte_lm (its best checkpoint), a checkpoint file in one, or a LLaMA folder\n"
                       "of Hugging Face with its SentencePiece tokenizer.model")->required();
  generate->add_option("--prompt", text.prompt, "the text to continue; empty = what follows a line break, or in a\n"
                       "LLaMA folder the token that begins a text");
  generate->add_option("--prompt-file", text.prompt_file, "read it from a file, byte by byte; - is standard input");
  generate->add_option("--max-new", text.sampling.max_new_tokens, "tokens to make at most (of byte_lm: bytes)")
      ->capture_default_str()
      ->check(CLI::Range(0, 1 << 30));
  generate->add_option("--temperature", text.sampling.temperature,
                       "below 1 likelier tokens, above 1 more varied ones; 0 = greedy, always the likeliest")
      ->capture_default_str();
  generate->add_option("--top-k", text.sampling.top_k, "draw from the k likeliest tokens; 0 = all")
      ->capture_default_str()
      ->check(number<int64_t>("a whole number from 0 to 2^63 - 1", [](int64_t value) { return value >= 0; }));
  generate->add_option("--top-p", text.sampling.top_p,
                       "draw from the fewest tokens whose probabilities add up to p, after --top-k")
      ->capture_default_str();
  generate->add_option("--seed", text.sampling.seed, "the same seed gives the same text; 0 to 2^64 - 1")
      ->capture_default_str()
      ->check(number<uint64_t>("a whole number from 0 to 2^64 - 1", [](uint64_t) { return true; }));
  generate->add_flag_callback("--no-cache", [&] { text.cached = false; },
                              "read the whole text anew for every token: slow, to check the cache");
  add_sets(generate);

  CLI::App* tokenize = app.add_subcommand("tokenize", "text in, token ids out, line by line");
  roformer::TokenizeRequest tokens;
  tokenize->add_option("tokenizer", tokens.tokenizer, "Hugging Face folder, run, or YAML with a 'tokenizer:' block")->required();
  tokenize->add_option("input", tokens.input, "text file (default: standard input)");
  tokenize->add_flag("--tokens", tokens.tokens, "print tokens instead of ids");
  tokenize->add_flag("--jsonl", tokens.jsonl,
                     "objects with text (text_pair, max_length) in, the same with ids, tokens, token_type_ids out");
  tokenize->add_flag_callback("--no-special", [&] { tokens.special = false; }, "no [CLS] and [SEP]");
  tokenize->add_option("--max-length", tokens.max_length, "cut to so many tokens; 0 = never")->check(CLI::Range(0, 1 << 20));
  tokenize->add_option("--threads", tokens.threads, "threads")->check(CLI::Range(1, 1024));

  CLI::App* train_tokenizer = app.add_subcommand("train-tokenizer", "a vocabulary or SentencePiece model from text");
  roformer::TokenizerTrainingOptions vocabulary;
  const auto kinds = choices<roformer::TrainedTokenizer>();
  train_tokenizer
      ->add_option_function<std::string>("kind", [&](const std::string& kind) { vocabulary.kind = kinds.at(kind); },
                                         "wordpiece, bpe or unigram")
      ->required()
      ->type_name("")
      ->check(CLI::IsMember(kinds).description(""));
  train_tokenizer->add_option("output", vocabulary.output, "vocab.txt to write (wordpiece), or the .model file")->required();
  train_tokenizer->add_option("input", vocabulary.input, "text files or folders")->required();
  train_tokenizer->add_option("--vocab-size", vocabulary.vocab_size, "tokens, special ones included")
      ->capture_default_str()
      ->check(CLI::Range(6, 1000000));
  train_tokenizer->add_option("--memory", vocabulary.memory, "MiB of text to keep; of more text, less is used")
      ->capture_default_str()
      ->check(CLI::Range(1, 1000000));
  train_tokenizer->add_flag_callback("--cased", [&] { vocabulary.lowercase = false; }, "keep upper case");

  CLI::App* encode = app.add_subcommand("encode", "a model's states for texts or token ids, as safetensors");
  roformer::EncodeRequest features;
  encode->add_option("model", features.model, "run or Hugging Face folder")->required();
  encode->add_option("input", features.input,
                     "lines of text; .jsonl: text and text_pair; .safetensors: int64 input_ids, attention_mask, "
                     "token_type_ids of [B, L]")->required();
  encode->add_option("output", features.output, "the .safetensors file to write")->required();
  encode->add_flag("--states-only", features.states_only, "no pooler_output, no logits");
  encode->add_option("--max-length", features.max_length, "cut texts to so many tokens")->capture_default_str()->check(CLI::Range(4, 1 << 20));
  encode->add_option("--device", features.device, "auto, cpu, cuda or cuda:N")->capture_default_str();
  encode->add_option("--threads", features.threads, "CPU threads")->check(CLI::Range(1, 1024));

  CLI::App* convert = app.add_subcommand("convert", "write a run or folder as a Hugging Face folder");
  std::string source, target;
  convert->add_option("model", source, "run or Hugging Face folder")->required();
  convert->add_option("folder", target, "new folder")->required();

  CLI::App* report = app.add_subcommand("report", "a table of the paper with our rows beside the published ones");
  std::string paper_table;
  report->add_option("table", paper_table, "table2")->required()->check(CLI::IsMember({"table2"}));
  report->add_option("folders", runs, "folders of `ablate` on GLUE tasks");
  report->add_option("--out", stem, "also write <out>.md and <out>.json");

  CLI::App* plot = app.add_subcommand("plot", "one picture of several runs");
  plot->add_option("runs", runs, "run folders");
  plot->add_option("--metric", metric, "what to draw (loss, accuracy)")->capture_default_str();
  plot->add_option("--out", stem, "picture without its ending: <out>.png and <out>.svg")->capture_default_str();

  plot->require_subcommand(0, 1);
  CLI::App* decay = plot->add_subcommand(
      "decay", "Figure 2: the bound of eq. 37 by distance, and |q R k| as measured (a run folder of this name: ./decay)");
  roformer::DecayRequest far;
  decay->add_option("--dim", far.dim, "width of a head; the default comes with 64 beside it")->capture_default_str()->check(CLI::Range(2, 512));
  decay->add_option("--max", far.max, "largest distance")->capture_default_str()->check(CLI::Range(1, 2048));
  decay->add_option("--csv", far.csv, "also write the bound as m,bound");
  decay->add_option("--out", far.stem, "picture without its ending: <out>.png and <out>.svg")->capture_default_str();
  decay->add_option("--run", far.run, "run folder or checkpoint in one, whose queries and keys are measured too");

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
  if (*ablate) return roformer::ablate({config, sets, run, jobs, memory}, std::cout);
  if (*predict) {
    prediction.sets = sets;
    return roformer::predict(prediction, std::cout);
  }
  if (*generate) {
    text.sets = sets;
    return roformer::generate(text, std::cout);
  }
  if (*tokenize) return roformer::tokenize(tokens, std::cout);
  if (*train_tokenizer) return roformer::train_tokenizer(vocabulary, std::cout);
  if (*encode) return roformer::encode(features, std::cout);
  if (*convert) return roformer::convert(source, target, std::cout);
  if (*report) return roformer::report_table2(runs, report->count("--out") ? stem : "", std::cout);
  if (*decay) return roformer::plot_decay(far, std::cout);
  if (*plot && runs.empty()) roformer::fail("plot: which run folders?");
  if (*plot) return roformer::plot_runs(runs, metric, stem, std::cout);
  if (*options) return roformer::print_options(option, std::cout);
  return roformer::print_info(run, std::cout);
}

}  // namespace

int main(int argc, char** argv) {
  open_standard_descriptors();
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
