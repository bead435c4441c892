#include "lehr/config/json_shape.h"

#include <vector>

#include "lehr/base/error.h"

namespace lehr {

void require_json_shape(std::string_view text, const std::string& subject, size_t most_levels) {
  constexpr int64_t kMostKeys = 10'000;
  std::vector<int64_t> keys;  // of each open object or list
  bool in_string = false;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (in_string) {
      i += c == '\\' ? 1 : 0;
      in_string = c != '"';
    } else if (c == '"') {
      in_string = true;
    } else if (c == '{' || c == '[') {
      require(keys.size() < most_levels, "{}: the JSON is nested more than {} levels deep", subject, most_levels);
      keys.push_back(0);
    } else if ((c == '}' || c == ']') && !keys.empty()) {
      keys.pop_back();
    } else if (c == ':' && !keys.empty()) {
      require(++keys.back() <= kMostKeys, "{}: an object has more than {} keys", subject, kMostKeys);
    }
  }
}

}  // namespace lehr
