#include "roformer/core/config.h"

#include <yaml-cpp/eventhandler.h>
#include <yaml-cpp/exceptions.h>
#include <yaml-cpp/parser.h>

#include <cctype>
#include <cerrno>
#include <charconv>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <sstream>
#include <unordered_map>

namespace roformer {

namespace fs = std::filesystem;
using NodeKind = ConfigNode::Kind;

namespace {

constexpr size_t kMaxConfigBytes = size_t{1} << 20;
constexpr size_t kMaxConfigDepth = 64;
constexpr size_t kMaxConfigKey = 256;
constexpr int kMaxConfigFiles =
    64;  // of one chain of bases: a fan of bases that name each other grows exponentially

/// Text as a message may show it: on one line, short, without control characters.
std::string shown_in_message(std::string_view text) {
  constexpr size_t limit = 80;
  std::string out;
  for (size_t i = 0; i < text.size(); ++i) {
    const auto c = static_cast<unsigned char>(text[i]);
    if (out.size() >= limit && (c & 0xC0) != 0x80) return out + "…";
    if (c == '\n') {
      out += "\\n";
    } else if (c == '\t') {
      out += "\\t";
    } else if (c < 0x20 || c == 0x7F) {
      out += fmt::format("\\x{:02X}", c);
    } else {
      out += text[i];
    }
  }
  return out;
}

std::string node_kind_text(const ConfigNode& node) {
  switch (node.kind) {
    case NodeKind::null:
      return "nothing";
    case NodeKind::sequence:
      return "a list";
    case NodeKind::map:
      return "a map";
    case NodeKind::scalar:
      break;
  }
  return node.quoted ? fmt::format("the quoted text \"{}\"", shown_in_message(node.text))
                     : fmt::format("'{}'", shown_in_message(node.text));
}

ConfigNode* entry_of(ConfigNode& map, std::string_view key) {
  for (auto& [name, value] : map.entries) {
    if (name == key) return &value;
  }
  return nullptr;
}

const ConfigNode* entry_of(const ConfigNode& map, std::string_view key) {
  return entry_of(const_cast<ConfigNode&>(map), key);
}

bool is_yaml_null(std::string_view text) {
  return text.empty() || text == "~" || text == "null" || text == "Null" || text == "NULL";
}

bool is_yaml_letter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); }
bool is_yaml_digit(char c) { return c >= '0' && c <= '9'; }

// --- Text to nodes
// -------------------------------------------------------------------------------------------

/// Length of the UTF-8 sequence at the start of `s`, 0 when it is malformed (overlong, surrogate, too large,
/// cut).
size_t yaml_utf8_length(std::string_view s) {
  const auto at = [&](size_t i) { return static_cast<unsigned char>(s[i]); };
  const unsigned char lead = at(0);
  if (lead < 0x80) return 1;
  const size_t length = lead >= 0xF5 ? 0 : lead >= 0xF0 ? 4 : lead >= 0xE0 ? 3 : lead >= 0xC2 ? 2 : 0;
  if (length == 0 || s.size() < length) return 0;
  for (size_t i = 1; i < length; ++i) {
    if ((at(i) & 0xC0) != 0x80) return 0;
  }
  if ((lead == 0xE0 && at(1) < 0xA0) || (lead == 0xED && at(1) > 0x9F) || (lead == 0xF0 && at(1) < 0x90) ||
      (lead == 0xF4 && at(1) > 0x8F)) {
    return 0;
  }
  return length;
}

/// What yaml-cpp accepts or misreads: its stream ends at a byte 4, bad UTF-8 becomes U+FFFD, tabs may indent.
void check_yaml_text(std::string_view text, Mark mark) {
  const bool has_lines = mark.line != 0;
  if (text.size() > kMaxConfigBytes) {
    mark.line = 0;
    fail_at(mark, "larger than 1 MiB; this is not a configuration file");
  }
  bool in_indent = true, tab_in_indent = false;
  for (size_t i = 0; i < text.size();) {
    const auto c = static_cast<unsigned char>(text[i]);
    if ((c < 0x20 && c != '\n' && c != '\r' && c != '\t') || c == 0x7F) {
      fail_at(mark, "a control character (byte {}); this is not a text file", static_cast<int>(c));
    }
    const size_t length = yaml_utf8_length(text.substr(i));
    if (length == 0) fail_at(mark, "not UTF-8 (byte 0x{:02X}); save the file as UTF-8", c);
    if (c == '\n') {
      mark.line += has_lines;
      in_indent = true;
      tab_in_indent = false;
    } else if (in_indent && c == '\t') {
      tab_in_indent = true;
    } else if (in_indent && c != ' ' && c != '\r') {
      if (tab_in_indent && c != '#') fail_at(mark, "a tab as indentation; use spaces");
      in_indent = false;
    }
    i += length;
  }
}

