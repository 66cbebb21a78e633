#include "roformer/models/causal_lm.h"

#include "tests/catch.h"
#include "tests/tensors.h"

// Stored values of performer-pytorch 1.1.4: its attention (full with softmax features, causal with ReLU
// features, with and without rotation and biases) and its language model (ReLU features with sinusoids and
// rotation; softmax features with a learned table). Known departures of the library, which are written out
// here and pinned: a mask clears values but leaves masked keys in the denominator; the
// stabiliser of causal softmax features is a maximum over later keys too, and does not cancel beside its eps;
// its causal denominator adds 1e-6 to the summed keys; its logits have a bias.

using namespace roformer;
using namespace roformer::test;

namespace {

using PerformerWeights = std::map<std::string, torch::Tensor>;

PerformerWeights performer_state(torch::nn::Module& module) {
  PerformerWeights state;
  for (const auto& each : module.named_parameters()) state[each.key()] = each.value();
  for (const auto& each : module.named_buffers()) state[each.key()] = each.value();
  return state;
}

/// Copies a stored tensor into one of a module, which must have it, and strikes it off.
void take(PerformerWeights& state, const std::string& name, const torch::Tensor& value) {
  INFO(name);
  REQUIRE(state.contains(name));
  REQUIRE(state[name].sizes() == value.sizes());
  const torch::NoGradGuard no_grad;
  state[name].copy_(value);
  state.erase(name);
}

/// The library's to_q, to_k, to_v and to_out; biases that it lacks become zero.
void take_attention(PerformerWeights& state, const std::string& ours, const SafetensorsFile& file,
                    const std::string& theirs) {
  for (const auto& [to, from] : {std::pair("query", "to_q"), std::pair("key", "to_k"),
                                 std::pair("value", "to_v"), std::pair("output", "to_out")}) {
    const std::string name = ours + to, stored = theirs + from;
    take(state, name + ".weight", file.tensor(stored + ".weight"));
    take(state, name + ".bias",
         file.contains(stored + ".bias") ? file.tensor(stored + ".bias")
                                         : torch::zeros_like(state[name + ".bias"]));
  }
}

FavorFeatures performer_features(int64_t features, bool relu) {
  return {.features = features,
          .kernel = relu ? FavorKernel::relu : FavorKernel::softmax,
          .epsilon = relu ? 1e-3 : 1e-4};
}

/// x W^T + b by heads: [B, H, L, d].
torch::Tensor projected(torch::nn::Module& attention, const std::string& name, const torch::Tensor& x,
                        int64_t heads) {
  const auto parameters = attention.named_parameters();
  const torch::Tensor out = torch::linear(x, parameters[name + ".weight"], parameters[name + ".bias"]);
  return out.view({x.size(0), x.size(1), heads, -1}).transpose(1, 2);
}

/// The inverse of the heads' split, through the output map.
torch::Tensor merged(torch::nn::Module& attention, const torch::Tensor& out) {
  const auto parameters = attention.named_parameters();
  return torch::linear(out.transpose(1, 2).flatten(2), parameters["output.weight"],
                       parameters["output.bias"]);
}

PositionEncoding performer_positions(std::vector<PositionOptions> positions, int64_t heads, int64_t head_dim,
                                     bool causal) {
  ModelShape shape;
  shape.dim = heads * head_dim;
  shape.heads = shape.kv_heads = heads;
  shape.head_dim = shape.rotary_width = head_dim;
  shape.layers = 1;
  shape.causal = causal;
  shape.linear = true;
  return make_positions(positions, shape);
}

}  // namespace

