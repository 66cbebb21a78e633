#pragma once

#include <memory>

#include "roformer/text/tokenizer.h"

namespace roformer {

// One for each alternative of TokenizerOptions; make_tokenizer calls them.
std::unique_ptr<Tokenizer> build_tokenizer(const BytesOptions& options);
std::unique_ptr<Tokenizer> build_tokenizer(const WordPieceOptions& options);
std::unique_ptr<Tokenizer> build_tokenizer(const WordsOptions& options);
std::unique_ptr<Tokenizer> build_tokenizer(const SentencePieceOptions& options);

}  // namespace roformer
