// Damaged files, and files that use unsupported features, are errors that name the file and the field.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tokenizer_support.h"

namespace lehr::data {
namespace {

using nlohmann::json;
using testing::AllOf;
using testing::HasSubstr;

/// The error of the tiny tokenizer with one value replaced: `pointer` is a JSON pointer, `value` JSON text.
std::string error_with(const std::string& pointer, const std::string& value) {
  const TemporaryFolder folder;
  json spec = tiny_tokenizer();
  spec[json::json_pointer(pointer)] = json::parse(value);
  return usage_error_of([&] { load_json(folder, spec); });
}

std::string error_of_text(std::string_view text, const std::string& name = "tokenizer.json") {
  const TemporaryFolder folder;
  const auto path = write_file(folder / name, text);
  return usage_error_of([&] { load_tokenizer(path.string()); });
}

TEST(TokenizerErrors, DoNotOccurForTheTinyTokenizer) {
  EXPECT_EQ(error_with("/truncation", R"({"max_length": 5})"), "");
  EXPECT_EQ(error_with("/post_processor", R"({"type": "ByteLevel"})"), "");
}

TEST(TokenizerErrors, NameUnsupportedParts) {
  const std::string cases[][3] = {
      {"/version", R"("2.0")", "tokenizer.json: version: expected \"1.0\", found \"2.0\""},
      {"/normalizer", R"({"type": "Lowercase"})", "tokenizer.json: normalizer.type: expected NFC, Prepend"},
      {"/normalizer",
       R"({"type": "Sequence", "normalizers": [{"type": "NFC"}, {"type": "NFKC"}]})",
       "normalizer.normalizers[1].type: expected NFC, Prepend, Replace, a Sequence of these, or null, found \"NFKC\""},
      {"/normalizer",
       R"({"type": "Replace", "pattern": {"Regex": "a"}, "content": ""})",
       "normalizer.pattern: expected a String, found a regular expression"},
      {"/normalizer",
       R"({"type": "Replace", "pattern": {"String": ""}, "content": "a"})",
       "normalizer.pattern.String: expected a text to replace"},
      {"/normalizer",
       R"({"type": "Sequence", "normalizers": [{"type": "Prepend", "prepend": "12345678"},
           {"type": "Replace", "pattern": {"String": "1"}, "content": "123456789"}]})",
       "normalizer.normalizers[1]: prepends more than 64 bytes"},
      {"/normalizer",
       R"({"type": "Sequence", "normalizers": [{"type": "Replace", "pattern": {"String": "1"}, "content": "123456789"},
           {"type": "Replace", "pattern": {"String": "2"}, "content": "123456789"}]})",
       "normalizer.normalizers[1].content: makes a text more than 64 times as long"},
      {"/pre_tokenizer", "null", "pre_tokenizer: is missing; expected ByteLevel"},
      {"/pre_tokenizer", R"({"type": "Metaspace"})", "found \"Metaspace\", which is not supported"},
      {"/pre_tokenizer", R"({"type": "Digits"})", "pre_tokenizer: contains no ByteLevel"},
      {"/pre_tokenizer",
       R"({"type": "Sequence", "pretokenizers": [{"type": "ByteLevel"}, {"type": "Digits"}]})",
       "pretokenizers[1]: comes after ByteLevel"},
      {"/pre_tokenizer",
       R"({"type": "Split", "pattern": {"Regex": "a"}, "behavior": "Odd"})",
       "pre_tokenizer.behavior: expected Isolated"},
      {"/pre_tokenizer",
       R"({"type": "Split", "pattern": {"Regex": "(a"}, "behavior": "Isolated"})",
       "pre_tokenizer.pattern: the regular expression does not compile"},
      {"/pre_tokenizer", R"({"type": "Split", "behavior": "Isolated"})", "pre_tokenizer.pattern: is missing"},
      {"/decoder", R"({"type": "WordPiece"})", "decoder.type: expected ByteLevel, or a Sequence"},
      {"/decoder",
       R"({"type": "Sequence", "decoders": [{"type": "Fuse"}]})",
       "decoder.decoders: expected ByteLevel, or Replace, ByteFallback, Fuse and perhaps Strip, found \"Fuse\""},
      {"/decoder", "null", "decoder: is missing"},
      {"/post_processor", R"({"type": "Odd"})", "post_processor.type: expected TemplateProcessing"},
      {"/post_processor",
       R"({"type": "Sequence", "processors": [{"type": "BertProcessing", "cls": ["a", 0], "sep": ["b", 1]},
           {"type": "RobertaProcessing", "cls": ["a", 0], "sep": ["b", 1]}]})",
       "post_processor: expected one step that adds tokens, found several"},
      {"/post_processor", R"({"type": "TemplateProcessing", "single": []})", "post_processor.single: has no place"},
      {"/post_processor",
       R"({"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "<s>"}}], "special_tokens": {}})",
       "post_processor.special_tokens.<s>: is missing"},
      {"/post_processor",
       R"({"type": "TemplateProcessing", "single": [{"Sequence": {"id": "B"}}]})",
       "post_processor.single[0]: expected the text A once, found \"B\""},
      {"/post_processor",
       R"({"type": "RobertaProcessing", "cls": ["<s>", 100], "sep": ["<end>", 7]})",
       "post_processor.cls: expected an id from 0 to 7, found 100"},
      {"/model/type", R"("Unigram")", "model.type: expected \"BPE\", found \"Unigram\""},
      {"/model/dropout", "0.1", "model.dropout: 0.1 is not supported"},
      {"/model/end_of_word_suffix", R"("</w>")", "model.end_of_word_suffix: expected none"},
      {"/model/continuing_subword_prefix", R"("##")", "model.continuing_subword_prefix: expected none"},
      {"/model/unk_token", R"("<unk>")", "model.unk_token: \"<unk>\" is not in the vocabulary"},
      {"/added_tokens/0/single_word", "true", "added_tokens[0].single_word: true is not supported (token \"<end>\")"},
  };
  for (const auto& [pointer, value, message] : cases) {
    EXPECT_THAT(error_with(pointer, value), HasSubstr(message)) << pointer;
  }
}

