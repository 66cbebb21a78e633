#include "roformer/hf/names.h"

#include <array>

#include "roformer/core/error.h"

namespace roformer {
namespace {

using NamePair = std::pair<std::string_view, std::string_view>;

/// Modules of the encoder outside the blocks, and the pooler. Prefixes end in a dot where a parameter name
/// follows.
constexpr std::array<NamePair, 6> outer_names{{
    {"encoder.token.", "embeddings.word_embeddings."},
    {"encoder.segment.", "embeddings.token_type_embeddings."},
    {"encoder.norm.", "embeddings.LayerNorm."},
    {"encoder.project.", "embeddings_project."},
    {"encoder.positions.table", "embeddings.position_embeddings.weight"},
    {"pooler.", "pooler.dense."},
}};

constexpr std::array<NamePair, 4> mlm_names{{
    {"head.dense.", "cls.predictions.transform.dense."},
    {"head.norm.", "cls.predictions.transform.LayerNorm."},
    {"head.bias", "cls.predictions.bias"},
    {"head.decoder", "cls.predictions.decoder.weight"},
}};

constexpr std::array<NamePair, 1> bert_classifier_names{{{"head.output.", "classifier."}}};
constexpr std::array<NamePair, 2> roformer_classifier_names{{
    {"head.dense.", "classifier.dense."},
    {"head.output.", "classifier.out_proj."},
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

}  // namespace

std::string hf_prefix(HfFamily family) { return std::string(enum_name(family)) + "."; }

std::string hf_name(std::string_view ours, HfFamily family, HeadType head) {
  if (ours.starts_with("head.")) {
    if (head == HeadType::mlm) return replace_prefix(ours, mlm_names);
    if (family == HfFamily::roformer) return replace_prefix(ours, roformer_classifier_names);
    // BERT's classifier begins with the pooler of its encoder.
    constexpr std::string_view dense = "head.dense.";
    if (ours.starts_with(dense))
      return hf_name(std::string("pooler.").append(ours.substr(dense.size())), family);
    return replace_prefix(ours, bert_classifier_names);
  }
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
  return name.empty() ? name : hf_prefix(family) + name;
}

HfFamily hf_family(const SafetensorsFile& file) {
  for (const auto& [family, name] : enum_names(HfFamily{})) {
    if (file.contains(hf_name("encoder.token.weight", family))) return family;
  }
  fail("no weights of a masked language model in this file: neither 'bert.', 'roformer.' nor 'nezha.'");
}

}  // namespace roformer
