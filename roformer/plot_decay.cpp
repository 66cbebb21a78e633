#include <algorithm>
#include <map>

#include "roformer/core/files.h"
#include "roformer/core/random.h"
#include "roformer/model_source.h"
#include "roformer/report/decay.h"
#include "roformer/report/tables.h"
#include "roformer/run_folder.h"

namespace roformer {
namespace {

constexpr int64_t random_pairs = 1024;  // of random vectors
constexpr int64_t trained_pairs = 64;   // of each layer, head and sequence
constexpr int64_t trained_sequences = 8;

/// Does what another encoding does, and keeps the queries and keys that it is asked to turn.
class RecordingImpl : public PositionEncodingImpl {
 public:
  explicit RecordingImpl(PositionEncoding inner) : inner_(std::move(inner)) {}

  torch::Tensor embed(const torch::Tensor& x, const Positions& positions) override {
    return inner_->embed(x, positions);
  }
  torch::Tensor bias(const Positions& positions) override { return inner_->bias(positions); }
  torch::Tensor rotate(const torch::Tensor& heads, Side side, const Positions& positions) override {
    if (side == Side::query) queries.push_back(heads);
    if (side == Side::key) keys.push_back(heads);
    return inner_->rotate(heads, side, positions);
  }
  torch::Tensor logits(const torch::Tensor& q, const torch::Tensor& k,
                       const AttentionContext& context) override {
    return inner_->logits(q, k, context);
  }
  torch::Tensor values(const torch::Tensor& probs, const AttentionContext& context) override {
    return inner_->values(probs, context);
  }
  double scale(int64_t head_dim) const override { return inner_->scale(head_dim); }
  Needs needs() const override { return inner_->needs(); }
  int64_t limit() const override { return inner_->limit(); }

  std::vector<torch::Tensor> queries, keys;  // [B, H or key heads, L, head_dim], one for each layer

