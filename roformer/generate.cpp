#include <chrono>
#include <ostream>

#include "roformer/core/display.h"
#include "roformer/core/files.h"
#include "roformer/core/interrupt.h"
#include "roformer/core/log.h"
#include "roformer/model_source.h"
#include "roformer/run_folder.h"

// Text from a language model.

namespace roformer {
namespace {

std::string prompt_of(const GenerateRequest& request) {
  constexpr size_t largest = size_t{16} << 20;
  if (request.prompt_file.empty()) return request.prompt;
  if (!request.prompt.empty()) fail("--prompt and --prompt-file: give one or the other");
  return read_file(request.prompt_file == "-" ? "/dev/stdin" : request.prompt_file, largest);
}

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

}  // namespace

int generate(const GenerateRequest& request, std::ostream& out) {
  validate(request.sampling);
  const std::filesystem::path checkpoint = find_checkpoint(request.run);
  const RunOptions run = load_run_folder(checkpoint.parent_path().parent_path(), request.sets);
  const World world = World::open(run.trainer.device, run.trainer.threads);
  set_matmul_precision(run.trainer.matmul_precision, world.device);
  CausalLm model = load_causal_model(run, checkpoint);
  model->to(world.device);

  const std::unique_ptr<Tokenizer> tokenizer = make_tokenizer(run.tokenizer);
  std::string prompt = prompt_of(request);
  if (prompt.empty()) {
    prompt = "\n";
    log::info("the prompt is empty: the text starts after a line break");
  }
  std::vector<int32_t> ids;
  tokenizer->encode(prompt, ids);
  const auto length = static_cast<int64_t>(ids.size());
  SamplingOptions sampling = request.sampling;
  if (const int64_t limit = model->limit(); limit >= 0) {
    if (length > limit) {
      fail("the prompt has {} tokens, and the model can place {} (model.positions); shorten it", length,
           limit);
    }
    // The last token is not read any more.
    if (const int64_t room = limit - length + 1; sampling.max_new_tokens > room) {
      log::warn("ends after {} new tokens instead of {}: the model can place {} (model.positions)", room,
                sampling.max_new_tokens, limit);
      sampling.max_new_tokens = room;
    }
  }

  TerminalText terminal;
  int64_t made = 0;
  bool line_open = false;
  auto show = [&](const std::string& text) {
    if (!text.empty()) line_open = text.back() != '\n';
    out << text << std::flush;
  };
  const auto start = std::chrono::steady_clock::now();
  double reading = 0.0;  // seconds until the first token
  auto on_tokens = [&](std::span<const int64_t> tokens) {
    if (made++ == 0) reading = seconds_since(start);
    const std::string text = tokenizer->token(static_cast<int32_t>(tokens[0]));
    show(request.terminal ? terminal.add(text) : text);
    return out.good() && !interrupted();
  };
  const c10::InferenceMode inference;  // nothing is trained after this
  const torch::Tensor tokens = torch::tensor(ids, torch::kInt64).unsqueeze(0).to(world.device);
  generate_tokens(next_logits(model, request.cached), tokens, sampling, on_tokens);
  if (request.terminal) {
    show(terminal.finish());
    if (line_open) show("\n");
  }
  if (made > 1) {
    log::info("{} tokens after a prompt of {} ({:.2f} s): {:.0f} tokens/s, {}", made, length, reading,
              static_cast<double>(made - 1) / (seconds_since(start) - reading), checkpoint.string());
  }
  return interrupted() ? interrupted_status : 0;
}

}  // namespace roformer