TEST_CASE("performer-pytorch's SelfAttention") {
  const auto oracles = require_oracles();
  if (!oracles) return;
  const torch::NoGradGuard no_grad;
  for (const std::string name : {"attention_0", "attention_1"}) {
    const OracleCase c(*oracles / "performer" / name);
    const int64_t heads = c.facts.at("heads"), head_dim = c.facts.at("head_dim");
    const bool causal = c.facts.at("causal"), relu = c.facts.at("generalized_relu");
    const torch::Tensor x = c.inputs.tensor("x"), projection = c.inputs.tensor("projection");
    AttentionOptions options;
    options.dim = x.size(2);
    options.heads = heads;
    options.kind = LinearAttention{.features = performer_features(projection.size(0), relu),
                                   .rotary = RotaryOrder::before};
    Attention attention(options);
    PerformerWeights state = performer_state(*attention);
    take_attention(state, "", c.inputs, "weight.");
    take(state, "features.projection", projection);
    CHECK(state.empty());

    const Positions positions = Positions::range(x.size(1), x.device());
    for (const bool rotary : {false, true}) {
      CAPTURE(name, rotary);
      PositionEncoding encoding =
          performer_positions({rotary ? PositionOptions(RotaryOptions{}) : PositionOptions(NoneOptions{})},
                              heads, head_dim, causal);
      const torch::Tensor expected = c.expected.tensor(rotary ? "output_rotary" : "output_plain");
      if (!c.facts.at("masked")) {
        CHECK(max_error(attention->forward(x, encoding, {positions, {}, causal}), expected) < c.tolerance());
        continue;
      }
      const torch::Tensor keep = c.inputs.tensor("keep").to(torch::kBool);
      REQUIRE_FALSE(keep.all().item<bool>());
      const torch::Tensor kept = keep.unsqueeze(1).unsqueeze(-1).to(torch::kFloat32);
      FeatureMap features = make(performer_features(projection.size(0), relu), head_dim, 0);
      features->named_buffers()["projection"].copy_(projection);
      const torch::Tensor q =
          encoding->rotate(projected(*attention, "query", x, heads), Side::query, positions);
      const torch::Tensor k = encoding->rotate(projected(*attention, "key", x, heads), Side::key, positions);
      const LinearTerms all{features->query(q),
                            features->key(k, {}, causal),
                            {},
                            {},
                            projected(*attention, "value", x, heads) * kept};
      REQUIRE_FALSE(causal);
      const torch::Tensor theirs = roformer::linear_attention(all);
      CHECK(max_error(merged(*attention, theirs), expected) < c.tolerance());
      // Ours leaves masked keys out of the denominator as well, and of the stabiliser: with their features, a
      // factor of each row.
      const LinearTerms own{all.q, all.k * kept, {}, {}, all.v};
      auto denominator = [](const LinearTerms& t) { return t.q.matmul(t.k.sum(2).unsqueeze(-1)); };
      const torch::Tensor factor = denominator(all) / denominator(own);
      CHECK(max_error(roformer::linear_attention(own), theirs * factor) < c.tolerance());
      CHECK(factor.max().item<double>() > 1.2);
      const torch::Tensor ours = attention->forward(x, encoding, {positions, keep, causal});
      const LinearTerms masked{all.q, features->key(k, keep, causal), {}, {}, all.v};
      CHECK(max_error(ours, merged(*attention, roformer::linear_attention(masked))) < c.tolerance());
      CHECK(max_error(ours, expected) > 0.01);
      // Where no key is masked there is nothing to depart in.
      CHECK(max_error(
                attention->forward(x, encoding, {positions, {}, causal}),
                merged(*attention, roformer::linear_attention(
                                       {all.q, all.k, {}, {}, projected(*attention, "value", x, heads)}))) <
            c.tolerance());
    }
  }
}