 private:
  PositionEncoding inner_;  // of the task's model, which owns it
};

/// The first part of a model of class T; null where it has none.
template <class T>
std::shared_ptr<T> part_of(const torch::nn::Module& model) {
  for (const std::shared_ptr<torch::nn::Module>& module : model.modules(/*include_self=*/false)) {
    if (auto part = std::dynamic_pointer_cast<T>(module)) return part;
  }
  return nullptr;
}

struct TrainedProducts {
  std::vector<double> mean;  // of |q^T R_m k|, m = 0 .. max
  int64_t sequences = 0, pairs = 0;
};

/// Of queries and keys at random places of validation sequences, all layers and heads. The distance is put
/// between them afterwards, so that every m has the same pairs.
TrainedProducts trained_products(const std::filesystem::path& run_or_file, int64_t max) {
  const std::filesystem::path checkpoint = find_checkpoint(run_or_file);
  const RunOptions run = load_run_folder(checkpoint.parent_path().parent_path());
  const std::vector<PositionOptions>& positions = run.positions();
  if (std::none_of(positions.begin(), positions.end(),
                   [](const PositionOptions& o) { return std::holds_alternative<RotaryOptions>(o); }))
    fail("{}: has no rotary positions, so nothing turns its queries and keys", run_or_file.string());
  const auto* causal = std::get_if<CausalModelOptions>(&run.model);
  const AttentionKind& attention = causal ? causal->attention : run.encoder().attention;
  const auto* linear = std::get_if<LinearAttention>(&attention);
  if (linear && linear->rotary == RotaryOrder::after)
    fail("{}: its rotation turns features (eq. 19), not queries and keys", run_or_file.string());

  const World world = World::open("cpu", run.trainer.threads);
  const std::filesystem::path folder = checkpoint.parent_path().parent_path();
  const std::unique_ptr<Task> task =
      make_task(run, world, run.data.cache.empty() ? folder / "cache" : run.data.cache);
  load_all_weights(task->model(), checkpoint);
  const NamedTensors stored = named_state(task->model(), "model.");

  const torch::NoGradGuard no_grad;
  PositionEncoding encoding = part_of<PositionEncodingImpl>(task->model());
  const auto recording = std::make_shared<RecordingImpl>(encoding);
  const PositionEncoding recorder = std::static_pointer_cast<PositionEncodingImpl>(recording);
  const auto stream =
      task->stream(Split::valid, {trained_sequences, static_cast<uint64_t>(run.trainer.seed)}, {});
  const std::optional<Batch> batch = stream->next();
  if (!batch) fail("{}: no validation text: set data.valid or data.valid_fraction", folder.string());
  if (causal) {
    CausalLm model(dynamic_cast<CausalLmImpl&>(task->model()).options(), recorder);
    load_weights(*model, stored, "model.");
    model->eval();
    model->hidden(batch->tokens, batch->keep);
  } else {
    Encoder model(part_of<EncoderImpl>(task->model())->options(), recorder);
    load_weights(*model, stored, "model.encoder.");
    model->eval();
    model->forward(batch->tokens, batch->keep, batch->segments);
  }

  const Positions distances = Positions::range(max + 1, torch::kCPU);
  const Positions start = Positions::range(1, torch::kCPU);
  Random random(mix(1, 37));
  torch::Tensor sum = torch::zeros({max + 1}, torch::kFloat64);
  TrainedProducts result;
  result.sequences = batch->tokens.size(0);
  for (size_t layer = 0; layer < recording->queries.size(); ++layer) {
    const torch::Tensor q = recording->queries[layer];
    const torch::Tensor k =
        recording->keys[layer].repeat_interleave(q.size(1) / recording->keys[layer].size(1), 1);
    for (int64_t b = 0; b < q.size(0); ++b) {
      const torch::Tensor places =
          batch->keep.defined() ? batch->keep[b].nonzero().flatten() : torch::arange(q.size(2));
      std::vector<int64_t> drawn;
      for (int64_t i = 0; i < 2 * trained_pairs; ++i)
        drawn.push_back(static_cast<int64_t>(random.below(static_cast<uint64_t>(places.size(0)))));
      const torch::Tensor chosen = places.index_select(0, torch::tensor(drawn)).view({2, trained_pairs});
      // [H, pairs, head_dim] -> [pairs, H, max + 1, head_dim]: one query at all positions, and its key at the
      // first.
      const torch::Tensor one_q = q[b].index_select(1, chosen[0]).transpose(0, 1).unsqueeze(2);
      const torch::Tensor one_k = k[b].index_select(1, chosen[1]).transpose(0, 1).unsqueeze(2);
      const torch::Tensor turned =
          encoding->rotate(one_q.expand({-1, -1, max + 1, -1}), Side::query, distances);
      const torch::Tensor products =
          torch::matmul(turned, encoding->rotate(one_k, Side::key, start).transpose(2, 3)).squeeze(3);
      sum += products.to(torch::kFloat64).abs().sum(at::IntArrayRef{0, 1});
      result.pairs += products.size(0) * products.size(1);
    }
  }
  sum /= static_cast<double>(result.pairs);
  result.mean.assign(sum.const_data_ptr<double>(), sum.const_data_ptr<double>() + sum.numel());
  return result;
}

std::string shape_note(int64_t dim, const std::vector<double>& bound) {
  const CurveShape shape = shape_of(bound);
  return fmt::format("d = {}: {} of {} steps rise, minimum {:.3f} at m = {}", dim, shape.rising, shape.steps,
                     shape.minimum, shape.lowest);
}

}  // namespace

int plot_decay(const DecayRequest& request, std::ostream& out) {
  for (const std::filesystem::path& file : picture_files(request.stem)) {
    const auto place = [](const std::filesystem::path& path) {
      std::error_code problem;
      const auto found = std::filesystem::weakly_canonical(std::filesystem::absolute(path, problem), problem);
      return problem ? path : found;
    };
    if (!request.csv.empty() && place(request.csv) == place(file))
      fail("--csv {}: the picture is written there; choose another name", request.csv.string());
  }
  std::vector<int64_t> dims = {request.dim};
  if (request.dim == DecayRequest{}.dim) dims.push_back(64);

  std::vector<double> distances;
  for (int64_t m = 0; m <= request.max; ++m) distances.push_back(static_cast<double>(m));
  std::vector<std::string> columns = {"m"}, notes;
  std::vector<std::vector<double>> raw;
  Figure figure;
  auto add = [&](const std::string& column, const std::string& label, std::vector<double> curve) {
    columns.push_back(column);
    figure.curves.push_back({label, distances, relative_to_start(curve), {}, {}});
    raw.push_back(std::move(curve));
  };
  for (const int64_t dim : dims) {
    add(fmt::format("bound, d = {}", dim), fmt::format("bound, d = {}", dim), decay_bound(dim, request.max));
    notes.push_back(shape_note(dim, raw.back()));
  }
  if (!request.run.empty()) {
    TrainedProducts trained = trained_products(request.run, request.max);
    notes.push_back(
        fmt::format("trained: mean over {} pairs of a query and a key of {} validation sequences, all "
                    "layers and heads",
                    trained.pairs, trained.sequences));
    add("trained", "mean |q R_m k|, trained", std::move(trained.mean));
  }
  for (const bool same : {false, true}) {
    const std::string name = same ? "random, k = q" : "random";
    add(name, "mean |q R_m k|, " + name, mean_product(request.dim, request.max, random_pairs, same, 1));
  }
  notes.push_back(fmt::format("random: mean over {} pairs of standard normal vectors, d = {}", random_pairs,
                              request.dim));

  // Short, as gnuplot cuts long lines.
  const CurveShape shape = shape_of(raw.front());
  figure.title = "Eq. 37 " + shape_text(shape);
  figure.x_label = fmt::format("distance m (bound, d = {}: minimum {:.3f} at {})", request.dim, shape.minimum,
                               shape.lowest);
  figure.y_label = "divided by its value at m = 0";
  figure.y_min = 0.0;

  if (!request.csv.empty()) {
    Table csv{"", {"m", "bound"}, {}, {}};
    for (size_t m = 0; m < distances.size(); ++m)
      csv.rows.push_back({std::to_string(m), unrounded(raw.front()[m])});
    write_file_atomically(request.csv, to_csv(csv));
  }
  plot(figure, request.stem);

  Table table{"Values by distance", columns, {}, notes};
  for (size_t m = 0; m < distances.size(); m = m == 0 ? 1 : 2 * m) {
    std::vector<std::string> row = {std::to_string(m)};
    for (const std::vector<double>& curve : raw) row.push_back(fmt::format("{:.4f}", curve[m]));
    table.rows.push_back(row);
  }
  out << to_markdown(table)
      << fmt::format(
             "\nThe bound (d = {}) {}. In the picture every curve is divided by its value at m = 0.\n",
             request.dim, shape_text(shape))
      << request.stem.string() << ".png\n"
      << request.stem.string() << ".svg\n";
  if (!request.csv.empty()) out << request.csv.string() << "\n";
  return 0;
}

}  // namespace roformer
