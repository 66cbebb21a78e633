#include "roformer/hf/folder.h"
#include "roformer/hf/config_json.h"

#include "tests/hf/folders.h"

using namespace roformer;
using roformer::test::max_error;

namespace {

namespace fs = std::filesystem;

EncoderOptions folder_bert() { return test::small_encoder(8, 11, LearnedOptions{.max_length = 16}); }
EncoderOptions folder_roformer() { return test::small_encoder(8, 11); }
EncoderOptions folder_nezha() { return test::small_encoder(8, 11, NezhaOptions{.max_distance = 3}); }

std::string folder_open_error(const fs::path& folder) { return test::open_error(open_hf, folder); }

Batch folder_batch() {
  Batch batch;
  batch.tokens = torch::tensor({{1, 5, 9, 2, 0, 0}, {3, 10, 4, 4, 7, 8}}, torch::kInt64);
  batch.keep = batch.tokens.ne(0);
  batch.segments = torch::tensor({{0, 0, 1, 1, 0, 0}, {0, 1, 1, 1, 1, 1}}, torch::kInt64);
  batch.targets = torch::tensor({1, 7, 8}, torch::kInt64);
  return batch;
}

}  // namespace

TEST_CASE("hf folder: models go out and come back equal") {
  test::TempDir folder;
  const Batch batch = folder_batch();
  torch::NoGradGuard no_grad;
  for (const HfFamily family : {HfFamily::bert, HfFamily::roformer, HfFamily::nezha}) {
    EncoderOptions options = family == HfFamily::bert       ? folder_bert()
                             : family == HfFamily::roformer ? folder_roformer()
                                                            : folder_nezha();
    for (const Activation activation :
         {Activation::gelu, Activation::gelu_tanh, Activation::relu, Activation::silu, Activation::tanh}) {
      options.activation = activation;
      if (family == HfFamily::roformer) options.embedding = activation == Activation::relu ? 6 : 0;
      INFO(enum_name(family) << ", activation " << enum_name(activation));
      MaskedLm source = test::randomise(MaskedLm(options));
      REQUIRE(save_hf(folder / "lm", *source).unused.empty());
      const HfFolder read = open_hf(folder / "lm");
      REQUIRE(read.head == HeadType::mlm);
      REQUIRE(read.family == family);
      REQUIRE(hf_model_type(folder / "lm") == enum_name(family));
      REQUIRE(read.encoder.activation == activation);
      REQUIRE(read.encoder.embedding == options.embedding);
      MaskedLm copy(read.encoder);
      copy->eval();
      const HfReport report = load_hf(*copy, read);
      REQUIRE(report.fresh.empty());
      REQUIRE(report.unused.empty());
      REQUIRE(torch::equal(copy(batch), source(batch)));

      const ClassifierOptions classifier{.kind = hf_head_kind(family), .labels = 3, .dropout = {}};
      SequenceClassifier classified = test::randomise(SequenceClassifier(options, classifier));
      save_hf(folder / "classifier", *classified, {.label_names = {"no", "maybe", "yes"}});
      const HfFolder labelled = open_hf(folder / "classifier");
      REQUIRE(labelled.head == HeadType::classifier);
      REQUIRE(labelled.label_names == std::vector<std::string>{"no", "maybe", "yes"});
      REQUIRE(labelled.problem_type == "single_label_classification");
      Pretrained pretrained = load_pretrained(labelled);
      pretrained->eval();
      REQUIRE(torch::equal(pretrained(batch.tokens, batch.keep, batch.segments).logits, classified(batch)));
    }
  }
}

