#include "roformer/ablation_lengths.h"

#include <algorithm>
#include <array>
#include <optional>
#include <ostream>
#include <set>

#include <fmt/ranges.h>

#include "roformer/core/files.h"
#include "roformer/core/interrupt.h"
#include "roformer/core/log.h"
#include "roformer/report/plots.h"
#include "roformer/run_folder.h"

namespace roformer {
namespace {

constexpr std::array<std::string_view, 5> scaling_names = {"none", "linear", "ntk", "dynamic", "yarn"};

/// The rotary encoding of a run that scaling can be put on after training; null if there is none.
RotaryOptions* plain_rotary(RunOptions& run) {
  auto& all = std::visit(
      [](auto& model) -> auto& { return model.positions; }, run.model);
  for (PositionOptions& positions : all) {
    auto* rotary = std::get_if<RotaryOptions>(&positions);
    if (rotary && !rotary->trainable && rotary->xpos == 0.0 &&
        std::holds_alternative<NoScaling>(rotary->scaling))
      return rotary;
  }
  return nullptr;
}

RotaryScaling scaling_to(std::string_view name, int64_t trained, int64_t length) {
  const double factor = static_cast<double>(length) / static_cast<double>(trained);
  if (name == "linear") return LinearScaling{factor};
  if (name == "ntk") return NtkScaling{factor};
  if (name == "dynamic") return DynamicNtkScaling{1.0, trained};
  YarnScaling yarn;
  yarn.factor = factor;
  yarn.original_length = trained;
  return yarn;
}

/// Sequences of one evaluation, and what the task calls their length.
void set_length(RunOptions& run, int64_t length, int64_t longest) {
  const int64_t trained = training_length(run), share = longest / length;
  if (auto* bytes = std::get_if<ByteLmOptions>(&run.task)) {
    bytes->length = length;
    bytes->eval_windows *= share;
  } else {
    run.data.length = length;
    run.data.eval_sequences *= share;
  }
  run.trainer.batch = std::max<int64_t>(1, run.trainer.batch * trained / length);  // memory as in training
}

/// One evaluation to make: loss of `run` at `length` under `scaling`.
struct LengthCell {
  const AblationRun* run;
  std::string_view scaling;
  int64_t length;
  std::optional<double> loss = {};
};

/// lengths.json of a run folder: measured losses, valid for one checkpoint and one amount of text.
class LengthFile {
 public:
  LengthFile(std::filesystem::path path, int64_t step, int64_t longest) : path_(std::move(path)) {
    const nlohmann::ordered_json fresh = {
        {"step", step}, {"longest", longest}, {"losses", nlohmann::ordered_json::object()}};
    std::error_code ignored;
    if (std::filesystem::exists(path_, ignored)) {
      content_ =
          nlohmann::ordered_json::parse(read_file(path_, 1 << 20), nullptr, /*allow_exceptions=*/false);
    }
    const bool usable = content_.is_object() && content_.contains("losses") &&
                        content_["losses"].is_object() &&
                        content_.value("step", nlohmann::ordered_json()) == step &&
                        content_.value("longest", nlohmann::ordered_json()) == longest;
    if (!usable) content_ = fresh;
  }

  std::optional<double> find(const std::string& key) const {
    const auto& losses = content_["losses"];
    if (!losses.contains(key) || !losses[key].is_number()) return std::nullopt;
    return losses[key].get<double>();
  }
  void put(const std::string& key, double loss) {
    content_["losses"][key] = loss;
    write_file_atomically(path_, content_.dump(2) + "\n");
  }

 private:
  std::filesystem::path path_;
  nlohmann::ordered_json content_;
};

/// Fills in the losses, from the files where they are there.
void measure(std::vector<LengthCell>& cells, int64_t longest) {
  log::Progress progress({"other lengths"});
  log::ProgressState state;
  state.steps = static_cast<int64_t>(cells.size());
  for (LengthCell& cell : cells) {
    progress.update(0, state);
    ++state.step;
    const CheckpointFolder checkpoints(cell.run->folder);
    const std::vector<int64_t> steps = checkpoints.steps();
    if (steps.empty()) {
      log::error("{}, {} tokens: holds no checkpoint", cell.run->folder.filename().string(), cell.length);
      continue;
    }
    LengthFile file(cell.run->folder / "lengths.json", steps.front(), longest);
    const std::string key = fmt::format("{} {}", cell.length, cell.scaling);
    cell.loss = file.find(key);
    if (cell.loss) continue;
    if (interrupted()) throw Interrupted();
    RunOptions options = cell.run->options;
    const int64_t trained = training_length(options);
    set_length(options, cell.length, longest);
    if (cell.scaling != "none")
      plain_rotary(options)->scaling = scaling_to(cell.scaling, trained, cell.length);
    try {
      cell.loss = evaluate_checkpoint(options, checkpoints.path(steps.front())).metrics.at("loss");
      file.put(key, *cell.loss);
    } catch (const Error& error) {
      log::error("{}, {} tokens: {}", cell.run->folder.filename().string(), cell.length, error.what());
    }
  }
  state.state = "done";
  progress.update(0, state);
}

/// An arm under one scaling: a row of the table.
struct LengthRow {
  std::string arm;
  std::string_view scaling;
  bool scalable = false;                   ///< the arm has rows with other scalings
  std::optional<int64_t> limit;            ///< longest sequence that it can place
  std::vector<std::vector<size_t>> cells;  ///< [length][seed] -> cell

