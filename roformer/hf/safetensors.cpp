#include "roformer/hf/safetensors.h"

#include "roformer/core/error.h"
#include "roformer/core/files.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <optional>
#include <set>
#include <system_error>
#include <tuple>
#include <unordered_set>

namespace roformer {
namespace {

static_assert(std::endian::native == std::endian::little, "the format is little-endian");

constexpr size_t max_safetensors_header = 100'000'000;  // the reference reader's limit
constexpr size_t max_safetensors_rank = 64;             // what ATen's operations accept
constexpr auto safetensors_metadata_key = "__metadata__";

struct SafetensorsType {
  const char* name;
  at::ScalarType type;
};

/// In the order by which the reference writer sorts (its enum `Dtype`); it starts with the last.
constexpr SafetensorsType safetensors_types[] = {
    {"BOOL", at::kBool},     {"U8", at::kByte}, {"I8", at::kChar},   {"I16", at::kShort},  {"F16", at::kHalf},
    {"BF16", at::kBFloat16}, {"I32", at::kInt}, {"F32", at::kFloat}, {"F64", at::kDouble}, {"I64", at::kLong},
};

/// A name from a file may hold anything; a message stays one line of sane length.
std::string quote_name(std::string_view name) {
  constexpr size_t longest = 120;
  size_t length = std::min(name.size(), longest);
  while (length < name.size() && length > 0 && (name[length] & 0xC0) == 0x80) --length;
  std::string text = "'";
  for (char c : name.substr(0, length)) {
    auto byte = static_cast<unsigned char>(c);
    text += byte < 0x20 || byte == 0x7F ? fmt::format("\\x{:02x}", byte) : std::string(1, c);
  }
  return text + (length < name.size() ? "...'" : "'");
}

std::string error_text(int error) { return std::system_category().message(error); }

/// Takes the header apart token by token. A JSON tree would lose duplicate keys, and a hostile header could
/// nest until it overflows the stack; here anything deeper than the format has is refused where it begins.
class SafetensorsHeader : public nlohmann::json_sax<nlohmann::json> {
 public:
  std::vector<SafetensorsEntry> entries;
  std::map<std::string, std::string> metadata;
  std::string problem;

  bool null() override { return unexpected("null"); }
  bool boolean(bool) override { return unexpected("a boolean"); }
  bool number_integer(number_integer_t) override { return unexpected("a negative number"); }
  bool number_float(number_float_t, const string_t&) override {
    return unexpected("a number that is no integer");
  }
  bool binary(binary_t&) override { return unexpected("binary data"); }

  bool number_unsigned(number_unsigned_t value) override {
    if (place_ == Place::shape) {
      if (value > static_cast<uint64_t>(INT64_MAX)) return unexpected("a size that overflows");
      if (shape_.size() == max_safetensors_rank)
        return refuse("has more than {} dimensions", max_safetensors_rank);
      shape_.push_back(static_cast<int64_t>(value));
      return true;
    }
    if (place_ != Place::offsets) return unexpected("a number");
    if (offsets_.size() == 2) return refuse("'data_offsets' has more than two numbers");
    offsets_.push_back(value);
    return true;
  }

  bool string(string_t& value) override {
    if (place_ == Place::metadata) {
      metadata[key_] = std::move(value);
      return true;
    }
    if (place_ != Place::tensor || key_ != "dtype") return unexpected("a text");
    for (const auto& known : safetensors_types) {
      if (value == known.name) dtype_ = known.type;
    }
    return dtype_ ? true : refuse("dtype {} is not supported", quote_name(value));
  }

  bool start_object(std::size_t) override {
    if (place_ == Place::outside) {
      place_ = Place::top;
    } else if (place_ == Place::top && key_ == safetensors_metadata_key) {
      place_ = Place::metadata;
    } else if (place_ == Place::top) {
      place_ = Place::tensor;
      name_ = key_;
      fields_.clear();
      dtype_.reset();
      shape_.clear();
      offsets_.clear();
    } else {
      return unexpected("an object");
    }
    return true;
  }

  bool key(string_t& key) override {
    key_ = std::move(key);
    if (place_ == Place::top) {
      if (!names_.insert(key_).second) return complain("{} occurs twice", quote_name(key_));
    } else if (place_ == Place::metadata) {
      if (!metadata.emplace(key_, "").second) return complain("metadata {} occurs twice", quote_name(key_));
    } else {
      if (key_ != "dtype" && key_ != "shape" && key_ != "data_offsets") {
        return refuse("unknown key {}", quote_name(key_));
      }
      if (!fields_.insert(key_).second) return refuse("'{}' occurs twice", key_);
    }
    return true;
  }

  bool start_array(std::size_t) override {
    if (place_ == Place::tensor && key_ == "shape") {
      place_ = Place::shape;
    } else if (place_ == Place::tensor && key_ == "data_offsets") {
      place_ = Place::offsets;
    } else {
      return unexpected("an array");
    }
    return true;
  }

  bool end_array() override {
    place_ = Place::tensor;
    return true;
  }

