#pragma once

namespace roformer {

/// Stops the library's messages on stderr; what goes wrong comes back as an Error.
void quiet_sentencepiece();

}  // namespace roformer
