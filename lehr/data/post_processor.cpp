#include "lehr/data/post_processor.h"

#include "lehr/data/tokenizer_json.h"

namespace lehr::data {

using nlohmann::json;

namespace {

class Reader {
 public:
  Reader(const Vocabulary& vocabulary, const std::string& where) : vocabulary_(vocabulary), where_(where) {}

  void read(const json& node, const std::string& where) {
    const auto type = json_at<std::string>(node, "type", where);
    if (type == "Sequence") {
      const auto parts = json_list_at(node, "processors", where);
      for (size_t i = 0; i < parts.size(); ++i) {
        read(parts[i], fmt::format("{}.processors[{}]", where, i));
      }
    } else if (type == "TemplateProcessing") {
      read_template(node, where);
    } else if (type == "BertProcessing" || type == "RobertaProcessing") {
      around({id_of_pair(node, "cls", where)}, {id_of_pair(node, "sep", where)});
    } else {
      require(
          type == "ByteLevel",
          "{}.type: expected TemplateProcessing, ByteLevel, BertProcessing, RobertaProcessing or a Sequence of these, "
          "found \"{}\", which is not supported",
          where,
          type);
    }
  }

  SpecialTokens result;

 private:
  void around(std::vector<int32_t> before, std::vector<int32_t> after) {
    require(result.size() == 0, "{}: expected one step that adds tokens, found several; this is not supported", where_);
    result = {.before = std::move(before), .after = std::move(after)};
    require(result.size() <= kMostTokens, "{}: more than {} tokens around a text", where_, kMostTokens);
  }

  // single: pieces {"SpecialToken": {"id": "<s>"}} around one {"Sequence": {"id": "A"}}.
  void read_template(const json& node, const std::string& where) {
    const auto pieces = json_list_at(node, "single", where);
    std::vector<int32_t> before, after;
    bool has_text = false;
    for (size_t i = 0; i < pieces.size(); ++i) {
      const std::string place = fmt::format("{}.single[{}]", where, i);
      require(pieces[i].is_object(), "{}: expected an object, found {}", place, pieces[i].type_name());
      if (pieces[i].contains("SpecialToken")) {
        const auto name = json_at<std::string>(pieces[i]["SpecialToken"], "id", place + ".SpecialToken");
        append_ids(node, name, where, has_text ? after : before);
        continue;
      }
      const auto text = json_at<json>(pieces[i], "Sequence", place);
      const auto name = json_at<std::string>(text, "id", place + ".Sequence");
      require(!has_text && name == "A", "{}: expected the text A once, found \"{}\"", place, name);
      has_text = true;
    }
    require(has_text, "{}.single: has no place for the text", where);
    around(std::move(before), std::move(after));
  }

  void append_ids(const json& node, const std::string& name, const std::string& where, std::vector<int32_t>& ids) {
    const auto tokens = json_at<json>(node, "special_tokens", where);
    const auto token = json_at<json>(tokens, name.c_str(), where + ".special_tokens");
    const std::string place = fmt::format("{}.special_tokens.{}", where, name);
    const auto list = json_list_at(token, "ids", place);
    for (const json& id : list) {
      ids.push_back(checked(id, place + ".ids"));
    }
  }

  // A pair of a token and its id.
  int32_t id_of_pair(const json& node, const char* key, const std::string& where) const {
    const auto pair = json_at<json>(node, key, where);
    require(pair.is_array() && pair.size() == 2, "{}.{}: expected a token and its id", where, key);
    return checked(pair[1], fmt::format("{}.{}", where, key));
  }

  int32_t checked(const json& id, const std::string& where) const {
    require(
        id.is_number_integer() && id.get<int64_t>() >= 0 && id.get<int64_t>() < vocabulary_.size(),
        "{}: expected an id from 0 to {}, found {}",
        where,
        vocabulary_.size() - 1,
        id.dump());
    return id.get<int32_t>();
  }

  static constexpr size_t kMostTokens = 64;
  const Vocabulary& vocabulary_;
  const std::string& where_;
};

}  // namespace

SpecialTokens read_post_processor(const json& node, const Vocabulary& vocabulary, const std::string& where) {
  Reader reader(vocabulary, where);
  if (!node.is_null()) {
    reader.read(node, where);
  }
  return reader.result;
}

}  // namespace lehr::data
