// Ids and texts equal those of the `tokenizers` package in all recorded cases.
#include <gtest/gtest.h>

#include <cctype>
#include <span>

#include "lehr/data/decode_after.h"
#include "tokenizer_support.h"

namespace lehr::data {
namespace {

using Ids = std::vector<int32_t>;
using nlohmann::json;

uint64_t fnv1a(std::span<const int32_t> ids) {
  uint64_t value = 0xCBF29CE484222325u;
  for (const int32_t id : ids) {
    for (int shift = 0; shift < 32; shift += 8) {
      value = (value ^ ((static_cast<uint32_t>(id) >> shift) & 0xFF)) * 0x100000001B3u;
    }
  }
  return value;
}

void expect_encodes(const Tokenizer& tokenizer, const std::string& cases, size_t at_least) {
  const auto rows = read_jsonl(cases);
  ASSERT_GE(rows.size(), at_least);
  for (const json& row : rows) {
    EXPECT_EQ(tokenizer.encode(row["text"].get<std::string>()), row["ids"].get<Ids>()) << row.dump();
  }
}

TEST(TokenizerOracle, EncodesWithQwen3AsRecorded) {
  expect_encodes(qwen3(), "cases/encode.jsonl.gz", 329);
}

TEST(TokenizerOracle, DecodesWithQwen3AsRecorded) {
  const auto rows = read_jsonl("cases/decode.jsonl.gz");
  ASSERT_GE(rows.size(), 60u);
  for (const json& row : rows) {
    const auto ids = row["ids"].get<Ids>();
    EXPECT_EQ(qwen3().decode(ids), row["text"].get<std::string>()) << row.dump();
    EXPECT_EQ(qwen3().decode(ids, true), row["text_skip_special"].get<std::string>()) << row.dump();
  }
}

TEST(TokenizerOracle, EncodesWithoutMergesAndWithAnIncompleteVocabularyAsRecorded) {
  const auto tokenizer = load_tokenizer(fixture("small_tokenizer.json.gz").string());
  expect_encodes(*tokenizer, "cases/small_encode.jsonl.gz", 66);
}

TEST(TokenizerOracle, EncodesWholeFilesAsRecorded) {
  for (const json& row : json::parse(read_file(fixture("cases/corpora.json")))) {
    const auto file = row["file"].get<std::string>();
    const Ids ids = qwen3().encode(read_whole_file(fixture("cases/" + file)));
    EXPECT_EQ(ids.size(), row["tokens"].get<size_t>()) << file;
    EXPECT_EQ(fmt::format("{:016x}", fnv1a(ids)), row["fnv1a"].get<std::string>()) << file;
  }
}

/// Qwen2 has the vocabulary and the merges of Qwen3, fewer added tokens, and merges in the form "a b".
TEST(TokenizerOracle, EncodesLlamaCppsCasesWithTheOldLayoutOfMerges) {
  json spec = json::parse(read_whole_file(fixture("qwen3/tokenizer.json.gz")));
  for (json& merge : spec["model"]["merges"]) {
    merge = merge[0].get<std::string>() + " " + merge[1].get<std::string>();
  }
  spec["model"].erase("ignore_merges");
  spec["added_tokens"].erase(spec["added_tokens"].begin() + 3, spec["added_tokens"].end());
  const TemporaryFolder folder;
  const auto tokenizer = load_json(folder, spec);
  EXPECT_EQ(tokenizer->vocab_size(), 151646);

  const std::string texts = read_file(fixture("cases/llama_cpp_qwen2.inp"));
  const std::string separator = "\n__ggml_vocab_test__\n";
  LineReader expected(open_bytes(fixture("cases/llama_cpp_qwen2.out")));
  size_t count = 0;
  for (size_t begin = 0; begin < texts.size(); ++count) {
    const size_t end = std::min(texts.find(separator, begin), texts.size());
    std::string_view line;
    ASSERT_TRUE(expected.next(line));
    std::string joined;
    for (const int32_t id : tokenizer->encode(std::string_view(texts).substr(begin, end - begin))) {
      joined += " " + std::to_string(id);
    }
    EXPECT_EQ(joined, line) << "case " << count;
    begin = end + separator.size();
  }
  EXPECT_EQ(count, 46u);
  std::string_view rest;
  EXPECT_FALSE(expected.next(rest));
}

TEST(TokenizerOracle, EncodesWithEveryPartOfTheFormatAsRecorded) {
  const json fixtures = json::parse(read_whole_file(fixture("cases/variants.json.gz")));
  ASSERT_GE(fixtures["variants"].size(), 20u);
  const TemporaryFolder folder;
  for (const json& variant : fixtures["variants"]) {
    json spec = fixtures["base"];
    spec.update(variant["patch"]);
    const auto tokenizer = load_json(folder, spec);
    ASSERT_GE(variant["cases"].size(), 80u);
    for (const json& row : variant["cases"]) {
      EXPECT_EQ(tokenizer->encode(row[0].get<std::string>()), row[1].get<Ids>())
          << variant["name"] << ": " << row[0].dump();
    }
  }
}

/// Of tokenizers that were made from SentencePiece models (Llama 2, Mistral, Gemma), with the special tokens around a
/// text.
TEST(TokenizerOracle, EncodesAndDecodesWithSentencePieceVocabulariesAsRecorded) {
  const json fixtures = json::parse(read_whole_file(fixture("cases/sentencepiece.json.gz")));
  ASSERT_GE(fixtures["variants"].size(), 16u);
  const TemporaryFolder folder;
  for (const json& variant : fixtures["variants"]) {
    json spec = fixtures["base"];
    spec.update(variant["patch"]);
    const auto tokenizer = load_json(folder, spec);
    const SpecialTokens special = tokenizer->special_tokens();
    ASSERT_GE(variant["cases"].size(), 80u);
    for (const json& row : variant["cases"]) {
      const Ids ids = tokenizer->encode(row[0].get<std::string>());
      EXPECT_EQ(ids, row[1].get<Ids>()) << variant["name"] << ": " << row[0].dump();
      EXPECT_EQ(special.around(ids), row[2].get<Ids>()) << variant["name"] << ": " << row[0].dump();
    }
    ASSERT_GE(variant["decoded"].size(), 60u);
    for (const json& row : variant["decoded"]) {
      const auto ids = row[0].get<Ids>();
      EXPECT_EQ(tokenizer->decode(ids), row[1].get<std::string>()) << variant["name"] << ": " << row[0].dump();
      EXPECT_EQ(tokenizer->decode(ids, true), row[2].get<std::string>()) << variant["name"] << ": " << row[0].dump();
    }
  }
}

TEST(TokenizerOracle, AWordHasOneSpaceBeforeIt) {
  const json fixtures = json::parse(read_whole_file(fixture("cases/sentencepiece.json.gz")));
  const TemporaryFolder folder;
  const auto llama = load_json(folder, fixtures["base"]);
  EXPECT_EQ(llama->encode_word("the"), llama->encode("the")) << "it prepends a space by itself";
  EXPECT_EQ(qwen3().encode_word("the"), qwen3().encode(" the"));
}

/// A cut character makes all byte tokens beside it U+FFFD, one each, also a newline that was returned before.
TEST(TokenizerOracle, GrowingTextIsWholeCharactersAlsoIfByteTokensAreCut) {
  const json fixtures = json::parse(read_whole_file(fixture("cases/sentencepiece.json.gz")));
  const TemporaryFolder folder;
  const auto tokenizer = load_json(folder, fixtures["base"]);
  const json& vocabulary = fixtures["base"]["model"]["vocab"];
  const int32_t newline = vocabulary.at("<0x0A>"), first = vocabulary.at("<0xF0>"), second = vocabulary.at("<0x9F>");
  const int32_t word = tokenizer->encode("the").back();
  const std::string text = tokenizer->decode(Ids{word, word}).substr(tokenizer->decode(Ids{word}).size());
  GrowingText whole(*tokenizer, {word});
  EXPECT_EQ(whole.add(newline), "\n");
  EXPECT_EQ(whole.add(first), "");
  EXPECT_EQ(whole.add(second), "");
  EXPECT_EQ(whole.add(vocabulary.at("<0x98>")), "");
  EXPECT_EQ(whole.add(vocabulary.at("<0x80>")), "\xF0\x9F\x98\x80");
  EXPECT_EQ(whole.finish(), "");
  GrowingText cut(*tokenizer, {word});
  EXPECT_EQ(cut.add(newline), "\n");
  EXPECT_EQ(cut.add(first), "");
  EXPECT_EQ(cut.add(second), "");
  EXPECT_EQ(cut.add(word), "\xEF\xBF\xBD\xEF\xBF\xBD" + text);
  EXPECT_EQ(cut.add(word), text);
}

/// As generation needs it: the space at the start of what is new is not that of a text, which decoders leave out.
TEST(TokenizerOracle, DecodesWhatFollowsOtherTokens) {
  const json fixtures = json::parse(read_whole_file(fixture("cases/sentencepiece.json.gz")));
  const TemporaryFolder folder;
  const auto tokenizer = load_json(folder, fixtures["base"]);
  const Ids ids = tokenizer->encode("the rain in the plain");
  ASSERT_GT(ids.size(), 5u);
  for (size_t cut = 1; cut < ids.size(); ++cut) {
    const std::span<const int32_t> all(ids);
    const std::string start = tokenizer->decode(all.first(cut));
    EXPECT_EQ(start + decode_after(*tokenizer, all.first(cut), all.subspan(cut), false), "the rain in the plain")
        << cut;
  }
  EXPECT_EQ(decode_after(*tokenizer, {}, ids, false), "the rain in the plain");
}

/// As a loss mask needs it: nothing is prepended where an answer begins.
TEST(TokenizerOracle, EncodesPartsOfATextAsTheWhole) {
  const json fixtures = json::parse(read_whole_file(fixture("cases/sentencepiece.json.gz")));
  const TemporaryFolder folder;
  size_t compared = 0;
  for (const json& variant : fixtures["variants"]) {
    json spec = fixtures["base"];
    spec.update(variant["patch"]);
    const auto tokenizer = load_json(folder, spec);
    for (const json& row : variant["cases"]) {
      const auto text = row[0].get<std::string>();
      // A cut before each space that follows a letter: no token crosses it, unless merges join words.
      std::vector<size_t> cuts;
      for (size_t i = 1; i < text.size(); ++i) {
        if (text[i] == ' ' && std::isalpha(static_cast<unsigned char>(text[i - 1])) != 0) {
          cuts.push_back(i);
        }
      }
      if (cuts.empty() || variant["name"] == "merges across words") {
        continue;
      }
      Ids together;
      const auto parts = tokenizer->encode_parts(text, cuts);
      ASSERT_EQ(parts.size(), cuts.size() + 1);
      for (const Ids& part : parts) {
        together.insert(together.end(), part.begin(), part.end());
      }
      EXPECT_EQ(together, row[1].get<Ids>()) << variant["name"] << ": " << row[0].dump();
      ++compared;
    }
  }
  EXPECT_GT(compared, 200u);
}

}  // namespace
}  // namespace lehr::data
