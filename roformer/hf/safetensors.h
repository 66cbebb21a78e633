#pragma once

#include "roformer/torch.h"

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace roformer {

/// One tensor of a file. `begin` and `end` are byte offsets in the data section.
struct SafetensorsEntry {
  std::string name;
  at::ScalarType dtype;
  std::vector<int64_t> shape;
  size_t begin, end;
};

/// A safetensors file, open for reading. Format: 8 bytes header length (little-endian), a JSON header
/// `{"name": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]}, "__metadata__": {"key": "value"}}`,
/// data (https://github.com/huggingface/safetensors, README, "Format").
///
/// The constructor reads and checks the whole header: a file that it accepts is covered by its tensors
/// without overlap or hole, and no shape overflows. dtypes: BOOL U8 I8 I16 I32 I64 F16 BF16 F32 F64. Throws
/// `Error`, one line that names the file. Copies share one open file; const members may be called from
/// several threads.
class SafetensorsFile {
 public:
  explicit SafetensorsFile(const std::filesystem::path& path);

  /// In the order of the data.
  const std::vector<SafetensorsEntry>& entries() const { return entries_; }
  bool contains(std::string_view name) const { return index_.find(name) != index_.end(); }

  /// An owning copy on the CPU, dtype and shape as stored. Throws `Error` if there is no such tensor, if the
  /// file has shrunk since it was opened, or if a BOOL is neither 0 nor 1.
  torch::Tensor tensor(std::string_view name) const;

  /// The texts under "__metadata__"; empty where the file has none.
  const std::map<std::string, std::string>& metadata() const { return metadata_; }

 private:
  std::filesystem::path path_;
  std::shared_ptr<const int> file_;  // descriptor, closed with its last owner
  size_t data_begin_ = 0;            // offset of the data section in the file
  std::vector<SafetensorsEntry> entries_;
  std::map<std::string, size_t, std::less<>> index_;
  std::map<std::string, std::string> metadata_;
};

/// Writes the tensors (any device, any strides) so that `path` holds the old file or the whole new one, never
/// a part: a temporary file in the same folder is written, synced and renamed. Tensors lie in the order of
/// the reference writer, widest dtype first, then by name; one contiguous copy exists at a time. Throws
/// `Error` naming the file and the reason (full disk, missing folder, dtype that the format lacks, a name
/// given twice) and leaves nothing behind.
void save_safetensors(const std::filesystem::path& path,
                      const std::vector<std::pair<std::string, torch::Tensor>>& tensors,
                      const std::map<std::string, std::string>& metadata = {});

}  // namespace roformer
