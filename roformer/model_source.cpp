#include "roformer/model_source.h"

#include "roformer/hf/config_json.h"
#include "roformer/run_folder.h"
#include "roformer/text/pretrained.h"

namespace roformer {
namespace {

RunOptions run_of_checkpoint(const std::filesystem::path& checkpoint,
                             const std::vector<std::string>& sets = {}) {
  return load_run_folder(checkpoint.parent_path().parent_path(), sets);
}

/// What --set can say of a Hugging Face folder.
struct FolderOptions {
  TrainerOptions trainer;
};
template <class V>
void fields(V& v, FolderOptions& o) {
  v("trainer", o.trainer, "device, threads and matrix products");
}

ModelSource from_run(const std::filesystem::path& source) {
  const std::filesystem::path checkpoint = find_checkpoint(source);
  const RunOptions run = run_of_checkpoint(checkpoint);
  const std::unique_ptr<Tokenizer> tokenizer = make_tokenizer(run.tokenizer);
  ModelSource result;
  result.tokenizer = run.tokenizer;
  PretrainedOptions options;
  options.encoder = run.encoder();
  if (options.encoder.vocab_size == 0) options.encoder.vocab_size = tokenizer->vocab_size();
  result.save.pad_token = tokenizer->special(Special::pad);
  for (const PositionOptions& positions : run.positions()) {
    if (const auto* learned = std::get_if<LearnedOptions>(&positions))
      result.save.max_length = learned->max_length;
  }
  if (const auto* glue = std::get_if<GlueOptions>(&run.task)) {
    const GlueInfo& info = glue_info(glue->name);
    options.head = HeadType::classifier;
    options.classifier = {glue->head, info.regression() ? 1 : static_cast<int64_t>(info.labels.size()), {}};
    result.save.label_names = info.labels;
    result.save.problem_type = info.regression() ? "regression" : "single_label_classification";
  } else {
    options.head = HeadType::mlm;
  }
  result.model = Pretrained(options);
  load_all_weights(*result.model, checkpoint);
  return result;
}

ModelSource from_folder(const std::filesystem::path& source) {
  ModelSource result;
  const HfFolder folder = open_hf(source);
  HfReport report;
  result.model = load_pretrained(folder, &report);
  for (const std::string& name : report.unused) result.notes.push_back("not taken over: " + name);
  for (const std::string& name : report.fresh) result.notes.push_back("newly initialised: " + name);
  result.save = {folder.dtype, folder.label_names, folder.problem_type, folder.max_length, folder.pad_token};
  std::error_code ignored;
  const bool has_tokenizer = std::filesystem::exists(source / "vocab.txt", ignored) ||
                             std::filesystem::exists(source / "tokenizer_config.json", ignored);
  if (has_tokenizer) result.tokenizer = tokenizer_of_folder(source);
  return result;
}

bool is_hf_folder(const std::filesystem::path& source) {
  std::error_code ignored;
  return std::filesystem::is_directory(source, ignored) &&
         std::filesystem::exists(source / "config.json", ignored) &&
         !std::filesystem::exists(source / "config.yaml", ignored);
}

}  // namespace

void load_all_weights(torch::nn::Module& model, const std::filesystem::path& checkpoint) {
  const LoadReport report = load_weights(model, load_checkpoint(checkpoint).tensors, "model.");
  for (const auto* problems : {&report.missing, &report.unexpected, &report.misshapen}) {
    if (!problems->empty())
      fail("{}: does not fit the options of its run: {}", checkpoint.string(), problems->front());
  }
}

ModelSource load_model_source(const std::filesystem::path& source) {
  ModelSource result = is_hf_folder(source) ? from_folder(source) : from_run(source);
  result.model->eval();
  return result;
}

bool holds_causal_model(const std::filesystem::path& source) {
  if (is_hf_folder(source)) return hf_model_type(source) == "llama";
  return std::holds_alternative<CausalModelOptions>(run_of_checkpoint(find_checkpoint(source)).model);
}

CausalSource load_causal_source(const std::filesystem::path& source, const std::vector<std::string>& sets) {
  CausalSource result;
  if (is_hf_folder(source)) {
    ConfigNode config = make_map();
    apply_sets(config, sets);
    FolderOptions options;
    read(config, options);
    const HfLlamaFolder folder = open_hf_llama(source);
    result = {load_llama(folder), folder.settings, {}, options.trainer, source.string()};
  } else {
    const std::filesystem::path checkpoint = find_checkpoint(source);
    const RunOptions run = run_of_checkpoint(checkpoint, sets);
    if (!std::holds_alternative<CausalModelOptions>(run.model))
      fail("{}: its run trained an encoder, which does not continue text; name a run of the task byte_lm",
           checkpoint.string());
    CausalLm model(run.causal());
    load_all_weights(*model, checkpoint);
    const HfLlamaSettings bytes = {.max_length = training_length(run), .bos_token = {}, .eos_tokens = {}};
    result = {model, bytes, run.tokenizer, run.trainer, checkpoint.string()};
  }
  result.model->eval();
  return result;
}

}  // namespace roformer