namespace {

/// performer-pytorch's language model as our options say it, with its weights; its bias of the logits in
/// *bias.
CausalLm performer_model(const OracleCase& c, double epsilon, torch::Tensor* bias) {
  const auto& facts = c.facts.at("options");
  const bool rotary = facts.value("rotary_position_emb", true),
             relu = facts.value("generalized_attention", false);
  CausalLmOptions o;
  o.dim = facts.at("dim");
  o.layers = facts.at("depth");
  o.heads = facts.at("heads");
  o.head_dim = facts.at("dim_head");
  o.ffn = 4 * o.dim;
  o.vocab_size = facts.at("num_tokens");
  FavorFeatures features = performer_features(facts.at("nb_features"), relu);
  features.epsilon = epsilon;
  o.attention = LinearAttention{.features = features, .rotary = RotaryOrder::before};
  const int64_t rows = facts.at("max_seq_len");
  if (rotary) {
    o.positions = {SinusoidalOptions{.layout = SinusoidLayout::halves}, RotaryOptions{}};
  } else {
    o.positions = {LearnedOptions{.max_length = rows}};
  }
  CausalLm model(o);
  model->eval();
  PerformerWeights state = performer_state(*model);
  const auto stored = [&](const std::string& name) { return c.inputs.tensor("state." + name); };
  take(state, "token.weight", stored("token_emb.weight"));
  if (!rotary) take(state, "positions.table", stored("pos_emb.emb.weight"));
  for (int64_t i = 0; i < o.layers; ++i) {
    const std::string ours = fmt::format("layers.{}.", i),
                      theirs = fmt::format("performer.net.layers.{}.", i);
    take_attention(state, ours + "attention.", c.inputs, "state." + theirs + "0.fn.");
    take(state, ours + "attention.features.projection",
         stored(theirs + "0.fn.fast_attention.projection_matrix"));
    for (const std::string part : {"weight", "bias"}) {
      take(state, ours + "attention_norm." + part, stored(theirs + "0.norm." + part));
      take(state, ours + "ffn_norm." + part, stored(theirs + "1.norm." + part));
      take(state, ours + "ffn.up." + part, stored(theirs + "1.fn.fn.w1." + part));
      take(state, ours + "ffn.down." + part, stored(theirs + "1.fn.fn.w2." + part));
    }
  }
  for (const std::string part : {"weight", "bias"}) take(state, "norm." + part, stored("norm." + part));
  take(state, "output.weight", stored("to_out.weight"));
  *bias = stored("to_out.bias");
  CHECK(state.empty());
  return model;
}

/// Logits of tokens around our modules, with the library's causal sums: features of keys with one stabiliser
/// for all positions, `added` to the summed keys of the denominator.
torch::Tensor performer_logits(CausalLm& model, const torch::Tensor& tokens, double added) {
  const auto modules = model->named_modules();
  const CausalLmOptions& o = model->options();
  const Positions positions = Positions::range(tokens.size(1), tokens.device());
  PositionEncoding encoding = make_positions(o.positions, o.shape());
  const auto parameters = model->named_parameters();
  if (const auto* table = parameters.find("positions.table"))
    encoding->named_parameters()["table"].copy_(*table);
  torch::Tensor x =
      encoding->embed(modules["token"]->as<torch::nn::EmbeddingImpl>()->forward(tokens), positions);
  for (int64_t i = 0; i < o.layers; ++i) {
    auto part = [&](const std::string& name) { return modules[fmt::format("layers.{}.{}", i, name)]; };
    const torch::Tensor h = part("attention_norm")->as<NormImpl>()->forward(x);
    torch::nn::Module& attention = *part("attention");
    auto* features = part("attention.features")->as<FeatureMapImpl>();
    const torch::Tensor q =
        encoding->rotate(projected(attention, "query", h, o.heads), Side::query, positions);
    const torch::Tensor k = encoding->rotate(projected(attention, "key", h, o.heads), Side::key, positions);
    const LinearTerms t{features->query(q),
                        features->key(k, {}, /*causal=*/false),
                        {},
                        {},
                        projected(attention, "value", h, o.heads)};
    const torch::Tensor denominator = (t.q * t.k.cumsum(2)).sum(-1, true);
    x = x + merged(attention,
                   linear_attention_causal(t) * denominator / (denominator + added * t.q.sum(-1, true)));
    x = x + part("ffn")->as<FeedForwardImpl>()->forward(part("ffn_norm")->as<NormImpl>()->forward(x));
  }
  return model->logits(modules["norm"]->as<NormImpl>()->forward(x));
}

/// Mean cross entropy of each token from those before it.
double next_token_loss(const torch::Tensor& logits, const torch::Tensor& ids) {
  const int64_t predicted = ids.size(1) - 1;
  return torch::nn::functional::cross_entropy(logits.narrow(1, 0, predicted).flatten(0, 1),
                                              ids.narrow(1, 1, predicted).flatten())
      .item<double>();
}

}  // namespace

