#include "roformer/hf/pickle.h"

#include <caffe2/serialize/inline_container.h>

#include <cstring>
#include <fstream>
#include <optional>

#include "roformer/core/error.h"

namespace roformer {
namespace {

constexpr size_t max_pickle_bytes = 2 << 20;  // that of a large BERT has 0.1 MB
constexpr size_t max_pickle_rank = 64;        // what ATen's operations accept
constexpr size_t max_pickle_name = 1024;  // names are copied: long ones, recalled often, would take for ever

/// A value of the pickle. Containers hold indices into one list of all values, so that sharing costs nothing
/// and no depth of nesting can overflow the stack.
struct PickleValue {
  enum class Kind { mark, opaque, number, text, global, tuple, list, dict, storage, tensor };
  Kind kind = Kind::opaque;
  int64_t number = 0;           // number; storage: elements
  std::string text;             // text; global: "module name"; storage: key
  std::vector<uint32_t> items;  // dict: key, value, key, value
  std::optional<PickleTensor> tensor;
  at::ScalarType dtype = at::kFloat;  // storage
};

std::optional<at::ScalarType> storage_dtype(std::string_view global) {
  static constexpr std::pair<std::string_view, at::ScalarType> types[] = {
      {"torch FloatStorage", at::kFloat},       {"torch HalfStorage", at::kHalf},
      {"torch BFloat16Storage", at::kBFloat16}, {"torch DoubleStorage", at::kDouble},
      {"torch LongStorage", at::kLong},         {"torch IntStorage", at::kInt},
      {"torch ShortStorage", at::kShort},       {"torch CharStorage", at::kChar},
      {"torch ByteStorage", at::kByte},         {"torch BoolStorage", at::kBool}};
  for (const auto& [name, type] : types) {
    if (global == name) return type;
  }
  return std::nullopt;
}

std::string printable_key(std::string_view key) {
  std::string out;
  for (const char c : key.substr(0, 120)) out += static_cast<unsigned char>(c) < 0x20 || c == 0x7F ? '?' : c;
  return key.size() > 120 ? out + "..." : out;
}

class PickleMachine {
 public:
  using Kind = PickleValue::Kind;
  explicit PickleMachine(std::string_view bytes) : bytes_(bytes) {}

  std::map<std::string, PickleTensor, std::less<>> run() {
    while (!step()) {
    }
    const PickleValue& top = values_[pop()];
    if (top.kind != Kind::dict) fail("holds no dict of tensors, but another Python object");
    std::map<std::string, PickleTensor, std::less<>> out;
    for (size_t i = 0; i + 1 < top.items.size(); i += 2) {
      const PickleValue& key = values_[top.items[i]];
      const PickleValue& value = values_[top.items[i + 1]];
      if (key.kind != Kind::text || key.text.size() > max_pickle_name) fail("a key of its dict is no name");
      if (value.kind != Kind::tensor) {
        fail("'{}' is no plain tensor; save model.state_dict()", printable_key(key.text));
      }
      out.insert_or_assign(key.text, *value.tensor);  // a later value replaces an earlier one, as in Python
    }
    return out;
  }

 private:
  [[noreturn]] void broken(std::string_view what) const {
    fail("its pickle is damaged at byte {}: {}", at_, what);
  }

  std::string_view take(size_t count) {
    if (count > bytes_.size() - at_) broken("it ends early");
    const std::string_view part = bytes_.substr(at_, count);
    at_ += count;
    return part;
  }
  uint64_t unsigned_number(size_t count) {
    uint64_t value = 0;
    std::memcpy(&value, take(count).data(), count);  // little-endian, as this machine is
    return value;
  }
  std::string_view line() {
    const size_t end = bytes_.find('\n', at_);
    if (end == std::string_view::npos) broken("a line does not end");
    const std::string_view text = bytes_.substr(at_, end - at_);
    at_ = end + 1;
    return text;
  }