/// Builds nodes from yaml-cpp's events. YAML::Node is avoided: it accepts duplicate keys and loses marks.
class ConfigNodeBuilder : public YAML::EventHandler {
 public:
  ConfigNodeBuilder(Mark first, fs::path directory)
      : first_(std::move(first)), directory_(std::move(directory)) {}

  ConfigNode take() { return std::move(root_); }

  Mark at(const YAML::Mark& mark) const {
    Mark out = first_;
    if (first_.line != 0 && !mark.is_null()) out.line = mark.line + 1;
    return out;
  }

  void OnDocumentStart(const YAML::Mark& mark) override {
    if (++documents_ > 1) fail_at(at(mark), "a second YAML document; write one document per file");
  }
  void OnDocumentEnd() override {}

  void OnNull(const YAML::Mark& mark, YAML::anchor_t anchor) override {
    refuse(mark, "?", anchor);
    add(node(mark, NodeKind::null));
  }
  void OnAlias(const YAML::Mark& mark, YAML::anchor_t) override { refuse(mark, "?", 1); }
  void OnScalar(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                const std::string& value) override {
    refuse(mark, tag, anchor);
    if (value.find('\0') != std::string::npos) fail_at(at(mark), "a NUL character in a value");
    ConfigNode scalar = node(mark, NodeKind::scalar);
    scalar.text = value;
    scalar.quoted = tag == "!";
    add(std::move(scalar));
  }
  void OnSequenceStart(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                       YAML::EmitterStyle::value) override {
    refuse(mark, tag, anchor);
    push(node(mark, NodeKind::sequence));
  }
  void OnSequenceEnd() override { pop(); }
  void OnMapStart(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                  YAML::EmitterStyle::value) override {
    refuse(mark, tag, anchor);
    push(node(mark, NodeKind::map));
  }
  void OnMapEnd() override { pop(); }

 private:
  struct Frame {
    ConfigNode node;
    std::optional<std::pair<std::string, Mark>> key;  // read, its value not yet
    std::unordered_map<std::string, int> lines;       // of the keys seen
  };

  ConfigNode node(const YAML::Mark& mark, NodeKind kind) const {
    ConfigNode out;
    out.kind = kind;
    out.mark = at(mark);
    out.directory = directory_;
    return out;
  }

  void refuse(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor) const {
    if (anchor != YAML::NullAnchor) {
      fail_at(
          at(mark),
          "YAML anchors (&) and aliases (*) are not supported; repeat the value, use 'base:', or quote it");
    }
    if (tag != "?" && tag != "!" && !tag.empty()) {
      fail_at(at(mark), "YAML tags such as '{}' are not supported; remove it or quote the value",
              shown_in_message(tag));
    }
  }

  bool expects_key() const {
    return !stack_.empty() && stack_.back().node.kind == NodeKind::map && !stack_.back().key;
  }

  void add(ConfigNode value) {
    if (stack_.empty()) {
      root_ = std::move(value);
    } else if (expects_key()) {
      set_key(value);
    } else if (Frame& frame = stack_.back(); frame.node.kind == NodeKind::map) {
      value.mark = frame.key->second;
      frame.node.entries.emplace_back(std::move(frame.key->first), std::move(value));
      frame.key.reset();
    } else {
      frame.node.items.push_back(std::move(value));
    }
  }

  void set_key(const ConfigNode& key) {
    if (key.kind != NodeKind::scalar) fail_at(key.mark, "a key must be text, got {}", node_kind_text(key));
    if (key.text.empty()) fail_at(key.mark, "an empty key");
    if (key.text.size() > kMaxConfigKey) fail_at(key.mark, "a key of more than {} bytes", kMaxConfigKey);
    if (key.text == "<<" && !key.quoted) {
      fail_at(key.mark, "YAML merge keys (<<) are not supported; use 'base:' or repeat the values");
    }
    Frame& frame = stack_.back();
    const auto [first, is_new] = frame.lines.emplace(key.text, key.mark.line);
    if (!is_new) {
      fail_at(key.mark, "key '{}' is given twice{}", shown_in_message(key.text),
              first->second ? fmt::format("; first on line {}", first->second) : "");
    }
    frame.key.emplace(key.text, key.mark);
  }

  void push(ConfigNode collection) {
    if (stack_.size() >= kMaxConfigDepth)
      fail_at(collection.mark, "nested more than {} levels deep", kMaxConfigDepth);
    stack_.push_back({std::move(collection), {}, {}});
  }

  void pop() {
    ConfigNode done = std::move(stack_.back().node);
    stack_.pop_back();
    add(std::move(done));
  }

