#include "roformer/core/config.h"

#include <cstdlib>
#include <fstream>
#include <limits>
#include <random>

#include "tests/catch.h"
#include "tests/support.h"

namespace roformer::config_test {

enum class Activation { gelu, relu };
inline auto enum_names(Activation) {
  return std::array<std::pair<Activation, std::string_view>, 2>{
      {{Activation::gelu, "gelu"}, {Activation::relu, "relu"}}};
}

struct NoneOptions {
  static constexpr std::string_view type = "none";
  bool operator==(const NoneOptions&) const = default;
};
template <class V>
void fields(V&, NoneOptions&) {}

struct RotaryOptions {
  static constexpr std::string_view type = "rotary";
  double base = 10000;
  std::optional<int64_t> width;
  bool operator==(const RotaryOptions&) const = default;
};
template <class V>
void fields(V& v, RotaryOptions& o) {
  v("base", o.base, "of the angles", above(0));
  v("width", o.width, "features that turn; null: all", at_least(2));
}

struct LearnedOptions {
  static constexpr std::string_view type = "learned";
  int64_t length = 512;
  bool operator==(const LearnedOptions&) const = default;
};
template <class V>
void fields(V& v, LearnedOptions& o) {
  v("length", o.length, "rows of the table", at_least(1));
}

using PositionOptions = std::variant<NoneOptions, RotaryOptions, LearnedOptions>;

struct ModelOptions {
  int64_t dim = 512;
  int64_t heads = 8;
  double dropout = 0.1;
  Activation activation = Activation::gelu;
  bool tied = true;
  PositionOptions positions = RotaryOptions{};
  bool operator==(const ModelOptions&) const = default;
};
template <class V>
void fields(V& v, ModelOptions& o) {
  v("dim", o.dim, "width of the model", at_least(1));
  v("heads", o.heads, "attention heads", at_least(1));
  v("dropout", o.dropout, "on attention weights", within(0.0, 1.0));
  v("activation", o.activation, "of the feed-forward layers");
  v("tied", o.tied, "output layer shares the embedding");
  v("positions", o.positions, "position encoding");
}
inline void validate(const ModelOptions& o) {
  if (o.dim % o.heads != 0) fail("dim {} is not a multiple of heads {}", o.dim, o.heads);
}

struct StageOptions {
  int64_t steps = 0;
  int64_t length = 128;
  bool operator==(const StageOptions&) const = default;
};
template <class V>
void fields(V& v, StageOptions& o) {
  v("steps", o.steps, "updates", required(), above(0));
  v("length", o.length, "tokens of a row", at_least(1));
}

struct TestOptions {
  ModelOptions model;
  std::string name = "run";
  std::vector<std::filesystem::path> train;
  std::vector<double> betas = {0.9, 0.999};
  std::vector<StageOptions> stages;
  std::vector<PositionOptions> extra;
  std::optional<LearnedOptions> table;
  std::optional<double> clip = 1.0;
  std::vector<bool> flags;
  std::vector<Activation> activations;
  ConfigNode arms;
  bool operator==(const TestOptions&) const = default;
};
template <class V>
void fields(V& v, TestOptions& o) {
  v("model", o.model, "the network");
  v("name", o.name, "of the run");
  v("train", o.train, "training text");
  v("betas", o.betas, "of Adam", within(0, 1));
  v("stages", o.stages, "one after another");
  v("extra", o.extra, "more encodings");
  v("table", o.table, "a table beside them");
  v("clip", o.clip, "norm of the gradient", above(0));
  v("flags", o.flags, "");
  v("activations", o.activations, "");
  v("arms", o.arms, "overrides by arm");
}

TestOptions options_of(const ConfigNode& node) {
  TestOptions options;
  read(node, options);
  return options;
}

TestOptions options_of(std::string_view yaml) {
  return options_of(parse_config(yaml, "t.yaml", "/data/run"));
}

template <class F>
std::string error_of(F&& f) {
  try {
    f();
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

void write_file(const std::filesystem::path& path, std::string_view text) {
  std::filesystem::create_directories(path.parent_path());
  std::ofstream(path, std::ios::binary) << text;
}

std::string repeated(std::string_view text, int times) {
  std::string out;
  for (int i = 0; i < times; ++i) out += text;
  return out;
}

const ConfigNode& at(const ConfigNode& node, std::string_view path) {
  const ConfigNode* found = node.find(path);
  if (!found) throw std::runtime_error("no " + std::string(path));
  return *found;
}

}  // namespace roformer::config_test

namespace rct = roformer::config_test;
using roformer::ConfigNode;

TEST_CASE("config: every kind of value is read", "[config]") {
  ::setenv("ROFORMER_TEST_WORD", "wiki", 1);
  ::setenv("ROFORMER_TEST_DIM", "96", 1);
  const auto o = rct::options_of(R"(
model:
  dim: ${ROFORMER_TEST_DIM}
  heads: 12
  dropout: 1e-3
  activation: relu
  tied: false
  positions: {type: learned, length: 64}
name: "a${ROFORMER_TEST_WORD}b $$5 $x"
train: [sub/../a.txt, "${ROFORMER_TEST_WORD}/b.txt", /abs/c.txt, ""]
betas: 0.5
stages: {steps: 9223372036854775807}
extra: [rotary, {type: rotary, base: 5, width: 4}, none]
clip: null
flags: [true, false]
activations: gelu
arms:
  bert: {model.positions.type: learned}
)");
  CHECK(o.model.dim == 96);
  CHECK(o.model.heads == 12);
  CHECK(o.model.dropout == 1e-3);
  CHECK(o.model.activation == rct::Activation::relu);
  CHECK_FALSE(o.model.tied);
  CHECK(o.model.positions == rct::PositionOptions(rct::LearnedOptions{64}));
  CHECK(o.name == "awikib $5 $x");
  CHECK(o.train ==
        std::vector<std::filesystem::path>{"/data/run/a.txt", "/data/run/wiki/b.txt", "/abs/c.txt", ""});
  CHECK(o.betas == std::vector{0.5});
  REQUIRE(o.stages.size() == 1);
  CHECK(o.stages[0].steps == std::numeric_limits<int64_t>::max());
  CHECK(o.extra == std::vector<rct::PositionOptions>{rct::RotaryOptions{}, rct::RotaryOptions{5, 4},
                                                     rct::NoneOptions{}});
  CHECK_FALSE(o.clip);
  CHECK(o.flags == std::vector{true, false});
  CHECK(o.activations == std::vector{rct::Activation::gelu});
  CHECK(rct::at(o.arms, "bert").entries.at(0).first == "model.positions.type");
}

TEST_CASE("config: without a type the default alternative stays; null is an empty section", "[config]") {
  CHECK(rct::options_of("model: {positions: {base: 7}}").model.positions ==
        rct::PositionOptions(rct::RotaryOptions{7, {}}));
  CHECK(rct::options_of("model:\nname: x\r\n").model == rct::ModelOptions{});
}

TEST_CASE("config: doubles", "[config]") {
  for (const auto& [text, value] : std::vector<std::pair<std::string, double>>{
           {"3", 3}, {"-0.5", -0.5}, {"1.0e-3", 1e-3}, {".5", 0.5}, {"5.", 5}, {"1E+2", 100}, {"0", 0}}) {
    rct::RotaryOptions o;
    double read_value = -1;
    roformer::read(roformer::make_scalar(text), read_value, "x");
    CHECK(read_value == value);
  }
  double ignored = 0;
  for (const std::string text :
       {"inf", ".inf", ".nan", "nan",  "-inf", "1e", "e5",  ".",     "-",     "+1",
        "1_0", "00.5", "012",  "0x10", "1,5",  "1 ", "--1", "1e999", "1.5.2", "1f"}) {
    INFO(text);
    CHECK_THROWS_AS(roformer::read(roformer::make_scalar(text), ignored, "x"), roformer::Error);
  }
}

TEST_CASE("config: bad input gives one exact line", "[config]") {
  ::unsetenv("ROFORMER_TEST_UNSET");
  const std::vector<std::pair<std::string, std::string>> table = {
      // keys
      {"model:\n  dim: 8\n  head: 2", "t.yaml:3: unknown key 'model.head'; did you mean 'heads'?"},
      {"modle: {}", "t.yaml:1: unknown key 'modle'; did you mean 'model'?"},
      {"dim: 8", "t.yaml:1: unknown key 'dim'; there is 'model.dim'"},
      {"model.dim: 8",
       "t.yaml:1: unknown key 'model.dim'; in a file nest the maps, dotted names are for --set and arms"},
      {"model: {positions: {type: none, base: 3}}",
       "t.yaml:1: unknown key 'model.positions.base' for type 'none'; known here: type"},
      {"model: {positions: {type: rotary, bse: 3}}",
       "t.yaml:1: unknown key 'model.positions.bse' for type 'rotary'; did you mean 'base'?"},
      {"table: {qqqq: 1}", "t.yaml:1: unknown key 'table.qqqq'; known here: length"},
      {"stages:\n- {lenght: 3}", "t.yaml:2: unknown key 'stages[0].lenght'; did you mean 'length'?"},
      {"stages:\n- {steps: 3}\n- {length: 3}", "t.yaml:3: 'stages[1].steps' is missing and has no default"},
      // integers
      {"model: {dim: 1e3}", "t.yaml:1: 'model.dim' must be an integer, got '1e3'"},
      {"model: {dim: 012}", "t.yaml:1: 'model.dim' must be an integer, got '012'"},
      {"model: {dim: 0x10}", "t.yaml:1: 'model.dim' must be an integer, got '0x10'"},
      {"model: {dim: 1_000}", "t.yaml:1: 'model.dim' must be an integer, got '1_000'"},
      {"model: {dim: 8.0}", "t.yaml:1: 'model.dim' must be an integer, got '8.0'"},
      {"model: {dim: 9223372036854775808}",
       "t.yaml:1: 'model.dim' must be an integer of 64 bits, got '9223372036854775808'"},
      {"model: {dim: \"8\"}",
       "t.yaml:1: 'model.dim' must be an integer, got the quoted text \"8\"; remove the quotes"},
      {"model:\n  dim:", "t.yaml:2: 'model.dim' must be an integer, got nothing"},
      {"model: {dim: [8]}", "t.yaml:1: 'model.dim' must be an integer, got a list"},
      {"model: {dim: 0}", "t.yaml:1: 'model.dim' must be at least 1, got 0"},
      {"model: {dim: 9}", "t.yaml:1: model: dim 9 is not a multiple of heads 8"},
      // numbers
      {"\n\nmodel:\n  dropout: 1.5", "t.yaml:4: 'model.dropout' must be within [0, 1], got 1.5"},
      {"clip: 0", "t.yaml:1: 'clip' must be above 0, got 0"},
      {"betas: [0.9, 1.1]", "t.yaml:1: 'betas[1]' must be within [0, 1], got 1.1"},
      {"clip: .inf", "t.yaml:1: 'clip' must be a number, got '.inf'"},
      {"clip: 1e999", "t.yaml:1: 'clip' must be a number in the range of a double, got '1e999'"},
      // booleans, names, types
      {"model: {tied: yes}", "t.yaml:1: 'model.tied' must be true or false, got 'yes'; write true"},
      {"model: {tied: Off}", "t.yaml:1: 'model.tied' must be true or false, got 'Off'; write false"},
      {"model: {tied: maybe}", "t.yaml:1: 'model.tied' must be true or false, got 'maybe'"},
      {"model: {activation: glu}",
       "t.yaml:1: 'model.activation' must be one of gelu, relu, got 'glu'; did you mean 'gelu'?"},
      {"model: {positions: rotray}",
       "t.yaml:1: 'model.positions' must be one of none, rotary, learned, got 'rotray'; did you mean "
       "'rotary'?"},
      {"model:\n  positions:\n    type: xyz",
       "t.yaml:3: 'model.positions.type' must be one of none, rotary, learned, got 'xyz'"},
      {"model: {positions: [none]}",
       "t.yaml:1: 'model.positions' must be one of none, rotary, learned, got a list"},
      {"model: {positions: }",
       "t.yaml:1: 'model.positions' must be one of none, rotary, learned, got nothing"},
      {"model: 5", "t.yaml:1: 'model' must be a map of options, got '5'"},
      {"name: {a: b}", "t.yaml:1: 'name' must be text, got a map"},
      {"name: ~", "t.yaml:1: 'name' must be text, got nothing; write \"\" for empty text"},
      {"train: [{a: b}]", "t.yaml:1: 'train[0]' must be a path, got a map"},
      // variables
      {"name: ${ROFORMER_TEST_UNSET}/x",
       "t.yaml:1: 'name' needs the environment variable ROFORMER_TEST_UNSET, which is not set"},
      {"name: ${A", "t.yaml:1: 'name' has a malformed ${VARIABLE} in '${A'; write $$ for a dollar sign"},
      {"name: \"${}\"", "t.yaml:1: 'name' has a malformed ${VARIABLE} in '${}'; write $$ for a dollar sign"},
      // YAML itself
      {"", "t.yaml:1: the file is empty"},
      {"# nothing\n", "t.yaml:1: the file is empty"},
      {"just words", "t.yaml:1: the file must hold 'key: value' lines, got 'just words'"},
      {"- a\n- b", "t.yaml:1: the file must hold 'key: value' lines, got a list"},
      {"name: a\nclip: 1\nname: b", "t.yaml:3: key 'name' is given twice; first on line 1"},
      {"model: {dim: 1, dim: 1}", "t.yaml:1: key 'dim' is given twice; first on line 1"},
      {"a: &x 1\nb: *x",
       "t.yaml:1: YAML anchors (&) and aliases (*) are not supported; repeat the value, use 'base:', or "
       "quote it"},
      {"model:\n  <<: {dim: 1}",
       "t.yaml:2: YAML merge keys (<<) are not supported; use 'base:' or repeat the values"},
      {"name: !!str 5",
       "t.yaml:1: YAML tags such as 'tag:yaml.org,2002:str' are not supported; remove it or quote the value"},
      {"model: !x {dim: 3}",
       "t.yaml:1: YAML tags such as '!x' are not supported; remove it or quote the value"},
      {"name: a\n---\nname: b", "t.yaml:2: a second YAML document; write one document per file"},
      {"[a]: b", "t.yaml:1: a key must be text, got a list"},
      {"? {a: b}\n: c", "t.yaml:1: a key must be text, got a map"},
      {"~: c", "t.yaml:1: a key must be text, got nothing"},
      {"model:\n\tdim: 3", "t.yaml:2: a tab as indentation; use spaces"},
      {"model:\n  \t dim: 3", "t.yaml:2: a tab as indentation; use spaces"},
      {"name: [a", "t.yaml:1: not valid YAML: end of sequence flow not found"},
      {"model:\n  dim: 3\n heads: 2", "t.yaml:3: not valid YAML: end of map not found"},
      {"name: a: b", "t.yaml:1: not valid YAML: illegal map value"},
      {std::string("name: a\nb: \0c", 12), "t.yaml:2: a control character (byte 0); this is not a text file"},
      {"name: a\nclip: \x04", "t.yaml:2: a control character (byte 4); this is not a text file"},
      {"name: \"\\0\"", "t.yaml:1: a NUL character in a value"},
      {"name: a\nb: \xff", "t.yaml:2: not UTF-8 (byte 0xFF); save the file as UTF-8"},
      {"name: \xc0\xaf", "t.yaml:1: not UTF-8 (byte 0xC0); save the file as UTF-8"},
      {"name: \xed\xa0\x80", "t.yaml:1: not UTF-8 (byte 0xED); save the file as UTF-8"},
      {"name: \xe4\xb8", "t.yaml:1: not UTF-8 (byte 0xE4); save the file as UTF-8"},
      {"a: " + rct::repeated("[", 64), "t.yaml:1: nested more than 64 levels deep"},
      {"a: " + rct::repeated("[", 100000), "t.yaml:1: nested more than 64 levels deep"},
      {"a: " + rct::repeated("{a: ", 100000), "t.yaml:1: nested more than 64 levels deep"},
      {rct::repeated("- ", 20000) + "a", "t.yaml:1: nested more than 64 levels deep"},
      {rct::repeated("? ", 20000) + "a", "t.yaml:1: nested more than 64 levels deep"},
      {"a: \"" + rct::repeated("x", 1 << 20) + "\"",
       "t.yaml: larger than 1 MiB; this is not a configuration file"},
      {"\"" + rct::repeated("k", 257) + "\": 1", "t.yaml:1: a key of more than 256 bytes"},
      {"\"\": 1", "t.yaml:1: an empty key"},
  };
  for (const auto& [yaml, message] : table) {
    INFO(yaml.substr(0, 200));
    CHECK(rct::error_of([&, &text = yaml] { rct::options_of(text); }) == message);
  }
}

TEST_CASE("config: 63 levels are read and a long message is cut", "[config]") {
  CHECK_NOTHROW(roformer::parse_config("a: " + rct::repeated("[", 63) + rct::repeated("]", 63), "t"));
  const std::string message = rct::error_of([] { rct::options_of("clip: " + rct::repeated("ä\\", 500)); });
  CHECK(message.size() < 150);
  CHECK(message.ends_with("…'"));
  CHECK(rct::error_of([] { rct::options_of("model: {activation: \"a\\nb\\e\"}"); }) ==
        "t.yaml:1: 'model.activation' must be one of gelu, relu, got 'a\\nb\\x1B'");
}

TEST_CASE("config: what is written reads back equal", "[config]") {
  rct::TestOptions o;
  o.model.dim = 96;
  o.model.dropout = 0.1 + 0.2;
  o.model.activation = rct::Activation::relu;
  o.model.tied = false;
  o.model.positions = rct::RotaryOptions{5e-324, 4};
  o.train = {"/a/b c", "/x/$y", "", "/d: e", "/ü"};
  o.betas = {};
  o.stages = {{3, 4}, {5, 6}};
  o.extra = {rct::NoneOptions{}, rct::LearnedOptions{3}};
  o.table = rct::LearnedOptions{7};
  o.clip.reset();
  o.flags = {true, false};
  o.activations = {rct::Activation::relu, rct::Activation::gelu};
  o.arms = roformer::parse_config(
      "a: {}\nb: {model.dim: 3, l: [], n: ~, q: \"3\"}\nv:\n- ${X}\n- \"3\"\n- é\nc:\n- - {x: y}\n  - 2\n",
      "t");
  for (const std::string name : {"run",
                                 "",
                                 "~",
                                 "null",
                                 "true",
                                 "no",
                                 "12",
                                 "1e3",
                                 "a: b",
                                 "a #b",
                                 "- a",
                                 "${HOME}",
                                 "$$",
                                 "$",
                                 " lead",
                                 "trail ",
                                 "tab\there",
                                 "line\nbreak",
                                 "quote\"back\\slash'",
                                 "{a}",
                                 "[a]",
                                 "a,b",
                                 "*a",
                                 "&a",
                                 "!a",
                                 "%a",
                                 "@a",
                                 "`a",
                                 "?",
                                 "a:",
                                 ":a",
                                 "...",
                                 "---",
                                 "字: ü",
                                 "\x01\x7f",
                                 "\xc2\x85",
                                 "\xef\xbb\xbf",
                                 "\xe2\x80\xa8",
                                 "<<",
                                 "=",
                                 "a\r\nb"}) {
    INFO(name);
    o.name = name;
    const std::string text = roformer::dump(roformer::write(o));
    INFO(text);
    const ConfigNode node = roformer::parse_config(text, "t.yaml", "/elsewhere");
    CHECK(node == roformer::write(o));
    CHECK(rct::options_of(node) == o);
  }
  for (const double value :
       {1e300, 0.1, 1.0 / 3, 123456789012345680.0, -0.0, 5e-324, 1.7976931348623157e308}) {
    double back = 1;
    roformer::read(roformer::write(value), back, "x");
    CHECK(back == value);
    CHECK(std::signbit(back) == std::signbit(value));
  }
}

TEST_CASE("config: the written file is plain to read", "[config]") {
  const auto o =
      rct::options_of("{model: {positions: none}, stages: [{steps: 2}], arms: {a: {}, b: {model.dim: 4}}}");
  CHECK(roformer::dump(roformer::write(o)) == R"(model:
  dim: 512
  heads: 8
  dropout: 0.1
  activation: gelu
  tied: true
  positions:
    type: none
name: run
train: []
betas: [0.9, 0.999]
stages:
  steps: 2
  length: 128
extra: []
table: null
clip: 1
flags: []
activations: []
arms:
  a: {}
  b:
    model.dim: 4
)");
}

TEST_CASE("config: a base lies beneath the file that names it", "[config]") {
  const roformer::test::TempDir dir;
  rct::write_file(dir / "base/deep.yaml",
                  "train: deep.txt\nmodel: {dim: 64, heads: 4, positions: {type: rotary, base: 7}}\n");
  rct::write_file(dir / "base/mid.yaml", "base: deep.yaml\nmodel:\n  dim: 128\nbetas: [0.1, 0.2]\n");
  rct::write_file(dir / "base/other.yaml", "betas: [0.5]\nclip: 3\n");
  rct::write_file(dir / "top.yaml",
                  "base: [base/mid.yaml, base/other.yaml]\nmodel: {positions: {type: learned}}\nname: top\n");
  const auto o = rct::options_of(roformer::load_config(dir / "top.yaml"));
  CHECK(o.train == std::vector{dir / "base/deep.txt"});  // against the file that names it
  CHECK(o.model.dim == 128);
  CHECK(o.model.heads == 4);
  CHECK(o.model.positions == rct::PositionOptions(rct::LearnedOptions{}));  // no inherited 'base'
  CHECK(o.betas == std::vector{0.5});
  CHECK(o.clip == 3.0);
  CHECK(o.name == "top");
  CHECK(roformer::load_config(dir / "top.yaml").find("base") == nullptr);

  // The shorthand merges like the long form.
  rct::write_file(dir / "short.yaml", "model: {positions: learned}\n");
  rct::write_file(dir / "over.yaml", "base: short.yaml\nmodel: {positions: {length: 9}}\n");
  CHECK(rct::options_of(roformer::load_config(dir / "over.yaml")).model.positions ==
        rct::PositionOptions(rct::LearnedOptions{9}));

  // A bad value is found in the file it stands in.
  rct::write_file(dir / "base/bad.yaml", "name: a\nmodel:\n  dim: x\n");
  rct::write_file(dir / "usesbad.yaml", "base: base/bad.yaml\nclip: 2\n");
  CHECK(rct::error_of([&] { rct::options_of(roformer::load_config(dir / "usesbad.yaml")); }) ==
        (dir / "base/bad.yaml").string() + ":3: 'model.dim' must be an integer, got 'x'");
}

TEST_CASE("config: files that cannot be read", "[config]") {
  const roformer::test::TempDir dir;
  const auto load = [&](const std::string& name) {
    std::string message = rct::error_of([&] { roformer::load_config(dir / name); });
    const std::string root = dir.path().string() + "/";
    for (size_t i; (i = message.find(root)) != std::string::npos;) message.erase(i, root.size());
    return message;
  };
  CHECK(load("none.yaml") == "none.yaml: no such file");
  CHECK(load(".").ends_with(": is a folder; name a YAML file in it"));
  rct::write_file(dir / "empty.yaml", "");
  CHECK(load("empty.yaml") == "empty.yaml:1: the file is empty");
  rct::write_file(dir / "a.yaml", "name: a\nbase: b.yaml\n");
  rct::write_file(dir / "b.yaml", "base: ./a.yaml\n");
  CHECK(load("a.yaml") == "b.yaml:1: 'base' runs in a circle: a.yaml -> b.yaml -> a.yaml");
  rct::write_file(dir / "self.yaml", "base: self.yaml\n");
  CHECK(load("self.yaml") == "self.yaml:1: 'base' runs in a circle: self.yaml -> self.yaml");
  rct::write_file(dir / "lost.yaml", "name: a\nbase: gone.yaml\n");
  CHECK(load("lost.yaml") == "lost.yaml:2: base 'gone.yaml': no such file");
  rct::write_file(dir / "map.yaml", "base: {a: b}\n");
  CHECK(load("map.yaml") == "map.yaml:1: 'base' must name a file or a list of files, got a map");
  rct::write_file(dir / "huge.yaml", std::string((1 << 20) + 1, '#'));
  CHECK(load("huge.yaml") == "huge.yaml: larger than 1 MiB; this is not a configuration file");
  // Without cycles, but each file names the next one twice.
  for (int i = 0; i < 30; ++i) {
    rct::write_file(dir / fmt::format("fan{}.yaml", i),
                    fmt::format("base: [fan{0}.yaml, fan{0}.yaml]\n", i + 1));
  }
  rct::write_file(dir / "fan30.yaml", "name: end\n");
  CHECK(load("fan0.yaml").ends_with("more than 64 files through 'base:'"));
  // A diamond is no circle.
  rct::write_file(dir / "d1.yaml", "base: fan30.yaml\n");
  rct::write_file(dir / "d2.yaml", "base: [d1.yaml, fan30.yaml]\n");
  CHECK(load("d2.yaml") == "no error");
}

TEST_CASE("config: --set", "[config]") {
  const roformer::test::TempDir dir;
  rct::write_file(
      dir / "c.yaml",
      "model: {dim: 64, positions: {type: rotary, base: 7}}\nextra: [rotary, none]\ntrain: a.txt\n");
  const auto load = [&](const std::vector<std::string>& sets) {
    return rct::options_of(roformer::load_config(dir / "c.yaml", sets));
  };
  const auto error = [&](const std::vector<std::string>& sets) { return rct::error_of([&] { load(sets); }); };

  CHECK(load({"model.dim=32", "clip=1e-3", "betas=[1, 0]", "name=a=b"}).model.dim == 32);
  CHECK(load({"clip=1e-3"}).clip == 1e-3);
  CHECK(load({"clip="}).clip == std::nullopt);
  CHECK(load({"betas=[1, 0]"}).betas == std::vector{1.0, 0.0});
  CHECK(load({"name=a=b"}).name == "a=b");
  CHECK(load({"name=a", "name=b"}).name == "b");
  CHECK(load({"table.length=3"}).table == rct::LearnedOptions{3});
  CHECK(load({"train=b.txt"}).train == std::vector{std::filesystem::current_path() / "b.txt"});
  CHECK(load({"stages={steps: 4}"}).stages.at(0).steps == 4);

  const auto positions = [&](const std::vector<std::string>& sets) { return load(sets).model.positions; };
  CHECK(positions({"model.positions.base=9"}) == rct::PositionOptions(rct::RotaryOptions{9, {}}));
  CHECK(positions({"model.positions={base: 9}"}) == rct::PositionOptions(rct::RotaryOptions{9, {}}));
  CHECK(positions({"model.positions.type=none"}) == rct::PositionOptions(rct::NoneOptions{}));
  CHECK(positions({"model.positions=none"}) == rct::PositionOptions(rct::NoneOptions{}));
  CHECK(positions({"model.positions={type: learned, length: 3}"}) ==
        rct::PositionOptions(rct::LearnedOptions{3}));
  // The new type drops what the file gave the old one, not what is set beside it, in either order.
  CHECK(positions({"model.positions.type=learned", "model.positions.length=3"}) ==
        rct::PositionOptions(rct::LearnedOptions{3}));
  CHECK(positions({"model.positions.length=3", "model.positions.type=learned"}) ==
        rct::PositionOptions(rct::LearnedOptions{3}));
  CHECK(load({"extra.type=learned"}).extra == std::vector<rct::PositionOptions>{rct::LearnedOptions{}});

  CHECK(error({"model.dim=1e3"}) == "--set model.dim: 'model.dim' must be an integer, got '1e3'");
  CHECK(error({"model.hedas=1"}) == "--set model.hedas: unknown key 'model.hedas'; did you mean 'heads'?");
  CHECK(error({"extra.base=3"}) ==
        "--set extra.base: 'extra' is a list (" + (dir / "c.yaml").string() + ":2); give the whole list");
  CHECK(error({"model.dim"}) == "--set model.dim: write --set name.of.option=value");
  CHECK(error({"=3"}) == "--set =3: write --set name.of.option=value");
  CHECK(error({"model..dim=3"}) == "--set model..dim: 'model..dim' is not the name of an option");
  CHECK(error({".=3"}) == "--set .: '.' is not the name of an option");
  CHECK(error({"base=x.yaml"}) == "--set base: 'base' can only be given in a file");
  CHECK(error({"name=[a"}) == "--set name: not valid YAML: end of sequence flow not found");
  CHECK(error({"name={a: 1, a: 2}"}) == "--set name: key 'a' is given twice");
  CHECK(error({"name.first=3"}).ends_with("'name' must be text, got a map"));
}

TEST_CASE("config: arms override like --set", "[config]") {
  const ConfigNode file = roformer::parse_config(
      "model:\n  positions: {type: rotary, base: 7}\narms:\n  bert: {model.positions.type: learned, model: "
      "{dim: 16}}\n  bad:\n"
      "    model.dim: x\n",
      "t.yaml");
  ConfigNode bert = file;
  roformer::set_values(bert, rct::at(file, "arms.bert"));
  const auto o = rct::options_of(bert);
  CHECK(o.model.positions == rct::PositionOptions(rct::LearnedOptions{}));
  CHECK(o.model.dim == 16);

  ConfigNode bad = file;
  roformer::set_values(bad, rct::at(file, "arms.bad"));
  CHECK(rct::error_of([&] { rct::options_of(bad); }) == "t.yaml:6: 'model.dim' must be an integer, got 'x'");

  ConfigNode one = file;
  roformer::set_value(one, "model.positions.type", roformer::parse_set_value("none", "here"));
  CHECK(rct::options_of(one).model.positions == rct::PositionOptions(rct::NoneOptions{}));
  roformer::set_value(one, "table.length", roformer::parse_set_value("5", "here"));
  CHECK(rct::options_of(one).table == rct::LearnedOptions{5});
}

TEST_CASE("config: find", "[config]") {
  const ConfigNode node = roformer::parse_config("a:\n  b:\n    c: 1\n", "t.yaml");
  CHECK(rct::at(node, "a.b.c").text == "1");
  CHECK(rct::at(node, "a.b.c").mark.str() == "t.yaml:3");
  CHECK(rct::at(node, "a.b").mark.line == 2);  // the key's line, not the first child's
  CHECK(node.find("a.c") == nullptr);
  CHECK(node.find("a.b.c.d") == nullptr);
  CHECK(node.find("") == nullptr);
}

TEST_CASE("config: describe lists every option", "[config]") {
  std::string lines;
  for (const auto& o : roformer::describe<rct::TestOptions>()) {
    lines += fmt::format("{} | {} | {} | {} | {}\n", o.path, o.type, o.default_value, o.constraint, o.help);
  }
  CHECK(lines == R"(model | section |  |  | the network
model.dim | integer | 512 | at least 1 | width of the model
model.heads | integer | 8 | at least 1 | attention heads
model.dropout | number | 0.1 | within [0, 1] | on attention weights
model.activation | one of gelu, relu | gelu |  | of the feed-forward layers
model.tied | true or false | true |  | output layer shares the embedding
model.positions | one of none, rotary, learned | rotary |  | position encoding
model.positions{rotary}.base | number | 10000 | above 0 | of the angles
model.positions{rotary}.width | integer, or null | null | at least 2 | features that turn; null: all
model.positions{learned}.length | integer | 512 | at least 1 | rows of the table
name | text | run |  | of the run
train | list: path | [] |  | training text
betas | list: number | [0.9, 0.999] | within [0, 1] | of Adam
stages | list: section | [] |  | one after another
stages[].steps | integer |  | required, above 0 | updates
stages[].length | integer | 128 | at least 1 | tokens of a row
extra | list: one of none, rotary, learned | [] |  | more encodings
extra{rotary}.base | number | 10000 | above 0 | of the angles
extra{rotary}.width | integer, or null | null | at least 2 | features that turn; null: all
extra{learned}.length | integer | 512 | at least 1 | rows of the table
table | section, or null | null |  | a table beside them
table.length | integer | 512 | at least 1 | rows of the table
clip | number, or null | 1 | above 0 | norm of the gradient
flags | list: true or false | [] |  | 
activations | list: one of gelu, relu | [] |  | 
arms | anything | null |  | overrides by arm
)");
  std::vector<std::string> paths;
  for (const auto& o : roformer::describe<rct::TestOptions>("model.positions")) paths.push_back(o.path);
  CHECK(paths == std::vector<std::string>{"model.positions", "model.positions{rotary}.base",
                                          "model.positions{rotary}.width",
                                          "model.positions{learned}.length"});
  CHECK(roformer::describe<rct::TestOptions>("mode").empty());
}

TEST_CASE("config: did you mean", "[config]") {
  const std::vector<std::string> known = {"dim", "heads", "weight_decay", "lr"};
  CHECK(roformer::did_you_mean("weight-decay", known) == "; did you mean 'weight_decay'?");
  CHECK(roformer::did_you_mean("weigth_dceay", known) == "; did you mean 'weight_decay'?");
  CHECK(roformer::did_you_mean("Dim", known) == "; did you mean 'dim'?");
  CHECK(roformer::did_you_mean("x", known).empty());
  CHECK(roformer::did_you_mean("layers", known).empty());
  CHECK(roformer::did_you_mean(rct::repeated("x", 100000), known).empty());
}

TEST_CASE("config: damaged text gives an Error or the same values again", "[config]") {
  const std::vector<std::string> seeds = {
      "model:\n  dim: 96\n  heads: 12\n  positions: {type: rotary, base: 1.0e4, width: 4}\nbetas: [0.9, "
      "0.999]\n"
      "train: [\"a b\", '${HOME}/x', c]\nstages:\n- steps: 3\n- {steps: 4, length: 5}\n",
      "# note\nname: |\n  block text\n  more\nclip: ~\nextra:\n  - rotary\n  - type: learned\n    length: 3\n"
      "arms: {a: {}, 'b c': {model.dim: 8}}\n",
      "? name\n: >-\n  folded\n\n  text\nflags: [true, false]\nmodel: {activation: relu}\n",
  };
  const std::vector<std::string> pieces = {"\n",
                                           " ",
                                           "  ",
                                           ": ",
                                           "- ",
                                           "? ",
                                           "[",
                                           "]",
                                           "{",
                                           "}",
                                           ",",
                                           "\"",
                                           "'",
                                           "\\",
                                           "&a ",
                                           "*a",
                                           "!!str ",
                                           "<<: ",
                                           "|",
                                           ">",
                                           "---\n",
                                           "...\n",
                                           "%YAML 1.2\n",
                                           "#",
                                           "\t",
                                           "~",
                                           "null",
                                           "\r\n",
                                           "\xff",
                                           "\xe4\xb8\xad",
                                           "${",
                                           "$$",
                                           "@",
                                           "`",
                                           std::string(1, '\0'),
                                           "\xef\xbb\xbf",
                                           "\\x00",
                                           "\\ud800",
                                           "type: none",
                                           "1e999",
                                           "name: x\n",
                                           "\xc2\x85"};
  std::mt19937 random(1);
  const auto below = [&](size_t n) { return static_cast<size_t>(random() % n); };
  int parsed = 0, good = 0, bad = 0;
  for (int round = 0; round < 6000; ++round) {
    std::string text = seeds[below(seeds.size())];
    for (size_t edits = 1 + below(4); edits-- > 0;) {
      const size_t at = below(text.size() + 1);
      switch (below(5)) {
        case 0:
          text.insert(at, pieces[below(pieces.size())]);
          break;
        case 1:
          text.erase(at, 1 + below(6));
          break;
        case 2:
          text.insert(at, text.substr(below(text.size() + 1), below(30)));
          break;
        case 3:
          text.resize(at);
          break;
        default:
          if (at < text.size()) text[at] = static_cast<char>(random());
      }
    }
    // No INFO or REQUIRE in here: Catch2 v2 keeps the messages of scopes that an exception leaves.
    std::string problem;
    try {
      const ConfigNode node = roformer::parse_config(text, "t.yaml", "/r");
      ++parsed;
      const std::string dumped = roformer::dump(node);
      try {
        if (node != roformer::parse_config(dumped, "t.yaml", "/r")) problem = "changed: " + dumped;
      } catch (const roformer::Error& error) {
        problem = fmt::format("dump is not readable: {}\n{}", error.what(), dumped);
      }
      const auto o = rct::options_of(node);
      if (rct::options_of(roformer::dump(roformer::write(o))) != o) problem = "options changed";
      ++good;
    } catch (const roformer::Error& error) {
      const std::string_view message = error.what();
      if (!message.starts_with("t.yaml:") || message.find('\n') != std::string::npos) {
        problem = fmt::format("message: {}", message);
      }
      ++bad;
    } catch (const std::exception& error) {
      problem = fmt::format("not an Error: {}", error.what());
    }
    if (!problem.empty()) FAIL("round " << round << ": " << problem << "\ntext:\n" << text);
  }
  CHECK(parsed > 1000);
  CHECK(good > 300);
  CHECK(bad > 1000);
}
