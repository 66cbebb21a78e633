#pragma once

/// Configuration: YAML text -> ConfigNode tree -> checked Options structs, and back.
///
/// An Options struct is a plain aggregate with one `fields` function beside it, which serves reading,
/// writing, help and the check for unknown keys:
///
///     struct AttentionOptions { int64_t dim = 512; double dropout = 0.1; };
///     template <class V> void fields(V& v, AttentionOptions& o) {
///       v("dim", o.dim, "width of the model", at_least(1));
///       v("dropout", o.dropout, "on attention weights", within(0.0, 1.0));
///     }
///     inline void validate(const AttentionOptions& o);   // optional: relations between values; throws Error
///
/// Members may be: bool, int64_t, double, std::string, std::filesystem::path, an enum with
/// `inline auto enum_names(E)` returning std::array<std::pair<E, std::string_view>, N>, another Options
/// struct, std::optional<T> (null or absent), std::vector<T> (one value is a list of one), std::variant of
/// Options structs that each have `static constexpr std::string_view type` (`{type: rotary, base: 500}` or
/// just `rotary`; without `type` the member's default alternative stays), and ConfigNode (kept unread).
///
/// Every mistake in a file or a value is an Error of one line that starts with its "file:line".

#include <algorithm>
#include <array>
#include <concepts>
#include <cstdint>
#include <filesystem>
#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include "roformer/core/error.h"

namespace roformer {

/// Where a value was written: {"configs/mlm.yaml", 3}, or {"--set model.dim", 0} outside a file.
struct Mark {
  std::string source;
  int line = 0;
  std::string str() const;  // "configs/mlm.yaml:3", "--set model.dim"
};

/// Throws Error "<mark>: <message>".
template <class... A>
[[noreturn]] void fail_at(const Mark& mark, fmt::format_string<A...> format, A&&... arguments) {
  std::string message = fmt::format(format, std::forward<A>(arguments)...);
  throw Error(mark.source.empty() ? message : mark.str() + ": " + message);
}

/// A piece of YAML as it was written: nothing is converted or expanded yet.
struct ConfigNode {
  enum class Kind { null, scalar, sequence, map };

  Kind kind = Kind::null;
  std::string text;                                         // of a scalar
  bool quoted = false;                                      // a quoted or block scalar, which is text only
  std::vector<ConfigNode> items;                            // of a sequence
  std::vector<std::pair<std::string, ConfigNode>> entries;  // of a map, in the order of the file
  Mark mark;                                                // a map's value carries the line of its key
  std::filesystem::path directory;                          // relative paths resolve against it

  /// The node at "model.positions.type"; null pointer when there is none.
  const ConfigNode* find(std::string_view dotted) const;