  Mark first_;
  fs::path directory_;
  ConfigNode root_;
  std::vector<Frame> stack_;
  int documents_ = 0;
};

ConfigNode parse_yaml_text(std::string_view text, const Mark& first, const fs::path& directory) {
  check_yaml_text(text, first);
  ConfigNodeBuilder builder(first, directory);
  std::istringstream in{std::string(text)};
  try {
    YAML::Parser parser(in);
    while (parser.HandleNextDocument(builder)) {
    }
  } catch (const YAML::Exception& error) {
    fail_at(builder.at(error.mark), "not valid YAML: {}", shown_in_message(error.msg));
  }
  ConfigNode root = builder.take();
  if (root.mark.source.empty()) {  // no document at all
    root.mark = first;
    root.directory = directory;
  }
  return root;
}

// --- Merging
// -------------------------------------------------------------------------------------------------

const ConfigNode* node_type_of(const ConfigNode& map) {
  const ConfigNode* type = entry_of(map, "type");
  return type && type->kind == NodeKind::scalar ? type : nullptr;
}

/// `rotary` is short for `{type: rotary}`; made long when options of it are to be laid over it.
void expand_shorthand(ConfigNode& node) {
  if (node.kind != NodeKind::scalar || node.text.empty() || !is_yaml_letter(node.text[0])) return;
  ConfigNode map = make_map();
  map.mark = node.mark;
  map.directory = node.directory;
  map.entries.emplace_back("type", std::move(node));
  node = std::move(map);
}

void merge_over(ConfigNode& under, ConfigNode over) {
  if (over.kind == NodeKind::map) expand_shorthand(under);
  if (over.kind != NodeKind::map || under.kind != NodeKind::map) {
    under = std::move(over);
    return;
  }
  const ConfigNode* before = node_type_of(under);
  const ConfigNode* after = node_type_of(over);
  if (before && after && before->text != after->text) {
    under = std::move(over);
    return;
  }
  under.mark = over.mark;
  for (auto& [key, value] : over.entries) {
    if (ConfigNode* existing = entry_of(under, key)) {
      merge_over(*existing, std::move(value));
    } else {
      under.entries.emplace_back(std::move(key), std::move(value));
    }
  }
}

std::vector<std::string_view> dotted_segments(std::string_view dotted) {
  std::vector<std::string_view> out;
  while (true) {
    const size_t dot = dotted.find('.');
    out.push_back(dotted.substr(0, dot));
    if (dot == std::string_view::npos) return out;
    dotted.remove_prefix(dot + 1);
  }
}

/// An option inside a list cannot be overridden, unless the whole list gives way to one {type: …}.
void refuse_path_through_list(const ConfigNode& root, const ConfigNode& overlay, const std::string& dotted,
                              const Mark& mark) {
  const auto segments = dotted_segments(dotted);
  const ConfigNode* below = &root;
  const ConfigNode* above = &overlay;
  std::string path;
  for (size_t i = 0; i + 1 < segments.size(); ++i) {
    path += (i ? "." : "") + std::string(segments[i]);
    below = entry_of(*below, segments[i]);
    above = entry_of(*above, segments[i]);
    if (!below || !above) return;
    if (below->kind == NodeKind::sequence && !node_type_of(*above)) {
      fail_at(mark, "'{}' is a list ({}); give the whole list", path, below->mark.str());
    }
  }
}

// --- Files
// ---------------------------------------------------------------------------------------------------

/// `named_at`: the `base:` that named the file; empty for the first one.
std::string read_config_text(const fs::path& file, const Mark& named_at) {
  const std::string where =
      named_at.source.empty() ? file.string() : fmt::format("{}: base '{}'", named_at.str(), file.string());
  std::error_code ignored;
  if (fs::is_directory(file, ignored)) fail("{}: is a folder; name a YAML file in it", where);
  std::ifstream in(file, std::ios::binary);
  if (!in) fail("{}: {}", where, errno == ENOENT ? "no such file" : std::strerror(errno));
  std::string text(kMaxConfigBytes + 1, '\0');
  in.read(text.data(), static_cast<std::streamsize>(text.size()));
  if (in.bad()) fail("{}: cannot be read", where);
  text.resize(static_cast<size_t>(in.gcount()));
  return text;
}

std::string expand_variables(const ConfigNode& node, const std::string& path);

struct ConfigLoader {
  std::vector<fs::path> open;  // the chain from the first file to this one, for cycles
  int files = 0;

