#include <algorithm>
#include <fstream>
#include <iostream>
#include <thread>

#include <fmt/ranges.h>

#include "roformer/core/files.h"
#include "roformer/core/interrupt.h"
#include "roformer/run.h"
#include "roformer/run_folder.h"
#include "roformer/text/pretrained.h"
#include "roformer/text_record.h"

// Text in, token ids out.

namespace roformer {
namespace {

constexpr size_t longest_line = size_t{64} << 20;

/// The `tokenizer:` block alone, so that a file may hold nothing else.
struct TokenizerBlock {
  TokenizerOptions tokenizer;
};
template <class V>
void fields(V& v, TokenizerBlock& o) {
  v("tokenizer", o.tokenizer, "how text becomes tokens");
}

/// One line of output.
std::string tokenize_line(const Tokenizer& tokenizer, const TokenizeRequest& request, const std::string& line,
                          int64_t number) {
  TextRecord record;
  if (request.jsonl) {
    const std::string source = request.input.empty() ? "standard input" : request.input.string();
    record = read_text_record(line, fmt::format("{}:{}", source, number), request.max_length);
  } else {
    record.first = line;
    record.max_length = request.max_length;
  }
  Encoding encoding;
  if (request.special) {
    const std::string_view view = record.second;
    encoding = encode_texts(tokenizer, record.first, record.pair ? &view : nullptr, record.max_length);
  } else {
    tokenizer.encode(record.first, encoding.ids);
    const size_t first_size = encoding.ids.size();
    if (record.pair) tokenizer.encode(record.second, encoding.ids);
    encoding.segments.assign(encoding.ids.size(), 1);
    std::fill_n(encoding.segments.begin(), first_size, 0);
  }
  std::vector<std::string> tokens;
  if (request.tokens || request.jsonl) {
    for (const int32_t id : encoding.ids) tokens.push_back(tokenizer.token(id));
  }
  if (!request.jsonl) {
    return request.tokens ? fmt::format("{}", fmt::join(tokens, " "))
                          : fmt::format("{}", fmt::join(encoding.ids, " "));
  }
  nlohmann::ordered_json& object = record.object;
  object["ids"] = encoding.ids;
  object["tokens"] = tokens;
  object["token_type_ids"] = encoding.segments;
  return object.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

}  // namespace

TokenizerOptions find_tokenizer(const std::filesystem::path& source) {
  std::error_code ignored;
  if (std::filesystem::is_directory(source, ignored)) {
    if (std::filesystem::exists(source / "config.yaml", ignored)) return load_run_folder(source).tokenizer;
    return tokenizer_of_folder(source);
  }
  const ConfigNode config = load_config(source);
  const ConfigNode* block = config.find("tokenizer");
  if (!block) {
    const RunOptions run = read_run(config);
    const auto* encoder = std::get_if<EncoderModelOptions>(&run.model);
    if (encoder && encoder->path.empty()) fail("{}: has no 'tokenizer' and no 'model.path'", source.string());
    return run.tokenizer;
  }
  TokenizerBlock options;
  read(make_map({{"tokenizer", *block}}), options);
  return options.tokenizer;
}

int tokenize(const TokenizeRequest& request, std::ostream& out) {
  if (request.max_length > 0 && request.max_length < 4)
    fail("--max-length must be 0 (no limit) or at least 4");
  const std::unique_ptr<Tokenizer> tokenizer = make_tokenizer(find_tokenizer(request.tokenizer));
  std::ifstream file;
  if (!request.input.empty()) {
    file.open(request.input, std::ios::binary);
    std::error_code ignored;
    if (!file || std::filesystem::is_directory(request.input, ignored))
      fail("cannot read {}", request.input.string());
  }
  std::istream& in = request.input.empty() ? std::cin : file;

  constexpr size_t chunk = 1024;  // lines of one thread at a time
  const auto threads = static_cast<size_t>(std::max<int64_t>(1, request.threads));
  std::vector<std::string> lines;
  int64_t number = 0;  // of the first of them
  bool more = true;
  while (more && !interrupted()) {
    number += static_cast<int64_t>(lines.size());
    lines.clear();
    std::string line;
    while (lines.size() < chunk * threads && (more = static_cast<bool>(std::getline(in, line)))) {
      if (line.size() > longest_line)
        fail("line {} is longer than 64 MiB", number + static_cast<int64_t>(lines.size()) + 1);
      if (line.ends_with('\r')) line.pop_back();
      lines.push_back(std::move(line));
    }
    std::vector<std::exception_ptr> problems(threads);
    auto work = [&](size_t thread) {
      try {
        for (size_t i = thread * chunk; i < std::min(lines.size(), (thread + 1) * chunk); ++i) {
          lines[i] = tokenize_line(*tokenizer, request, lines[i], number + static_cast<int64_t>(i) + 1);
        }
      } catch (...) {
        problems[thread] = std::current_exception();
      }
    };
    std::vector<std::thread> workers;
    for (size_t thread = 1; thread < threads && thread * chunk < lines.size(); ++thread)
      workers.emplace_back(work, thread);
    work(0);
    for (std::thread& worker : workers) worker.join();
    for (const std::exception_ptr& problem : problems) {
      if (problem) std::rethrow_exception(problem);
    }
    for (const std::string& each : lines) out << each << '\n';
    if (!out) return 0;  // nobody reads on; main says so
  }
  if (in.bad()) fail("cannot read {}", request.input.empty() ? "standard input" : request.input.string());
  return interrupted() ? interrupted_status : 0;
}

}  // namespace roformer