  /// Same values, read the same way; marks and directories do not count.
  friend bool operator==(const ConfigNode& a, const ConfigNode& b);
};

ConfigNode make_scalar(std::string text, bool quoted = false);
ConfigNode make_map(std::vector<std::pair<std::string, ConfigNode>> entries = {});

/// Reads a file, its `base:` (a file or a list of files, relative to the naming file) beneath it, and
/// `sets` ("model.dim=64", relative paths against the current folder) above it.
/// Maps merge key by key; everything else replaces. A map whose `type` changes drops the siblings it
/// inherits. Refused: more than 1 MiB or 64 levels, several documents, duplicate keys, anchors, aliases,
/// merge keys, tags, keys that are not text, tabs as indentation, control characters, text that is not UTF-8.
ConfigNode load_config(const std::filesystem::path& file, const std::vector<std::string>& sets = {});

/// `sets` ("model.dim=64") over `root`.
void apply_sets(ConfigNode& root, const std::vector<std::string>& sets);

/// The same for text; `base:` stays an ordinary key.
ConfigNode parse_config(std::string_view text, const std::string& source_name,
                        const std::filesystem::path& directory = ".");

/// The right side of --set: YAML flow text such as "[1, 2]", "{type: none}", "1e-3". `source` names it in
/// errors
/// ("--set model.dim").
ConfigNode parse_set_value(std::string_view text, const std::string& source,
                           const std::filesystem::path& directory = ".");

/// Lays `overrides` over `root`: a map whose keys may be dotted ("model.positions.type: learned"), as the
/// arms of an ablation and all --set together are. Creates missing maps. Only siblings that `root` already
/// had are dropped when a `type` changes, so the order of the overrides does not matter.
void set_values(ConfigNode& root, const ConfigNode& overrides);

/// One override. A map value merges, everything else replaces.
void set_value(ConfigNode& root, std::string_view dotted, ConfigNode value);

/// YAML text that reads back to the same values. Relative paths stay as written.
std::string dump(const ConfigNode& node);

/// What a value must satisfy; a list's or optional's constraint applies to each of its values.
struct Constraint {
  enum class Kind { required, at_least, above, within };
  Kind kind;
  double low = 0;
  double high = 0;
  bool holds(double value) const;
  std::string str() const;  // "at least 1", "above 0", "within [0, 1]", "required"
};
inline Constraint required() { return {Constraint::Kind::required}; }
inline Constraint at_least(double low) { return {Constraint::Kind::at_least, low}; }
inline Constraint above(double low) { return {Constraint::Kind::above, low}; }
inline Constraint within(double low, double high) { return {Constraint::Kind::within, low, high}; }

/// One option as `roformer options` prints it. A list's elements read "stages[].steps", the options of one
/// alternative "model.positions{rotary}.base".
struct OptionHelp {
  std::string path;
  std::string type;  // "integer", "number", "one of none, learned, rotary", "section" (holds others), ...
  std::string default_value;  // as YAML; empty for a section and for a required option
  std::string constraint;     // "at least 1", "required, above 0", or empty
  std::string help;
};

/// Reads `node` (a map, or null for "all defaults") over `options`, then calls validate(options) where there
/// is one.
template <class O>
void read(const ConfigNode& node, O& options, std::string prefix = "");

/// All options as a tree: read(write(o)) == o.
template <class O>
ConfigNode write(const O& options);

/// Every option of O at or below `path_prefix` ("model.positions"), in the order of the fields functions.
/// A prefix without braces stands for every alternative: "model.positions" finds "model{encoder}.positions".
template <class O>
std::vector<OptionHelp> describe(std::string_view path_prefix = "");

/// "model{encoder}.positions{rotary}.base" -> "model.positions.base", as a configuration spells it.
std::string without_alternatives(std::string_view path);

/// `; did you mean 'heads'?` when a known name is close to `word`, else "".
std::string did_you_mean(std::string_view word, const std::vector<std::string>& known);

/// What YAML calls a value of an enum with enum_names.
template <class E>
std::string_view enum_name(E value) {
  for (const auto& [each, name] : enum_names(value)) {
    if (each == value) return name;
  }
  throw std::logic_error("an enum value has no name in enum_names");
}

// -----------------------------------------------------------------------------------------------------------
// How it works.

namespace config_detail {

using Constraints = std::initializer_list<Constraint>;

// Strict readers of one value; `path` is its dotted name for messages.
void read_value(const ConfigNode& node, bool& out, const std::string& path);
void read_value(const ConfigNode& node, int64_t& out, const std::string& path);
void read_value(const ConfigNode& node, double& out, const std::string& path);
void read_value(const ConfigNode& node, std::string& out, const std::string& path);
void read_value(const ConfigNode& node, std::filesystem::path& out, const std::string& path);
size_t read_choice(const ConfigNode& node, const std::vector<std::string>& names, const std::string& path);

ConfigNode write_value(bool value);
ConfigNode write_value(int64_t value);
ConfigNode write_value(double value);
ConfigNode write_value(const std::string& value);
ConfigNode write_value(const std::filesystem::path& value);

void check(const ConfigNode& node, int64_t value, const std::string& path, Constraints constraints);
void check(const ConfigNode& node, double value, const std::string& path, Constraints constraints);

std::string join_path(const std::string& prefix, std::string_view name);
std::string join_names(const std::vector<std::string>& names);
std::string one_line(const ConfigNode& node);  // flow YAML, for help
std::string describe_constraints(Constraints constraints);
void require_map(const ConfigNode& node, const std::string& prefix);  // or null
bool below(std::string_view path, std::string_view prefix);
[[noreturn]] void fail_unknown(const ConfigNode& value, std::string_view key, const std::string& prefix,
                               std::string_view variant_type, const std::vector<std::string>& known,
                               const std::vector<OptionHelp>& all);
[[noreturn]] void fail_validation(const ConfigNode& node, const std::string& prefix, const Error& error);

template <class T>
inline constexpr bool is_optional = false;
template <class T>
inline constexpr bool is_optional<std::optional<T>> = true;
template <class T>
inline constexpr bool is_vector = false;
template <class T>
inline constexpr bool is_vector<std::vector<T>> = true;
template <class T>
inline constexpr bool is_variant = false;
template <class... T>
inline constexpr bool is_variant<std::variant<T...>> = true;

struct NameCollector {
  std::vector<std::string> names;
  template <class T, class... C>
  void operator()(std::string_view name, T&, std::string_view, const C&...) {
    names.emplace_back(name);
  }
};

template <class O>
concept Options = requires(NameCollector& v, O& o) {
  fields(v, o);
};

template <class T>
inline constexpr bool is_leaf =
    std::is_same_v<T, bool> || std::is_same_v<T, int64_t> || std::is_same_v<T, double> ||
    std::is_same_v<T, std::string> || std::is_same_v<T, std::filesystem::path>;

template <class E>
std::vector<std::string> names_of_enum() {
  std::vector<std::string> names;
  for (const auto& [value, name] : enum_names(E{})) names.emplace_back(name);
  return names;
}

template <class... T>
std::vector<std::string> names_of_variant(const std::variant<T...>*) {
  return {std::string(T::type)...};
}

/// Default-constructs the alternative at a run-time index.
template <class... T>
void emplace_alternative(std::variant<T...>& out, size_t index) {
  size_t i = 0;
  ((i++ == index ? (void)out.template emplace<T>() : (void)0), ...);
}

template <class O>
void read_struct(const ConfigNode& node, O& options, const std::string& prefix,
                 std::string_view variant_type);

template <class T>
void read_any(const ConfigNode& node, T& out, const std::string& path, Constraints constraints) {
  if constexpr (std::is_same_v<T, ConfigNode>) {
    out = node;
  } else if constexpr (is_leaf<T>) {
    read_value(node, out, path);
    if constexpr (std::is_same_v<T, int64_t> || std::is_same_v<T, double>)
      check(node, out, path, constraints);
  } else if constexpr (std::is_enum_v<T>) {
    out = enum_names(T{})[read_choice(node, names_of_enum<T>(), path)].first;
  } else if constexpr (is_optional<T>) {
    if (node.kind == ConfigNode::Kind::null) {
      out.reset();
    } else {
      if (!out) out.emplace();
      read_any(node, *out, path, constraints);
    }
  } else if constexpr (is_vector<T>) {
    const T defaults = std::exchange(out, {});
    auto add = [&](const ConfigNode& item, const std::string& item_path) {
      typename T::value_type value{};
      if constexpr (is_variant<typename T::value_type>) {
        if (item.kind == ConfigNode::Kind::map && !item.find("type")) {
          // As for a single variant: without `type` the default stays.
          if (node.kind == ConfigNode::Kind::sequence || defaults.size() != 1) {
            fail_at(item.mark, "'{}' needs a 'type': one of {}", item_path,
                    join_names(names_of_variant((typename T::value_type*)nullptr)));
          }
          value = defaults.front();
        }
      }
      read_any(item, value, item_path, constraints);
      out.push_back(std::move(value));
    };
    if (node.kind != ConfigNode::Kind::sequence) {
      add(node, path);
    } else {
      for (size_t i = 0; i < node.items.size(); ++i) add(node.items[i], fmt::format("{}[{}]", path, i));
    }
  } else if constexpr (is_variant<T>) {
    const ConfigNode* type = node.kind == ConfigNode::Kind::scalar ? &node : node.find("type");
    if (type || node.kind != ConfigNode::Kind::map) {
      const std::string type_path = type && type != &node ? path + ".type" : path;
      const size_t index = read_choice(type ? *type : node, names_of_variant((T*)nullptr), type_path);
      if (index != out.index()) emplace_alternative(out, index);
    }
    std::visit(
        [&](auto& options) {
          using O = std::remove_reference_t<decltype(options)>;
          if (type == &node) {
            ConfigNode shorthand = make_map({{"type", node}});
            shorthand.mark = node.mark;
            read_struct(shorthand, options, path, O::type);
          } else {
            read_struct(node, options, path, O::type);
          }
        },
        out);
  } else {
    static_assert(Options<T>,
                  "not a kind of value that options can have: see the head of roformer/core/config.h");
    read_struct(node, out, path, "");
  }
}

struct FieldReader {
  const ConfigNode& node;
  const std::string& prefix;

