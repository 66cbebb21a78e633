#pragma once

#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "roformer/torch.h"

namespace roformer {

/// One tensor of a `torch.save` file: a view of a stored array.
struct PickleTensor {
  std::string storage;  ///< record "data/<storage>" of the archive
  at::ScalarType dtype;
  int64_t storage_size = 0;  ///< elements
  int64_t offset = 0;
  std::vector<int64_t> shape, strides;
};

/// Reads the pickle of a dict of tensors as data: no code in it is ever executed. Of all its globals three
/// are known (`_rebuild_tensor_v2`, `_rebuild_parameter`, `OrderedDict`, beside the storage types); whatever
/// else is made or called becomes a value without meaning, and an entry that holds one an Error. Sizes,
/// strides and offsets are checked against the storage. Opcodes: CPython's Lib/pickletools.py. Throws Error
/// without the file's name.
std::map<std::string, PickleTensor, std::less<>> read_tensor_pickle(std::string_view bytes);

/// `pytorch_model.bin`: a zip archive with "data.pkl" and one record for each storage (torch.save since 1.6).
/// The older stream format is refused with the advice to save the model anew. Throws Error that names the
/// file. Copies share one open file.
class PickleFile {
 public:
  explicit PickleFile(const std::filesystem::path& path);
  const std::map<std::string, PickleTensor, std::less<>>& entries() const { return entries_; }
  /// An owning, contiguous copy on the CPU, dtype as stored.
  torch::Tensor tensor(std::string_view name) const;

 private:
  struct Archive;
  std::filesystem::path path_;
  std::shared_ptr<Archive> archive_;
  std::map<std::string, PickleTensor, std::less<>> entries_;
};

}  // namespace roformer
