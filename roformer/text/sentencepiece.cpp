#include "roformer/text/sentencepiece.h"

#include <fmt/format.h>
#include <sentencepiece_processor.h>

#include <algorithm>
#include <array>
#include <stdexcept>

#include "roformer/core/display.h"
#include "roformer/core/error.h"
#include "roformer/core/files.h"
#include "roformer/text/build.h"
#include "roformer/text/vocabulary.h"

// In the library, not in its headers.
namespace sentencepiece::logging {
void SetMinLogLevel(int level);
}

namespace roformer {

void quiet_sentencepiece() {
  constexpr int fatal_only = 3;
  sentencepiece::logging::SetMinLogLevel(fatal_only);
}

namespace {

constexpr size_t model_bytes = size_t{256} << 20;
constexpr std::string_view word_start = "\u2581";

/// Usual names of the special tokens, in the order of enum Special.
constexpr std::array<std::array<std::string_view, 2>, 5> role_names = {
    {{"[PAD]", "<pad>"}, {"[UNK]", "<unk>"}, {"[CLS]", "<s>"}, {"[SEP]", "</s>"}, {"[MASK]", "<mask>"}}};

class SentencePieceTokenizer final : public Tokenizer {
 public:
  explicit SentencePieceTokenizer(const SentencePieceOptions& o) : file_(o.model.string()) {
    quiet_sentencepiece();
    const std::string bytes = read_file(o.model, model_bytes);
    digest_ = Vocabulary::hash(bytes);
    const auto status = bytes.empty()
                            ? sentencepiece::util::Status(sentencepiece::util::StatusCode::kDataLoss, "empty")
                            : model_.LoadFromSerializedProto(bytes);
    if (!status.ok() || model_.GetPieceSize() <= 0) {
      fail(
          "{}: not a SentencePiece model, or damaged; get it again, or make one with `roformer "
          "train-tokenizer`",
          file_);
    }
    pieces_ = model_.GetPieceSize();
    for (size_t role = 0; role < 5; ++role) {
      int32_t id = static_cast<Special>(role) == Special::unknown ? model_.unk_id() : -1;
      for (const std::string_view name : role_names[role]) {
        if (id >= 0) break;
        const int found = model_.PieceToId(name);
        // An unknown name gets the id of the unknown piece.
        if (found >= 0 && found < pieces_ && model_.IdToPiece(found) == name) id = found;
      }
      if (id < 0) {
        id = pieces_ + static_cast<int32_t>(added_.size());
        added_.push_back(bert_special_names[role]);
      }
      special_[role] = id;
    }
  }

  int64_t vocab_size() const override { return pieces_ + static_cast<int64_t>(added_.size()); }
  int32_t special(Special role) const override { return special_[static_cast<size_t>(role)]; }
  bool is_special(int32_t id) const override {
    return std::find(special_.begin(), special_.end(), id) != special_.end();
  }

  void encode(std::string_view text, std::vector<int32_t>& ids, std::vector<Span>* spans) const override {
    if (!spans) {
      std::vector<int> found;
      check(model_.Encode(text, &found));
      ids.insert(ids.end(), found.begin(), found.end());
      return;
    }
    sentencepiece::ImmutableSentencePieceText result;
    check(model_.Encode(text, result.mutable_proto()));
    const size_t count = result.pieces_size();
    for (size_t i = 0; i < count; ++i) {
      const auto piece = result.pieces(static_cast<int>(i));
      ids.push_back(static_cast<int32_t>(piece.id()));
      spans->push_back({piece.begin(), piece.end()});
    }
  }
  std::string token(int32_t id) const override {
    if (id < 0 || id >= vocab_size()) throw std::out_of_range("sentencepiece: no token has this id");
    return id < pieces_ ? model_.IdToPiece(id) : std::string(added_[static_cast<size_t>(id - pieces_)]);
  }
  std::string decode(const std::vector<int32_t>& ids) const override {
    std::string text;
    std::vector<int> run;
    const auto flush = [&] {
      std::string part;
      if (!run.empty()) check(model_.Decode(run, &part));
      text += part;
      run.clear();
    };
    for (const int32_t id : ids) {
      if (is_special(id)) {
        flush();
        text += token(id);
      } else {
        if (id < 0 || id >= pieces_) throw std::out_of_range("sentencepiece: no token has this id");
        run.push_back(id);
      }
    }
    flush();
    return text;
  }
  bool starts_word(int32_t id) const override { return is_special(id) || token(id).starts_with(word_start); }
  bool needs_text() const override { return true; }
  std::string fingerprint() const override { return fmt::format("sentencepiece 1 {:016x}", digest_); }

 private:
  void check(const sentencepiece::util::Status& status) const {
    if (!status.ok()) fail("{}: damaged SentencePiece model: {}", file_, shown(status.message(), 160));
  }

  sentencepiece::SentencePieceProcessor model_;
  int32_t pieces_ = 0;
  std::array<int32_t, 5> special_{};
  std::vector<std::string_view> added_;  // names of the special tokens behind the model's own
  std::string file_;
  uint64_t digest_ = 0;
};

}  // namespace

std::unique_ptr<Tokenizer> build_tokenizer(const SentencePieceOptions& options) {
  return std::make_unique<SentencePieceTokenizer>(options);
}

}  // namespace roformer