TEST_CASE("hf folder: fresh heads are named, other heads are passed over") {
  test::TempDir folder;
  torch::NoGradGuard no_grad;
  const EncoderOptions options = folder_bert();
  save_hf(folder / "lm", *test::randomise(MaskedLm(options)));
  const HfFolder lm = open_hf(folder / "lm");
  SequenceClassifier bert(options, ClassifierOptions{.kind = HeadKind::bert});
  HfReport report = load_hf(*bert, lm);
  REQUIRE(report.fresh == std::vector<std::string>{"bert.pooler.dense.weight", "bert.pooler.dense.bias",
                                                   "classifier.weight", "classifier.bias"});
  REQUIRE(report.unused.size() == 5);  // cls.predictions.*
  // RoFormer's head on a BERT has no name there.
  SequenceClassifier roformer(options, ClassifierOptions{.kind = HeadKind::roformer});
  report = load_hf(*roformer, lm);
  REQUIRE(report.fresh == std::vector<std::string>{"head.dense.weight", "head.dense.bias",
                                                   "head.output.weight", "head.output.bias"});
  REQUIRE_THROWS_WITH(save_hf(folder / "x", *roformer), Catch::Contains("fine-tune with head: bert"));

  // A pooler becomes the first layer of BERT's classifier.
  Pretrained pooled = test::randomise(Pretrained(PretrainedOptions{.encoder = options, .pooler = true}));
  save_hf(folder / "pooled", *pooled);
  const HfFolder with_pooler = open_hf(folder / "pooled");
  REQUIRE(with_pooler.pooler);
  REQUIRE(with_pooler.head == HeadType::none);
  report = load_hf(*bert, with_pooler);
  REQUIRE(report.fresh == std::vector<std::string>{"classifier.weight", "classifier.bias"});
  REQUIRE(report.unused.empty());
  REQUIRE(torch::equal(bert->named_parameters()["head.dense.weight"], pooled->pooler->weight));
  Encoder encoder(options);
  REQUIRE(load_hf(*encoder, with_pooler).unused.size() == 2);
  MaskedLm fresh(options);
  REQUIRE(load_hf(*fresh, with_pooler).fresh.size() == 5);

  // Part of a head is no head.
  test::FolderTensors tensors = test::folder_tensors(folder / "lm");
  tensors.erase(std::find_if(tensors.begin(), tensors.end(),
                             [](const auto& t) { return t.first == "cls.predictions.bias"; }));
  save_safetensors(folder / "lm" / "model.safetensors", tensors);
  REQUIRE_THROWS_WITH(load_hf(*fresh, open_hf(folder / "lm")),
                      Catch::EndsWith("'cls.predictions.bias' is missing"));
  // The bias may stand under the decoder's name.
  tensors.emplace_back("cls.predictions.decoder.bias", torch::full({11}, 0.5));
  save_safetensors(folder / "lm" / "model.safetensors", tensors);
  REQUIRE(load_hf(*fresh, open_hf(folder / "lm")).fresh.empty());
  REQUIRE(torch::equal(fresh->named_parameters()["head.bias"], torch::full({11}, 0.5)));
}

TEST_CASE("hf folder: all that does not fit is listed at once, and nothing is loaded") {
  test::TempDir folder;
  save_hf(folder.path(), *test::randomise(MaskedLm(folder_roformer())));
  test::FolderTensors tensors;
  for (auto& [name, tensor] : test::folder_tensors(folder.path())) {
    if (name == "roformer.encoder.layer.1.output.dense.bias") continue;
    if (name == "roformer.embeddings.LayerNorm.weight") tensor = torch::ones({9});
    if (name == "roformer.embeddings.LayerNorm.bias") tensor = torch::ones({8}, torch::kInt64);
    if (name == "roformer.encoder.embed_positions.weight") tensor[3][1] += 0.01;
    tensors.emplace_back(name, tensor);
  }
  tensors.emplace_back("roformer.encoder.layer.2.output.dense.bias", torch::ones({8}));
  save_safetensors(folder / "model.safetensors", tensors);
  EncoderOptions options = folder_roformer();
  options.heads = 4;
  options.norm_eps = 1e-5;
  options.activation = Activation::relu;
  options.positions = {RotaryOptions{.layout = RotaryLayout::halves, .dim = 2, .values = true}};
  MaskedLm model(options);
  const torch::Tensor before = model->encoder->token_weight().detach().clone();
  const std::string start = folder.path().string() + ": does not fit the model: ";
  REQUIRE_THROWS_MATCHES(
      load_hf(*model, open_hf(folder.path())), Error,
      Catch::Matchers::Message(
          start + "model.heads is 4, the folder's 2; model.activation is relu, the folder's gelu; "
                  "model.norm_eps is 1e-05, "
                  "the folder's 1e-12; model.positions.values is true, the folder's false; "
                  "model.positions.dim is 2, the "
                  "folder's 4; model.positions.layout is halves, the folder's interleaved; "
                  "'roformer.embeddings.LayerNorm.weight' is [9], not [8]; "
                  "'roformer.embeddings.LayerNorm.bias' holds no "
                  "floating-point numbers; 'roformer.encoder.layer.1.output.dense.bias' is missing; "
                  "'roformer.encoder.embed_positions.weight' is no table of sines for heads of 2; "
                  "'roformer.encoder.layer.2.output.dense.bias' is unexpected"));
  REQUIRE(torch::equal(before, model->encoder->token_weight()));
  EncoderOptions other = folder_roformer();
  RotaryOptions scaled;
  scaled.scaling = YarnScaling{};
  other.positions = {scaled};
  other.attention = LinearAttention{};
  REQUIRE_THROWS_WITH(load_hf(*MaskedLm(other), open_hf(folder.path())),
                      Catch::Contains("model.attention is linear, the folder's softmax; "
                                      "model.positions.scaling is yarn, the folder's none"));
  MaskedLm plain(folder_roformer());
  REQUIRE_THROWS_WITH(load_hf(*plain, open_hf(folder.path())),
                      Catch::Contains("trained tables are not supported"));
  MaskedLm bert(folder_bert());
  REQUIRE_THROWS_WITH(load_hf(*bert, open_hf(folder.path())),
                      Catch::Contains("model.positions is learned, the folder's rotary"));
}

