#include "roformer/hf/pickle.h"

#include "roformer/core/error.h"

#include "tests/tensors.h"

#include <caffe2/serialize/inline_container.h>

using namespace roformer;

namespace {

std::string pickle_number(int64_t n) {
  std::string out = "J";
  for (int i = 0; i < 4; ++i) out += static_cast<char>(n >> (8 * i) & 0xFF);
  return out;
}

std::string pickle_text(const std::string& text) {
  return std::string("X") + static_cast<char>(text.size()) + std::string(3, '\0') + text;
}

std::string pickle_tuple(const std::vector<int64_t>& numbers) {
  std::string out = "(";
  for (const int64_t n : numbers) out += pickle_number(n);
  return out + "t";
}

/// _rebuild_tensor_v2 of a storage of `size` elements.
std::string pickle_tensor(const std::string& type, const std::string& key, int64_t size, int64_t offset,
                          const std::vector<int64_t>& shape, const std::vector<int64_t>& strides) {
  return "ctorch._utils\n_rebuild_tensor_v2\n((" + pickle_text("storage") + "ctorch\n" + type + "\n" +
         pickle_text(key) + pickle_text("cpu") + pickle_number(size) + "tQ" + pickle_number(offset) +
         pickle_tuple(shape) + pickle_tuple(strides) + "\x89" + "ccollections\nOrderedDict\n)RtR";
}

std::string pickle_dict(const std::vector<std::pair<std::string, std::string>>& items) {
  std::string out =
      std::string("\x80\x02", 2) + "ccollections\nOrderedDict\n)Rq" + std::string(1, '\0') + "(";
  for (const auto& [name, value] : items) out += pickle_text(name) + value;
  return out + "u.";
}

std::string pickle_error(const std::string& bytes) {
  try {
    read_tensor_pickle(bytes);
  } catch (const Error& error) {
    return error.what();
  }
  return "accepted";
}

void write_pickle_file(const std::filesystem::path& path, const std::string& pickle,
                       const std::vector<std::pair<std::string, std::string>>& records) {
  caffe2::serialize::PyTorchStreamWriter writer(path.string());
  writer.writeRecord("data.pkl", pickle.data(), pickle.size());
  for (const auto& [name, bytes] : records) writer.writeRecord(name, bytes.data(), bytes.size());
  writer.writeEndOfFile();
}

std::string pickle_file_error(const std::filesystem::path& path) {
  try {
    const PickleFile file(path);
    for (const auto& [name, entry] : file.entries()) file.tensor(name);
  } catch (const Error& error) {
    return error.what();
  }
  return "accepted";
}

}  // namespace

