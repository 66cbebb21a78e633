#include <ostream>

#include "roformer/core/interrupt.h"
#include "roformer/core/log.h"
#include "roformer/data/text.h"
#include "roformer/run.h"

namespace roformer {

int train_tokenizer(const TokenizerTrainingOptions& options, std::ostream& out) {
  const std::vector<std::filesystem::path> files = list_text_files(options.input);
  std::error_code ignored;
  for (const std::filesystem::path& file : files) {
    if (std::filesystem::equivalent(file, options.output, ignored)) {
      fail("{}: the output would replace the text it is learned from", options.output.string());
    }
  }
  log::Progress progress({"reading text"});
  size_t next_file = 0;
  std::unique_ptr<DocumentReader> reader;
  int64_t lines = 0;
  train_tokenizer(options, [&](std::string& line) {
    if (interrupted()) throw Interrupted();
    while (true) {
      if (reader && reader->next(line)) {
        if (++lines % 10000 == 0) {
          log::ProgressState state;
          state.state = fmt::format("file {} of {}, {} lines", next_file, files.size(), lines);
          progress.update(0, state);
        }
        return true;
      }
      if (next_file == files.size()) return false;
      reader = std::make_unique<DocumentReader>(files[next_file++], Packing::rows, /*needs_text=*/true);
    }
  });
  out << options.output.string() << "\n";
  return 0;
}

}  // namespace roformer