  template <class T, class... C>
  void operator()(std::string_view name, T& member, std::string_view, const C&... constraints) {
    const std::string path = join_path(prefix, name);
    for (const auto& [key, value] : node.entries) {
      if (key == name) return read_any(value, member, path, {constraints...});
    }
    for (const Constraint& c : Constraints{constraints...}) {
      if (c.kind == Constraint::Kind::required)
        fail_at(node.mark, "'{}' is missing and has no default", path);
    }
  }
};

struct FieldWriter {
  ConfigNode& node;

  template <class T, class... C>
  void operator()(std::string_view name, T& member, std::string_view, const C&...) {
    node.entries.emplace_back(std::string(name), write_any(member));
  }

  template <class T>
  static ConfigNode write_any(const T& value) {
    if constexpr (std::is_same_v<T, ConfigNode>) {
      return value;
    } else if constexpr (is_leaf<T>) {
      return write_value(value);
    } else if constexpr (std::is_enum_v<T>) {
      return make_scalar(std::string(enum_name(value)));
    } else if constexpr (is_optional<T>) {
      return value ? write_any(*value) : ConfigNode{};
    } else if constexpr (is_vector<T>) {
      if (value.size() == 1) return write_any(value.front());  // so that --set reaches into it
      ConfigNode list;
      list.kind = ConfigNode::Kind::sequence;
      for (const typename T::value_type& item : value) list.items.push_back(write_any(item));
      return list;
    } else if constexpr (is_variant<T>) {
      return std::visit(
          [](const auto& options) {
            using O = std::remove_cvref_t<decltype(options)>;
            ConfigNode map = write_any(options);
            map.entries.emplace(map.entries.begin(), "type", make_scalar(std::string(O::type)));
            return map;
          },
          value);
    } else {
      static_assert(Options<T>);
      ConfigNode map = make_map();
      FieldWriter writer{map};
      T copy = value;  // fields takes a mutable struct
      fields(writer, copy);
      return map;
    }
  }
};

template <class T>
std::string type_name() {
  if constexpr (std::is_same_v<T, ConfigNode>) {
    return "anything";
  } else if constexpr (std::is_same_v<T, bool>) {
    return "true or false";
  } else if constexpr (std::is_same_v<T, int64_t>) {
    return "integer";
  } else if constexpr (std::is_same_v<T, double>) {
    return "number";
  } else if constexpr (std::is_same_v<T, std::string>) {
    return "text";
  } else if constexpr (std::is_same_v<T, std::filesystem::path>) {
    return "path";
  } else if constexpr (std::is_enum_v<T>) {
    return "one of " + join_names(names_of_enum<T>());
  } else if constexpr (is_optional<T>) {
    return type_name<typename T::value_type>() + ", or null";
  } else if constexpr (is_vector<T>) {
    return "list: " + type_name<typename T::value_type>();
  } else if constexpr (is_variant<T>) {
    return "one of " + join_names(names_of_variant((T*)nullptr));
  } else {
    return "section";
  }
}

struct FieldDescriber {
  std::vector<OptionHelp>& out;
  std::string prefix;

