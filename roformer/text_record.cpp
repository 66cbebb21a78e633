#include "roformer/text_record.h"

#include "roformer/core/error.h"

namespace roformer {

TextRecord read_text_record(std::string_view line, const std::string& where, int64_t max_length) {
  TextRecord record;
  nlohmann::ordered_json& object = record.object;
  object = nlohmann::ordered_json::parse(line, nullptr, /*allow_exceptions=*/false);
  if (!object.is_object()) fail("{}: no JSON object; write {{\"text\": \"...\"}}", where);
  auto text_of = [&](const char* key) {
    if (!object[key].is_string()) fail("{}: \"{}\" must be a string", where, key);
    return object[key].get<std::string>();
  };
  if (!object.contains("text")) fail("{}: \"text\" is missing", where);
  record.first = text_of("text");
  record.pair = object.contains("text_pair") && !object["text_pair"].is_null();
  if (record.pair) record.second = text_of("text_pair");
  record.max_length = max_length;
  if (object.contains("max_length")) {
    const auto& value = object["max_length"];
    const int64_t least = record.pair ? 4 : 3;
    if (!value.is_number_integer() || value < 0 || value > (1 << 20) || (value > 0 && value < least)) {
      fail("{}: \"max_length\" must be 0 (no limit) or an integer from {} to {}", where, least, 1 << 20);
    }
    record.max_length = value;
  }
  return record;
}

}  // namespace roformer