TEST_CASE("pickle: views of storages, of every dtype") {
  const auto tensors = read_tensor_pickle(pickle_dict(
      {{"a", pickle_tensor("FloatStorage", "0", 12, 2, {2, 3}, {1, 4})},
       {"b", "ctorch._utils\n_rebuild_parameter\n(" + pickle_tensor("HalfStorage", "1", 1, 0, {}, {}) +
                 "\x88" + "ccollections\nOrderedDict\n)RtR"}}));
  REQUIRE(tensors.size() == 2);
  REQUIRE(tensors.at("a").storage == "0");
  REQUIRE(tensors.at("a").shape == std::vector<int64_t>{2, 3});
  REQUIRE(tensors.at("a").strides == std::vector<int64_t>{1, 4});
  REQUIRE(tensors.at("a").offset == 2);
  REQUIRE(tensors.at("b").dtype == torch::kHalf);
  REQUIRE(tensors.at("b").shape.empty());

  test::TempDir folder;
  const std::vector<std::pair<std::string, at::ScalarType>> types{
      {"FloatStorage", torch::kFloat},   {"HalfStorage", torch::kHalf}, {"BFloat16Storage", torch::kBFloat16},
      {"DoubleStorage", torch::kDouble}, {"LongStorage", torch::kLong}, {"IntStorage", torch::kInt},
      {"ShortStorage", torch::kShort},   {"CharStorage", torch::kChar}, {"ByteStorage", torch::kByte},
      {"BoolStorage", torch::kBool}};
  for (const auto& [name, type] : types) {
    INFO(name);
    const torch::Tensor stored = (torch::arange(12) % (type == torch::kBool ? 2 : 12)).to(type);
    const std::string bytes(static_cast<const char*>(stored.data_ptr()), stored.nbytes());
    write_pickle_file(folder / "model.bin",
                      pickle_dict({{"view", pickle_tensor(name, "k", 12, 1, {2, 3}, {1, 4})},
                                   {"whole", pickle_tensor(name, "k", 12, 0, {12}, {1})},
                                   {"none", pickle_tensor(name, "k", 12, 0, {0, 4}, {4, 1})}}),
                      {{"data/k", bytes}});
    const PickleFile file(folder / "model.bin");
    REQUIRE(torch::equal(file.tensor("whole"), stored));
    const torch::Tensor view = file.tensor("view");
    REQUIRE(view.is_contiguous());
    REQUIRE(torch::equal(view, stored.as_strided({2, 3}, {1, 4}, 1)));
    REQUIRE(file.tensor("none").sizes() == torch::IntArrayRef({0, 4}));
    REQUIRE_THROWS_AS(file.tensor("absent"), Error);
  }
}

TEST_CASE("pickle: nothing runs, and what means nothing to us is an error where a tensor is expected") {
  const std::string call = "cos\nsystem\n(" + pickle_text("touch pickled") + "tR";
  REQUIRE(pickle_error(pickle_dict({{"w", call}})) == "'w' is no plain tensor; save model.state_dict()");
  REQUIRE(!std::filesystem::exists("pickled"));
  // Beside the tensors it is passed over: the attributes of the dict are not ours.
  const std::string good = pickle_tensor("FloatStorage", "0", 6, 0, {2, 3}, {3, 1});
  std::string dict = pickle_dict({{"w", good}});
  dict.insert(dict.size() - 1, "}" + pickle_text("_metadata") + call + "sb");
  REQUIRE(read_tensor_pickle(dict).size() == 1);
  REQUIRE(pickle_error(std::string("\x80\x02", 2) + call + ".") ==
          "holds no dict of tensors, but another Python object");
}

