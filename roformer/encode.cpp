#include <fstream>
#include <functional>
#include <ostream>

#include <fmt/ostream.h>

#include "roformer/core/files.h"
#include "roformer/core/interrupt.h"
#include "roformer/core/log.h"
#include "roformer/data/example_stream.h"
#include "roformer/model_source.h"
#include "roformer/text_record.h"

// Features: the states of a model for texts, or for token ids that are given.

namespace roformer {
namespace {

struct EncodeInput {
  torch::Tensor tokens, keep, segments;  ///< [N, L]; segments may be undefined
};

torch::Tensor int64_matrix(const SafetensorsFile& file, const char* name, const std::filesystem::path& path) {
  const torch::Tensor tensor = file.tensor(name);
  if (tensor.scalar_type() != torch::kInt64 || tensor.dim() != 2 || tensor.numel() == 0) {
    fail("{}: '{}' must be int64 of [B, L], and not empty", path.string(), name);
  }
  return tensor;
}

EncodeInput read_ids(const std::filesystem::path& path) {
  const SafetensorsFile file(path);
  if (!file.contains("input_ids")) fail("{}: 'input_ids' is missing", path.string());
  EncodeInput input{int64_matrix(file, "input_ids", path), {}, {}};
  if (file.contains("attention_mask")) input.keep = int64_matrix(file, "attention_mask", path).ne(0);
  if (file.contains("token_type_ids")) input.segments = int64_matrix(file, "token_type_ids", path);
  for (const torch::Tensor& tensor : {input.keep, input.segments}) {
    if (tensor.defined() && tensor.sizes() != input.tokens.sizes()) {
      fail("{}: attention_mask and token_type_ids must have the shape of input_ids", path.string());
    }
  }
  return input;
}

/// Lines of text, or objects with "text" and perhaps "text_pair".
EncodeInput read_texts(const std::filesystem::path& path, const Tokenizer& tokenizer, int64_t max_length) {
  const bool jsonl = path.extension() == ".jsonl";
  const std::string content = read_file(path, int64_t{1} << 30);
  std::vector<Encoding> encodings;
  size_t begin = 0, longest = 0;
  for (int64_t number = 1; begin < content.size(); ++number) {
    const size_t end = std::min(content.find('\n', begin), content.size());
    std::string_view line = std::string_view(content).substr(begin, end - begin);
    begin = end + 1;
    if (line.ends_with('\r')) line.remove_suffix(1);
    if (jsonl) {
      const TextRecord record =
          read_text_record(line, fmt::format("{}:{}", path.string(), number), max_length);
      const std::string_view view = record.second;
      const int64_t most = record.max_length > 0 ? std::min(record.max_length, max_length) : max_length;
      encodings.push_back(encode_texts(tokenizer, record.first, record.pair ? &view : nullptr, most));
    } else {
      encodings.push_back(encode_texts(tokenizer, line, nullptr, max_length));
    }
    longest = std::max(longest, encodings.back().ids.size());
  }
  if (encodings.empty()) fail("{}: is empty", path.string());
  const auto rows = static_cast<int64_t>(encodings.size()), width = static_cast<int64_t>(longest);
  EncodeInput input{torch::full({rows, width}, tokenizer.special(Special::pad), torch::kInt64),
                    torch::zeros({rows, width}, torch::kBool), torch::zeros({rows, width}, torch::kInt64)};
  for (int64_t row = 0; row < rows; ++row) {
    const Encoding& encoding = encodings[static_cast<size_t>(row)];
    std::copy(encoding.ids.begin(), encoding.ids.end(), input.tokens[row].data_ptr<int64_t>());
    std::copy(encoding.segments.begin(), encoding.segments.end(), input.segments[row].data_ptr<int64_t>());
    std::fill_n(input.keep[row].data_ptr<bool>(), encoding.ids.size(), true);
  }
  return input;
}

void check_range(const torch::Tensor& ids, int64_t limit, const char* what,
                 const std::filesystem::path& path) {
  const int64_t low = ids.min().item<int64_t>(), high = ids.max().item<int64_t>();
  if (low < 0 || high >= limit) {
    fail("{}: {} {} is outside 0 .. {}", path.string(), what, low < 0 ? low : high, limit - 1);
  }
}

/// What `encode` needs of a model, whichever it is.
struct EncodeModel {
  std::function<PretrainedImpl::Output(const torch::Tensor& tokens, const torch::Tensor& keep,
                                       const torch::Tensor& segments)>
      forward;
  std::optional<TokenizerOptions> tokenizer;
  int64_t vocab_size = 0;
  int64_t segments = 0;
  int64_t max_length = 0;  ///< of a text
};

EncodeModel open_encoder(const EncodeRequest& request, torch::Device device) {
  ModelSource source = load_model_source(request.model);
  for (const std::string& note : source.notes) log::info("{}", note);
  Pretrained model = source.model;
  model->to(device);
  const EncoderOptions& options = model->options().encoder;
  EncodeModel result{{}, source.tokenizer, options.vocab_size, options.segments, request.max_length};
  for (const PositionOptions& positions : options.positions) {
    if (const auto* learned = std::get_if<LearnedOptions>(&positions))
      result.max_length = std::min(result.max_length, learned->max_length);
  }
  result.forward = [model, states_only = request.states_only](
                       const torch::Tensor& tokens, const torch::Tensor& keep,
                       const torch::Tensor& segments) mutable -> PretrainedImpl::Output {
    if (states_only) return {model->encoder(tokens, keep, segments), {}, {}};
    return model->forward(tokens, keep, segments);
  };
  return result;
}

/// Token ids alone: no tokenizer of a language model puts special tokens around a text.
EncodeModel open_causal(const EncodeRequest& request, torch::Device device) {
  if (request.input.extension() != ".safetensors") {
    fail(
        "{}: {} is a language model, whose texts are not encoded here; give token ids, a .safetensors file "
        "with input_ids",
        request.input.string(), request.model.string());
  }
  CausalLm model = load_causal_source(request.model).model;
  model->to(device);
  auto forward = [model, states_only = request.states_only](
                     const torch::Tensor& tokens, const torch::Tensor& keep,
                     const torch::Tensor&) mutable -> PretrainedImpl::Output {
    const torch::Tensor hidden = model->hidden(tokens, keep);
    return {hidden, {}, states_only ? torch::Tensor() : model->logits(hidden)};
  };
  return {forward, {}, model->options().vocab_size, 0, 0};
}

}  // namespace

int encode(const EncodeRequest& request, std::ostream& out) {
  std::error_code ignored;
  if (std::filesystem::equivalent(request.input, request.output, ignored)) {
    fail("{}: the output would replace its input", request.output.string());
  }
  const std::filesystem::path folder = std::filesystem::absolute(request.output).parent_path();
  if (std::filesystem::is_directory(request.output, ignored) ||
      !std::filesystem::is_directory(folder, ignored)) {
    fail("{}: is a folder, or in one that does not exist; name the .safetensors file to write",
         request.output.string());
  }
  const World world = World::open(request.device, request.threads);
  const EncodeModel model = holds_causal_model(request.model) ? open_causal(request, world.device)
                                                              : open_encoder(request, world.device);

  EncodeInput input;
  if (request.input.extension() == ".safetensors") {
    input = read_ids(request.input);
  } else {
    if (!model.tokenizer)
      fail("{}: has no tokenizer; give token ids in a .safetensors file", request.model.string());
    input = read_texts(request.input, *make_tokenizer(*model.tokenizer), model.max_length);
  }
  check_range(input.tokens, model.vocab_size, "token", request.input);
  if (input.segments.defined()) {
    if (model.segments == 0) {
      input.segments = torch::Tensor();
    } else {
      check_range(input.segments, model.segments, "token type", request.input);
    }
  }

  const torch::NoGradGuard no_grad;
  std::vector<torch::Tensor> states, pooled, logits;
  constexpr int64_t rows = 32;
  for (int64_t begin = 0; begin < input.tokens.size(0); begin += rows) {
    if (interrupted()) throw Interrupted();
    auto part = [&](const torch::Tensor& tensor) {
      return tensor.defined() ? tensor.slice(0, begin, begin + rows).to(world.device) : tensor;
    };
    const PretrainedImpl::Output output =
        model.forward(part(input.tokens), part(input.keep), part(input.segments));
    states.push_back(output.last_hidden_state.cpu());
    if (output.pooler_output.defined()) pooled.push_back(output.pooler_output.cpu());
    if (output.logits.defined()) logits.push_back(output.logits.cpu());
  }
  const torch::Tensor mask =
      input.keep.defined() ? input.keep.to(torch::kInt64) : torch::ones_like(input.tokens);
  std::vector<std::pair<std::string, torch::Tensor>> tensors{
      {"input_ids", input.tokens}, {"attention_mask", mask}, {"last_hidden_state", torch::cat(states)}};
  if (!pooled.empty()) tensors.emplace_back("pooler_output", torch::cat(pooled));
  if (!logits.empty()) tensors.emplace_back("logits", torch::cat(logits));
  save_safetensors(request.output, tensors);
  for (const auto& [name, tensor] : tensors)
    out << fmt::format("{} {}\n", name, fmt::streamed(tensor.sizes()));
  return 0;
}

}  // namespace roformer
