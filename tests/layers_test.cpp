// The include rule: includes go only downward, and some libraries have one user.
#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>
#include <sstream>
#include <string>
#include <vector>

#include "tests/catch.h"
#include "tests/support.h"

namespace {

namespace fs = std::filesystem;

// Layers of one height never include one another.
const std::map<std::string, int> kLayerHeights = {
    {"core", 0}, {"text", 1}, {"nn", 2},     {"data", 2},  {"eval", 2}, {"models", 3}, {"hf", 4},
    {"tasks", 5}, {"train", 6}, {"report", 6}, {"run", 7}, {"apps", 8}};

// "roformer/nn/layers.h" -> "nn"; a file right under roformer/ belongs to run, torch.h to nobody.
std::string layer_of(const std::string& path) {
  if (path.rfind("apps/", 0) == 0) return "apps";
  if (path == "roformer/torch.h") return "torch";
  const std::string rest = path.substr(std::string("roformer/").size());
  const size_t slash = rest.find('/');
  return slash == std::string::npos ? "run" : rest.substr(0, slash);
}

bool starts_with(const std::string& text, const std::string& start) { return text.rfind(start, 0) == 0; }

bool is_torch_header(const std::string& name) {
  for (const char* folder : {"torch/", "ATen/", "c10/", "caffe2/"}) {
    if (starts_with(name, folder)) return true;
  }
  return false;
}

// One line for each include of `path` that breaks the rule.
std::vector<std::string> include_violations(const std::string& path, std::istream& text) {
  std::vector<std::string> found;
  const std::string layer = layer_of(path);
  const bool plain_kernel = starts_with(path, "roformer/nn/kernels/") && !path.ends_with(".cu");
  const bool torch_free = layer == "core" || layer == "text" || layer == "report" || plain_kernel;
  std::string line;
  for (int number = 1; std::getline(text, line); ++number) {
    std::istringstream words(line);
    std::string word;
    words >> word;
    if (word == "#") {
      words >> word;
      word = "#" + word;
    }
    if (!starts_with(word, "#include")) continue;
    const auto complain = [&](const std::string& what) {
      found.push_back(path + ":" + std::to_string(number) + ": " + what);
    };
    const size_t open = line.find_first_of("\"<");
    const size_t close = open == std::string::npos ? open : line.find_first_of("\">", open + 1);
    if (close == std::string::npos) continue;
    const std::string name = line.substr(open + 1, close - open - 1);

    if (line[open] == '<') {
      if (is_torch_header(name) && torch_free) complain("torch header in a torch-free file");
      if (starts_with(name, "yaml-cpp/") && path != "roformer/core/config.cpp") complain("yaml-cpp outside core/config");
      if (starts_with(name, "spdlog/") && path != "roformer/core/log.cpp") complain("spdlog outside core/log");
      continue;
    }
    if (!starts_with(name, "roformer/")) {
      complain("'" + name + "' is not named from the repository's root");
      continue;
    }
    const std::string other = layer_of(name);
    if (other == "torch") {
      if (torch_free) complain("torch header in a torch-free file");
      continue;
    }
    if (!kLayerHeights.count(other)) {
      complain("unknown layer '" + other + "'");
    } else if (other != layer && kLayerHeights.at(other) >= kLayerHeights.at(layer)) {
      complain("'" + layer + "' includes '" + other + "'");
    }
  }
  return found;
}

std::vector<std::string> violations_in(const std::string& path, const std::string& text) {
  std::istringstream stream(text);
  return include_violations(path, stream);
}

}  // namespace

TEST_CASE("the include rule is checked") {
  CHECK(violations_in("roformer/nn/a.h", "#include \"roformer/core/error.h\"\n#include <vector>\n").empty());
  CHECK(violations_in("roformer/nn/a.h", "#include \"roformer/nn/b.h\"\n#include \"roformer/torch.h\"\n").empty());
  CHECK(violations_in("apps/roformer.cpp", "#include \"roformer/run.h\"\n").empty());
  CHECK(violations_in("roformer/core/config.cpp", "#include <yaml-cpp/yaml.h>\n").empty());

  const auto upward = violations_in("roformer/core/a.h", "\n#include \"roformer/nn/b.h\"\n");
  REQUIRE(upward.size() == 1);
  CHECK(upward[0] == "roformer/core/a.h:2: 'core' includes 'nn'");
  CHECK(violations_in("roformer/nn/a.h", "#include \"roformer/data/b.h\"\n").size() == 1);
  CHECK(violations_in("roformer/train/a.cpp", "#  include \"roformer/run.h\"\n").size() == 1);
  CHECK(violations_in("roformer/data/a.cpp", "#include \"batch.h\"\n").size() == 1);
  CHECK(violations_in("roformer/text/a.cpp", "#include \"roformer/torch.h\"\n").size() == 1);
  CHECK(violations_in("roformer/nn/kernels/a.cpp", "#include <ATen/ATen.h>\n").size() == 1);
  CHECK(violations_in("roformer/train/a.cpp", "#include <spdlog/spdlog.h>\n").size() == 1);
  CHECK(violations_in("roformer/run.cpp", "#include <yaml-cpp/yaml.h>\n").size() == 1);
}

TEST_CASE("includes go only downward") {
  const fs::path root = roformer::test::source_dir();
  std::vector<std::string> found;
  int files = 0;
  for (const char* top : {"roformer", "apps"}) {
    for (const auto& entry : fs::recursive_directory_iterator(root / top)) {
      const std::string extension = entry.path().extension().string();
      if (extension != ".h" && extension != ".cpp" && extension != ".cu") continue;
      std::ifstream text(entry.path());
      REQUIRE(text);
      ++files;
      const std::string path = fs::relative(entry.path(), root).generic_string();
      const std::vector<std::string> more = include_violations(path, text);
      found.insert(found.end(), more.begin(), more.end());
    }
  }
  std::sort(found.begin(), found.end());
  for (const std::string& line : found) UNSCOPED_INFO(line);
  CHECK(found.empty());
  CHECK(files > 20);
}
