// Text sources: documents in order, from every format, and errors with file and line.
#include "lehr/data/corpus.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <zlib.h>
#include <zstd.h>

#include "test/data/support.h"

namespace lehr::data {
namespace {

using testing::ElementsAre;
using testing::EndsWith;
using testing::HasSubstr;

std::vector<std::string> texts(std::vector<TextSource> sources) {
  CorpusReader reader(std::move(sources));
  std::vector<std::string> result;
  while (auto document = reader.next()) {
    result.push_back(document->text);
  }
  EXPECT_EQ(reader.finished_bytes(), reader.total_bytes());
  return result;
}

std::string gzipped(const std::string& text) {
  const TemporaryFolder folder;
  const auto path = folder / "x.gz";
  gzFile file = ::gzopen(path.c_str(), "wb");
  ::gzwrite(file, text.data(), static_cast<unsigned>(text.size()));
  ::gzclose(file);
  return read_file(path);
}

std::string zstd_compressed(const std::string& text) {
  std::string result(ZSTD_compressBound(text.size()), '\0');
  result.resize(ZSTD_compress(result.data(), result.size(), text.data(), text.size(), 3));
  return result;
}

/// Some hundred kilobytes that hardly compress, so that readers need several blocks.
std::string long_text(int lines) {
  std::string text;
  uint64_t state = 1;
  for (int i = 0; i < lines; ++i) {
    for (int j = 0; j < 12; ++j) {
      state = state * 6364136223846793005U + 1442695040888963407U;
      text += static_cast<char>('a' + (state >> 60));
    }
    text += '\n';
  }
  return text;
}

TEST(Corpus, HalfASurrogatePairIsAReplacementCharacterAndCounted) {
  const TemporaryFolder folder;
  const auto path = write_file(
      folder / "a.jsonl",
      "{\"text\": \"good \\ud83d\\ude00\"}\n"
      "{\"text\": \"cut \\ud83d\"}\n"
      "{\"text\": \"\\ude00 two \\ud83d\\ud83d\\ude00\\\\ud83d\"}\n"
      "{\"text\": \"\\uD800x\\\"\\ndone\"}\n");
  CorpusReader reader({{.path = path}});
  std::vector<std::string> found;
  while (auto document = reader.next()) {
    found.push_back(document->text);
  }
  const std::string replaced = "\xEF\xBF\xBD", face = "\xF0\x9F\x98\x80";
  EXPECT_THAT(
      found,
      ElementsAre(
          "good " + face, "cut " + replaced, replaced + " two " + replaced + face + "\\ud83d", replaced + "x\"\ndone"));
  EXPECT_EQ(
      reader.lone_surrogates().report(),
      path.string() + ":2: the first of 3 texts with half of a surrogate pair (such as \"\\ud83d\"), which is not a " +
          "character: read as U+FFFD");
  EXPECT_EQ(
      CorpusReader({{.path = write_file(folder / "b.jsonl", "{\"text\": \"a\"}\n")}}).lone_surrogates().report(), "");
}

TEST(Corpus, ATextFileIsOneDocumentUnlessItIsSplit) {
  const TemporaryFolder folder;
  const auto path = write_file(folder / "a.txt", "one\ntwo\r\n \n\nthree##four\n");
  const auto split = [&](const std::string& how) { return texts({{.path = path, .split_documents = how}}); };
  EXPECT_THAT(split(""), ElementsAre("one\ntwo\r\n \n\nthree##four\n"));
  EXPECT_THAT(split("line"), ElementsAre("one", "two", "three##four"));
  EXPECT_THAT(split("blank_line"), ElementsAre("one\ntwo\r", "three##four"));
  EXPECT_THAT(split("##"), ElementsAre("one\ntwo\r\n \n\nthree", "four\n"));
}

TEST(Corpus, FindsSeparatorsAcrossBlocksOfReading) {
  const TemporaryFolder folder;
  std::string content;
  std::vector<std::string> expected;
  for (int i = 0; i < 40; ++i) {
    expected.push_back(long_text(1500 + 97 * i));
    content += expected.back() + "<|end|>";
  }
  const auto path = write_file(folder / "a.txt", content);
  EXPECT_EQ(texts({{.path = path, .split_documents = "<|end|>"}}), expected);
}

TEST(Corpus, ReadsJsonLinesWithAChosenKey) {
  const TemporaryFolder folder;
  const auto path = write_file(
      folder / "a.jsonl",
      "\xEF\xBB\xBF{\"text\": \"a\\n\\u00e9\", \"body\": \"x\"}\n\n{\"id\": 1, \"text\": \"b\", \"body\": \"y\"}\r\n"
      "{\"text\": \"\", \"body\": \"z\"}");
  EXPECT_THAT(texts({{.path = path}}), ElementsAre("a\n\xC3\xA9", "b"));
  EXPECT_THAT(texts({{.path = path, .text_key = "body"}}), ElementsAre("x", "y", "z"));
}

TEST(Corpus, ReadsTheSampleOfC4) {
  const auto documents = texts({{.path = repository("recipe/data/c4_sample.jsonl")}});
  ASSERT_EQ(documents.size(), 40U);
  EXPECT_THAT(documents.front(), testing::StartsWith("The woman who died after falling"));
}

TEST(Corpus, ReadsFoldersInTheOrderOfPathsAndDecompresses) {
  const TemporaryFolder folder;
  const std::string big = long_text(60000);
  write_file(folder / "c.txt.zst", zstd_compressed(big) + zstd_compressed("tail"));
  write_file(folder / "b.txt.gz", gzipped(big) + gzipped("tail"));
  write_file(folder / "a/z.jsonl.gz", gzipped("{\"text\": \"json\"}\n"));
  write_file(folder / "d.txt", "last");
  write_file(folder / "README.md", "not data");
  write_file(folder / ".hidden.txt", "not data");
  EXPECT_THAT(texts({{.path = folder.path()}}), ElementsAre("json", big + "tail", big + "tail", "last"));
  EXPECT_THAT(texts({{.path = folder.path(), .kind = TextKind::rows}}), ElementsAre("json"));
}

TEST(Corpus, RefusesTruncatedOrInvalidCompression) {
  const TemporaryFolder folder;
  const std::string big = long_text(60000);
  const auto error_for = [&](const std::string& name, const std::string& content) {
    const auto path = write_file(folder / name, content);
    return usage_error_of([&] { texts({{.path = path}}); });
  };
  const std::string gz = gzipped(big), zst = zstd_compressed(big);
  EXPECT_THAT(error_for("a.txt.gz", gz.substr(0, gz.size() / 2)), EndsWith("a.txt.gz: the gzip file is truncated"));
  EXPECT_THAT(error_for("a.txt.gz", gz.substr(0, gz.size() - 1)), EndsWith("the gzip file is truncated"));
  EXPECT_THAT(error_for("a.txt.gz", "plain text"), HasSubstr("it is not a gzip file"));
  EXPECT_THAT(error_for("a.txt.zst", zst.substr(0, zst.size() / 2)), HasSubstr("the Zstandard file is truncated"));
  EXPECT_THAT(error_for("a.txt.zst", ""), HasSubstr("the Zstandard file is truncated"));
  EXPECT_THAT(error_for("a.txt.zst", "plain text"), HasSubstr("the Zstandard file is damaged"));
  std::string damaged = gz;
  damaged[gz.size() / 2] ^= 0x55;
  damaged[gz.size() / 2 + 1] ^= 0x55;
  EXPECT_THAT(error_for("a.txt.gz", damaged), HasSubstr("the gzip file is damaged"));
  // All that follows the damaged header of a second member would be lost.
  EXPECT_THAT(error_for("a.txt.gz", gz + "?" + gz.substr(1)), HasSubstr("the gzip file is damaged"));
  EXPECT_THAT(error_for("a.txt.gz", gz + gz.substr(0, 1)), EndsWith("the gzip file is truncated"));
  EXPECT_THAT(error_for("a.txt.gz", ""), HasSubstr("it is not a gzip file"));
}

TEST(Corpus, ReadsGzipMembersThatAreEmptyOrPaddedWithZeros) {
  const TemporaryFolder folder;
  const auto path = write_file(
      folder / "a.txt.gz",
      gzipped("") + gzipped("one ") + std::string(1000, '\0') + gzipped("two") + std::string(3, '\0'));
  EXPECT_THAT(texts({{.path = path}}), ElementsAre("one two"));
}

TEST(Corpus, TablesAndArchivesAreNotReadAsText) {
  const TemporaryFolder folder;
  for (const auto& [name, expected] :
       {std::pair("a.csv", ".csv files are tables"),
        std::pair("a.csv.gz", ".csv files are tables"),
        std::pair("a.xlsx", "write a Parquet file or JSON lines"),
        std::pair("a.parquet.gz", "tables are not read from compressed files; unpack it"),
        std::pair("a.jsonl.xz", "compress it with gzip or zstd")}) {
    const auto path = write_file(folder / name, "a,b\n");
    EXPECT_THAT(usage_error_of([&] { texts({{.path = path}}); }), HasSubstr(expected)) << name;
  }
  EXPECT_THAT(
      usage_error_of([&] { texts({{.path = folder / "a.csv", .kind = TextKind::rows}}); }),
      HasSubstr("write a Parquet file or JSON lines (datasets: Dataset.to_parquet, Dataset.to_json)"));
  EXPECT_THAT(texts({{.path = folder / "a.csv", .kind = TextKind::text}}), ElementsAre("a,b\n"));
  EXPECT_THAT(texts({{.path = write_file(folder / "README.md", "# A\n")}}), ElementsAre("# A\n"));
}

TEST(Corpus, BadLinesAreNamedByFileAndLine) {
  const TemporaryFolder folder;
  const auto error_for = [&](const std::string& name, const std::string& content) {
    const auto path = write_file(folder / name, content);
    return usage_error_of([&] { texts({{.path = path}}); });
  };
  const std::string good = "{\"text\": \"a\"}\n";
  EXPECT_THAT(error_for("a.jsonl", good + good + "{\"text\": \"b\""), HasSubstr("a.jsonl:3: not valid JSON"));
  EXPECT_THAT(error_for("a.jsonl", good + "[1]\n"), HasSubstr("a.jsonl:2: expected a JSON object on every line"));
  EXPECT_THAT(
      error_for("a.jsonl", good + "{\"body\": \"b\"}\n"), HasSubstr("a.jsonl:2: the object has no key \"text\""));
  EXPECT_THAT(error_for("a.jsonl", good + "{\"text\": 1}\n"), HasSubstr("a.jsonl:2: \"text\" is not a string"));
  EXPECT_THAT(error_for("a.jsonl", good + "{\"text\": \"\xFF\"}\n"), HasSubstr("a.jsonl:2: not valid UTF-8"));
  EXPECT_THAT(
      error_for(
          "a.txt",
          "one\ntwo\nthr\xE9"
          "e\nfour"),
      HasSubstr("a.txt:3: not valid UTF-8"));
  EXPECT_THAT(error_for("a.txt", "one\n\xE4\xBD"), HasSubstr("a.txt:2: not valid UTF-8"));
  EXPECT_THAT(error_for("a.txt", std::string("\xFF\xFEo\0", 4)), HasSubstr("a.txt: is UTF-16. Convert"));
  EXPECT_THAT(error_for("a.jsonl", std::string("\xFF\xFE{\0", 4)), HasSubstr("a.jsonl: is UTF-16. Convert"));
}

TEST(Corpus, MissingSourcesAreErrorsBeforeReading) {
  const TemporaryFolder folder;
  EXPECT_THAT(usage_error_of([&] { CorpusReader({{.path = folder / "none"}}); }), HasSubstr("no such file or folder"));
  EXPECT_THAT(usage_error_of([&] { CorpusReader({{.path = folder.path()}}); }), HasSubstr("has no file that ends in"));
}

}  // namespace
}  // namespace lehr::data