TEST_CASE("pickle: impossible tensors and damaged bytes are refused") {
  auto tensor_error = [](int64_t size, int64_t offset, const std::vector<int64_t>& shape,
                         const std::vector<int64_t>& strides) {
    return pickle_error(
        pickle_dict({{"w", pickle_tensor("FloatStorage", "0", size, offset, shape, strides)}}));
  };
  REQUIRE(tensor_error(6, 0, {2, 3}, {3, 1}) == "accepted");
  REQUIRE_THAT(tensor_error(6, 1, {2, 3}, {3, 1}), Catch::Contains("reaches beyond its storage"));
  REQUIRE_THAT(tensor_error(5, 0, {2, 3}, {3, 1}), Catch::Contains("reaches beyond its storage"));
  REQUIRE_THAT(tensor_error(6, -1, {2, 3}, {3, 1}), Catch::Contains("impossible shape"));
  REQUIRE_THAT(tensor_error(6, 0, {-2, 3}, {3, 1}), Catch::Contains("impossible shape"));
  REQUIRE_THAT(tensor_error(6, 5, {2, 3}, {-3, 1}), Catch::Contains("impossible shape"));
  REQUIRE_THAT(tensor_error(6, 0, {2, 3}, {1}), Catch::Contains("impossible shape"));
  // One stored number repeated without end.
  REQUIRE_THAT(tensor_error(1, 0, {1 << 30, 1 << 30}, {0, 0}), Catch::Contains("reaches beyond its storage"));
  REQUIRE_THAT(tensor_error(1, 0, {1 << 30, 1 << 30, 1 << 30}, {0, 0, 0}),
               Catch::Contains("impossible shape"));
  REQUIRE_THAT(tensor_error(1, 0, std::vector<int64_t>(65, 1), std::vector<int64_t>(65, 1)),
               Catch::Contains("too many dimensions"));
  REQUIRE(pickle_error(pickle_dict({{"w", pickle_tensor("ComplexFloatStorage", "0", 1, 0, {1}, {1})}})) ==
          "tensors of type 'torch ComplexFloatStorage' are not supported");

  REQUIRE(pickle_error("") == "its pickle is damaged at byte 0: it ends early");
  REQUIRE(pickle_error(".") == "its pickle is damaged at byte 1: its stack is empty");
  REQUIRE_THAT(pickle_error("h\x07."), Catch::Contains("never stored"));
  REQUIRE_THAT(pickle_error("]e."), Catch::Contains("a mark is missing"));
  REQUIRE_THAT(pickle_error("cos\nsystem"), Catch::Contains("a line does not end"));
  REQUIRE_THAT(pickle_error("X\xff\xff\xff\xff."), Catch::Contains("ends early"));
  REQUIRE_THAT(pickle_error("\x02"), Catch::Contains("unknown opcode 0x02"));
  REQUIRE_THAT(pickle_error(std::string("\x80\x01.", 3)), Catch::Contains("protocol 1"));
  // A global of globals would double with each turn.
  REQUIRE_THAT(pickle_error("\x8c\x01"
                            "a\x8c\x01"
                            "b\x93"
                            "2\x93."),
               Catch::Contains("a global without a name"));
  REQUIRE_THAT(pickle_error(std::string((2 << 20) + 1, 'N')), Catch::Contains("are allowed"));
  // Depth costs no stack: neither reading nor letting go.
  REQUIRE(pickle_error(")" + std::string(1 << 20, '\x85') + ".") ==
          "holds no dict of tensors, but another Python object");
}

TEST_CASE("pickle: files that are none of torch.save's zip archives") {
  test::TempDir folder;
  const auto path = folder / "pytorch_model.bin";
  auto write = [&](const std::string& bytes) {
    std::filesystem::remove(path);
    std::ofstream(path, std::ios::binary).write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  };
  REQUIRE(pickle_file_error(path) == path.string() + ": no such file");
  write("");
  REQUIRE(pickle_file_error(path) == path.string() + ": not a file of torch.save");
  write("\x80\x02\x8a\x0a\x6c\xfc\x9c");
  REQUIRE_THAT(pickle_file_error(path),
               Catch::StartsWith(path.string() + ": the old stream format of torch.save is not "
                                                 "supported; save it anew"));
  write("PK\x03\x04 and nothing more");
  REQUIRE_THAT(pickle_file_error(path),
               Catch::StartsWith(path.string() + ": not a file of torch.save, or damaged"));

  const std::string one = pickle_dict({{"w", pickle_tensor("FloatStorage", "0", 2, 0, {2}, {1})}});
  std::filesystem::remove(path);
  write_pickle_file(path, one, {});
  REQUIRE(pickle_file_error(path) == path.string() + ": record 'data/0' is missing");
  std::filesystem::remove(path);
  write_pickle_file(path, one, {{"data/0", "1234567"}});
  REQUIRE(pickle_file_error(path) ==
          path.string() + ": 'w' needs a record of 2 elements, its record has 7 bytes");
  std::filesystem::remove(path);
  write_pickle_file(path, one, {{"data/0", "12345678"}, {"byteorder", "big"}});
  REQUIRE(pickle_file_error(path) == path.string() + ": written by a big-endian machine: not supported");
  std::filesystem::remove(path);
  write_pickle_file(path, pickle_dict({{"w", pickle_tensor("BoolStorage", "0", 2, 0, {2}, {1})}}),
                    {{"data/0", "\x01\x02"}});
  REQUIRE(pickle_file_error(path) == path.string() + ": 'w': a bool that is neither 0 nor 1");
}