  ConfigNode load(const fs::path& file, const Mark& named_at) {
    if (++files > kMaxConfigFiles) fail_at(named_at, "more than {} files through 'base:'", kMaxConfigFiles);
    std::error_code ignored;
    const fs::path identity = fs::weakly_canonical(file, ignored);
    open.push_back(file);
    for (size_t i = 0; i + 1 < open.size(); ++i) {
      if (fs::weakly_canonical(open[i], ignored) != identity) continue;
      std::string circle;
      for (; i < open.size(); ++i) circle += (circle.empty() ? "" : " -> ") + open[i].string();
      fail_at(named_at, "'base' runs in a circle: {}", circle);
    }
    const std::string text = read_config_text(file, named_at);
    ConfigNode node = parse_config(text, file.string(), fs::absolute(file).parent_path());
    ConfigNode result = load_bases(node, file);
    open.pop_back();
    merge_over(result, std::move(node));
    return result;
  }

  /// Takes `base` out of the node and returns what it names, merged; an empty map without one.
  ConfigNode load_bases(ConfigNode& node, const fs::path& file) {
    ConfigNode result = make_map();
    const auto found = std::find_if(node.entries.begin(), node.entries.end(),
                                    [](const auto& entry) { return entry.first == "base"; });
    if (found == node.entries.end()) return result;
    const ConfigNode base = std::move(found->second);
    node.entries.erase(found);
    for (const ConfigNode& each : base.kind == NodeKind::sequence ? base.items : std::vector{base}) {
      if (each.kind != NodeKind::scalar || each.text.empty()) {
        fail_at(each.mark, "'base' must name a file or a list of files, got {}", node_kind_text(each));
      }
      const fs::path path = (file.parent_path() / expand_variables(each, "base")).lexically_normal();
      merge_over(result, load(path, each.mark));
    }
    return result;
  }
};

// --- Values
// --------------------------------------------------------------------------------------------------

/// ${NAME} becomes the environment variable, $$ a dollar sign.
std::string expand_variables(const ConfigNode& node, const std::string& path) {
  const std::string_view text = node.text;
  std::string out;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '$' || i + 1 == text.size() || (text[i + 1] != '$' && text[i + 1] != '{')) {
      out += text[i];
      continue;
    }
    if (text[++i] == '$') {
      out += '$';
      continue;
    }
    const size_t end = text.find('}', i);
    const std::string name(text.substr(i + 1, end == std::string_view::npos ? end : end - i - 1));
    const bool is_name =
        !name.empty() && !is_yaml_digit(name[0]) && std::all_of(name.begin(), name.end(), [](char c) {
          return is_yaml_letter(c) || is_yaml_digit(c) || c == '_';
        });
    if (end == std::string_view::npos || !is_name) {
      fail_at(node.mark, "'{}' has a malformed ${{VARIABLE}} in '{}'; write $$ for a dollar sign", path,
              shown_in_message(text));
    }
    const char* value = std::getenv(name.c_str());
    if (!value) fail_at(node.mark, "'{}' needs the environment variable {}, which is not set", path, name);
    out += value;
    i = end;
  }
  return out;
}

std::string escape_dollars(std::string_view text) {
  std::string out;
  for (char c : text) out.append(c == '$' ? 2 : 1, c);
  return out;
}

[[noreturn]] void fail_value_type(const ConfigNode& node, const std::string& path, std::string_view wanted) {
  fail_at(node.mark, "'{}' must be {}, got {}", path, wanted, node_kind_text(node));
}

/// The expanded text of an unquoted scalar; `node` becomes it, so that messages show what was read.
ConfigNode plain_scalar(const ConfigNode& node, const std::string& path, std::string_view wanted) {
  if (node.kind != NodeKind::scalar) fail_value_type(node, path, wanted);
  if (node.quoted) {
    fail_at(node.mark, "'{}' must be {}, got {}; remove the quotes", path, wanted, node_kind_text(node));
  }
  ConfigNode out = node;
  out.text = expand_variables(node, path);
  return out;
}

/// -?digits, no leading zero.
bool is_decimal_integer(std::string_view s) {
  if (s.starts_with('-')) s.remove_prefix(1);
  return !s.empty() && std::all_of(s.begin(), s.end(), is_yaml_digit) && (s == "0" || s[0] != '0');
}

/// -?digits[.digits][e±digits] with digits on one side of the point at least.
bool is_decimal_number(std::string_view s) {
  const auto take_digits = [&] {
    size_t n = 0;
    while (n < s.size() && is_yaml_digit(s[n])) ++n;
    const std::string_view digits = s.substr(0, n);
    s.remove_prefix(n);
    return digits;
  };
  if (s.starts_with('-')) s.remove_prefix(1);
  const std::string_view whole = take_digits();
  if (whole.size() > 1 && whole[0] == '0') return false;
  size_t digits = whole.size();
  if (s.starts_with('.')) {
    s.remove_prefix(1);
    digits += take_digits().size();
  }
  if (digits == 0) return false;
  if (s.starts_with('e') || s.starts_with('E')) {
    s.remove_prefix(1);
    if (s.starts_with('-') || s.starts_with('+')) s.remove_prefix(1);
    if (take_digits().empty()) return false;
  }
  return s.empty();
}