TEST_CASE("hf folder: tables of sines of any length, or none") {
  test::TempDir folder;
  MaskedLm source = test::randomise(MaskedLm(folder_roformer()));
  for (const int64_t length : {1, 7, 2000}) {
    save_hf(folder.path(), *source, {.max_length = length});
    MaskedLm copy(folder_roformer());
    REQUIRE_NOTHROW(load_hf(*copy, open_hf(folder.path())));
  }
  test::FolderTensors tensors = test::folder_tensors(folder.path());
  tensors.erase(std::find_if(tensors.begin(), tensors.end(), [](const auto& t) {
    return t.first.find("embed_positions") != std::string::npos;
  }));
  save_safetensors(folder / "model.safetensors", tensors);
  MaskedLm copy(folder_roformer());
  REQUIRE(load_hf(*copy, open_hf(folder.path())).fresh.empty());
}

TEST_CASE("hf folder: a decoder of its own") {
  test::TempDir folder;
  torch::NoGradGuard no_grad;
  Pretrained source = test::randomise(
      Pretrained(PretrainedOptions{.encoder = folder_bert(), .head = HeadType::mlm, .tied = false}));
  save_hf(folder.path(), *source);
  REQUIRE(test::folder_config(folder.path()).at("tie_word_embeddings") == false);
  const HfFolder read = open_hf(folder.path());
  REQUIRE_FALSE(read.tied);
  Pretrained copy = load_pretrained(read);
  copy->eval();
  const Batch batch = folder_batch();
  const torch::Tensor logits = copy(batch.tokens, batch.keep, batch.segments).logits;
  REQUIRE(torch::equal(logits, source(batch.tokens, batch.keep, batch.segments).logits));
  MaskedLm tied(folder_bert());
  REQUIRE_THROWS_WITH(load_hf(*tied, read), Catch::Contains("decoder is not tied"));
  // Said to be tied, the embeddings decode whatever else is stored: so does transformers.
  nlohmann::json config = test::folder_config(folder.path());
  config.erase("tie_word_embeddings");
  test::fuzz_write(folder / "config.json", config.dump());
  REQUIRE(load_hf(*tied, open_hf(folder.path())).fresh.empty());
  tied->eval();
  REQUIRE(max_error(tied(batch), logits.flatten(0, 1).index_select(0, batch.targets)) > 1e-2);
}