  template <class T, class... C>
  void operator()(std::string_view name, T& member, std::string_view help, const C&... constraints) {
    const std::string path = join_path(prefix, name);
    bool is_required = false;
    for (const Constraint& c : Constraints{constraints...})
      is_required |= c.kind == Constraint::Kind::required;
    out.push_back({path, type_name<T>(), is_required ? "" : default_text(member),
                   describe_constraints({constraints...}), std::string(help)});
    add_inner(member, path);
  }

  template <class T>
  static std::string default_text(const T& value) {
    if constexpr (is_variant<T>) {
      return std::visit([](const auto& o) { return std::string(std::remove_cvref_t<decltype(o)>::type); },
                        value);
    } else if constexpr (Options<T>) {
      return "";
    } else {
      return one_line(FieldWriter::write_any(value));
    }
  }

  /// The options inside a value: those of a struct, of each alternative, of a list's elements.
  template <class T>
  void add_inner(const T& value, const std::string& path) {
    if constexpr (is_optional<T>) {
      add_inner(value ? *value : typename T::value_type{}, path);
    } else if constexpr (is_vector<T>) {
      using Item = typename T::value_type;
      add_inner(Item{}, Options<Item> ? path + "[]" : path);
    } else if constexpr (is_variant<T>) {
      add_alternatives(value, path);
    } else if constexpr (Options<T>) {
      T copy = value;
      FieldDescriber inner{out, path};
      fields(inner, copy);
    }
  }