template <class T>
void check_constraints(const ConfigNode& node, T value, const std::string& path,
                       std::initializer_list<Constraint> constraints) {
  for (const Constraint& c : constraints) {
    if (!c.holds(static_cast<double>(value)))
      fail_at(node.mark, "'{}' must be {}, got {}", path, c.str(), value);
  }
}

/// Damerau-Levenshtein distance over letters of equal case, with '-' as '_'.
size_t key_distance(std::string_view a, std::string_view b) {
  const auto same = [](char x, char y) {
    const auto fold = [](char c) {
      return c == '-' ? '_' : static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
    };
    return fold(x) == fold(y);
  };
  std::vector<size_t> two_back, previous(b.size() + 1), row(b.size() + 1);
  for (size_t j = 0; j <= b.size(); ++j) previous[j] = j;
  for (size_t i = 1; i <= a.size(); ++i) {
    row[0] = i;
    for (size_t j = 1; j <= b.size(); ++j) {
      const bool equal = same(a[i - 1], b[j - 1]);
      row[j] = std::min({previous[j] + 1, row[j - 1] + 1, previous[j - 1] + !equal});
      const bool swapped = i > 1 && j > 1 && same(a[i - 1], b[j - 2]) && same(a[i - 2], b[j - 1]);
      if (swapped) row[j] = std::min(row[j], two_back[j - 2] + 1);
    }
    two_back = previous;
    previous = row;
  }
  return previous[b.size()];
}

// --- Nodes to text
// -------------------------------------------------------------------------------------------

/// Whether the text may stand without quotes and be read back as it is. Narrower than YAML on purpose.
bool is_plain_yaml(std::string_view text, bool in_flow) {
  if (is_yaml_null(text) || text.starts_with("...") || text.ends_with(':') || text.ends_with(' '))
    return false;
  const std::string_view inside = in_flow ? "_-./+$%=@^()*~ " : "_-./+$%=@^()*~ {},:";
  const bool signed_number = text.size() > 1 && text[0] == '-' && (is_yaml_digit(text[1]) || text[1] == '.');
  if (!is_yaml_letter(text[0]) && !is_yaml_digit(text[0]) &&
      std::string_view("_./$").find(text[0]) == std::string_view::npos && !signed_number) {
    return false;
  }
  for (size_t i = 0; i < text.size(); ++i) {
    if (!is_yaml_letter(text[i]) && !is_yaml_digit(text[i]) && inside.find(text[i]) == std::string_view::npos)
      return false;
    if (text[i] == ':' && text[i + 1] == ' ') return false;  // a ':' at the end was refused above
  }
  return true;
}

std::string quoted_yaml(std::string_view text) {
  std::string out = "\"";
  for (char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (c == '"' || c == '\\') {
      out += '\\';
      out += c;
    } else if (c == '\n') {
      out += "\\n";
    } else if (c == '\t') {
      out += "\\t";
    } else if (byte < 0x20 || byte == 0x7F) {
      out += fmt::format("\\x{:02X}", byte);
    } else {
      out += c;
    }
  }
  return out + '"';
}

std::string scalar_yaml(const ConfigNode& node, bool in_flow) {
  return !node.quoted && is_plain_yaml(node.text, in_flow) ? node.text : quoted_yaml(node.text);
}

std::string key_yaml(const std::string& key) { return is_plain_yaml(key, true) ? key : quoted_yaml(key); }

std::string flow_yaml(const ConfigNode& node) {
  std::string out;
  switch (node.kind) {
    case NodeKind::null:
      return "null";
    case NodeKind::scalar:
      return scalar_yaml(node, true);
    case NodeKind::sequence:
      for (const ConfigNode& item : node.items) out += (out.empty() ? "" : ", ") + flow_yaml(item);
      return "[" + out + "]";
    case NodeKind::map:
      for (const auto& [key, value] : node.entries) {
        out += (out.empty() ? "" : ", ") + key_yaml(key) + ": " + flow_yaml(value);
      }
      return "{" + out + "}";
  }
  return out;
}

/// A list of scalars that stands on one line, as [0.9, 0.999], without changing how its items are read.
bool is_short_yaml_list(const ConfigNode& node) {
  size_t width = 0;
  for (const ConfigNode& item : node.items) {
    if (item.kind == NodeKind::sequence || item.kind == NodeKind::map) return false;
    if (item.kind == NodeKind::scalar && !item.quoted && !is_plain_yaml(item.text, true)) return false;
    width += item.text.size() + 2;
  }
  return width <= 90;
}