  bool end_object() override {
    if (place_ == Place::tensor && !add_entry()) return false;
    place_ = place_ == Place::top ? Place::outside : Place::top;
    return true;
  }

  bool parse_error(std::size_t position, const std::string&, const nlohmann::json::exception&) override {
    return complain("the header is not valid JSON (byte {})", position);
  }

 private:
  enum class Place { outside, top, metadata, tensor, shape, offsets };

  template <class... A>
  bool complain(fmt::format_string<A...> text, A&&... args) {
    problem = fmt::format(text, std::forward<A>(args)...);
    return false;
  }

  /// About the tensor being read.
  template <class... A>
  bool refuse(fmt::format_string<A...> text, A&&... args) {
    return complain("tensor {}: {}", quote_name(name_), fmt::format(text, std::forward<A>(args)...));
  }

  bool unexpected(const char* what) {
    if (place_ == Place::metadata)
      return complain("metadata {}: a text is expected, not {}", quote_name(key_), what);
    if (place_ == Place::top) return complain("{}: an object is expected, not {}", quote_name(key_), what);
    return refuse("{} in '{}'", what, key_);
  }

  bool add_entry() {
    if (fields_.size() < 3) {
      const char* missing = !fields_.count("dtype")   ? "dtype"
                            : !fields_.count("shape") ? "shape"
                                                      : "data_offsets";
      return refuse("'{}' is missing", missing);
    }
    if (offsets_.size() < 2) return refuse("'data_offsets' has fewer than two numbers");
    uint64_t begin = offsets_[0], end = offsets_[1];
    if (begin > end) return refuse("its data ends at {}, before it begins at {}", end, begin);

    // Strides multiply the sizes that are not zero, so these must not overflow even where a zero empties the
    // tensor.
    auto itemsize = static_cast<int64_t>(c10::elementSize(*dtype_));
    int64_t capacity = itemsize, bytes = itemsize;
    for (int64_t size : shape_) {
      if (__builtin_mul_overflow(capacity, std::max<int64_t>(size, 1), &capacity)) {
        return refuse("the size of its shape overflows");
      }
      bytes *= size;
    }
    if (end - begin != static_cast<uint64_t>(bytes)) {
      return refuse("its shape needs {} bytes, its data has {}", bytes, end - begin);
    }
    entries.push_back({name_, *dtype_, shape_, begin, end});
    return true;
  }

  Place place_ = Place::outside;
  std::string key_, name_;
  std::unordered_set<std::string> names_;
  std::set<std::string> fields_;
  std::optional<at::ScalarType> dtype_;
  std::vector<int64_t> shape_;
  std::vector<uint64_t> offsets_;
};

void read_safetensors_bytes(const std::filesystem::path& path, int file, void* to, size_t size,
                            size_t offset) {
  auto* next = static_cast<char*>(to);
  while (size > 0) {
    ssize_t count = ::pread(file, next, size, static_cast<off_t>(offset));
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) fail("{}: cannot read: {}", path.string(), error_text(errno));
    if (count == 0) fail("{}: the file has become shorter while it was read", path.string());
    next += count;
    size -= static_cast<size_t>(count);
    offset += static_cast<size_t>(count);
  }
}

}  // namespace

SafetensorsFile::SafetensorsFile(const std::filesystem::path& path) : path_(path) {
  // Without O_NONBLOCK, opening a named pipe would wait for its writer.
  int file = ::open(path.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC);
  if (file < 0) fail("{}: cannot open: {}", path.string(), error_text(errno));
  // Tensors are copied anyway, so reads serve better than a mapping: a file cut short meanwhile is an Error
  // then, where a mapping would end the process with SIGBUS.
  file_ = std::shared_ptr<const int>(new int(file), [](const int* descriptor) {
    ::close(*descriptor);
    delete descriptor;
  });

  struct stat status;
  if (::fstat(file, &status) != 0) fail("{}: cannot read: {}", path.string(), error_text(errno));
  if (!S_ISREG(status.st_mode)) fail("{}: is not a regular file", path.string());
  auto file_size = static_cast<size_t>(status.st_size);
  uint64_t header_size = 0;
  if (file_size < sizeof(header_size)) {
    fail("{}: is no safetensors file: {} bytes, too short for a header", path.string(), file_size);
  }
  read_safetensors_bytes(path, file, &header_size, sizeof(header_size), 0);
  if (header_size > max_safetensors_header) {
    fail("{}: is no safetensors file: a header of {} bytes exceeds the limit of {}", path.string(),
         header_size, max_safetensors_header);
  }
  if (header_size > file_size - sizeof(header_size)) {
    fail("{}: is cut short: its header has {} bytes, the file {}", path.string(), header_size, file_size);
  }
  std::string text(header_size, '\0');
  read_safetensors_bytes(path, file, text.data(), text.size(), sizeof(header_size));
  // The JSON parser would skip a byte order mark and take NUL for the end.
  if (!text.starts_with('{'))
    fail("{}: is no safetensors file: the header does not begin with '{{'", path.string());
  if (size_t nul = text.find('\0'); nul != std::string::npos) {
    fail("{}: the header is not valid JSON (byte {})", path.string(), nul + 1);
  }
  SafetensorsHeader header;
  if (!nlohmann::json::sax_parse(text, &header)) fail("{}: {}", path.string(), header.problem);

  data_begin_ = sizeof(header_size) + header_size;
  entries_ = std::move(header.entries);
  metadata_ = std::move(header.metadata);
  std::sort(entries_.begin(), entries_.end(), [](const SafetensorsEntry& a, const SafetensorsEntry& b) {
    return std::tie(a.begin, a.end, a.name) < std::tie(b.begin, b.end, b.name);
  });
  size_t covered = 0, data_size = file_size - data_begin_;
  for (size_t i = 0; i < entries_.size(); ++i) {
    const auto& entry = entries_[i];
    if (entry.begin != covered) {
      fail("{}: tensor {}: its data begins at {}, where {} is expected ({})", path.string(),
           quote_name(entry.name), entry.begin, covered, entry.begin < covered ? "overlap" : "hole");
    }
    covered = entry.end;
    index_.emplace(entry.name, i);
  }
  if (covered != data_size) {
    fail("{}: {}: its tensors need {} bytes of data, the file has {}", path.string(),
         covered > data_size ? "is cut short" : "has bytes that belong to no tensor", covered, data_size);
  }
}

