#include "lehr/state/strict_json.h"

#include <unordered_set>
#include <vector>

#include "lehr/base/error.h"

namespace lehr::state {

namespace {
using Json = nlohmann::json;

// Strips the prefix of "[json.exception.parse_error.101] parse error at line 1, column 5: ...", which users do not
// need.
std::string plain_message(const Json::exception& error) {
  const std::string what = error.what();
  const size_t bracket = what.find("] ");
  return bracket == std::string::npos ? what : what.substr(bracket + 2);
}

// Scans the text once and keeps only the names of the open objects. The parser's own callback would take time quadratic
// in the number of tensors.
class Checker : public nlohmann::json_sax<Json> {
 public:
  Checker(const std::string& subject, size_t max_depth, const std::string& advice)
      : subject_(subject), max_depth_(max_depth), advice_(advice) {}

  bool null() override { return true; }
  bool boolean(bool) override { return true; }
  bool number_integer(number_integer_t) override { return true; }
  bool number_unsigned(number_unsigned_t) override { return true; }
  bool number_float(number_float_t, const string_t&) override { return true; }
  bool string(string_t&) override { return true; }
  bool binary(binary_t&) override { return true; }
  bool start_object(size_t) override { return open(); }
  bool start_array(size_t) override { return open(); }
  bool end_object() override { return close(); }
  bool end_array() override { return close(); }
  bool key(string_t& name) override {
    require(names_.back().insert(name).second, "{}: \"{}\" occurs twice; {}", subject_, name, advice_);
    return true;
  }
  // The parser that runs next reports it with more detail.
  bool parse_error(size_t, const std::string&, const nlohmann::detail::exception&) override { return false; }

 private:
  bool open() {
    require(
        names_.size() < max_depth_,
        "{}: the JSON is nested more than {} levels deep; {}",
        subject_,
        max_depth_,
        advice_);
    names_.emplace_back();
    return true;
  }
  bool close() {
    names_.pop_back();
    return true;
  }

  const std::string& subject_;
  size_t max_depth_;
  const std::string& advice_;
  std::vector<std::unordered_set<std::string>> names_;
};
}  // namespace

Json parse_strict_json(std::string_view text, const std::string& subject, int max_depth, const std::string& advice) {
  Checker checker(subject, static_cast<size_t>(max_depth), advice);
  Json::sax_parse(text, &checker);
  try {
    Json json = Json::parse(text);
    require(json.is_object(), "{}: expected a JSON object, found {}; {}", subject, json.type_name(), advice);
    return json;
  } catch (const Json::exception& error) {
    fail("{}: invalid JSON: {}; {}", subject, plain_message(error), advice);
  }
}

}  // namespace lehr::state
