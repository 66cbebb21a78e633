#include <unistd.h>

#include <ostream>

#include "roformer/core/files.h"
#include "roformer/core/log.h"
#include "roformer/model_source.h"
#include "roformer/text/pretrained.h"

// A run or a folder becomes a Hugging Face folder.

namespace roformer {
namespace {

/// Lets `write` fill a folder aside, so that one that is there is whole.
template <class Write>
void write_whole(const std::filesystem::path& folder, const Write& write) {
  std::error_code problem;
  std::filesystem::path aside = folder;
  if (!aside.has_filename()) aside = aside.parent_path();
  aside += fmt::format(".partial-{}", getpid());
  std::filesystem::create_directories(aside, problem);
  if (problem) fail("{}: cannot be created: {}", folder.string(), problem.message());
  try {
    write(aside);
    std::filesystem::remove(folder, problem);  // if it is there, it is empty
    std::filesystem::rename(aside, folder, problem);
    if (problem) fail("{}: cannot be written: {}", folder.string(), problem.message());
  } catch (...) {
    std::filesystem::remove_all(aside, problem);
    throw;
  }
}

void convert_encoder(const std::filesystem::path& source, const std::filesystem::path& folder) {
  const ModelSource model = load_model_source(source);
  for (const std::string& note : model.notes) log::info("{}", note);
  const HfFamily family = hf_family_of(model.model->options().encoder);  // an Error before anything is made
  write_whole(folder, [&](const std::filesystem::path& aside) {
    const HfReport report = save_hf(aside, *model.model, model.save);
    for (const std::string& name : report.unused)
      log::info("not written, the format has no place for it: {}", name);
    // Of ours, these two have a class in transformers.
    const bool known = model.tokenizer && (std::holds_alternative<WordPieceOptions>(*model.tokenizer) ||
                                           std::holds_alternative<WordsOptions>(*model.tokenizer));
    if (known) {
      save_tokenizer(*model.tokenizer, aside, model.save.max_length.value_or(hf_max_length(family)));
    } else {
      log::warn("no tokenizer is written: {}",
                model.tokenizer ? "transformers has no class for this one" : "the folder has none");
    }
  });
}

/// A folder's only SentencePiece model, byte for byte, and what says how it is used. False if there is none.
bool copy_tokenizer(const std::filesystem::path& source, const std::filesystem::path& folder) {
  std::vector<std::filesystem::path> files = sentencepiece_files(source);
  if (files.size() != 1) return false;
  std::error_code problem;
  const std::filesystem::path config = source / "tokenizer_config.json";
  if (std::filesystem::exists(config, problem)) files.push_back(config);
  for (const std::filesystem::path& file : files) {
    write_file_atomically(folder / file.filename(), read_file(file, size_t{1} << 30));
  }
  return true;
}

void convert_causal(const std::filesystem::path& source, const std::filesystem::path& folder) {
  const CausalSource model = load_causal_source(source);
  check_llama(model.model->options());
  write_whole(folder, [&](const std::filesystem::path& aside) {
    save_hf_llama(aside, *model.model, model.save);
    if (model.tokenizer)
      log::warn("no tokenizer is written: tokens are bytes");
    else if (!copy_tokenizer(source, aside))
      log::warn("no tokenizer is written: the folder has not one .model file");
  });
}

}  // namespace

int convert(const std::filesystem::path& source, const std::filesystem::path& folder, std::ostream& out) {
  std::error_code problem;
  if (std::filesystem::exists(folder, problem) && !std::filesystem::is_empty(folder, problem)) {
    fail("{}: is there already and not empty; name a new folder", folder.string());
  }
  holds_causal_model(source) ? convert_causal(source, folder) : convert_encoder(source, folder);
  out << folder.string() << "\n";
  return 0;
}

}  // namespace roformer
