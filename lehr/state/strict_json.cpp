#include "lehr/state/strict_json.h"

#include <set>
#include <vector>

#include "lehr/base/error.h"

namespace lehr::state {

namespace {
using Json = nlohmann::json;

// "[json.exception.parse_error.101] parse error at line 1, column 5: ..." without the part that only a programmer
// needs.
std::string plain_message(const Json::exception& error) {
  const std::string what = error.what();
  const size_t bracket = what.find("] ");
  return bracket == std::string::npos ? what : what.substr(bracket + 2);
}
}  // namespace

Json parse_strict_json(std::string_view text, const std::string& subject, int max_depth, const std::string& advice) {
  std::vector<std::set<std::string>> names;  // of the objects that are open
  const auto check = [&](int depth, Json::parse_event_t event, Json& value) {
    switch (event) {
      case Json::parse_event_t::object_start:
      case Json::parse_event_t::array_start:
        require(depth < max_depth, "{}: the JSON is nested more than {} levels deep; {}", subject, max_depth, advice);
        names.emplace_back();
        break;
      case Json::parse_event_t::object_end:
      case Json::parse_event_t::array_end:
        names.pop_back();
        break;
      case Json::parse_event_t::key: {
        const auto& name = value.get_ref<const std::string&>();
        require(names.back().insert(name).second, "{}: \"{}\" is there twice; {}", subject, name, advice);
        break;
      }
      case Json::parse_event_t::value:
        break;
    }
    return true;
  };
  try {
    Json json = Json::parse(text, check);
    require(json.is_object(), "{}: expected a JSON object, found {}; {}", subject, json.type_name(), advice);
    return json;
  } catch (const Json::exception& error) {
    fail("{}: no valid JSON: {}; {}", subject, plain_message(error), advice);
  }
}

}  // namespace lehr::state