TEST_CASE("hf folder: options of config.json that are not ours are refused by name") {
  test::TempDir folder;
  save_hf(folder.path(), *test::randomise(MaskedLm(folder_bert())));
  auto error = [&](const nlohmann::json& change) {
    return test::config_error(open_hf, folder.path(), change);
  };
  REQUIRE(error({{"model_type", "electra"}}) ==
          "model_type 'electra' is not supported; 'bert', 'nezha' and 'roformer' are");
  REQUIRE(error({{"position_embedding_type", "relative_key"}}) ==
          "position_embedding_type 'relative_key' is not supported; 'absolute' is");
  REQUIRE(error({{"is_decoder", true}}) == "'is_decoder' is not supported");
  REQUIRE(error({{"add_cross_attention", true}}) == "'add_cross_attention' is not supported");
  REQUIRE(error({{"pruned_heads", {{"0", {1}}}}}) == "'pruned_heads' is not supported");
  REQUIRE(error({{"norm_type", "rms_norm"}}) ==
          "option 'norm_type' is not known here; remove it if the model computes the same without it");
  REQUIRE_THAT(error({{"use_bias", false}}), Catch::StartsWith("option 'use_bias' is not known here"));
  REQUIRE_THAT(error({{"hidden_act", "gelu_fast"}}),
               Catch::StartsWith("hidden_act 'gelu_fast' is not supported"));
  REQUIRE_THAT(error({{"embedding_size", 4}}), Catch::Contains("not a BERT"));
  REQUIRE_THAT(error({{"rotary_value", true}}), Catch::Contains("does not belong to a BERT"));
  REQUIRE(error({{"hidden_size", "8"}}) == "'hidden_size' must be an integer from 1 to 65536");
  REQUIRE(error({{"hidden_size", 8.0}}) == "'hidden_size' must be an integer from 1 to 65536");
  REQUIRE(error({{"hidden_size", -8}}) == "'hidden_size' must be an integer from 1 to 65536");
  REQUIRE(error({{"hidden_size", 18446744073709551615u}}) ==
          "'hidden_size' must be an integer from 1 to 65536");
  REQUIRE(error({{"layer_norm_eps", true}}) == "'layer_norm_eps' must be a number from 1e-30 to 1");
  REQUIRE(error({{"tie_word_embeddings", 0}}) == "'tie_word_embeddings' must be true or false");
  REQUIRE_THAT(error({{"num_attention_heads", 3}}), Catch::Contains("3 heads do not divide a width of 8"));
  REQUIRE_THAT(error({{"problem_type", "other"}}), Catch::Contains("problem_type 'other' is not known"));
  REQUIRE_THAT(error({{"id2label", {{"0", "a"}, {"2", "b"}}}}), Catch::Contains("must name every label"));
  REQUIRE_THAT(error({{"id2label", {{"0", "a"}}}, {"num_labels", 2}}), Catch::Contains("disagree"));
  REQUIRE_THAT(error({{"id2label", nlohmann::json::object()}}), Catch::Contains("names no label"));
  REQUIRE_THAT(error({{"vocab_size", 1 << 24}, {"hidden_size", 65536}}),
               Catch::Contains("config.json describes a model of"));
  // What changes nothing is no obstacle.
  REQUIRE(error({{"use_cache", true},
                 {"is_decoder", false},
                 {"_name_or_path", "x"},
                 {"pooler_type", "first_token_transform"},
                 {"chunk_size_feed_forward", 4},
                 {"norm_type", nullptr},
                 {"hidden_act", "swish"}}) == "accepted");
  // The first files of BERT name no type.
  nlohmann::json config = test::folder_config(folder.path());
  config.erase("model_type");
  test::fuzz_write(folder / "config.json", config.dump());
  REQUIRE(folder_open_error(folder.path()) == "accepted");
  config.erase("architectures");
  test::fuzz_write(folder / "config.json", config.dump());
  REQUIRE_THAT(folder_open_error(folder.path()), Catch::Contains("'model_type' is missing; add"));
  test::fuzz_write(folder / "config.json", "{\"a\": ");
  REQUIRE_THAT(folder_open_error(folder.path()), Catch::Contains("config.json: not JSON: "));
  test::fuzz_write(folder / "config.json", std::string(100000, '['));
  REQUIRE_THAT(folder_open_error(folder.path()), Catch::EndsWith("config.json: nested more than 32 deep"));
  test::fuzz_write(folder / "config.json", "[1]");
  REQUIRE_THAT(folder_open_error(folder.path()), Catch::EndsWith("config.json: expected a JSON object"));
  fs::remove(folder / "config.json");
  REQUIRE_THAT(folder_open_error(folder.path()), Catch::EndsWith("no config.json here"));
  REQUIRE_THAT(folder_open_error(folder / "absent"), Catch::EndsWith("no such folder"));
}

