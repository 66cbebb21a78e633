#include "roformer/core/json_file.h"

#include "roformer/core/display.h"
#include "roformer/core/files.h"

namespace roformer {

JsonFile::JsonFile(std::filesystem::path path, size_t limit, Absent absent) : path_(std::move(path)) {
  std::error_code error;
  if (absent == Absent::empty && !std::filesystem::exists(path_, error)) return;
  const std::string text = read_file(path_, limit);
  const auto shallow = [this](int depth, nlohmann::json::parse_event_t, nlohmann::json&) {
    if (depth > 32) refuse("nested more than 32 deep");
    return true;
  };
  try {
    values_ = nlohmann::json::parse(text, shallow);
  } catch (const nlohmann::json::exception& error) {
    refuse("not JSON: {}", shown(error.what(), 160));
  }
  if (!values_.is_object()) refuse("expected a JSON object");
}

const nlohmann::json* JsonFile::find(std::string_view key) const {
  const auto found = values_.find(std::string(key));
  return found == values_.end() || found->is_null() ? nullptr : &*found;
}

}  // namespace roformer