  uint32_t pop() {
    if (stack_.empty()) broken("its stack is empty");
    const uint32_t index = stack_.back();
    stack_.pop_back();
    return index;
  }
  uint32_t top() const {
    if (stack_.empty()) broken("its stack is empty");
    return stack_.back();
  }
  uint32_t push(PickleValue value) {
    values_.push_back(std::move(value));
    stack_.push_back(static_cast<uint32_t>(values_.size() - 1));
    return stack_.back();
  }
  void push_number(int64_t value) {
    push({.kind = Kind::number, .number = value, .text = {}, .items = {}, .tensor = {}});
  }
  void push_text(Kind kind, std::string text) {
    push({.kind = kind, .number = 0, .text = std::move(text), .items = {}, .tensor = {}});
  }
  void push_items(Kind kind, std::vector<uint32_t> items) {
    push({.kind = kind, .number = 0, .text = {}, .items = std::move(items), .tensor = {}});
  }
  /// What lies above the last mark; takes both off.
  std::vector<uint32_t> above_mark() {
    size_t at = stack_.size();
    while (at > 0 && values_[stack_[at - 1]].kind != Kind::mark) --at;
    if (at == 0) broken("a mark is missing");
    std::vector<uint32_t> items(stack_.begin() + static_cast<std::ptrdiff_t>(at), stack_.end());
    stack_.resize(at - 1);
    return items;
  }
  std::vector<uint32_t> last(size_t count) {
    if (stack_.size() < count) broken("its stack is empty");
    std::vector<uint32_t> items(stack_.end() - static_cast<std::ptrdiff_t>(count), stack_.end());
    stack_.resize(stack_.size() - count);
    return items;
  }
  void append(Kind kind, const std::vector<uint32_t>& items) {
    PickleValue& target = values_[top()];
    if (kind == Kind::dict && items.size() % 2 != 0) broken("a key has no value");
    // Adding to what is neither (a set, an object) means nothing to us.
    if (target.kind == kind) target.items.insert(target.items.end(), items.begin(), items.end());
  }
  void remember(uint64_t index) {
    if (index > bytes_.size()) broken("an impossible memo index");
    memo_[index] = top();
  }
  void recall(uint64_t index) {
    const auto found = memo_.find(index);
    if (found == memo_.end()) broken("it recalls what it never stored");
    stack_.push_back(found->second);
  }

  int64_t number_of(uint32_t index) const {
    if (values_[index].kind != Kind::number) broken("a number is expected");
    return values_[index].number;
  }
  std::vector<int64_t> numbers_of(uint32_t index) const {
    const PickleValue& value = values_[index];
    if (value.kind != Kind::tuple && value.kind != Kind::list) broken("a tuple of numbers is expected");
    if (value.items.size() > max_pickle_rank) broken("a tensor of too many dimensions");
    std::vector<int64_t> out;
    for (const uint32_t item : value.items) out.push_back(number_of(item));
    return out;
  }

  /// ("storage", type, key, device, elements), pushed as a reference to a record of the archive.
  void persistent() {
    const PickleValue& id = values_[pop()];
    if (id.kind != Kind::tuple || id.items.size() < 5 || values_[id.items[0]].text != "storage") {
      broken("an unknown reference");
    }
    const PickleValue &type = values_[id.items[1]], &key = values_[id.items[2]];
    const std::optional<at::ScalarType> dtype = storage_dtype(type.text);
    if (type.kind != Kind::global || !dtype) {
      fail("tensors of type '{}' are not supported", printable_key(type.text));
    }
    const int64_t size = number_of(id.items[4]);
    if (key.kind != Kind::text || key.text.size() > max_pickle_name || size < 0 || size > (int64_t{1} << 48))
      broken("an unknown reference");
    PickleValue storage{.kind = Kind::storage, .number = size, .text = key.text, .items = {}, .tensor = {}};
    storage.dtype = *dtype;
    push(std::move(storage));
  }

