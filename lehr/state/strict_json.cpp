#include "lehr/state/strict_json.h"

#include <unordered_set>
#include <utility>
#include <vector>

#include "lehr/base/error.h"

namespace lehr::state {

namespace {
using Json = nlohmann::json;

// Strips the prefix of "[json.exception.parse_error.101] parse error at line 1, column 5: ...", which users do not
// need.
std::string plain_message(const nlohmann::detail::exception& error) {
  const std::string what = error.what();
  const size_t bracket = what.find("] ");
  return bracket == std::string::npos ? what : what.substr(bracket + 2);
}

// Reads the text once and keeps one entry of the outermost object. The parser's own tree would take many times the
// memory of the text, and its callback quadratic time.
class EntryReader : public nlohmann::json_sax<Json> {
 public:
  using Take = std::function<void(const std::string&, Json&&)>;

  EntryReader(const std::string& subject, size_t max_depth, const std::string& advice, const Take& take)
      : subject_(subject), max_depth_(max_depth), advice_(advice), take_(take) {}

  bool null() override { return add(nullptr); }
  bool boolean(bool value) override { return add(value); }
  bool number_integer(number_integer_t value) override { return add(value); }
  bool number_unsigned(number_unsigned_t value) override { return add(value); }
  bool number_float(number_float_t value, const string_t&) override { return add(value); }
  bool string(string_t& value) override { return add(std::move(value)); }
  bool binary(binary_t&) override { return false; }  // not in JSON
  bool start_object(size_t) override { return open(Json::object()); }
  bool start_array(size_t) override { return open(Json::array()); }
  bool end_object() override { return close(); }
  bool end_array() override { return close(); }

  bool key(string_t& name) override {
    require(
        name.size() <= kLongestJsonName,
        "{}: a name has {} bytes, at most {} are allowed; {}",
        subject_,
        name.size(),
        kLongestJsonName,
        advice_);
    const bool is_new = open_.empty() ? names_.insert(name).second : !open_.back()->contains(name);
    require(is_new, "{}: \"{}\" occurs twice; {}", subject_, name, advice_);
    require(
        names_.size() <= kMostJsonEntries, "{}: expected at most {} entries; {}", subject_, kMostJsonEntries, advice_);
    (open_.empty() ? name_ : key_) = std::move(name);
    return true;
  }

  bool parse_error(size_t, const std::string&, const nlohmann::detail::exception& error) override {
    fail("{}: invalid JSON: {}; {}", subject_, plain_message(error), advice_);
  }

 private:
  bool add(Json value) {
    place(std::move(value));
    if (open_.empty()) {
      take_(name_, std::move(value_));
    }
    return true;
  }

  bool open(Json value) {
    if (!is_open_ && value.is_object()) {
      is_open_ = true;
      return true;
    }
    require(
        open_.size() + 1 < max_depth_,
        "{}: the JSON is nested more than {} levels deep; {}",
        subject_,
        max_depth_,
        advice_);
    // While a value is open, nothing is added beside it, so the pointer stays valid.
    open_.push_back(place(std::move(value)));
    return true;
  }

  bool close() {
    if (open_.empty()) {
      return true;
    }
    open_.pop_back();
    if (open_.empty()) {
      take_(name_, std::move(value_));
    }
    return true;
  }

  Json* place(Json value) {
    require(is_open_, "{}: expected a JSON object, found {}; {}", subject_, value.type_name(), advice_);
    if (open_.empty()) {
      values_ = 0;
      value_ = std::move(value);
      return &value_;
    }
    require(
        ++values_ <= kMostJsonValues,
        "{}: {}: expected at most {} values; {}",
        subject_,
        name_,
        kMostJsonValues,
        advice_);
    Json& parent = *open_.back();
    if (parent.is_array()) {
      parent.push_back(std::move(value));
      return &parent.back();
    }
    return &(parent[key_] = std::move(value));
  }

  const std::string& subject_;
  size_t max_depth_;
  const std::string& advice_;
  const Take& take_;
  std::unordered_set<std::string> names_;
  bool is_open_ = false;  // the outermost object
  std::string name_;      // of its current entry
  Json value_;
  size_t values_ = 0;
  std::vector<Json*> open_;  // from value_ to the innermost object or list
  std::string key_;          // of the next value in that object
};
}  // namespace

void for_each_json_entry(
    std::string_view text,
    const std::string& subject,
    int max_depth,
    const std::string& advice,
    const std::function<void(const std::string& name, Json&& value)>& take) {
  EntryReader reader(subject, static_cast<size_t>(max_depth), advice, take);
  Json::sax_parse(text, &reader);
}

Json parse_strict_json(std::string_view text, const std::string& subject, int max_depth, const std::string& advice) {
  Json root = Json::object();
  for_each_json_entry(
      text, subject, max_depth, advice, [&](const std::string& name, Json&& value) { root[name] = std::move(value); });
  return root;
}

}  // namespace lehr::state
