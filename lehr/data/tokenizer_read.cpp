// Reads tokenizer.json: the large tables with simdjson, the rest with nlohmann::json.
#include "lehr/data/tokenizer_read.h"

#include <simdjson.h>

#include <algorithm>

#include "lehr/config/json_shape.h"
#include "lehr/data/post_processor.h"
#include "lehr/data/tokenizer_file.h"
#include "lehr/data/tokenizer_json.h"
#include "lehr/data/unicode.h"

namespace lehr::data {
namespace {

using nlohmann::json;
namespace ondemand = simdjson::ondemand;

/// The parsed parts of the file.
struct RawTokenizer {
  json top = json::object();    // everything except the model
  json model = json::object();  // everything except vocab and merges
  std::unique_ptr<Decoder> decoder;
  Vocabulary vocabulary;
  size_t tokens = 0;  // in the vocabulary
  Merges merges;
};

json to_json(ondemand::value value, const std::string& name) {
  const std::string_view text = simdjson::to_json_string(value);
  require_json_shape(text, name, /*most_levels=*/32);
  return json::parse(text);
}

// Ids without a token cost memory, so an id must be in proportion to the number of tokens. Models leave a few thousand
// ids out.
void require_dense(int64_t id, size_t tokens, const std::string& where) {
  constexpr int64_t kMostHoles = 1 << 20;
  const int64_t most = 4 * static_cast<int64_t>(tokens) + kMostHoles;
  require(
      id <= most, "{}: the id {} is far above the number of tokens, {}; expected at most {}", where, id, tokens, most);
}

void read_vocabulary(ondemand::value value, const std::string& where, RawTokenizer& raw) {
  ondemand::json_type type = value.type();
  require(type == ondemand::json_type::object, "{}: expected an object from token to id", where);
  ondemand::object object = value.get_object();
  raw.tokens = object.count_fields();
  raw.vocabulary.reserve(raw.tokens);
  for (ondemand::field field : object) {
    const std::string_view token = field.unescaped_key();
    int64_t id = -1;
    require(
        field.value().get_int64().get(id) == simdjson::SUCCESS && id >= 0 && id <= Vocabulary::kMaxId,
        "{}: the id of \"{}\" is not an integer from 0 to {}",
        where,
        token,
        Vocabulary::kMaxId);
    require_dense(id, raw.tokens, where);
    require(raw.vocabulary.add(token, id), "{}: token \"{}\" (id {}) or its id occurs twice", where, token, id);
  }
}

void read_merges(ondemand::value value, const std::string& where, RawTokenizer& raw) {
  ondemand::json_type type = value.type();
  require(type == ondemand::json_type::array, "{}: expected a list of pairs of tokens", where);
  ondemand::array array = value.get_array();
  std::string joined;
  size_t index = 0;
  for (ondemand::value item : array) {
    std::string_view pair[2];
    ondemand::json_type item_type = item.type();
    bool good = true;
    if (item_type == ondemand::json_type::array) {  // ["a", "b"]
      size_t count = 0;
      for (ondemand::value part : item.get_array()) {
        good = good && count < 2 && part.get_string().get(pair[std::min<size_t>(count, 1)]) == simdjson::SUCCESS;
        ++count;
      }
      good = good && count == 2;
    } else {  // "a b"
      std::string_view text;
      good = item.get_string().get(text) == simdjson::SUCCESS;
      const size_t space = text.find(' ');
      good = good && space != std::string_view::npos && text.find(' ', space + 1) == std::string_view::npos;
      if (good) {
        pair[0] = text.substr(0, space);
        pair[1] = text.substr(space + 1);
      }
    }
    require(good, "{}[{}]: expected \"a b\" or [\"a\", \"b\"]", where, index);
    const auto id_of = [&](std::string_view token) {
      const int32_t id = raw.vocabulary.id_of_spelling(token);
      require(id >= 0, "{}[{}]: \"{}\" is not in model.vocab", where, index, token);
      return id;
    };
    const int32_t left = id_of(pair[0]);
    const int32_t right = id_of(pair[1]);
    joined.assign(pair[0]).append(pair[1]);
    raw.merges.add(left, right, id_of(joined));
    ++index;
  }
}

/// Reads all but the model.
void read_top(ondemand::document& document, const std::string& name, RawTokenizer& raw) {
  size_t models = 0;
  for (ondemand::field field : document.get_object()) {
    const std::string key(std::string_view(field.unescaped_key()));
    if (key == "model") {
      ++models;
    } else {
      raw.top[key] = to_json(field.value(), name);
    }
  }
  require(models == 1, "{}: model: is missing; expected the tokenizer.json of a BPE tokenizer", name);
  const char* after = nullptr;
  require(
      document.current_location().get(after) != simdjson::SUCCESS, "{}: not valid JSON: text follows its end", name);
}

void read_model(ondemand::object model, const std::string& name, RawTokenizer& raw) {
  // The vocabulary is read first, wherever it occurs, as merges are resolved against it.
  ondemand::value vocab;
  require(model.find_field_unordered("vocab").get(vocab) == simdjson::SUCCESS, "{}: model.vocab: is missing", name);
  read_vocabulary(vocab, name + ": model.vocab", raw);
  model.reset();
  for (ondemand::field part : model) {
    const std::string key(std::string_view(part.unescaped_key()));
    if (key == "merges") {
      read_merges(part.value(), name + ": model.merges", raw);
    } else if (key != "vocab") {
      raw.model[key] = to_json(part.value(), name);
    }
  }
}

RawTokenizer read_raw(const std::filesystem::path& file) {
  const std::string name = file.string();
  std::string text = read_whole_file(file);
  text.reserve(text.size() + simdjson::SIMDJSON_PADDING);
  RawTokenizer raw;
  try {
    ondemand::parser parser;
    ondemand::document document = parser.iterate(text.data(), text.size(), text.size() + simdjson::SIMDJSON_PADDING);
    read_top(document, name, raw);
    // The decoder tells how the vocabulary spells its tokens.
    raw.decoder = read_decoder(raw.top.value("decoder", json()), name + ": decoder");
    raw.vocabulary = Vocabulary(raw.decoder->spelling());
    document.rewind();
    read_model(document.find_field_unordered("model").get_object(), name, raw);
  } catch (const simdjson::simdjson_error& error) {
    fail("{}: not valid JSON, or not in the layout of tokenizer.json: {}", name, error.what());
  } catch (const json::exception& error) {
    fail("{}: not valid JSON: {}", name, error.what());
  }
  return raw;
}

BpeOptions read_options(const json& model, const std::string& where) {
  const auto type = json_or<std::string>(model, "type", "BPE", where);
  require(type == "BPE", "{}.type: expected \"BPE\", found \"{}\", which is not supported", where, type);
  const double dropout = json_or(model, "dropout", 0.0, where);
  require(dropout == 0, "{}.dropout: {} is not supported: the same text must give the same ids", where, dropout);
  for (const char* key : {"continuing_subword_prefix", "end_of_word_suffix"}) {
    const auto affix = json_or<std::string>(model, key, "", where);
    require(affix.empty(), "{}.{}: expected none, found \"{}\", which is not supported", where, key, affix);
  }
  BpeOptions options;
  if (const auto unk = json_or<std::string>(model, "unk_token", "", where); !unk.empty()) {
    options.unk_token = unk;
  }
  options.fuse_unk = json_or(model, "fuse_unk", false, where);
  options.byte_fallback = json_or(model, "byte_fallback", false, where);
  options.ignore_merges = json_or(model, "ignore_merges", false, where);
  return options;
}

AddedToken read_added(const json& node, int64_t id, const std::string& where) {
  AddedToken token;
  require(id >= 0 && id <= Vocabulary::kMaxId, "{}: the id {} is not from 0 to {}", where, id, Vocabulary::kMaxId);
  token.id = static_cast<int32_t>(id);
  token.content = json_at<std::string>(node, "content", where);
  token.special = json_or(node, "special", false, where);
  token.lstrip = json_or(node, "lstrip", false, where);
  token.rstrip = json_or(node, "rstrip", false, where);
  token.normalized = json_or(node, "normalized", !token.special, where);
  require(
      !json_or(node, "single_word", false, where),
      "{}.single_word: true is not supported (token \"{}\")",
      where,
      token.content);
  return token;
}

/// Adds an added token to the vocabulary, which may already contain it.
void add_to_vocabulary(const AddedToken& token, Vocabulary& vocabulary, const std::string& where) {
  const int32_t known = vocabulary.id_of_spelling(token.content);
  require(
      known == token.id || known < 0,
      "{}: \"{}\" has id {} here, and id {} in the vocabulary",
      where,
      token.content,
      token.id,
      known);
  require(
      known == token.id || vocabulary.add_apart(token.content, token.id),
      "{}: the id {} of \"{}\" is taken by another token",
      where,
      token.id,
      token.content);
}

void read_added_tokens(RawTokenizer& raw, const std::string& name, std::vector<AddedToken>& added) {
  const auto list = json_or<json>(raw.top, "added_tokens", json::array(), name + ": ");
  require(list.is_array(), "{}: added_tokens: expected a list, found {}", name, list.type_name());
  for (size_t i = 0; i < list.size(); ++i) {
    const std::string where = fmt::format("{}: added_tokens[{}]", name, i);
    added.push_back(read_added(list[i], json_at<int64_t>(list[i], "id", where), where));
    require_dense(added.back().id, raw.tokens + list.size(), where);
    add_to_vocabulary(added.back(), raw.vocabulary, where);
  }
}

/// Returns the id of eos_token and the like: a string, or an object with `content`.
std::optional<int32_t> read_named_token(
    const json& config, const char* key, const std::string& name, const Vocabulary& vocabulary, bool must_exist) {
  const auto node = json_or<json>(config, key, json(), name + ": ");
  if (node.is_null()) {
    return std::nullopt;
  }
  const auto content = node.is_object() ? json_at<std::string>(node, "content", fmt::format("{}: {}", name, key))
                                        : json_at<std::string>(config, key, name + ": ");
  const int32_t id = vocabulary.id_of_spelling(content);
  require(id >= 0 || !must_exist, "{}: {}: \"{}\" is not a token of this tokenizer", name, key, content);
  return id >= 0 ? std::optional(id) : std::nullopt;
}

json read_object(const std::filesystem::path& file) {
  const std::string name = file.string();
  json node;
  try {
    const std::string text = read_whole_file(file);
    require_json_shape(text, name);
    node = json::parse(text);
  } catch (const json::exception& error) {
    fail("{}: not valid JSON: {}", name, error.what());
  }
  require(node.is_object(), "{}: expected an object, found {}", name, node.type_name());
  return node;
}

/// The file of that name among `files`, also as .gz.
std::optional<std::filesystem::path> file_named(const std::vector<std::filesystem::path>& files, const char* name) {
  const auto found = std::find_if(files.begin(), files.end(), [&](const std::filesystem::path& file) {
    return (file.extension() == ".gz" ? file.stem() : file.filename()) == name;
  });
  return found == files.end() ? std::nullopt : std::optional(*found);
}

void read_named_tokens(
    const std::vector<std::filesystem::path>& files, const Vocabulary& vocabulary, TokenizerParts& parts) {
  bool is_complete = false;
  for (const char* name : {kTokenizerConfigFile, kSpecialTokensFile}) {
    const auto file = file_named(files, name);
    if (!file || is_complete) {
      continue;
    }
    const json node = read_object(*file);
    is_complete = node.contains("added_tokens_decoder");
    for (const auto& [key, id] :
         {std::pair("eos_token", &parts.eos_id),
          std::pair("bos_token", &parts.bos_id),
          std::pair("pad_token", &parts.pad_id)}) {
      // Older versions wrote the second file, with tokens that they added when they read it.
      const bool is_config = name == kTokenizerConfigFile;
      if (const auto named = read_named_token(node, key, file->string(), vocabulary, is_config)) {
        *id = named;
      }
    }
  }
}

/// Returns whether every character has some token, if only those of its bytes.
bool drops_nothing(const Vocabulary& vocabulary, const BpeOptions& options) {
  bool has_bytes = options.byte_fallback;
  for (unsigned byte = 0; byte < 256 && has_bytes; ++byte) {
    has_bytes = vocabulary.id_of_spelling(fmt::format("<0x{:02X}>", byte)) >= 0;
  }
  return has_bytes || options.unk_token;
}

/// Returns whether no merge joins `space` to a character before it, so that each word with the spaces before it can be
/// encoded by itself.
bool keeps_words_apart(const RawTokenizer& raw, const BpeOptions& options, const std::string& space) {
  // A whole text may be a token that no merge makes. Unknown characters are fused if no known one is between them; if
  // they are dropped, merges join the characters around them.
  const bool is_character =
      !space.empty() && decode_utf8(space.data(), space.data() + space.size()).size == space.size();
  if (!is_character || options.ignore_merges || raw.vocabulary.find(space) < 0 ||
      !drops_nothing(raw.vocabulary, options)) {
    return false;
  }
  const std::vector<int32_t>& merged = raw.merges.all_merged();
  return std::none_of(merged.begin(), merged.end(), [&](int32_t id) {
    std::string_view token = raw.vocabulary.bytes_of(id);
    while (token.starts_with(space)) {
      token.remove_prefix(space.size());
    }
    return token.find(space) != std::string_view::npos;
  });
}

}  // namespace

TokenizerParts read_tokenizer(const std::filesystem::path& file, const std::vector<std::filesystem::path>& files) {
  const std::string name = file.string();
  RawTokenizer raw = read_raw(file);
  TokenizerParts parts;
  const auto version = json_or<std::string>(raw.top, "version", "1.0", name + ": ");
  require(version == "1.0", "{}: version: expected \"1.0\", found \"{}\"", name, version);
  parts.decoder = std::move(raw.decoder);
  parts.normalizer = Normalizer::read(raw.top.value("normalizer", json()), name + ": normalizer");
  parts.pre_tokenizer =
      PreTokenizer::read(raw.top.value("pre_tokenizer", json()), parts.decoder->spelling(), name + ": pre_tokenizer");
  read_added_tokens(raw, name, parts.added);
  parts.special =
      read_post_processor(raw.top.value("post_processor", json()), raw.vocabulary, name + ": post_processor");
  read_named_tokens(files, raw.vocabulary, parts);
  const BpeOptions options = read_options(raw.model, name + ": model");
  if (const std::string space = parts.decoder->space(); keeps_words_apart(raw, options, space)) {
    parts.pre_tokenizer.split_before(space);
  }
  parts.bpe = std::make_unique<Bpe>(std::move(raw.vocabulary), std::move(raw.merges), options, name + ": model");
  return parts;
}

}  // namespace lehr::data