TEST_CASE("hf folder: NEZHA's options, and its table that files may hold") {
  test::TempDir folder;
  Pretrained source = test::randomise(
      Pretrained(PretrainedOptions{.encoder = folder_nezha(), .head = HeadType::mlm, .pooler = true}));
  REQUIRE(save_hf(folder.path(), *source).unused ==
          std::vector<std::string>{"nezha.pooler.dense.weight", "nezha.pooler.dense.bias"});
  REQUIRE(test::folder_config(folder.path()).at("max_relative_position") == 3);
  REQUIRE(test::folder_config(folder.path()).at("max_position_embeddings") == 512);
  auto error = [&](const nlohmann::json& change) {
    return test::config_error(open_hf, folder.path(), change);
  };
  REQUIRE(error({{"use_relative_position", true}, {"embedding_size", 8}}) == "accepted");
  REQUIRE(error({{"use_relative_position", false}}) ==
          "'use_relative_position' is false: not a NEZHA with relative positions");
  REQUIRE(error({{"embedding_size", 4}}) == "'embedding_size' differs from 'hidden_size': not a NEZHA");
  REQUIRE(error({{"max_relative_position", 0}}) ==
          "'max_relative_position' must be an integer from 1 to 1048576");
  REQUIRE(error({{"max_relative_positions", 4}}) ==
          "option 'max_relative_positions' is not known here; "
          "remove it if the model computes the same without it");
  // Absent, the distance is 64, and the dropout before the classifier 0.1; null is the encoder's.
  nlohmann::json config = test::folder_config(folder.path());
  for (const char* key : {"max_relative_position", "vocab_size", "classifier_dropout"}) config.erase(key);
  test::fuzz_write(folder / "config.json", config.dump());
  HfFolder read = open_hf(folder.path());
  REQUIRE(std::get<NezhaOptions>(read.encoder.positions.at(0)).max_distance == 64);
  REQUIRE(read.encoder.vocab_size == 21128);
  REQUIRE(read.classifier.dropout == 0.1);
  REQUIRE_THROWS_WITH(load_hf(*MaskedLm(folder_nezha()), read),
                      Catch::Contains("model.positions.max_distance is 3, the folder's 64"));
  config["max_relative_position"] = 3;
  config["vocab_size"] = 11;
  config["classifier_dropout"] = nullptr;
  test::fuzz_write(folder / "config.json", config.dump());
  REQUIRE_FALSE(open_hf(folder.path()).classifier.dropout.has_value());

  test::FolderTensors tensors = test::folder_tensors(folder.path());
  const std::string table = "attention.self.relative_positions_encoding.positions_encoding";
  tensors.emplace_back("nezha.encoder.layer.0." + table, torch::ones({4, 4, 4}));
  tensors.emplace_back("nezha.encoder.layer.1." + table, torch::ones({4, 4, 4}));
  tensors.emplace_back("cls.seq_relationship.bias", torch::ones({2}));
  save_safetensors(folder / "model.safetensors", tensors);
  MaskedLm copy(folder_nezha());
  REQUIRE(load_hf(*copy, open_hf(folder.path())).unused ==
          std::vector<std::string>{"cls.seq_relationship.bias"});
  copy->eval();
  const Batch batch = folder_batch();
  torch::NoGradGuard no_grad;
  const torch::Tensor logits = source(batch.tokens, batch.keep, batch.segments).logits;
  REQUIRE(torch::equal(copy(batch), logits.flatten(0, 1).index_select(0, batch.targets)));
}