torch::Tensor SafetensorsFile::tensor(std::string_view name) const {
  auto found = index_.find(name);
  if (found == index_.end()) fail("{}: has no tensor {}", path_.string(), quote_name(name));
  const auto& entry = entries_[found->second];
  auto result = torch::empty(entry.shape, torch::dtype(entry.dtype).device(torch::kCPU));
  size_t size = entry.end - entry.begin;
  if (size == 0) return result;
  read_safetensors_bytes(path_, *file_, result.data_ptr(), size, data_begin_ + entry.begin);
  if (entry.dtype == at::kBool) {
    auto* bytes = static_cast<const unsigned char*>(result.data_ptr());
    if (std::any_of(bytes, bytes + size, [](unsigned char byte) { return byte > 1; })) {
      fail("{}: tensor {}: a BOOL is neither 0 nor 1", path_.string(), quote_name(name));
    }
  }
  return result;
}

void save_safetensors(const std::filesystem::path& path,
                      const std::vector<std::pair<std::string, torch::Tensor>>& tensors,
                      const std::map<std::string, std::string>& metadata) {
  struct Item {
    std::string_view name;
    const torch::Tensor* tensor;
    const SafetensorsType* type;
  };
  std::vector<Item> items;
  for (const auto& [name, tensor] : tensors) {
    if (name == safetensors_metadata_key) fail("{}: no tensor may be named '{}'", path.string(), name);
    if (!tensor.defined() || tensor.layout() != at::kStrided || tensor.is_meta()) {
      fail("{}: tensor {}: has no dense data to write", path.string(), quote_name(name));
    }
    auto* type = std::find_if(std::begin(safetensors_types), std::end(safetensors_types),
                              [&](const auto& known) { return known.type == tensor.scalar_type(); });
    if (type == std::end(safetensors_types)) {
      fail("{}: tensor {}: dtype {} is not supported", path.string(), quote_name(name),
           c10::toString(tensor.scalar_type()));
    }
    items.push_back({name, &tensor, type});
  }
  std::sort(items.begin(), items.end(), [](const Item& a, const Item& b) {
    return a.type != b.type ? a.type > b.type : a.name < b.name;
  });

  std::string header = "{";
  std::unordered_set<std::string_view> names;
  try {
    if (!metadata.empty())
      header += fmt::format("\"{}\":{}", safetensors_metadata_key, nlohmann::json(metadata).dump());
    size_t begin = 0;
    for (const auto& item : items) {
      if (!names.insert(item.name).second) {
        fail("{}: tensor {}: is given twice", path.string(), quote_name(item.name));
      }
      size_t end = begin + item.tensor->nbytes();
      header += fmt::format("{}{}:{{\"dtype\":\"{}\",\"shape\":{},\"data_offsets\":[{},{}]}}",
                            header.size() > 1 ? "," : "", nlohmann::json(item.name).dump(), item.type->name,
                            nlohmann::json(item.tensor->sizes().vec()).dump(), begin, end);
      begin = end;
    }
  } catch (const nlohmann::json::exception&) {
    fail("{}: a tensor's name or a text of the metadata is not UTF-8", path.string());
  }
  header += "}";
  header.resize((header.size() + 7) / 8 * 8, ' ');
  uint64_t header_size = header.size();
  if (header_size > max_safetensors_header) {
    fail("{}: a header of {} bytes exceeds the format's limit of {}", path.string(), header_size,
         max_safetensors_header);
  }

  AtomicFile file(path);
  file.write({reinterpret_cast<const char*>(&header_size), sizeof(header_size)});
  file.write(header);
  for (const auto& item : items) {
    auto dense = item.tensor->detach().resolve_neg().to(torch::kCPU).contiguous();
    file.write({static_cast<const char*>(dense.data_ptr()), dense.nbytes()});
  }
  file.commit();
}

}  // namespace roformer
