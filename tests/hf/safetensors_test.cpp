#include "roformer/hf/safetensors.h"

#include "roformer/core/error.h"

#include "tests/catch.h"
#include "tests/support.h"

#include <fcntl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <limits>
#include <random>
#include <sstream>

namespace roformer {
namespace {

namespace fs = std::filesystem;
using NamedTestTensors = std::vector<std::pair<std::string, torch::Tensor>>;

std::vector<std::string> names_in_folder(const test::TempDir& folder) {
  std::vector<std::string> result;
  for (const auto& entry : fs::directory_iterator(folder.path()))
    result.push_back(entry.path().filename().string());
  return result;
}

void write_safetensors_bytes(const fs::path& path, const std::string& bytes) {
  fs::remove(path);  // some file systems wait for the disk when a file is written over
  std::ofstream(path, std::ios::binary).write(bytes.data(), std::streamsize(bytes.size()));
}

std::string safetensors_bytes_of(const fs::path& path) {
  std::ostringstream text;
  text << std::ifstream(path, std::ios::binary).rdbuf();
  return text.str();
}

std::string safetensors_length(uint64_t length) {
  std::string bytes;
  for (int i = 0; i < 8; ++i) bytes += char(length >> (8 * i) & 0xFF);
  return bytes;
}

std::string raw_safetensors(const std::string& header, size_t data_size) {
  return safetensors_length(header.size()) + header + std::string(data_size, '\0');
}

template <class F>
std::string safetensors_error(F&& action) {
  try {
    action();
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

std::string safetensors_opening_error(const fs::path& path) {
  return safetensors_error([&] { SafetensorsFile file(path); });
}

bool same_stored_bits(const torch::Tensor& a, const torch::Tensor& b) {
  if (a.scalar_type() != b.scalar_type() || a.sizes() != b.sizes()) return false;
  auto x = a.contiguous(), y = b.contiguous();
  return x.numel() == 0 || std::memcmp(x.data_ptr(), y.data_ptr(), x.nbytes()) == 0;
}

NamedTestTensors every_stored_kind() {
  torch::manual_seed(1);
  NamedTestTensors tensors;
  for (auto type : {torch::kBool, torch::kByte, torch::kChar, torch::kShort, torch::kInt, torch::kLong,
                    torch::kHalf, torch::kBFloat16, torch::kFloat, torch::kDouble}) {
    auto values = torch::randint(0, type == torch::kBool ? 2 : 100, {3, 5, 2}).to(type);
    std::string name = c10::toString(type);
    tensors.emplace_back(name + ".plain", values);
    tensors.emplace_back(name + ".scalar", values[1][2][0]);
    tensors.emplace_back(name + ".empty", values.slice(1, 2, 2));
    tensors.emplace_back(name + ".transposed", values.transpose(0, 2));
    tensors.emplace_back(name + ".strided", values.slice(1, 0, 5, 2));
    tensors.emplace_back(name + ".expanded", values.select(1, 0).unsqueeze(0).expand({4, 3, 2}));
    tensors.emplace_back(name + ".odd", values.flatten().slice(0, 0, 7));  // leaves its successor misaligned
  }
  return tensors;
}

TEST_CASE("safetensors: every dtype and layout comes back bit for bit", "[hf]") {
  test::TempDir folder;
  auto tensors = every_stored_kind();
  constexpr float nan = std::numeric_limits<float>::quiet_NaN();
  tensors.emplace_back("special", torch::tensor({-0.0F, INFINITY, -INFINITY, nan, 1e-45F}));
  tensors.emplace_back("grad", torch::randn({2, 2}, torch::requires_grad()));
  tensors.emplace_back("negated", torch::imag(torch::conj(torch::randn({4}, torch::kComplexFloat))));
  tensors.emplace_back("", torch::ones({1}));
  tensors.emplace_back("na\"me\n\\ \xe8\xaf\x8d/\x01", torch::ones({1, 1, 1}));
  std::map<std::string, std::string> metadata{{"format", "pt"}, {"text \n\"", "\xe4\xbd\xa0\\"}};
  save_safetensors(folder / "a", tensors, metadata);

  SafetensorsFile file(folder / "a");
  CHECK(file.metadata() == metadata);
  CHECK(file.entries().size() == tensors.size());
  CHECK_FALSE(file.contains("absent"));
  for (const auto& [name, tensor] : tensors) {
    INFO(name);
    REQUIRE(file.contains(name));
    auto read = file.tensor(name);
    CHECK(same_stored_bits(read, tensor.detach().resolve_neg()));
    CHECK(read.is_contiguous());
  }
  CHECK(safetensors_error([&] { file.tensor("absent\n"); }) ==
        (folder / "a").string() + ": has no tensor 'absent\\x0a'");
  CHECK(names_in_folder(folder) == std::vector<std::string>{"a"});
}

TEST_CASE("safetensors: a tensor outlives its file and is no view of it", "[hf]") {
  test::TempDir folder;
  save_safetensors(folder / "a", {{"x", torch::arange(4)}});
  torch::Tensor x;
  {
    SafetensorsFile file(folder / "a");
    x = file.tensor("x");
    x.add_(10);
    auto copy = file;
    CHECK(torch::equal(copy.tensor("x"), torch::arange(4)));
  }
  fs::remove(folder / "a");
  CHECK(torch::equal(x, torch::arange(10, 14)));
}

TEST_CASE("safetensors: the bytes are those of the reference writer", "[hf]") {
  test::TempDir folder;
  save_safetensors(folder / "a",
                   {{"b", torch::tensor({1.0F, 2.0F})},
                    {"flag", torch::tensor({true})},
                    {"a", torch::tensor(-1.0F)},
                    {"n", torch::tensor({3}, torch::kLong)}},
                   {{"format", "pt"}});
  std::string header =
      R"({"__metadata__":{"format":"pt"},"n":{"dtype":"I64","shape":[1],"data_offsets":[0,8]},)"
      R"("a":{"dtype":"F32","shape":[],"data_offsets":[8,12]},)"
      R"("b":{"dtype":"F32","shape":[2],"data_offsets":[12,20]},)"
      R"("flag":{"dtype":"BOOL","shape":[1],"data_offsets":[20,21]}})";
  while (header.size() % 8 != 0) header += ' ';
  std::string data(
      "\3\0\0\0\0\0\0\0"
      "\0\0\x80\xbf"
      "\0\0\x80\x3f"
      "\0\0\0\x40"
      "\1",
      21);
  CHECK(safetensors_bytes_of(folder / "a") == safetensors_length(header.size()) + header + data);

  save_safetensors(folder / "a", {});
  CHECK(safetensors_bytes_of(folder / "a") == safetensors_length(8) + "{}      ");
  CHECK(SafetensorsFile(folder / "a").entries().empty());
}

TEST_CASE("safetensors: what others may write", "[hf]") {
  test::TempDir folder;
  // Keys in another order, white space, data in another order than the names, an odd header length.
  std::string header =
      " \"y\" : {\"data_offsets\":[4,12], \"shape\": [ 2 ],\t\"dtype\":\"F32\"},\n"
      "\"\\u0078\":{\"dtype\":\"BF16\",\"shape\":[2,1],\"data_offsets\":[0,4]},"
      "\"z\":{\"dtype\":\"F64\",\"shape\":[3,0],\"data_offsets\":[4,4]}}";
  header = "{" + header + (header.size() % 2 == 0 ? " " : "  ");
  REQUIRE(header.size() % 2 == 0);
  header += " ";
  write_safetensors_bytes(folder / "a", safetensors_length(header.size()) + header +
                                            std::string("\x80\x3f\x00\xc0"
                                                        "\0\0\x80\x3f"
                                                        "\0\0\0\x40",
                                                        12));
  SafetensorsFile file(folder / "a");
  CHECK(torch::equal(file.tensor("x"), torch::tensor({{1.0F}, {-2.0F}}).to(torch::kBFloat16)));
  CHECK(torch::equal(file.tensor("y"), torch::tensor({1.0F, 2.0F})));
  CHECK(file.tensor("z").sizes() == torch::IntArrayRef({3, 0}));
  REQUIRE(file.entries().size() == 3);
  CHECK(file.entries()[0].name == "x");
  CHECK(file.entries()[1].name == "z");
  CHECK(file.entries()[2].begin == 4);
}

TEST_CASE("safetensors: hostile headers are refused in one line", "[hf]") {
  test::TempDir folder;
  auto path = folder / "bad";
  auto x = [](const std::string& type, const std::string& shape, const std::string& offsets) {
    return R"({"x":{"dtype":)" + type + R"(,"shape":)" + shape + R"(,"data_offsets":)" + offsets + "}}";
  };
  auto f32 = [&](const std::string& shape, const std::string& offsets) {
    return x(R"("F32")", shape, offsets);
  };
  auto u8 = [](const std::string& name, const std::string& offsets, int size = 1) {
    return fmt::format(R"("{}":{{"dtype":"U8","shape":[{}],"data_offsets":{}}})", name, size, offsets);
  };
  std::string deep(100'000, '['), dims = "[1";
  for (int i = 0; i < 64; ++i) dims += ",1";
  dims += "]";
  struct Case {
    std::string header;
    size_t data;
    std::string message;
  };
  const Case cases[] = {
      {"", 0, "is no safetensors file: the header does not begin with '{'"},
      {"[]", 0, "is no safetensors file: the header does not begin with '{'"},
      {" {}", 0, "is no safetensors file: the header does not begin with '{'"},
      {"\xEF\xBB\xBF{}", 0, "is no safetensors file: the header does not begin with '{'"},
      {"{", 0, "the header is not valid JSON (byte 2)"},
      {"{}x", 0, "the header is not valid JSON (byte 3)"},
      {"{}{}", 0, "the header is not valid JSON (byte 3)"},
      {std::string("{}\0\0", 4), 0, "the header is not valid JSON (byte 3)"},
      {"{/**/}", 0, "the header is not valid JSON (byte 2)"},
      {"{\"a\xff\":{}}", 0, "the header is not valid JSON (byte 4)"},
      {"{\"x\":" + deep, 0, "'x': an object is expected, not an array"},
      {"{\"x\":{\"shape\":" + deep, 0, "tensor 'x': an array in 'shape'"},
      {R"({"x":{"shape":{"shape":[]}}})", 0, "tensor 'x': an object in 'shape'"},
      {R"({"x":1})", 0, "'x': an object is expected, not a number"},
      {R"({"x":null})", 0, "'x': an object is expected, not null"},
      {R"({"x\n":"y"})", 0, "'x\\x0a': an object is expected, not a text"},
      {R"({"x":{}})", 0, "tensor 'x': 'dtype' is missing"},
      {R"({"x":{"dtype":"F32","data_offsets":[0,4]}})", 4, "tensor 'x': 'shape' is missing"},
      {R"({"x":{"dtype":"F32","shape":[]}})", 4, "tensor 'x': 'data_offsets' is missing"},
      {R"({"x":{"stride":[]}})", 4, "tensor 'x': unknown key 'stride'"},
      {R"({"x":{"dtype":"F32","dtype":"F32"}})", 4, "tensor 'x': 'dtype' occurs twice"},
      {"{" + u8("x", "[0,1]") + "," + u8("x", "[1,2]") + "}", 2, "'x' occurs twice"},
      {R"({"__metadata__":{},"__metadata__":{}})", 0, "'__metadata__' occurs twice"},
      {R"({"__metadata__":{"a":"1","a":"2"}})", 0, "metadata 'a' occurs twice"},
      {R"({"__metadata__":{"a":1}})", 0, "metadata 'a': a text is expected, not a number"},
      {R"({"__metadata__":{"a":{}}})", 0, "metadata 'a': a text is expected, not an object"},
      {R"({"__metadata__":[]})", 0, "'__metadata__': an object is expected, not an array"},
      {x(R"("F8_E4M3")", "[1]", "[0,1]"), 1, "tensor 'x': dtype 'F8_E4M3' is not supported"},
      {x(R"("F8_E5M2")", "[1]", "[0,1]"), 1, "tensor 'x': dtype 'F8_E5M2' is not supported"},
      {x(R"("f32")", "[1]", "[0,4]"), 4, "tensor 'x': dtype 'f32' is not supported"},
      {x("5", "[1]", "[0,4]"), 4, "tensor 'x': a number in 'dtype'"},
      {f32("[-1]", "[0,4]"), 4, "tensor 'x': a negative number in 'shape'"},
      {f32("[1.0]", "[0,4]"), 4, "tensor 'x': a number that is no integer in 'shape'"},
      {f32("[1e0]", "[0,4]"), 4, "tensor 'x': a number that is no integer in 'shape'"},
      {f32("[\"1\"]", "[0,4]"), 4, "tensor 'x': a text in 'shape'"},
      {f32("[true]", "[0,4]"), 4, "tensor 'x': a boolean in 'shape'"},
      {f32("1", "[0,4]"), 4, "tensor 'x': a number in 'shape'"},
      {f32("[9223372036854775808]", "[0,4]"), 4, "tensor 'x': a size that overflows in 'shape'"},
      {f32("[18446744073709551616]", "[0,4]"), 4, "tensor 'x': a number that is no integer in 'shape'"},
      {f32("[4294967296,4294967296]", "[0,0]"), 0, "tensor 'x': the size of its shape overflows"},
      {f32("[2305843009213693952]", "[0,0]"), 0, "tensor 'x': the size of its shape overflows"},
      {f32("[0,4294967296,4294967296]", "[0,0]"), 0, "tensor 'x': the size of its shape overflows"},
      {f32(dims, "[0,4]"), 4, "tensor 'x': has more than 64 dimensions"},
      {f32("[1]", "[0]"), 4, "tensor 'x': 'data_offsets' has fewer than two numbers"},
      {f32("[1]", "[0,4,4]"), 4, "tensor 'x': 'data_offsets' has more than two numbers"},
      {f32("[1]", "[-4,0]"), 4, "tensor 'x': a negative number in 'data_offsets'"},
      {f32("[1]", "[4,0]"), 4, "tensor 'x': its data ends at 0, before it begins at 4"},
      {f32("[1]", "[18446744073709551615,3]"), 4,
       "tensor 'x': its data ends at 3, before it begins at 18446744073709551615"},
      {f32("[2]", "[0,4]"), 4, "tensor 'x': its shape needs 8 bytes, its data has 4"},
      {f32("[1]", "[0,18446744073709551615]"), 4,
       "tensor 'x': its shape needs 4 bytes, its data has 18446744073709551615"},
      {f32("[1]", "[0,4]"), 3, "is cut short: its tensors need 4 bytes of data, the file has 3"},
      {f32("[1]", "[0,4]"), 5,
       "has bytes that belong to no tensor: its tensors need 4 bytes of data, the file has 5"},
      {f32("[1]", "[4,8]"), 8, "tensor 'x': its data begins at 4, where 0 is expected (hole)"},
      {f32("[0]", "[4,4]"), 4, "tensor 'x': its data begins at 4, where 0 is expected (hole)"},
      {"{" + u8("x", "[0,2]", 2) + "," + u8("y", "[1,3]", 2) + "}", 3,
       "tensor 'y': its data begins at 1, where 2 is expected (overlap)"},
      {"{" + u8("x", "[0,2]", 2) + "," + u8("y", "[0,2]", 2) + "}", 2,
       "tensor 'y': its data begins at 0, where 2 is expected (overlap)"},
  };
  for (const auto& c : cases) {
    INFO(c.header.substr(0, 200));
    write_safetensors_bytes(path, raw_safetensors(c.header, c.data));
    CHECK(safetensors_opening_error(path) == path.string() + ": " + c.message);
  }

  // A name never fills the screen, and is not cut inside a character.
  std::string name = "a";
  for (int i = 0; i < 1000; ++i) name += "\xe8\xaf\x8d";
  write_safetensors_bytes(path, raw_safetensors("{\"" + name + "\":{}}", 0));
  CHECK(safetensors_opening_error(path) ==
        path.string() + ": tensor '" + name.substr(0, 1 + 39 * 3) + "...': 'dtype' is missing");

  write_safetensors_bytes(path, raw_safetensors(x(R"("BOOL")", "[3]", "[0,3]"), 2) + "\2");
  CHECK(safetensors_error([&] { SafetensorsFile(path).tensor("x"); }) ==
        path.string() + ": tensor 'x': a BOOL is neither 0 nor 1");
}

TEST_CASE("safetensors: what is no file of this format is named", "[hf]") {
  test::TempDir folder;
  auto path = folder / "bad";
  auto message = [&] {
    auto text = safetensors_opening_error(path);
    REQUIRE(text.starts_with(path.string() + ": "));
    return text.substr(path.string().size() + 2);
  };
  CHECK(message() == "cannot open: No such file or directory");
  fs::create_directory(path);
  CHECK(message() == "is not a regular file");
  fs::remove(path);
  REQUIRE(::mkfifo(path.c_str(), 0600) == 0);
  CHECK(message() == "is not a regular file");
  fs::remove(path);
  write_safetensors_bytes(path, "");
  CHECK(message() == "is no safetensors file: 0 bytes, too short for a header");
  write_safetensors_bytes(path, "1234567");
  CHECK(message() == "is no safetensors file: 7 bytes, too short for a header");
  write_safetensors_bytes(path, "PK\3\4 zip, as PyTorch writes it");
  CHECK(message().starts_with("is no safetensors file: a header of "));
  write_safetensors_bytes(path, safetensors_length(100'000'001) + "{}");
  CHECK(message() == "is no safetensors file: a header of 100000001 bytes exceeds the limit of 100000000");
  write_safetensors_bytes(path, safetensors_length(UINT64_MAX) + "{}");
  CHECK(message().ends_with("exceeds the limit of 100000000"));
  write_safetensors_bytes(path, safetensors_length(100'000'000) + "{}");
  CHECK(message() == "is cut short: its header has 100000000 bytes, the file 10");
  write_safetensors_bytes(path, safetensors_length(3) + "{}");
  CHECK(message() == "is cut short: its header has 3 bytes, the file 10");
}

TEST_CASE("safetensors: every cut of a file is noticed", "[hf]") {
  test::TempDir folder;
  save_safetensors(folder / "a", {{"x", torch::randn({2, 3})}, {"y", torch::arange(3)}}, {{"step", "7"}});
  auto bytes = safetensors_bytes_of(folder / "a");
  for (size_t size = 0; size < bytes.size(); ++size) {
    write_safetensors_bytes(folder / "cut", bytes.substr(0, size));
    INFO(size);
    CHECK(safetensors_opening_error(folder / "cut").starts_with((folder / "cut").string() + ": is "));
  }

  SafetensorsFile file(folder / "a");
  fs::resize_file(folder / "a", bytes.size() - 1);
  CHECK(safetensors_error([&] { file.tensor("x"); }) ==
        (folder / "a").string() + ": the file has become shorter while it was read");
}

TEST_CASE("safetensors: mutated files are read or refused, never worse", "[hf]") {
  test::TempDir folder;
  auto path = folder / "mutant";
  NamedTestTensors tensors{{"w", torch::randn({2, 3})},
                           {"b", torch::ones({3}, torch::kBool)},
                           {"n", torch::arange(2)},
                           {"e", torch::empty({0, 4}, torch::kHalf)}};
  save_safetensors(path, tensors, {{"format", "pt"}});
  const auto bytes = safetensors_bytes_of(path);
  const char* snippets[] = {"{",
                            "}",
                            "[",
                            "]",
                            ",",
                            ":",
                            "\"",
                            "-",
                            "1",
                            "0",
                            "99999999999999999999",
                            "4294967296",
                            "null",
                            "\"shape\":",
                            "\"dtype\":\"I8\",",
                            "[0,8]",
                            "\\u0000",
                            "\\ud800",
                            "\xff",
                            "e9",
                            " ",
                            "w"};
  std::mt19937 random(5);
  auto below = [&](size_t limit) { return size_t(random() % limit); };
  int read = 0, refused = 0;
  for (int round = 0; round < 6000; ++round) {
    auto mutant = bytes;
    for (size_t edit = 0, edits = 1 + below(3); edit < edits; ++edit) {
      size_t at = below(mutant.size());
      switch (below(6)) {
        case 0:
          mutant[at] = char(mutant[at] ^ (1 << below(8)));
          break;
        case 1:
          mutant[at] = char(below(256));
          break;
        case 2:
          mutant.erase(at, 1 + below(4));
          break;
        case 3:
          mutant.insert(at, snippets[below(std::size(snippets))]);
          break;
        case 4:
          mutant.insert(at, mutant.substr(below(mutant.size()), below(40)));
          break;
        default:
          mutant[at] = "0123456789"[below(10)];
      }
      if (mutant.empty()) mutant = "x";
    }
    // Half of them with a header length that fits, so that the edits reach the later checks.
    if (mutant.size() > 8 + tensors.size() && below(2) == 0) {
      size_t header_size = mutant.rfind('}');
      if (header_size != std::string::npos && header_size >= 8) {
        mutant.replace(0, 8, safetensors_length(header_size - 7));
      }
    }
    write_safetensors_bytes(path, mutant);
    try {
      SafetensorsFile file(path);
      for (const auto& entry : file.entries()) {
        auto tensor = file.tensor(entry.name);
        if (tensor.nbytes() != entry.end - entry.begin) FAIL(entry.name);
      }
      ++read;
    } catch (const Error& error) {
      std::string text = error.what();
      if (!text.starts_with(path.string() + ": ") || text.find('\n') != std::string::npos) FAIL(text);
      ++refused;
    }
  }
  CHECK(read > 100);
  CHECK(refused > 3000);
}

TEST_CASE("safetensors: what cannot be written is refused and leaves nothing", "[hf]") {
  test::TempDir folder;
  auto path = folder / "a";
  auto one = torch::ones({1});
  auto message = [&](const NamedTestTensors& tensors,
                     const std::map<std::string, std::string>& metadata = {}) {
    auto text = safetensors_error([&] { save_safetensors(path, tensors, metadata); });
    return text.substr(std::min(text.size(), path.string().size() + 2));
  };
  CHECK(message({{"x", one}, {"y", one}, {"x", one}}) == "tensor 'x': is given twice");
  CHECK(message({{"x", one}, {"x", one.to(torch::kLong)}}) == "tensor 'x': is given twice");
  CHECK(message({{"__metadata__", one}}) == "no tensor may be named '__metadata__'");
  CHECK(message({{"x", torch::ones({1}, torch::kComplexFloat)}}) ==
        "tensor 'x': dtype ComplexFloat is not supported");
  CHECK(message({{"x", one.to(torch::kFloat8_e4m3fn)}}) ==
        "tensor 'x': dtype Float8_e4m3fn is not supported");
  CHECK(message({{"x", torch::Tensor()}}) == "tensor 'x': has no dense data to write");
  CHECK(message({{"x", torch::eye(2).to_sparse()}}) == "tensor 'x': has no dense data to write");
  CHECK(message({{"x", torch::empty({2}, torch::kMeta)}}) == "tensor 'x': has no dense data to write");
  CHECK(message({{"x\xff", one}}) == "a tensor's name or a text of the metadata is not UTF-8");
  CHECK(message({{"x", one}}, {{"a", "\xff"}}) == "a tensor's name or a text of the metadata is not UTF-8");
  CHECK(names_in_folder(folder).empty());

  auto refusal = [&] {
    auto text = safetensors_error([&] { save_safetensors(path, {{"x", one}}); });
    REQUIRE(text.starts_with("cannot write " + path.string() + ": "));
    return text.substr(path.string().size() + 15);
  };
  path = folder / "absent/a";
  CHECK(refusal().starts_with("No such file or directory"));
  path = folder / "pipe";
  REQUIRE(::mkfifo(path.c_str(), 0600) == 0);
  CHECK(refusal().starts_with("it is not a plain file"));
  path = folder.path();
  CHECK(refusal().starts_with("it is not a plain file"));
  CHECK(names_in_folder(folder) == std::vector<std::string>{"pipe"});
}

TEST_CASE("safetensors: a name without a folder lies in the working folder", "[hf]") {
  test::TempDir folder;
  auto before = fs::current_path();
  fs::current_path(folder.path());
  save_safetensors("plain", {{"x", torch::arange(3)}});
  bool written = torch::equal(SafetensorsFile("plain").tensor("x"), torch::arange(3));
  fs::current_path(before);
  CHECK(written);
  CHECK(names_in_folder(folder) == std::vector<std::string>{"plain"});
}

TEST_CASE("safetensors: a full disk keeps the old file", "[hf]") {
  // A limit on the size of files stands in for the disk: the write that crosses it is cut short, the next one
  // fails.
  test::TempDir folder;
  save_safetensors(folder / "a", {{"x", torch::arange(10)}});
  auto old_bytes = safetensors_bytes_of(folder / "a");
  auto old_action = std::signal(SIGXFSZ, SIG_IGN);
  rlimit old_limit{};
  REQUIRE(::getrlimit(RLIMIT_FSIZE, &old_limit) == 0);
  auto wide = torch::zeros({100'000});
  std::vector<std::string> errors;
  for (rlim_t limit : {0, 5, 100, 200'000, 399'999}) {
    rlimit small{limit, old_limit.rlim_max};
    if (::setrlimit(RLIMIT_FSIZE, &small) != 0) throw std::runtime_error("setrlimit failed");
    errors.push_back(safetensors_error([&] { save_safetensors(folder / "a", {{"x", wide}}); }));
    ::setrlimit(RLIMIT_FSIZE, &old_limit);
  }
  std::signal(SIGXFSZ, old_action);
  for (const auto& error : errors) {
    CHECK(error.starts_with("cannot write " + (folder / "a").string() + ": File too large"));
  }
  CHECK(safetensors_bytes_of(folder / "a") == old_bytes);
  CHECK(names_in_folder(folder) == std::vector<std::string>{"a"});

  save_safetensors(folder / "a", {{"x", wide}});
  CHECK(torch::equal(SafetensorsFile(folder / "a").tensor("x"), wide));
}

TEST_CASE("safetensors: a killed writer never leaves half a file under the name", "[hf]") {
  test::TempDir folder;
  const int64_t size = 500'000;
  NamedTestTensors states[] = {{{"x", torch::full({size}, 1.0F)}}, {{"x", torch::full({size}, 2.0F)}}};
  save_safetensors(folder / "a", states[0]);
  std::mt19937 random(3);
  int litter = 0;
  for (int round = 0; round < 20; ++round) {
    pid_t child = ::fork();
    if (child == 0) {
      for (int i = round;; ++i) save_safetensors(folder / "a", states[i % 2]);
    }
    REQUIRE(child > 0);
    ::usleep(useconds_t(1000 + random() % 20'000));
    ::kill(child, SIGKILL);
    int status = 0;
    REQUIRE(::waitpid(child, &status, 0) == child);
    REQUIRE(WIFSIGNALED(status));
    auto x = SafetensorsFile(folder / "a").tensor("x");
    REQUIRE(x.numel() == size);
    REQUIRE(torch::all(x == x[0]).item<bool>());
    for (const auto& name : names_in_folder(folder)) {
      if (name == "a") continue;
      ++litter;  // shows that kills hit the middle of a write
      fs::remove(folder.path() / name);
    }
  }
  CHECK(litter > 0);
}

TEST_CASE("safetensors: reference files are read, and written again byte for byte", "[hf]") {
  auto oracles = test::require_oracles();
  if (!oracles) return;
  test::TempDir folder;
  int files = 0, tensors = 0;
  for (const auto& entry : fs::recursive_directory_iterator(*oracles / "hf")) {
    if (entry.path().extension() != ".safetensors") continue;
    INFO(entry.path());
    SafetensorsFile file(entry.path());
    NamedTestTensors all;
    for (const auto& e : file.entries()) {
      all.emplace_back(e.name, file.tensor(e.name));
      if (all.back().second.is_floating_point()) CHECK(torch::isfinite(all.back().second).all().item<bool>());
    }
    save_safetensors(folder / "again", all, file.metadata());
    CHECK(safetensors_bytes_of(folder / "again") == safetensors_bytes_of(entry.path()));
    ++files;
    tensors += int(all.size());
  }
  CHECK(files > 20);
  CHECK(tensors > 200);
}

}  // namespace
}  // namespace roformer
