#pragma once

#include <fcntl.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <fstream>
#include <iterator>
#include <string>
#include <thread>
#include <vector>

#include "tests/support.h"

namespace roformer::test {

/// A child process whose output goes to a file.
class Process {
 public:
  /// file_limit: largest file it may write in bytes (RLIMIT_FSIZE); 0 = none.
  Process(const std::vector<std::string>& arguments, std::filesystem::path output, rlim_t file_limit = 0,
          const std::string& executable = program().string())
      : output_(std::move(output)) {
    std::vector<std::string> all = {executable};
    all.insert(all.end(), arguments.begin(), arguments.end());
    std::vector<char*> argv;
    for (std::string& argument : all) argv.push_back(argument.data());
    argv.push_back(nullptr);
    pid_ = fork();
    if (pid_ == 0) {
      const int file = open(output_.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0644);
      dup2(file, STDOUT_FILENO);
      dup2(file, STDERR_FILENO);
      if (file_limit > 0) {
        const rlimit limit{file_limit, file_limit};
        setrlimit(RLIMIT_FSIZE, &limit);
      }
      execv(argv[0], argv.data());
      _exit(127);
    }
  }
  ~Process() {
    if (!ended_) {
      kill(SIGKILL);
      wait();
    }
  }
  Process(const Process&) = delete;
  Process& operator=(const Process&) = delete;

  void kill(int signal) { ::kill(pid_, signal); }
  bool running() {
    if (!ended_ && waitpid(pid_, &status_, WNOHANG) == pid_) ended_ = true;
    return !ended_;
  }
  /// Exit status; 128 + signal when a signal ended it.
  int wait() {
    if (!ended_) waitpid(pid_, &status_, 0);
    ended_ = true;
    return WIFEXITED(status_) ? WEXITSTATUS(status_) : 128 + WTERMSIG(status_);
  }
  std::string output() const {
    std::ifstream in(output_, std::ios::binary);
    return {std::istreambuf_iterator<char>(in), {}};
  }

 private:
  std::filesystem::path output_;
  pid_t pid_ = 0;
  int status_ = 0;
  bool ended_ = false;
};

struct Outcome {
  int status;
  std::string output;
};

inline Outcome run_program(const std::vector<std::string>& arguments, const TempDir& folder) {
  Process process(arguments, folder / "output.txt");
  const int status = process.wait();
  return {status, process.output()};
}

/// Waits until `condition` holds; false after `seconds`.
template <class Condition>
bool wait_for(const Condition& condition, double seconds) {
  const auto end = std::chrono::steady_clock::now() + std::chrono::duration<double>(seconds);
  while (!condition()) {
    if (std::chrono::steady_clock::now() > end) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  return true;
}

inline void write_text(const std::filesystem::path& path, const std::string& text) {
  std::ofstream(path, std::ios::binary) << text;
}

/// About `bytes` of made-up English, the same each time.
inline std::string made_up_text(size_t bytes) {
  static const char* const words[] = {"the ", "cat ", "sat ", "on ", "a ", "mat ", "and ", "saw ", "two ", "birds ",
                                      "in ", "tall ", "trees.\n", "rain ", "fell ", "slowly.\n\n"};
  std::string text;
  for (uint64_t state = 1; text.size() < bytes;) {
    state = state * 6364136223846793005ULL + 1442695040888963407ULL;
    text += words[state >> 60];
  }
  return text;
}

/// A run of milliseconds: one block of width 32 on a few kilobytes of text, which every few dozen updates end once.
inline std::string tiny_config(const std::filesystem::path& text) {
  return "task: {type: mlm, mask: 0.2}\n"
         "tokenizer: {type: bytes}\n"
         "data: {train: " + text.string() + ", length: 32, valid_fraction: 0.1, eval_sequences: 8}\n"
         "model: {dim: 32, layers: 1, heads: 2, ffn: 32, dropout: 0.1, positions: {type: rotary}}\n"
         "trainer: {steps: 60, batch: 4, accumulate: 2, log_every: 5, evaluate_every: 10, checkpoint_every: 3,\n"
         "          device: cpu, threads: 1}\n";
}

}  // namespace roformer::test
