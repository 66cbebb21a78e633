#include "roformer/hf/names.h"

#include <fmt/ranges.h>

#include <array>

#include "roformer/core/error.h"

namespace roformer {
namespace {

using NamePair = std::pair<std::string_view, std::string_view>;

/// Modules outside the blocks. Prefixes end in a dot where a parameter name follows.
constexpr std::array<NamePair, 7> outer_names{{
    {"encoder.token.", "embeddings.word_embeddings."},
    {"encoder.segment.", "embeddings.token_type_embeddings."},
    {"encoder.norm.", "embeddings.LayerNorm."},
    {"encoder.positions.table", "embeddings.position_embeddings.weight"},
    {"head.dense.", "cls.predictions.transform.dense."},
    {"head.norm.", "cls.predictions.transform.LayerNorm."},
    {"head.bias", "cls.predictions.bias"},
}};

/// Modules of one block, after "encoder.layers.N." and "encoder.layer.N.".
constexpr std::array<NamePair, 8> layer_names{{
    {"attention.query.", "attention.self.query."},
    {"attention.key.", "attention.self.key."},
    {"attention.value.", "attention.self.value."},
    {"attention.output.", "attention.output.dense."},
    {"attention_norm.", "attention.output.LayerNorm."},
    {"ffn.up.", "intermediate.dense."},
    {"ffn.down.", "output.dense."},
    {"ffn_norm.", "output.LayerNorm."},
}};

template <class Table>
std::string replace_prefix(std::string_view name, const Table& table) {
  for (const auto& [ours, theirs] : table) {
    if (name.substr(0, ours.size()) == ours) return std::string(theirs).append(name.substr(ours.size()));
  }
  return {};
}

constexpr std::string_view prefix_of(HfFamily family) {
  return family == HfFamily::bert ? "bert." : "roformer.";
}

}  // namespace

std::string hf_name(std::string_view ours, HfFamily family) {
  constexpr std::string_view layers = "encoder.layers.";
  std::string name;
  if (ours.substr(0, layers.size()) == layers) {
    const std::string_view rest = ours.substr(layers.size());
    const size_t dot = std::min(rest.find('.'), rest.size() - 1);
    const std::string inner = replace_prefix(rest.substr(dot + 1), layer_names);
    if (!inner.empty()) name = fmt::format("encoder.layer.{}.{}", rest.substr(0, dot), inner);
  } else {
    name = replace_prefix(ours, outer_names);
  }
  const bool in_encoder = name.rfind("cls.", 0) != 0;
  return name.empty() || !in_encoder ? name : std::string(prefix_of(family)).append(name);
}

HfFamily hf_family(const SafetensorsFile& file) {
  for (HfFamily family : {HfFamily::bert, HfFamily::roformer}) {
    if (file.contains(hf_name("encoder.token.weight", family))) return family;
  }
  fail("neither 'bert.' nor 'roformer.' weights of a masked language model in this file");
}

void load_hf_mlm(MaskedLmImpl& model, const SafetensorsFile& file) {
  const HfFamily family = hf_family(file);
  std::map<std::string_view, const SafetensorsEntry*> stored;
  for (const SafetensorsEntry& entry : file.entries()) stored[entry.name] = &entry;

  std::vector<std::string> problems;
  std::vector<std::pair<torch::Tensor, std::string>> found;
  for (const auto& parameter : model.named_parameters()) {
    const std::string name = hf_name(parameter.key(), family);
    const auto entry = stored.find(name);
    if (name.empty() || entry == stored.end()) {
      problems.push_back(fmt::format("'{}' is missing", name.empty() ? parameter.key() : name));
    } else if (parameter.value().sizes() != torch::IntArrayRef(entry->second->shape)) {
      problems.push_back(fmt::format("'{}' is [{}], not [{}]", name, fmt::join(entry->second->shape, ", "),
                                     fmt::join(parameter.value().sizes(), ", ")));
    } else {
      found.emplace_back(parameter.value(), name);
    }
  }
  if (!problems.empty()) fail("the weights do not fit the model: {}", fmt::join(problems, "; "));
  torch::NoGradGuard no_grad;
  for (auto& [parameter, name] : found) parameter.copy_(file.tensor(name));
}

}  // namespace roformer