TEST_CASE("performer-pytorch's language model: ReLU features, sinusoids and rotation before them") {
  const auto oracles = require_oracles();
  if (!oracles) return;
  const torch::NoGradGuard no_grad;
  const OracleCase c(*oracles / "performer" / "language_model_0");
  const torch::Tensor ids = c.inputs.tensor("ids"), expected = c.expected.tensor("logits");
  torch::Tensor bias;
  CausalLm model = performer_model(c, 1e-3, &bias);
  const torch::Tensor theirs = performer_logits(model, ids, 1e-6) + bias;
  CHECK(max_error(theirs, expected) < c.tolerance());
  CHECK(next_token_loss(theirs, ids) == Approx(c.expected.tensor("loss").item<double>()).epsilon(1e-5));
  // Features are at least 1e-3, so the 1e-6 moves an attention output by at most a thousandth of it; that is
  // all that departs.
  const torch::Tensor ours = model->forward(ids) + bias;
  CHECK(max_error(performer_logits(model, ids, 0.0) + bias, ours) < 1e-5);
  CHECK(max_error(ours, expected) < 5e-4);
  // Token by token the state of fixed size says the same.
  CausalState state;
  for (int64_t i = 0; i < ids.size(1); ++i) {
    const torch::Tensor step = model->forward(ids.narrow(1, i, 1), {}, &state) + bias;
    CHECK(max_error(step.squeeze(1), ours.select(1, i)) < 1e-5);
  }
}

TEST_CASE("performer-pytorch's language model: softmax features see the future there, and not here") {
  const auto oracles = require_oracles();
  if (!oracles) return;
  const torch::NoGradGuard no_grad;
  const OracleCase c(*oracles / "performer" / "language_model_1");
  const torch::Tensor ids = c.inputs.tensor("ids"), expected = c.expected.tensor("logits");
  torch::Tensor bias;
  CausalLm model = performer_model(c, 1e-4, &bias);
  const torch::Tensor theirs = performer_logits(model, ids, 1e-6) + bias;
  CHECK(max_error(theirs, expected) < c.tolerance());
  CHECK(next_token_loss(theirs, ids) == Approx(c.expected.tensor("loss").item<double>()).epsilon(1e-5));

  // Without eps and the 1e-6 the stabiliser cancels, and the library's sums are our model: nothing else
  // departs.
  CausalLm exact = performer_model(c, 0.0, &bias);
  const torch::Tensor ours = exact->forward(ids);
  CHECK(max_error(performer_logits(exact, ids, 0.0), ours) < 1e-4);
  CHECK(max_error(ours + bias, expected) > 0.5);

  // A last token reaches earlier logits there.
  const int64_t last = ids.size(1) - 1;
  const torch::Tensor earlier = ours.narrow(1, 0, last);
  double theirs_moves = 0, ours_moves = 0;
  for (int64_t token = 0; token < exact->options().vocab_size; ++token) {
    torch::Tensor changed = ids.clone();
    changed.select(1, last).fill_(token);
    const torch::Tensor moved = performer_logits(model, changed, 1e-6).narrow(1, 0, last) + bias;
    theirs_moves = std::max(theirs_moves, max_error(moved, theirs.narrow(1, 0, last)));
    ours_moves = std::max(ours_moves, max_error(exact->forward(changed).narrow(1, 0, last), earlier));
  }
  CHECK(theirs_moves > 0.1);
  CHECK(ours_moves == 0.0);
}