  bool able(int64_t length) const { return !limit || length <= *limit; }
};

/// All rows, and the evaluations that they need: all at once, so that progress knows how many there are.
std::vector<LengthRow> plan_lengths(const Ablation& ablation, const std::vector<int64_t>& lengths,
                                    std::vector<LengthCell>& cells) {
  std::vector<LengthRow> rows;
  for (const AblationRow& arm : ablation_rows(ablation)) {
    RunOptions options = arm.runs.front()->options;
    const int64_t trained = training_length(options);
    const bool scalable = plain_rotary(options) != nullptr;
    for (const std::string_view scaling : scaling_names) {
      if (scaling != "none" && !scalable) continue;
      LengthRow& row =
          rows.emplace_back(LengthRow{arm.label, scaling, scalable, longest_length(options), {}});
      for (const int64_t length : lengths) {
        std::vector<size_t>& seeds = row.cells.emplace_back();
        if (!row.able(length) || (scaling != "none" && length <= trained)) continue;  // the same as without
        for (size_t i = 0; i < arm.runs.size(); ++i) {
          if (!arm.results[i]) continue;  // did not finish
          seeds.push_back(cells.size());
          cells.push_back({arm.runs[i], scaling, length});
        }
      }
    }
  }
  return rows;
}

}  // namespace

LengthStudy study_lengths(const Ablation& ablation, const std::vector<int64_t>& lengths, std::ostream& out) {
  std::vector<LengthCell> cells;
  const std::vector<LengthRow> rows = plan_lengths(ablation, lengths, cells);
  measure(cells, *std::max_element(lengths.begin(), lengths.end()));

  LengthStudy study;
  study.table = {
      fmt::format("Validation loss of {} at other lengths", ablation.name), {"arm", "scaling"}, {}, {}};
  for (const int64_t length : lengths) study.table.columns.push_back(fmt::format("{} tokens", length));
  Figure as_trained{"", "length (tokens)", "validation loss (nats per target)", {}, {}, {}, true};
  Figure scaled = as_trained;
  nlohmann::ordered_json numbers = nlohmann::ordered_json::array();
  Table csv{"", {"arm", "scaling", "length", "seed", "loss"}, {}, {}};
  for (const LengthRow& row : rows) {
    std::vector<std::string> texts = {row.arm, std::string(row.scaling)};
    Curve curve{
        row.scaling == "none" ? row.arm : fmt::format("{} + {}", row.arm, row.scaling), {}, {}, {}, {}};
    for (size_t i = 0; i < lengths.size(); ++i) {
      std::vector<double> losses;
      for (const size_t index : row.cells[i]) {
        const LengthCell& cell = cells[index];
        if (!cell.loss) {
          ++study.failed;
          continue;
        }
        losses.push_back(*cell.loss);
        csv.rows.push_back({row.arm, std::string(row.scaling), std::to_string(cell.length),
                            std::to_string(cell.run->seed), unrounded(*cell.loss)});
        numbers.push_back({{"arm", row.arm},
                           {"scaling", row.scaling},
                           {"length", cell.length},
                           {"seed", cell.run->seed},
                           {"loss", *cell.loss}});
      }
      const bool failed = losses.empty() && !row.cells[i].empty();
      texts.push_back(!row.able(lengths[i]) ? "not able" : failed ? "failed" : mean_and_interval(losses, 3));
      if (losses.empty()) continue;
      curve.x.push_back(static_cast<double>(lengths[i]));
      curve.y.push_back(mean(losses));
    }
    study.table.rows.push_back(std::move(texts));
    if (curve.x.empty()) continue;
    if (row.scaling == "none") as_trained.curves.push_back(curve);
    if (row.scalable) scaled.curves.push_back(curve);
  }
  std::set<int64_t> trained;
  for (const AblationRun& run : ablation.runs) trained.insert(training_length(run.options));
  const int64_t longest = *std::max_element(lengths.begin(), lengths.end());
  const bool even = std::all_of(lengths.begin(), lengths.end(), [&](int64_t n) { return longest % n == 0; });
  study.table.notes.push_back(fmt::format(
      "Last checkpoints, trained at {} tokens; mean over seeds ± 95 % t interval; {} number of "
      "tokens at every length. Scaling: put on RoPE for the evaluation alone, by the factor length / "
      "length of training; – where it changes nothing.",
      fmt::join(trained, " or "), even ? "the same" : "nearly the same"));
  if (study.failed > 0) study.table.notes.push_back(fmt::format("{} evaluation(s) failed.", study.failed));
  const bool all_able = std::all_of(rows.begin(), rows.end(), [&](const LengthRow& row) {
    return std::all_of(lengths.begin(), lengths.end(), [&](int64_t length) { return row.able(length); });
  });
  if (!all_able) study.table.notes.push_back("not able: the table of positions ends before.");
  const std::filesystem::path stem = ablation.folder / "lengths";
  write_table(study.table, numbers, stem);
  write_file_atomically(stem.string() + ".csv", to_csv(csv));
  out << "\n" << to_markdown(study.table) << "\n";
  auto draw = [&](const Figure& figure, const char* name) {
    if (figure.curves.empty()) return;
    study.pictures.push_back(ablation.folder / name);
    plot(figure, study.pictures.back());
    out << "picture " << study.pictures.back().string() << ".png\n";
  };
  draw(as_trained, "lengths");
  draw(scaled, "lengths-scaling");
  return study;
}

}  // namespace roformer