TEST_CASE("hf folder: indices of shards name files of the folder, and all of their tensors") {
  test::TempDir folder;
  MaskedLm source = test::randomise(MaskedLm(folder_bert()));
  save_hf(folder.path(), *source);
  const test::FolderTensors tensors = test::folder_tensors(folder.path());
  fs::remove(folder / "model.safetensors");
  REQUIRE_THAT(folder_open_error(folder.path()), Catch::Contains("no weights here"));
  nlohmann::json index;
  test::FolderTensors parts[2];
  for (size_t i = 0; i < tensors.size(); ++i) {
    parts[i % 2].push_back(tensors[i]);
    index["weight_map"][tensors[i].first] = "part-" + std::to_string(i % 2) + ".safetensors";
  }
  save_safetensors(folder / "part-0.safetensors", parts[0]);
  save_safetensors(folder / "part-1.safetensors", parts[1]);
  const fs::path path = folder / "model.safetensors.index.json";
  test::fuzz_write(path, index.dump());
  MaskedLm copy(folder_bert());
  load_hf(*copy, open_hf(folder.path()));
  REQUIRE(torch::equal(copy->encoder->token_weight(), source->encoder->token_weight()));

  for (const char* name : {"../part-0.safetensors", "/etc/passwd", "..", ""}) {
    nlohmann::json bad = index;
    bad["weight_map"]["x"] = name;
    test::fuzz_write(path, bad.dump());
    REQUIRE_THAT(folder_open_error(folder.path()), Catch::EndsWith("is no file of this folder"));
  }
  nlohmann::json bad = index;
  bad["weight_map"]["x"] = "part-0.safetensors";
  test::fuzz_write(path, bad.dump());
  REQUIRE_THAT(folder_open_error(folder.path()), Catch::EndsWith("not in the files: 'x'"));
  bad["weight_map"]["x"] = "part-2.safetensors";
  test::fuzz_write(path, bad.dump());
  REQUIRE_THAT(folder_open_error(folder.path()), Catch::Contains("part-2.safetensors"));
  test::fuzz_write(path, "{}");
  REQUIRE_THAT(folder_open_error(folder.path()), Catch::EndsWith("'weight_map' is missing"));
  // Two names of one tensor.
  test::FolderTensors twice = parts[0];
  twice.emplace_back("embeddings.LayerNorm.gamma", torch::ones({8}));
  twice.emplace_back("bert.embeddings.LayerNorm.weight", torch::ones({8}));
  test::FolderTensors unique(twice.begin(), twice.end());
  std::map<std::string, torch::Tensor> by_name(unique.begin(), unique.end());
  save_safetensors(folder / "model.safetensors", {by_name.begin(), by_name.end()});
  REQUIRE_THAT(folder_open_error(folder.path()), Catch::Contains("are the same tensor"));
}

TEST_CASE("hf folder: what has no counterpart cannot be written") {
  test::TempDir folder;
  auto error = [&](const EncoderOptions& options) -> std::string {
    try {
      save_hf(folder / "x", *Encoder(options));
    } catch (const Error& e) {
      return e.what();
    }
    return "written";
  };
  EncoderOptions pre = folder_bert();
  pre.norm = NormPlacement::pre;
  REQUIRE_THAT(error(pre), Catch::Contains("only model.norm: post can be written"));
  REQUIRE_THAT(error(test::small_encoder(8, 11, NoneOptions{})), Catch::Contains("no other can be written"));
  REQUIRE_THAT(error(test::small_encoder(8, 11, SinusoidalOptions{})),
               Catch::Contains("no other can be written"));
  for (const RotaryOptions& rotary :
       {RotaryOptions{.layout = RotaryLayout::halves}, {.base = 500.0}, {.dim = 2}, {.trainable = true}}) {
    REQUIRE_THAT(error(test::small_encoder(8, 11, rotary)),
                 Catch::Contains("other rotary options cannot be written"));
  }
  RotaryOptions scaled;
  scaled.scaling = LinearScaling{.factor = 4.0};
  REQUIRE_THAT(error(test::small_encoder(8, 11, scaled)),
               Catch::Contains("other rotary options cannot be written"));
  EncoderOptions linear = folder_roformer();
  linear.attention = LinearAttention{};
  REQUIRE_THAT(error(linear), Catch::Contains("model.attention: linear cannot be written"));
  EncoderOptions both = folder_bert();
  both.positions.push_back(RotaryOptions{});
  REQUIRE_THAT(error(both), Catch::Contains("one position encoding; 2 cannot be written"));
  EncoderOptions narrow = folder_bert();
  narrow.embedding = 4;
  REQUIRE_THAT(error(narrow), Catch::Contains("model.embedding"));
  REQUIRE_FALSE(fs::exists(folder / "x"));
  // An encoding from outside, where the options say "rotary".
  Encoder custom(folder_roformer(), make(SinusoidalOptions{}, folder_roformer().shape()));
  REQUIRE_THROWS_WITH(save_hf(folder / "x", *custom), Catch::Contains("from outside"));
  REQUIRE_THROWS_WITH(
      save_hf(folder / "x", *SequenceClassifier(folder_bert(), ClassifierOptions{.kind = HeadKind::bert}),
              {.label_names = {"one"}}),
      Catch::Contains("1 names for 2 labels"));
  // Without segments a table of zeros stands in, since those models always add one.
  EncoderOptions plain = folder_bert();
  plain.segments = 0;
  save_hf(folder / "plain", *Encoder(plain));
  REQUIRE(torch::equal(
      open_hf(folder / "plain").weights.at("bert.embeddings.token_type_embeddings.weight").read(),
      torch::zeros({2, 8})));
}
