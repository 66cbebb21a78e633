#pragma once

#include <cstddef>
#include <string_view>

namespace roformer {

/// Length of the longest prefix that is well-formed UTF-8 (Unicode 15, table 3-7: no surrogates, no overlong
/// forms, nothing above U+10FFFF). Equals text.size() if all of it is.
size_t valid_utf8_prefix(std::string_view text);

}  // namespace roformer