  /// _rebuild_tensor_v2(storage, offset, size, stride, ...).
  PickleTensor rebuilt(const std::vector<uint32_t>& arguments) const {
    if (arguments.size() < 4 || values_[arguments[0]].kind != Kind::storage) {
      broken("a tensor without a storage");
    }
    const PickleValue& storage = values_[arguments[0]];
    PickleTensor t{storage.text,
                   storage.dtype,
                   storage.number,
                   number_of(arguments[1]),
                   numbers_of(arguments[2]),
                   numbers_of(arguments[3])};
    if (t.shape.size() != t.strides.size() || t.offset < 0) broken("a tensor of impossible shape");
    int64_t count = 1, last = t.offset;
    bool empty = false;
    for (size_t i = 0; i < t.shape.size(); ++i) {
      int64_t reach = 0;
      if (t.shape[i] < 0 || t.strides[i] < 0) broken("a tensor of impossible shape");
      if (t.shape[i] == 0) empty = true;
      if (__builtin_mul_overflow(count, std::max<int64_t>(t.shape[i], 1), &count) ||
          __builtin_mul_overflow(std::max<int64_t>(t.shape[i] - 1, 0), t.strides[i], &reach) ||
          __builtin_add_overflow(last, reach, &last)) {
        broken("a tensor of impossible shape");
      }
    }
    // No tensor has more elements than its storage: one that repeats a number without end would fill the
    // memory.
    if (!empty && (last >= storage.number || count > storage.number)) {
      broken("a tensor reaches beyond its storage");
    }
    return t;
  }

  void reduce() {
    const std::vector<uint32_t> both = last(2);
    const PickleValue &callee = values_[both[0]], &arguments = values_[both[1]];
    PickleValue result;
    if (callee.kind == Kind::global && arguments.kind == Kind::tuple) {
      if (callee.text == "torch._utils _rebuild_tensor_v2") {
        result.kind = Kind::tensor;
        result.tensor = rebuilt(arguments.items);
      } else if (callee.text == "torch._utils _rebuild_parameter" && !arguments.items.empty() &&
                 values_[arguments.items[0]].kind == Kind::tensor) {
        result = values_[arguments.items[0]];
      } else if (callee.text == "collections OrderedDict" && arguments.items.empty()) {
        result.kind = Kind::dict;
      }
    }
    push(std::move(result));
  }

  void long_number(size_t count) {
    const std::string_view digits = take(count);
    if (count > 8) return (void)push({});  // a number beyond 64 bits is no size
    int64_t value = 0;
    std::memcpy(&value, digits.data(), count);
    if (count > 0 && count < 8 && (digits[count - 1] & 0x80)) value -= int64_t{1} << (8 * count);
    push_number(value);
  }