/// Writes a map's or list's lines at `indent`, everything else on the current line. `open` says that the
/// current line already stands at `indent` (after "- ").
void write_yaml_block(const ConfigNode& node, size_t indent, bool open, std::string& out) {
  const std::string margin(indent, ' ');
  const auto begin_line = [&] {
    if (!open) out += margin;
    open = false;
  };
  const auto write_child = [&](const ConfigNode& child, bool after_dash) {
    const bool block = (child.kind == NodeKind::map && !child.entries.empty()) ||
                       (child.kind == NodeKind::sequence && !is_short_yaml_list(child));
    if (block && after_dash) {
      out += ' ';
      write_yaml_block(child, indent + 2, true, out);
    } else if (block) {
      out += '\n';
      write_yaml_block(child, indent + 2, false, out);
    } else {
      out += ' ' + (child.kind == NodeKind::scalar ? scalar_yaml(child, false) : flow_yaml(child)) + '\n';
    }
  };
  for (const auto& [key, value] : node.entries) {
    begin_line();
    out += key_yaml(key) + ':';
    write_child(value, false);
  }
  for (const ConfigNode& item : node.items) {
    begin_line();
    out += '-';
    write_child(item, true);
  }
}

}  // namespace

// --- The interface
// -------------------------------------------------------------------------------------------

std::string Mark::str() const { return line ? fmt::format("{}:{}", source, line) : source; }

const ConfigNode* ConfigNode::find(std::string_view dotted) const {
  const ConfigNode* node = this;
  for (std::string_view segment : dotted_segments(dotted)) {
    node = entry_of(*node, segment);
    if (!node) return nullptr;
  }
  return node;
}

bool operator==(const ConfigNode& a, const ConfigNode& b) {
  if (a.kind != b.kind) return false;
  // Quotes count only where the text could stand without them: `dim: "8"` is not `dim: 8`.
  if (a.kind == NodeKind::scalar) return scalar_yaml(a, false) == scalar_yaml(b, false);
  return a.items == b.items && a.entries == b.entries;
}

ConfigNode make_scalar(std::string text, bool quoted) {
  ConfigNode node;
  node.kind = NodeKind::scalar;
  node.text = std::move(text);
  node.quoted = quoted;
  return node;
}

ConfigNode make_map(std::vector<std::pair<std::string, ConfigNode>> entries) {
  ConfigNode node;
  node.kind = NodeKind::map;
  node.entries = std::move(entries);
  return node;
}

ConfigNode parse_config(std::string_view text, const std::string& source_name, const fs::path& directory) {
  ConfigNode root = parse_yaml_text(text, {source_name, 1}, fs::absolute(directory));
  if (root.kind == NodeKind::null) fail_at(root.mark, "the file is empty");
  if (root.kind != NodeKind::map)
    fail_at(root.mark, "the file must hold 'key: value' lines, got {}", node_kind_text(root));
  return root;
}

ConfigNode parse_set_value(std::string_view text, const std::string& source, const fs::path& directory) {
  return parse_yaml_text(text, {source, 0}, fs::absolute(directory));
}

ConfigNode load_config(const fs::path& file, const std::vector<std::string>& sets) {
  ConfigNode root = ConfigLoader{}.load(file, {});
  apply_sets(root, sets);
  return root;
}

void apply_sets(ConfigNode& root, const std::vector<std::string>& sets) {
  ConfigNode overrides = make_map();
  for (const std::string& set : sets) {
    const size_t equals = set.find('=');
    if (equals == std::string::npos || equals == 0)
      fail("--set {}: write --set name.of.option=value", shown_in_message(set));
    const std::string name = set.substr(0, equals);
    if (name == "base") fail("--set base: 'base' can only be given in a file");
    overrides.entries.emplace_back(
        name, parse_set_value(std::string_view(set).substr(equals + 1), "--set " + shown_in_message(name)));
  }
  set_values(root, overrides);
}

void set_values(ConfigNode& root, const ConfigNode& overrides) {
  if (overrides.kind == NodeKind::null) return;
  if (overrides.kind != NodeKind::map) {
    fail_at(overrides.mark, "overrides must be a map of options, got {}", node_kind_text(overrides));
  }
  ConfigNode overlay = make_map();
  for (const auto& [dotted, value] : overrides.entries) {
    const auto segments = dotted_segments(dotted);
    if (std::find(segments.begin(), segments.end(), "") != segments.end() ||
        segments.size() > kMaxConfigDepth) {
      fail_at(value.mark, "'{}' is not the name of an option", shown_in_message(dotted));
    }
    // {a.b.c: value} as {a: {b: {c: value}}}
    ConfigNode nested = value;
    for (size_t i = segments.size(); i-- > 0;) {
      ConfigNode map = make_map();
      map.mark = value.mark;
      map.directory = value.directory;
      map.entries.emplace_back(std::string(segments[i]), std::move(nested));
      nested = std::move(map);
    }
    merge_over(overlay, std::move(nested));
  }
  for (const auto& [dotted, value] : overrides.entries)
    refuse_path_through_list(root, overlay, dotted, value.mark);
  const Mark mark = root.mark;
  merge_over(root, std::move(overlay));
  root.mark = mark;
}

