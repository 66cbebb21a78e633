#include "roformer/train/trainer.h"

#include <cmath>
#include <limits>

#include "roformer/core/interrupt.h"
#include "roformer/core/log.h"
#include "roformer/core/random.h"
#include "roformer/nn/feature_map.h"

namespace roformer {
namespace {

at::Generator generator_of(torch::Device device) { return at::globalContext().defaultGenerator(device); }

torch::Tensor generator_state(torch::Device device) {
  at::Generator generator = generator_of(device);
  const std::lock_guard lock(generator.mutex());
  return generator.get_state();
}

void set_generator_state(torch::Device device, const torch::Tensor& state) {
  at::Generator generator = generator_of(device);
  const std::lock_guard lock(generator.mutex());
  generator.set_state(state);
}

}  // namespace

void validate(const TrainerOptions& options) {
  validate_device(options.device);
  if (options.epochs && !options.stages.empty()) fail("epochs and stages exclude each other");
}

TrainerOptions resolve(const TrainerOptions& options, const Task& task, const World& world) {
  TrainerOptions resolved = options;
  const int64_t epoch = task.batches_per_epoch({options.batch, 0}, world.shard);
  if (options.epochs) {
    if (epoch == 0) fail("trainer.epochs: this task does not count in epochs; set trainer.steps");
    const double batches = *options.epochs * static_cast<double>(epoch);
    resolved.steps = std::max<int64_t>(1, std::llround(batches / static_cast<double>(options.accumulate)));
  }
  if (!options.stages.empty()) {
    resolved.steps = 0;
    for (const StageOptions& stage : options.stages) resolved.steps += stage.steps;
  }
  if (options.evaluate_every == 0) {
    resolved.evaluate_every = epoch > 0 ? std::max<int64_t>(1, epoch / options.accumulate) : resolved.steps;
  }
  return resolved;
}

Evaluation evaluate_task(Task& task, const Stage& stage, Precision precision, const World& world) {
  const torch::NoGradGuard no_grad;
  task.model().eval();
  Evaluation evaluation;
  const auto stream = task.stream(Split::valid, stage, world.shard);
  while (const std::optional<Batch> batch = stream->next()) {
    const AutocastGuard autocast(precision, world.device);
    task.score(batch->to(world.device), evaluation);
  }
  return evaluation;
}

Trainer::Trainer(Task& task, const TrainerOptions& options, const World& world, std::filesystem::path run_folder)
    : task_(task),
      options_(options),
      world_(world),
      folder_(std::move(run_folder)),
      checkpoints_(folder_),
      optimizer_(options.optimizer, task.model()),
      scaler_(options.precision) {
  if (options_.stages.empty()) options_.stages = {{0, options_.batch, options_.steps}};
  open_stream();
  if (options_.ema > 0.0) {
    for (const auto& item : task_.model().named_parameters()) {
      ema_.emplace_back(item.key(), item.value().detach().clone());
    }
  }
}

/// Of the stage that update `step_` + 1 belongs to; after the last update the last one.
void Trainer::open_stream() {
  stage_index_ = 0;
  stage_end_ = options_.stages[0].steps;
  while (step_ >= stage_end_ && stage_index_ + 1 < options_.stages.size()) {
    ++stage_index_;
    stage_end_ += options_.stages[stage_index_].steps;
  }
  stream_ = prefetch(task_.stream(Split::train, stage(), world_.shard));
}

/// Each stage reads the data in an order of its own.
Stage Trainer::stage() const {
  const auto seed = static_cast<uint64_t>(options_.seed);
  const StageOptions& stage = options_.stages[stage_index_];
  return {stage.batch, stage_index_ == 0 ? seed : mix(seed, stage_index_), stage.length};
}

Trainer::Result Trainer::fit(const Progress& progress) {
  RunLog log(folder_, step_, seconds_);
  saved_step_ = step_;
  while (!finished() && !interrupted()) {
    const double start = log.seconds();
    const Update update = make_update();
    ++step_;
    tokens_ += update.tokens;
    if (progress) {
      progress(step_, update.loss_sum / static_cast<double>(std::max<int64_t>(update.count, 1)),
               static_cast<double>(update.tokens) / (log.seconds() - start));
    }
    log_update(log, update);
    const bool stage_ends = step_ == stage_end_;
    if (stage_ends || step_ % options_.evaluate_every == 0) evaluate_and_keep_best(log);
    if (stage_ends && step_ < options_.steps) open_stream();
    if (step_ % options_.checkpoint_every == 0) save(log);
  }
  if (step_ > saved_step_) save(log);
  if (finished() && last_evaluation_.count == 0) evaluate();  // it was made before a restart
  return {last_metrics_, std::move(last_evaluation_), step_, finished(), tokens_, log.seconds()};
}

/// One update, in the order that matters: sums are divided by the count of the whole update before each backward pass;
/// gradients are unscaled before they are clipped (both inside the fused update).
Trainer::Update Trainer::make_update() {
  Update update;
  task_.model().train();
  redraw_features(task_.model(), step_);
  optimizer_.zero_grad();

  // 1. Fetch: the host knows all counts before the first forward pass.
  std::vector<Batch> batches;
  for (int64_t i = 0; i < options_.accumulate; ++i) {
    batches.push_back(stream_->next().value());
    update.count += batches.back().target_count();
    update.tokens += batches.back().token_count;
  }

  // 2. Accumulate.
  const double factor = scaler_.scale() / static_cast<double>(std::max<int64_t>(update.count, 1));
  torch::Tensor loss_sum;
  for (const Batch& batch : batches) {
    Loss loss;
    {
      const AutocastGuard autocast(options_.precision, world_.device);
      loss = task_.loss(batch.to(world_.device));
    }
    (loss.sum * factor).backward();
    const torch::Tensor sum = loss.sum.detach();
    loss_sum = loss_sum.defined() ? loss_sum + sum : sum;
  }

  // 3. Look at the numbers: one wait for the device.
  const torch::Tensor seen = torch::stack({loss_sum.to(torch::kFloat32), optimizer_.grad_norm()}).cpu();
  update.loss_sum = seen[0].item<float>();
  update.grad_norm = static_cast<double>(seen[1].item<float>()) / scaler_.scale();
  const bool finite = std::isfinite(update.loss_sum) && std::isfinite(update.grad_norm);
  if (!finite && !(scaler_.enabled() && std::isfinite(update.loss_sum) && scaler_.scale() > 1.0)) {
    const std::vector<int64_t> kept = checkpoints_.steps();
    fail("update {}: {} is not finite; nothing was saved of it{}. Lower trainer.optimizer.lr, add warm-up, or set "
         "trainer.clip",
         step_ + 1, std::isfinite(update.loss_sum) ? "the gradient" : "the loss",
         kept.empty() ? "" : fmt::format(" (last checkpoint: {})", checkpoints_.path(kept.front()).string()));
  }

  // 4. Unscale, clip, step.
  update.lr = optimizer_.lr() * schedule_factor(options_.schedule, step_ + 1, options_.steps);
  double divisor = scaler_.scale();
  if (options_.clip > 0.0) divisor *= std::max(1.0, update.grad_norm / options_.clip);
  if (!scaler_.update(finite)) return update;
  optimizer_.step(update.lr, divisor);

  // 5. Moving average.
  if (!ema_.empty()) {
    const torch::NoGradGuard no_grad;
    const auto parameters = task_.model().parameters();
    for (size_t i = 0; i < ema_.size(); ++i) ema_[i].second.lerp_(parameters[i], 1.0 - options_.ema);
  }
  return update;
}

void Trainer::log_update(RunLog& log, const Update& update) {
  since_log_.loss_sum += update.loss_sum;
  since_log_.count += update.count;
  if (step_ % options_.log_every != 0 && step_ != options_.steps) return;
  const double loss = since_log_.loss_sum / static_cast<double>(std::max<int64_t>(since_log_.count, 1));
  log.record(step_, "train", {{"loss", loss}, {"lr", update.lr}, {"grad_norm", update.grad_norm}}, tokens_);
  since_log_ = {};
}

Metrics Trainer::evaluate_weights() {
  last_evaluation_ = evaluate_task(task_, stage(), options_.precision, world_);
  return last_evaluation_.count > 0 ? task_.metrics(last_evaluation_) : Metrics{};
}

/// With the moving average of the weights, where there is one.
Metrics Trainer::evaluate() {
  if (ema_.empty()) return evaluate_weights();
  NamedTensors trained;
  for (const auto& [name, tensor] : named_state(task_.model(), "")) trained.emplace_back(name, tensor.clone());
  load_weights(task_.model(), ema_, "");
  const Metrics metrics = evaluate_weights();
  load_weights(task_.model(), trained, "");
  return metrics;
}

void Trainer::evaluate_and_keep_best(RunLog& log) {
  const Metrics metrics = evaluate();
  if (metrics.empty()) return;
  log.record(step_, "valid", metrics, tokens_);
  last_metrics_ = metrics;
  const Headline headline_of = task_.headline();
  const auto found = metrics.find(headline_of.metric);
  if (found == metrics.end()) {
    log::warn("update {}: '{}' is undefined (all predictions or all labels are the same?)", step_, headline_of.metric);
  }
  const double headline = found != metrics.end()        ? found->second
                          : headline_of.higher_is_better ? std::numeric_limits<double>::lowest()
                                                         : std::numeric_limits<double>::max();
  if (!best_ || (headline_of.higher_is_better ? headline > *best_ : headline < *best_)) {
    best_ = headline;
    evaluations_since_best_ = 0;
    save_checkpoint(checkpoints_.best(), {averaged_state(), {{"step", step_}, {"metrics", metrics}}});
  } else {
    ++evaluations_since_best_;
  }
}

bool Trainer::finished() const {
  return step_ >= options_.steps || (options_.patience > 0 && evaluations_since_best_ >= options_.patience);
}

/// The weights that evaluation used.
NamedTensors Trainer::averaged_state() const {
  NamedTensors state = named_state(task_.model(), "model.");
  for (const auto& [name, average] : ema_) {
    for (auto& [key, tensor] : state) {
      if (key == "model." + name) tensor = average;
    }
  }
  return state;
}

void Trainer::save(const RunLog& log) {
  Checkpoint checkpoint;
  checkpoint.tensors = named_state(task_.model(), "model.");
  for (const auto& [name, tensor] : optimizer_.state()) checkpoint.tensors.emplace_back("optimizer." + name, tensor);
  for (const auto& [name, tensor] : ema_) checkpoint.tensors.emplace_back("ema." + name, tensor);
  checkpoint.tensors.emplace_back("random.cpu", generator_state(torch::kCPU));
  if (!world_.device.is_cpu()) checkpoint.tensors.emplace_back("random.device", generator_state(world_.device));
  checkpoint.state = {{"step", step_},
                      {"samples", stream_->state().samples},
                      {"tokens", tokens_},
                      {"seconds", log.seconds()},
                      {"metrics", last_metrics_},
                      {"best", best_ ? nlohmann::json(*best_) : nlohmann::json()},
                      {"evaluations_since_best", evaluations_since_best_},
                      {"since_log", {since_log_.loss_sum, since_log_.count}},
                      {"scaler", {scaler_.scale(), scaler_.good()}}};
  save_checkpoint(checkpoints_.path(step_), checkpoint);
  checkpoints_.prune(options_.keep);
  saved_step_ = step_;
}

bool Trainer::resume() {
  const std::vector<int64_t> steps = checkpoints_.steps();
  std::string last_problem;
  for (const int64_t step : steps) {
    try {
      restore(load_checkpoint(checkpoints_.path(step)));
      return true;
    } catch (const Error& error) {
      last_problem = error.what();
      log::warn("{}; trying the checkpoint before it", last_problem);
    }
  }
  if (!steps.empty()) fail("none of the {} checkpoints in {} can be used: {}", steps.size(), folder_.string(), last_problem);
  return false;
}

void Trainer::restore(const Checkpoint& checkpoint) {
  std::map<std::string, torch::Tensor> tensors(checkpoint.tensors.begin(), checkpoint.tensors.end());
  auto find = [&](const std::string& name) {
    const auto found = tensors.find(name);
    if (found == tensors.end()) fail("the checkpoint lacks '{}'", name);
    return found->second;
  };
  const LoadReport report = load_weights(task_.model(), checkpoint.tensors, "model.");
  for (const auto* problems : {&report.missing, &report.unexpected, &report.misshapen}) {
    if (!problems->empty()) {
      fail("the checkpoint does not fit the model: {} tensor(s), first '{}'", problems->size(), problems->front());
    }
  }
  optimizer_.load_state([&](const std::string& name) { return find("optimizer." + name); });
  for (auto& [name, average] : ema_) average.copy_(find("ema." + name));
  const nlohmann::json& state = checkpoint.state;
  try {
    step_ = state.at("step");
    tokens_ = state.at("tokens");
    seconds_ = state.at("seconds");
    last_metrics_ = state.at("metrics").get<Metrics>();
    best_ = state.at("best").is_null() ? std::nullopt : std::optional<double>(state.at("best"));
    evaluations_since_best_ = state.at("evaluations_since_best");
    since_log_.loss_sum = state.at("since_log").at(0);
    since_log_.count = state.at("since_log").at(1);
    scaler_.restore(state.at("scaler").at(0), state.at("scaler").at(1));
    open_stream();  // a checkpoint at the end of a stage tells of the next one's stream already
    stream_->restore({state.at("samples")});
  } catch (const nlohmann::json::exception& error) {
    fail("the checkpoint's state is damaged: {}", error.what());
  }
  set_generator_state(torch::kCPU, find("random.cpu"));
  if (!world_.device.is_cpu() && tensors.contains("random.device")) {
    set_generator_state(world_.device, find("random.device"));
  }
}

}  // namespace roformer