  /// One opcode; true at the end.
  bool step() {
    const auto code = static_cast<unsigned char>(take(1)[0]);
    switch (code) {
      case 0x80:  // PROTO
        if (const uint64_t version = unsigned_number(1); version < 2 || version > 5) {
          fail("its pickle has protocol {}, not 2 to 5; save the model anew", version);
        }
        return false;
      case 0x95:  // FRAME
        take(8);
        return false;
      case '.':
        return true;
      case '(':
        push_items(Kind::mark, {});
        return false;
      case '0':  // POP
        pop();
        return false;
      case '1':  // POP_MARK
        above_mark();
        return false;
      case '2':  // DUP
        stack_.push_back(top());
        return false;
      case 'N':   // None
      case 0x8f:  // EMPTY_SET
        push({});
        return false;
      case 0x88:
      case 0x89:  // True, False
        push_number(code == 0x88);
        return false;
      case 'K':  // BININT1
        push_number(static_cast<int64_t>(unsigned_number(1)));
        return false;
      case 'M':  // BININT2
        push_number(static_cast<int64_t>(unsigned_number(2)));
        return false;
      case 'J':  // BININT
        push_number(static_cast<int32_t>(unsigned_number(4)));
        return false;
      case 0x8a:  // LONG1
        long_number(unsigned_number(1));
        return false;
      case 0x8b:  // LONG4
        long_number(unsigned_number(4));
        return false;
      case 'G':  // BINFLOAT
        take(8);
        push({});
        return false;
      case 'X':  // BINUNICODE
        push_text(Kind::text, std::string(take(unsigned_number(4))));
        return false;
      case 0x8c:  // SHORT_BINUNICODE
        push_text(Kind::text, std::string(take(unsigned_number(1))));
        return false;
      case 0x8d:  // BINUNICODE8
        push_text(Kind::text, std::string(take(unsigned_number(8))));
        return false;
      case 'U':  // SHORT_BINSTRING
      case 'C':  // SHORT_BINBYTES
        take(unsigned_number(1));
        push({});
        return false;
      case 'T':  // BINSTRING
      case 'B':  // BINBYTES
        take(unsigned_number(4));
        push({});
        return false;
      case 0x8e:  // BINBYTES8
      case 0x96:  // BYTEARRAY8
        take(unsigned_number(8));
        push({});
        return false;
      case 'c': {  // GLOBAL
        std::string name(line());
        name.append(" ").append(line());
        push_text(Kind::global, std::move(name));
        return false;
      }
      case 0x93: {  // STACK_GLOBAL
        const std::vector<uint32_t> both = last(2);
        const PickleValue &module = values_[both[0]], &name = values_[both[1]];
        if (module.kind != Kind::text || name.kind != Kind::text) broken("a global without a name");
        push_text(Kind::global,
                  module.text.substr(0, max_pickle_name) + " " + name.text.substr(0, max_pickle_name));
        return false;
      }
      case ')':
        push_items(Kind::tuple, {});
        return false;
      case 't':
        push_items(Kind::tuple, above_mark());
        return false;
      case 0x85:
      case 0x86:
      case 0x87:  // TUPLE1 to TUPLE3
        push_items(Kind::tuple, last(code - 0x84u));
        return false;
      case ']':
        push_items(Kind::list, {});
        return false;
      case 'l':
        push_items(Kind::list, above_mark());
        return false;
      case '}':
        push_items(Kind::dict, {});
        return false;
      case 'd': {
        std::vector<uint32_t> items = above_mark();
        if (items.size() % 2 != 0) broken("a key has no value");
        push_items(Kind::dict, std::move(items));
        return false;
      }
      case 'a':
        append(Kind::list, last(1));
        return false;
      case 'e':
        append(Kind::list, above_mark());
        return false;
      case 's':
        append(Kind::dict, last(2));
        return false;
      case 'u':
        append(Kind::dict, above_mark());
        return false;
      case 0x90:  // ADDITEMS
        above_mark();
        return false;
      case 0x91:  // FROZENSET
        above_mark();
        push({});
        return false;
      case 'q':
        remember(unsigned_number(1));
        return false;
      case 'r':
        remember(unsigned_number(4));
        return false;
      case 0x94:  // MEMOIZE
        remember(memo_.size());
        return false;
      case 'h':
        recall(unsigned_number(1));
        return false;
      case 'j':
        recall(unsigned_number(4));
        return false;
      case 'Q':
        persistent();
        return false;
      case 'R':
        reduce();
        return false;
      case 'b':  // BUILD: attributes, such as the `_metadata` of a state_dict
        pop();
        top();
        return false;
      case 0x81:  // NEWOBJ
        last(2);
        push({});
        return false;
      case 0x92:  // NEWOBJ_EX
        last(3);
        push({});
        return false;
      default:
        --at_;
        broken(fmt::format("unknown opcode {:#04x}", code));
    }
  }

  std::string_view bytes_;
  size_t at_ = 0;
  std::vector<PickleValue> values_;
  std::vector<uint32_t> stack_;
  std::map<uint64_t, uint32_t> memo_;
};

}  // namespace

std::map<std::string, PickleTensor, std::less<>> read_tensor_pickle(std::string_view bytes) {
  if (bytes.size() > max_pickle_bytes)
    fail("its pickle has {} bytes; {} are allowed", bytes.size(), max_pickle_bytes);
  return PickleMachine(bytes).run();
}

/// The zip archive, and the last storage read: tensors that share one, or lie in it side by side, follow each
/// other. For one thread at a time.
struct PickleFile::Archive {
  explicit Archive(const std::filesystem::path& path)
      : reader(path.string()), file_size(std::filesystem::file_size(path)) {}

  caffe2::serialize::PyTorchStreamReader reader;
  size_t file_size;
  std::string last_key;
  at::DataPtr last;