void set_value(ConfigNode& root, std::string_view dotted, ConfigNode value) {
  ConfigNode overrides = make_map();
  overrides.entries.emplace_back(std::string(dotted), std::move(value));
  set_values(root, overrides);
}

std::string dump(const ConfigNode& node) {
  const bool block = (node.kind == NodeKind::map && !node.entries.empty()) ||
                     (node.kind == NodeKind::sequence && !is_short_yaml_list(node));
  if (!block) return (node.kind == NodeKind::scalar ? scalar_yaml(node, false) : flow_yaml(node)) + "\n";
  std::string out;
  write_yaml_block(node, 0, false, out);
  return out;
}

bool Constraint::holds(double value) const {
  switch (kind) {
    case Kind::required:
      return true;
    case Kind::at_least:
      return value >= low;
    case Kind::above:
      return value > low;
    case Kind::within:
      return value >= low && value <= high;
  }
  return true;
}

std::string Constraint::str() const {
  switch (kind) {
    case Kind::required:
      return "required";
    case Kind::at_least:
      return fmt::format("at least {}", low);
    case Kind::above:
      return fmt::format("above {}", low);
    case Kind::within:
      return fmt::format("within [{}, {}]", low, high);
  }
  return "";
}

std::string did_you_mean(std::string_view word, const std::vector<std::string>& known) {
  const size_t allowed = word.size() <= 3 ? 1 : word.size() <= 7 ? 2 : 3;
  std::string best;
  size_t best_distance = allowed + 1;
  for (const std::string& each : known) {
    const auto [shorter, longer] = std::minmax({word.size(), each.size()});  // by value
    if (longer - shorter > allowed) continue;
    const size_t distance = key_distance(word, each);
    if (distance < best_distance && distance < shorter) {
      best = each;
      best_distance = distance;
    }
  }
  return best.empty() ? "" : fmt::format("; did you mean '{}'?", best);
}

