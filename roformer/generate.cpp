#include <algorithm>
#include <charconv>
#include <chrono>
#include <ostream>

#include "roformer/core/display.h"
#include "roformer/core/files.h"
#include "roformer/core/interrupt.h"
#include "roformer/core/log.h"
#include "roformer/model_source.h"
#include "roformer/text/pretrained.h"
#include "roformer/text/unicode.h"

// Text from a language model.

namespace roformer {
namespace {

std::string prompt_of(const GenerateRequest& request) {
  constexpr size_t largest = size_t{16} << 20;
  if (request.prompt_file.empty()) return request.prompt;
  if (!request.prompt.empty()) fail("--prompt and --prompt-file: give one or the other");
  return read_file(request.prompt_file == "-" ? "/dev/stdin" : request.prompt_file, largest);
}

/// What a token adds to a text after the token before it: SentencePiece drops the space before the first
/// word. A byte that it has no piece for, spelled <0x0A>, is that byte, though it may not be a character yet.
std::string text_of(const Tokenizer& tokenizer, int32_t before, int32_t token) {
  if (token >= tokenizer.vocab_size()) return "";  // models are padded to round numbers of tokens
  const std::string spelled = tokenizer.token(token), alone = tokenizer.decode({token});
  unsigned byte = 0;
  if (spelled.size() == 6 && spelled.starts_with("<0x") && spelled != alone &&
      std::from_chars(&spelled[3], &spelled[5], byte, 16).ptr == &spelled[5])
    return {static_cast<char>(byte)};
  if (before >= tokenizer.vocab_size()) return alone;
  const std::string both = tokenizer.decode({before, token}), known = tokenizer.decode({before});
  return both.starts_with(known) ? both.substr(known.size()) : alone;
}

/// The prompt's tokens, after the token that begins a text where the model has one. Error for one that the
/// model does not have.
std::vector<int32_t> read_prompt(const std::string& prompt, const Tokenizer& tokenizer,
                                 const CausalSource& source) {
  std::vector<int32_t> ids;
  if (source.save.bos_token) ids.push_back(static_cast<int32_t>(*source.save.bos_token));
  tokenizer.encode(prompt, ids);
  if (ids.empty()) fail("the prompt has no tokens; write more into it");
  const int64_t tokens = source.model->options().vocab_size;
  if (const auto& bos = source.save.bos_token; bos && (*bos < 0 || *bos >= tokens))
    fail("{}/config.json: bos_token_id {} is not one of the {} tokens", source.name, *bos, tokens);
  for (const int32_t id : ids) {
    if (id < 0 || id >= tokens)
      fail("{}: token {} of the prompt is not one of the {} that the model has", source.name, id, tokens);
  }
  return ids;
}

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

}  // namespace

int generate(const GenerateRequest& request, std::ostream& out) {
  validate(request.sampling);
  const CausalSource source = load_causal_source(request.model, request.sets);
  const World world = World::open(source.trainer.device, source.trainer.threads);
  set_matmul_precision(source.trainer.matmul_precision, world.device);
  CausalLm model = source.model;
  model->to(world.device);

  const std::unique_ptr<Tokenizer> tokenizer =
      make_tokenizer(source.tokenizer ? *source.tokenizer : tokenizer_of_folder(request.model));
  std::string prompt = prompt_of(request);
  if (const size_t valid = valid_utf8_prefix(prompt); tokenizer->needs_text() && valid < prompt.size())
    fail("the prompt is not UTF-8 from byte {} on, which this tokenizer needs", valid + 1);
  if (prompt.empty() && !source.save.bos_token) {
    prompt = "\n";
    log::info("the prompt is empty: the text starts after a line break");
  }
  const std::vector<int32_t> ids = read_prompt(prompt, *tokenizer, source);
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

  if (!source.tokenizer && length + sampling.max_new_tokens > source.save.max_length)
    log::warn(
        "the text may become longer than the {} tokens that the model was made for (config.json: "
        "max_position_embeddings)",
        source.save.max_length);
  TerminalText terminal;
  int64_t made = 0;
  bool line_open = false;
  auto show = [&](const std::string& text) {
    if (!text.empty()) line_open = text.back() != '\n';
    out << text << std::flush;
  };
  const auto start = std::chrono::steady_clock::now();
  double reading = 0.0;  // seconds until the first token
  int32_t before = ids.back();
  auto on_tokens = [&](std::span<const int64_t> tokens) {
    if (made++ == 0) reading = seconds_since(start);
    const auto& ends = source.save.eos_tokens;
    if (std::find(ends.begin(), ends.end(), tokens[0]) != ends.end()) return false;
    const auto token = static_cast<int32_t>(tokens[0]);
    const std::string text = text_of(*tokenizer, before, token);
    before = token;
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
              static_cast<double>(made - 1) / (seconds_since(start) - reading), source.name);
  }
  return interrupted() ? interrupted_status : 0;
}

}  // namespace roformer