TEST(TokenizerErrors, NameInvalidValues) {
  const std::string cases[][3] = {
      {"/model/vocab/a", "-1", "model.vocab: the id of \"a\" is not an integer"},
      {"/model/vocab/a", "4000000000", "model.vocab: the id of \"a\" is not an integer"},
      {"/model/vocab/a", "\"x\"", "model.vocab: the id of \"a\" is not an integer"},
      {"/model/vocab/b", "0", "(id 0) or its id occurs twice"},
      {"/model/vocab", "[]", "model.vocab: expected an object"},
      {"/model/merges", "{}", "model.merges: expected a list"},
      {"/model/merges/1", "\"ab\"", "model.merges[1]: expected \"a b\" or [\"a\", \"b\"]"},
      {"/model/merges/1", R"(["a", "b", "c"])", "model.merges[1]: expected"},
      {"/model/merges/1", R"("a zz")", "model.merges[1]: \"zz\" is not in model.vocab"},
      {"/model/merges/1", R"("b a")", "model.merges[1]: \"ba\" is not in model.vocab"},
      {"/model/ignore_merges", "3", "model.ignore_merges: wrong type of value: 3"},
      {"/added_tokens", "3", "tokenizer.json: added_tokens: expected a list"},
      {"/added_tokens/0/id", "3", "added_tokens[0]: the id 3 of \"<end>\" is taken"},
      {"/added_tokens/0/id", "-3", "added_tokens[0]: the id -3 is not from 0"},
      {"/added_tokens/0/content", "\"ab\"", "added_tokens[0]: \"ab\" has id 7 here, and id 4 in the vocabulary"},
  };
  for (const auto& [pointer, value, message] : cases) {
    EXPECT_THAT(error_with(pointer, value), HasSubstr(message)) << pointer << " = " << value;
  }
}

TEST(TokenizerErrors, NameUnreadableFiles) {
  EXPECT_THAT(
      usage_error_of([] { load_tokenizer("no/such/place"); }),
      HasSubstr("tokenizer: no/such/place: no such file or folder; expected \"byte\""));
  const TemporaryFolder folder;
  EXPECT_THAT(usage_error_of([&] { load_tokenizer(folder.path().string()); }), HasSubstr("has no tokenizer.json"));
  EXPECT_THAT(error_of_text("not gzip", "tokenizer.json.gz"), HasSubstr("tokenizer.json.gz: "));
  const std::string packed = read_file(fixture("small_tokenizer.json.gz"));
  EXPECT_THAT(
      error_of_text(std::string_view(packed).substr(0, packed.size() / 2), "tokenizer.json.gz"),
      HasSubstr("tokenizer.json.gz: "));
}

/// Every prefix of a good file and any garbage is an error, never a crash.
TEST(TokenizerErrors, OccurForEveryTruncatedFile) {
  const std::string good = tiny_tokenizer().dump();
  ASSERT_EQ(error_of_text(good), "");
  for (size_t size = 0; size < good.size(); ++size) {
    EXPECT_THAT(error_of_text(std::string_view(good).substr(0, size)), HasSubstr("tokenizer.json")) << size;
  }
  for (const char* text : {"[]", "3", "{}", "{\"model\": 3}", "{\"model\": {\"vocab\": {}}, ", "\xFF\xFE"}) {
    EXPECT_THAT(error_of_text(text), HasSubstr("tokenizer.json")) << text;
  }
  EXPECT_THAT(error_of_text(good + "{}"), HasSubstr("not valid JSON"));
}

TEST(TokenizerErrors, NameTheConfigAndItsKey) {
  const TemporaryFolder folder;
  write_file(folder / "tokenizer.json", tiny_tokenizer().dump());
  const auto error = [&](std::string_view config) {
    write_file(folder / "tokenizer_config.json", config);
    return usage_error_of([&] { load_tokenizer(folder.path().string()); });
  };
  EXPECT_THAT(error("{"), AllOf(HasSubstr("tokenizer_config.json"), HasSubstr("not valid JSON")));
  EXPECT_THAT(error("[]"), HasSubstr("tokenizer_config.json: expected an object"));
  EXPECT_THAT(
      error(R"({"eos_token": "<nope>"})"),
      HasSubstr("tokenizer_config.json: eos_token: \"<nope>\" is not a token of this tokenizer"));
  EXPECT_THAT(error(R"({"pad_token": 5})"), HasSubstr("tokenizer_config.json: pad_token: wrong type of value: 5"));
}

}  // namespace
}  // namespace lehr::data
