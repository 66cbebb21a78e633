#include <algorithm>
#include <array>
#include <set>

#include "roformer/ablation_tables.h"
#include "roformer/core/files.h"
#include "roformer/core/json_file.h"

namespace roformer {
namespace {

/// A word of a shell command.
std::string shell_word(const std::string& text) {
  if (!text.empty() &&
      text.find_first_not_of("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-/=:+@%,") ==
          std::string::npos)
    return text;
  std::string out = "'";
  for (const char c : text) out += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return out + "'";
}

std::string shell_line(const std::vector<std::string>& words) {
  std::string line;
  for (const std::string& word : words) line += (line.empty() ? "" : " ") + shell_word(word);
  return line + "\n";
}

HtmlSection summary_section(const Ablation& ablation, const std::vector<AblationRow>& rows) {
  std::set<int64_t> seeds;
  size_t finished = 0, failed = 0;
  for (const AblationRow& row : rows) finished += row.finished();
  for (const AblationRun& run : ablation.runs) {
    seeds.insert(run.seed);
    failed += run.failed;
  }
  HtmlSection section;
  section.title = "What was run";
  section.paragraphs = {fmt::format(
      "{} arm(s) with {} seed(s) each: {} of {} runs finished, {} failed, {} missing.", rows.size(),
      seeds.size(), finished, ablation.runs.size(), failed, ablation.runs.size() - finished - failed)};
  section.texts = {{"All of it again:", shell_line(ablation.command), false}};
  return section;
}

/// Adds a row for every option of `arm` that `base` has otherwise, or does not have.
void add_differences(const ConfigNode* base, const ConfigNode& arm, const std::string& path,
                     std::vector<std::vector<std::string>>& rows) {
  if (base && *base == arm) return;
  if (arm.kind != ConfigNode::Kind::map) {
    rows.push_back({path, base ? config_detail::one_line(*base) : "–", config_detail::one_line(arm)});
    return;
  }
  for (const auto& [key, value] : arm.entries) {
    const ConfigNode* other = base && base->kind == ConfigNode::Kind::map ? base->find(key) : nullptr;
    add_differences(other, value, path.empty() ? key : path + "." + key, rows);
  }
}

/// From the run's environment.json.
std::optional<std::string> environment_value(const AblationRun& run, std::string_view key) {
  const JsonFile file(run.folder / "environment.json", 1 << 20, JsonFile::Absent::empty);
  const nlohmann::json* found = file.find(key);
  if (!found) return std::nullopt;
  return found->is_string() ? found->get<std::string>() : found->dump();
}

HtmlSection row_section(const AblationRow& row, const Ablation& ablation) {
  const AblationRun& run = *row.runs.front();
  RunOptions base = ablation.base;
  base.trainer.seed = run.seed;
  base.data.cache = run.options.data.cache;
  HtmlSection section;
  section.title = row.label;
  section.table = Table{"", {"option", "base", row.label}, {}, {}};
  const ConfigNode base_options = write(base);
  add_differences(&base_options, write(run.options), "", section.table->rows);
  if (section.table->rows.empty()) {
    section.table.reset();
    section.paragraphs.push_back("The base: no option differs.");
  }
  for (const std::string& failure : failures_of(row)) section.paragraphs.push_back(failure + ".");
  std::string commands;
  for (const AblationRun* each : row.runs) {
    std::vector<std::string> words = {"roformer", "train", (each->folder / "config.yaml").string(), "--run",
                                      "NEW"};
    // Sums of floating-point numbers depend on it, and a run may have been given fewer than its file says.
    if (const auto threads = environment_value(*each, "threads"))
      words.insert(words.end(), {"--threads", *threads});
    commands += shell_line(words);
  }
  section.texts = {{"Each of its runs again:", commands, false},
                   {fmt::format("All options, seed {}", run.seed), dump(write(run.options)), true}};
  return section;
}

/// What environment.json of the runs says: one value, or all that there are.
HtmlSection environment_section(const Ablation& ablation) {
  constexpr std::array<std::string_view, 9> keys = {
      "roformer", "git_commit", "libtorch", "compiler", "device", "processor", "cores", "threads", "date"};
  HtmlSection section;
  section.title = "Where it was run";
  section.table = Table{"", {"what", "of the runs"}, {}, {}};
  for (const std::string_view key : keys) {
    std::vector<std::string> values;
    for (const AblationRun& run : ablation.runs) {
      const auto value = environment_value(run, key);
      if (value && std::find(values.begin(), values.end(), *value) == values.end()) values.push_back(*value);
    }
    if (values.empty()) continue;
    std::sort(values.begin(), values.end());
    std::string text = values.front();
    if (key == "date" && values.size() > 1) {
      text += " to " + values.back();
    } else {
      for (size_t i = 1; i < values.size(); ++i) text += " / " + values[i];
    }
    section.table->rows.push_back({std::string(key), text});
  }
  if (section.table->rows.empty()) section.table.reset();
  return section;
}

}  // namespace

void write_report(const Ablation& ablation, const std::vector<HtmlSection>& results) {
  const std::vector<AblationRow> rows = ablation_rows(ablation);
  std::vector<HtmlSection> sections = {summary_section(ablation, rows)};
  sections.insert(sections.end(), results.begin(), results.end());
  for (const AblationRow& row : rows) sections.push_back(row_section(row, ablation));
  sections.push_back(environment_section(ablation));
  write_file_atomically(ablation.folder / "report.html", to_html("Ablation " + ablation.name, sections));
}

}  // namespace roformer