  size_t record_size(const std::string& name) {
    if (!reader.hasRecord(name)) fail("record '{}' is missing", printable_key(name));
    const size_t size = reader.getRecordSize(name);
    // torch.save compresses nothing; a record that claims more than the file holds would fill the memory.
    if (size > file_size) fail("record '{}' is larger than the file", printable_key(name));
    return size;
  }
};

namespace {

/// Runs `action`; what the zip reader or the machine complain about becomes an Error that names the file.
template <class F>
auto with_pickle_path(const std::filesystem::path& path, F&& action) {
  try {
    return action();
  } catch (const Error& error) {
    fail("{}: {}", path.string(), error.what());
  } catch (const c10::Error& error) {
    const std::string what = error.what_without_backtrace();
    fail("{}: not a file of torch.save, or damaged: {}", path.string(), what.substr(0, what.find('\n')));
  } catch (const std::exception& error) {
    fail("{}: cannot read: {}", path.string(), error.what());
  }
}

}  // namespace

PickleFile::PickleFile(const std::filesystem::path& path) : path_(path) {
  with_pickle_path(path, [&] {
    if (!std::filesystem::is_regular_file(path)) fail("no such file");
    char head[8] = {};
    std::ifstream(path, std::ios::binary).read(head, sizeof head);
    if (std::memcmp(head, "\x80\x02\x8a\x0a\x6c", 5) == 0) {
      fail(
          "the old stream format of torch.save is not supported; save it anew with a current torch: "
          "torch.save(torch.load(file, weights_only=True), file)");
    }
    if (std::memcmp(head, "PK", 2) != 0) fail("not a file of torch.save");
    archive_ = std::make_shared<Archive>(path);
    if (archive_->reader.hasRecord("byteorder")) {
      const size_t size = archive_->record_size("byteorder");
      const auto record = archive_->reader.getRecord("byteorder");
      const std::string_view order(static_cast<const char*>(std::get<0>(record).get()), size);
      if (order != "little") fail("written by a big-endian machine: not supported");
    }
    const size_t size = archive_->record_size("data.pkl");
    if (size > max_pickle_bytes) fail("its pickle has {} bytes; {} are allowed", size, max_pickle_bytes);
    const auto record = archive_->reader.getRecord("data.pkl");
    entries_ = read_tensor_pickle({static_cast<const char*>(std::get<0>(record).get()), std::get<1>(record)});
    for (const auto& [name, tensor] : entries_) {
      const size_t bytes = archive_->record_size("data/" + tensor.storage);
      if (static_cast<size_t>(tensor.storage_size) > bytes / c10::elementSize(tensor.dtype)) {
        fail("'{}' needs a record of {} elements, its record has {} bytes", printable_key(name),
             tensor.storage_size, bytes);
      }
    }
  });
}

torch::Tensor PickleFile::tensor(std::string_view name) const {
  return with_pickle_path(path_, [&] {
    const auto found = entries_.find(name);
    if (found == entries_.end()) fail("no tensor '{}'", printable_key(name));
    const PickleTensor& t = found->second;
    if (!archive_->last || archive_->last_key != t.storage) {
      archive_->last = std::get<0>(archive_->reader.getRecord("data/" + t.storage));
      archive_->last_key = t.storage;
    }
    const auto options = torch::TensorOptions().dtype(t.dtype);
    for (const int64_t size : t.shape) {
      if (size == 0) return torch::empty(t.shape, options);
    }
    void* storage = archive_->last.get();
    if (t.dtype == at::kBool) {  // another byte is no bool, and reading it as one undefined
      const auto* bytes = static_cast<const unsigned char*>(storage);
      for (int64_t i = 0; i < t.storage_size; ++i) {
        if (bytes[i] > 1) fail("'{}': a bool that is neither 0 nor 1", printable_key(name));
      }
    }
    return torch::from_blob(storage, {t.storage_size}, options)
        .as_strided(t.shape, t.strides, t.offset)
        .clone(at::MemoryFormat::Contiguous);
  });
}

}  // namespace roformer
