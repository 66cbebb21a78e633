#include <ostream>

#include "roformer/core/interrupt.h"
#include "roformer/core/log.h"
#include "roformer/data/example_stream.h"
#include "roformer/model_source.h"
#include "roformer/run_folder.h"

// Predictions of a fine-tuned run: files for the GLUE server, or a column in the user's own TSV.

namespace roformer {
namespace {

/// One row of logits for each example.
torch::Tensor predict_examples(Pretrained& model, const Tokenizer& tokenizer, const GlueFile& file,
                               const GlueOptions& task, int64_t batch, torch::Device device) {
  auto examples = std::make_shared<std::vector<LabelledExample>>();
  for (const TextExample& example : file.examples) {
    examples->push_back({encode_example(tokenizer, example, file.pair, task.length), 0.0});
  }
  ExampleStreamOptions options;
  options.batch = batch;
  options.pad = tokenizer.special(Special::pad);
  options.segments = model->options().encoder.segments > 1;
  const auto stream = make_example_validation(examples, options);
  torch::Tensor logits =
      torch::empty({static_cast<int64_t>(examples->size()), model->options().classifier.labels});
  const torch::NoGradGuard no_grad;
  while (const std::optional<Batch> host = stream->next()) {
    if (interrupted()) throw Interrupted();
    const Batch moved = host->to(device);
    const torch::Tensor rows = model->forward(moved.tokens, moved.keep, moved.segments).logits;
    logits.index_copy_(0, torch::tensor(host->examples), rows.to(torch::kCPU, torch::kFloat32));
  }
  return logits;
}

std::vector<int64_t> classes_of(const torch::Tensor& logits) {
  const torch::Tensor best = logits.argmax(-1).contiguous();
  return {best.data_ptr<int64_t>(), best.data_ptr<int64_t>() + best.numel()};
}

std::vector<double> scores_of(const torch::Tensor& logits) {
  const torch::Tensor scores = logits.squeeze(-1).to(torch::kFloat64).contiguous();
  return {scores.data_ptr<double>(), scores.data_ptr<double>() + scores.numel()};
}

}  // namespace

int predict(const PredictRequest& request, std::ostream& out) {
  const RunOptions run =
      load_run_folder(find_checkpoint(request.run).parent_path().parent_path(), request.sets);
  const auto* task = std::get_if<GlueOptions>(&run.task);
  if (!task)
    fail("{}: was not fine-tuned on a GLUE task, so there is nothing to predict", request.run.string());
  const GlueInfo& info = glue_info(task->name);
  if (!request.input.empty() && (request.diagnostic || !request.data.empty())) {
    fail(
        "--input labels your own file; --diagnostic and --data are for the task's test files: give one or "
        "the other");
  }
  if (request.input.empty() && (request.columns.text || request.columns.text_pair)) {
    fail("--text and --text-pair name columns of --input, which is missing");
  }
  const World world = World::open(run.trainer.device, run.trainer.threads);
  ModelSource source = load_model_source(request.run);
  source.model->to(world.device);
  const std::unique_ptr<Tokenizer> tokenizer = make_tokenizer(*source.tokenizer);
  auto logits_of = [&](const GlueFile& file) {
    for (const std::string& note : file.notes) log::info("{}", note);
    return predict_examples(source.model, *tokenizer, file, *task, run.trainer.batch, world.device);
  };

  if (!request.input.empty()) {
    const GlueFile file = read_tsv(request.input, request.columns);
    if (file.pair != info.pair) {
      fail("{}: has {}, but {} is about {}", request.input.string(),
           file.pair ? "pairs of texts" : "single texts", info.name,
           info.pair ? "pairs (columns text_a and text_b, or --text and --text-pair)"
                     : "single texts (--text)");
    }
    const torch::Tensor logits = logits_of(file);
    std::vector<std::string> texts;
    if (info.regression()) {
      for (const double score : scores_of(logits)) texts.push_back(fmt::format("{:.3f}", score));
    } else {
      for (const int64_t each : classes_of(logits)) texts.push_back(info.labels[static_cast<size_t>(each)]);
    }
    write_labelled_tsv(request.input, request.out, texts);
    out << request.out.string() << "\n";
    return 0;
  }

  const GlueTask asked = request.diagnostic ? GlueTask::ax : task->name;
  if (request.diagnostic && task->name != GlueTask::mnli)
    fail("the diagnostic set is answered by a run on mnli, not on {}", info.name);
  const std::filesystem::path data = request.data.empty() ? task->folder : request.data;
  const std::vector<GlueSource> tests = glue_files(asked, data, GluePart::test);
  std::error_code problem;
  std::filesystem::create_directories(request.out, problem);
  if (problem) fail("{}: cannot be created: {}", request.out.string(), problem.message());
  for (const GlueSource& test : tests) {
    const torch::Tensor logits = logits_of(read_glue(asked, test));
    const std::filesystem::path file = request.out / test.submission;
    info.regression() ? write_submission(asked, file, std::span<const double>(scores_of(logits)))
                      : write_submission(asked, file, std::span<const int64_t>(classes_of(logits)));
    check_submission(asked, file, test.file);
    out << file.string() << "\n";
  }
  return 0;
}

}  // namespace roformer
