#pragma once

#include <cstdint>
#include <filesystem>
#include <vector>

#include "roformer/text/tokenizer.h"

namespace roformer {

/// The tokenizer of a Hugging Face folder. tokenizer_config.json names the class, or without it the
/// model_type of config.json does: BertTokenizer (vocab.txt: WordPiece) and RoFormerTokenizer (vocab.txt:
/// words), with or without "Fast"; LlamaTokenizer[Fast], and a folder that names none and holds one *.model
/// file, are SentencePiece. Error, by name, for every other class and for settings that would change ids and
/// that are not followed here, such as added tokens.
TokenizerOptions tokenizer_of_folder(const std::filesystem::path& folder);

/// Its *.model files, by name. Error when it cannot be read.
std::vector<std::filesystem::path> sentencepiece_files(const std::filesystem::path& folder);

/// Writes vocab.txt (byte for byte), tokenizer_config.json and special_tokens_map.json into `folder`, so that
/// transformers' AutoTokenizer opens it and gives the same ids. max_length > 0: the longest input of the
/// model. Error for bytes and SentencePiece, which transformers has no class for, and for a max_word that is
/// not its 100.
void save_tokenizer(const TokenizerOptions& options, const std::filesystem::path& folder,
                    int64_t max_length = 0);

}  // namespace roformer
