#pragma once

#include <fmt/format.h>

#include <stdexcept>
#include <utility>

namespace roformer {

/// A mistake the user can fix: one line that says where, what, and what to do. Programs exit with 2 on it.
class Error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// Throws Error with the formatted message.
template <class... A>
[[noreturn]] void fail(fmt::format_string<A...> format, A&&... arguments) {
  throw Error(fmt::format(format, std::forward<A>(arguments)...));
}

}  // namespace roformer