namespace config_detail {

void read_value(const ConfigNode& node, bool& out, const std::string& path) {
  const ConfigNode scalar = plain_scalar(node, path, "true or false");
  std::string word = scalar.text;
  if (word == "true" || word == "false") {
    out = word == "true";
    return;
  }
  std::transform(word.begin(), word.end(), word.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  const bool yes = word == "true" || word == "yes" || word == "on" || word == "y" || word == "1";
  const bool no = word == "false" || word == "no" || word == "off" || word == "n" || word == "0";
  if (!yes && !no) fail_value_type(scalar, path, "true or false");
  fail_at(node.mark, "'{}' must be true or false, got {}; write {}", path, node_kind_text(scalar),
          yes ? "true" : "false");
}

void read_value(const ConfigNode& node, int64_t& out, const std::string& path) {
  const ConfigNode scalar = plain_scalar(node, path, "an integer");
  if (!is_decimal_integer(scalar.text)) fail_value_type(scalar, path, "an integer");
  const char* end = scalar.text.data() + scalar.text.size();
  if (std::from_chars(scalar.text.data(), end, out).ec != std::errc{}) {
    fail_value_type(scalar, path, "an integer of 64 bits");
  }
}

void read_value(const ConfigNode& node, double& out, const std::string& path) {
  const ConfigNode scalar = plain_scalar(node, path, "a number");
  if (!is_decimal_number(scalar.text)) fail_value_type(scalar, path, "a number");
  const char* end = scalar.text.data() + scalar.text.size();
  if (std::from_chars(scalar.text.data(), end, out).ec != std::errc{}) {
    fail_value_type(scalar, path, "a number in the range of a double");
  }
}

void read_value(const ConfigNode& node, std::string& out, const std::string& path) {
  if (node.kind == NodeKind::null)
    fail_at(node.mark, "'{}' must be text, got nothing; write \"\" for empty text", path);
  if (node.kind != NodeKind::scalar) fail_value_type(node, path, "text");
  out = expand_variables(node, path);
}

void read_value(const ConfigNode& node, fs::path& out, const std::string& path) {
  if (node.kind != NodeKind::scalar) fail_value_type(node, path, "a path");
  const std::string text = expand_variables(node, path);
  out = text.empty() ? fs::path() : (node.directory / text).lexically_normal();
}

size_t read_choice(const ConfigNode& node, const std::vector<std::string>& names, const std::string& path) {
  const std::string wanted = "one of " + join_names(names);
  if (node.kind != NodeKind::scalar) fail_value_type(node, path, wanted);
  const std::string text = expand_variables(node, path);
  const auto found = std::find(names.begin(), names.end(), text);
  if (found == names.end()) {
    fail_at(node.mark, "'{}' must be {}, got '{}'{}", path, wanted, shown_in_message(text),
            did_you_mean(text, names));
  }
  return static_cast<size_t>(found - names.begin());
}

ConfigNode write_value(bool value) { return make_scalar(value ? "true" : "false"); }
ConfigNode write_value(int64_t value) { return make_scalar(std::to_string(value)); }
ConfigNode write_value(double value) {
  return make_scalar(fmt::format("{}", value));
}  // shortest that reads back

ConfigNode write_value(const std::string& value) {
  // Quoted where a reader (or another YAML parser) could take it for something else than text.
  static const std::array<std::string_view, 8> words{"true", "false", "yes", "no", "on", "off", "null", "y"};
  const bool is_word = !value.empty() && is_yaml_letter(value[0]) && !is_yaml_null(value) &&
                       std::find(words.begin(), words.end(), value) == words.end();
  std::string text = escape_dollars(value);
  const bool quoted = !is_word || !is_plain_yaml(text, false);
  return make_scalar(std::move(text), quoted);
}

ConfigNode write_value(const fs::path& value) {
  std::string text = escape_dollars(value.string());
  const bool quoted = !is_plain_yaml(text, false);
  return make_scalar(std::move(text), quoted);
}

void check(const ConfigNode& node, int64_t value, const std::string& path, Constraints constraints) {
  check_constraints(node, value, path, constraints);
}

void check(const ConfigNode& node, double value, const std::string& path, Constraints constraints) {
  check_constraints(node, value, path, constraints);
}

std::string join_path(const std::string& prefix, std::string_view name) {
  return prefix.empty() ? std::string(name) : fmt::format("{}.{}", prefix, name);
}

std::string join_names(const std::vector<std::string>& names) {
  return fmt::format("{}", fmt::join(names, ", "));
}

std::string one_line(const ConfigNode& node) { return flow_yaml(node); }

std::string describe_constraints(Constraints constraints) {
  std::string out;
  for (const Constraint& c : constraints) out += (out.empty() ? "" : ", ") + c.str();
  return out;
}

void require_map(const ConfigNode& node, const std::string& prefix) {
  if (node.kind == NodeKind::map || node.kind == NodeKind::null) return;
  fail_at(node.mark, "{}must be a map of options, got {}", prefix.empty() ? "" : fmt::format("'{}' ", prefix),
          node_kind_text(node));
}

}  // namespace config_detail

std::string without_alternatives(std::string_view path) {
  std::string plain;
  int depth = 0;
  for (const char c : path) {
    depth += c == '{';
    if (depth == 0) plain += c;
    depth -= c == '}';
  }
  return plain;
}

namespace config_detail {

bool below(std::string_view path, std::string_view prefix) {
  const std::string plain =
      prefix.find('{') == std::string_view::npos ? without_alternatives(path) : std::string(path);
  if (prefix.empty() || plain == prefix) return true;
  return plain.starts_with(prefix) &&
         std::string_view(".{[").find(plain[prefix.size()]) != std::string_view::npos;
}

void fail_unknown(const ConfigNode& value, std::string_view key, const std::string& prefix,
                  std::string_view variant_type, const std::vector<std::string>& known,
                  const std::vector<OptionHelp>& all) {
  std::string hint = did_you_mean(key, known);
  if (hint.empty()) {
    const std::string tail = fmt::format(".{}", key);
    for (const OptionHelp& each : all) {
      if (each.path.ends_with(tail)) {
        hint = fmt::format("; there is '{}'", join_path(prefix, each.path));
        break;
      }
    }
  }
  if (hint.empty() && key.find('.') != std::string_view::npos) {
    hint = "; in a file nest the maps, dotted names are for --set and arms";
  }
  if (hint.empty() && !known.empty()) hint = "; known here: " + join_names(known);
  if (hint.empty()) hint = "; no options are known here";
  fail_at(value.mark, "unknown key '{}'{}{}", join_path(prefix, shown_in_message(key)),
          variant_type.empty() ? "" : fmt::format(" for type '{}'", variant_type), hint);
}

void fail_validation(const ConfigNode& node, const std::string& prefix, const Error& error) {
  fail_at(node.mark, "{}{}{}", prefix, prefix.empty() ? "" : ": ", error.what());
}

}  // namespace config_detail

}  // namespace roformer