  template <class... A>
  void add_alternatives(const std::variant<A...>& value, const std::string& path) {
    (add_inner(std::holds_alternative<A>(value) ? std::get<A>(value) : A{},
               fmt::format("{}{{{}}}", path, A::type)),
     ...);
  }
};

template <class O>
void read_struct(const ConfigNode& node, O& options, const std::string& prefix,
                 std::string_view variant_type) {
  require_map(node, prefix);
  // Unknown keys first: a misspelt name says more than the required one that it leaves missing.
  NameCollector known;
  if (!variant_type.empty()) known.names.emplace_back("type");
  fields(known, options);
  for (const auto& [key, value] : node.entries) {
    if (std::find(known.names.begin(), known.names.end(), key) == known.names.end()) {
      fail_unknown(value, key, prefix, variant_type, known.names, describe<O>());
    }
  }
  FieldReader reader{node, prefix};
  fields(reader, options);
  if constexpr (requires { validate(std::as_const(options)); }) {
    try {
      validate(std::as_const(options));
    } catch (const Error& error) {
      fail_validation(node, prefix, error);
    }
  }
}

}  // namespace config_detail

template <class O>
void read(const ConfigNode& node, O& options, std::string prefix) {
  config_detail::read_any(node, options, prefix, {});
}

template <class O>
ConfigNode write(const O& options) {
  return config_detail::FieldWriter::write_any(options);
}

template <class O>
std::vector<OptionHelp> describe(std::string_view path_prefix) {
  std::vector<OptionHelp> all;
  config_detail::FieldDescriber describer{all, ""};
  O options{};
  describer.add_inner(options, "");
  std::erase_if(all, [&](const OptionHelp& o) { return !config_detail::below(o.path, path_prefix); });
  return all;
}

}  // namespace roformer
