// Token files: a file reads back as it was written, and damage is detected.
#include "lehr/data/token_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>

#include "test/data/support.h"

namespace lehr::data {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

std::vector<std::vector<int32_t>> random_documents(int count, int longest, int32_t vocab_size, unsigned seed) {
  std::mt19937 random(seed);
  std::vector<std::vector<int32_t>> documents(static_cast<size_t>(count));
  for (auto& document : documents) {
    document.resize(random() % static_cast<unsigned>(longest + 1));
    for (auto& id : document) {
      id = static_cast<int32_t>(random() % static_cast<unsigned>(vocab_size));
    }
  }
  return documents;
}

void expect_equal(const TokenStream& stream, const std::vector<std::vector<int32_t>>& documents) {
  ASSERT_EQ(stream.num_documents(), static_cast<int64_t>(documents.size()));
  for (size_t i = 0; i < documents.size(); ++i) {
    const auto ids = stream.ids(stream.document(static_cast<int64_t>(i)));
    ASSERT_EQ(ids, std::vector<int64_t>(documents[i].begin(), documents[i].end())) << "document " << i;
  }
}

TokenFileInfo write(
    const std::filesystem::path& path, const std::vector<std::vector<int32_t>>& documents, int64_t vocab_size) {
  TokenFileWriter writer(path, vocab_size, 77);
  for (const auto& document : documents) {
    writer.append(document);
  }
  return writer.finish();
}

TEST(TokenFile, ReadsBackTheWrittenIdsInBothWidths) {
  const TemporaryFolder folder;
  for (const int32_t vocab_size : {257, 65536, 65537, 151936}) {
    const auto documents = random_documents(300, 40, vocab_size, 1);
    const auto path = folder / fmt::format("v{}.tokens", vocab_size);
    const TokenFileInfo info = write(path, documents, vocab_size);
    expect_equal(open_token_file(path), documents);
    verify_token_file(path);
    const TokenStream again = open_token_file(path);
    EXPECT_EQ(again.num_tokens(), info.num_tokens);
    EXPECT_EQ(again.max_id(), info.max_id);
    EXPECT_EQ(again.vocab_size(), vocab_size);
    EXPECT_EQ(again.tokenizer_fingerprint(), 77U);
    // two bytes per id as long as they suffice
    const auto width = vocab_size <= 65536 ? 2 : 4;
    EXPECT_EQ(
        static_cast<int64_t>(std::filesystem::file_size(path)),
        (256 + info.num_tokens * width + 7) / 8 * 8 + 8 * (info.num_documents + 1));
  }
  EXPECT_EQ(num_files(folder), 4U);  // no temporary file is left
}

TEST(TokenFile, LeavesNothingBehindUnlessFinished) {
  const TemporaryFolder folder;
  {
    TokenFileWriter writer(folder / "a.tokens", 300);
    writer.append(std::vector<int32_t>(1 << 20, 5));
  }
  EXPECT_EQ(num_files(folder), 0U);
}

TEST(TokenFile, RefusesIdsOutsideTheVocabulary) {
  const TemporaryFolder folder;
  TokenFileWriter writer(folder / "a.tokens", 300);
  writer.append(std::vector<int32_t>{299});
  EXPECT_THAT(
      usage_error_of([&] {
        writer.append(std::vector<int32_t>{1, 300});
      }),
      HasSubstr("document 1 contains the id 300, outside a vocabulary of 300"));
  EXPECT_THAT(usage_error_of([&] { writer.append(std::vector<int32_t>{-1}); }), HasSubstr("the id -1"));
}

TEST(TokenFile, TruncatedAtAnyLengthIsAnErrorThatNamesTheFile) {
  const TemporaryFolder folder;
  const auto path = folder / "a.tokens";
  write(path, random_documents(5, 9, 257, 2), 257);
  const std::string whole = read_file(path);
  for (size_t length = 0; length < whole.size(); ++length) {
    write_file(path, std::string_view(whole).substr(0, length));
    ASSERT_THAT(usage_error_of([&] { open_token_file(path); }), HasSubstr("a.tokens: ")) << length;
  }
  write_file(path, whole + "x");
  EXPECT_THAT(usage_error_of([&] { open_token_file(path); }), HasSubstr("the file is damaged"));
}

TEST(TokenFile, AnyFlippedBitIsFound) {
  const TemporaryFolder folder;
  const auto path = folder / "a.tokens";
  // 8 documents of 4 tokens, so that there is no padding between ids and positions
  write(path, std::vector<std::vector<int32_t>>(8, {1, 2, 3, 4}), 257);
  const std::string whole = read_file(path);
  for (size_t bit = 0; bit < 8 * whole.size(); bit += 3) {
    std::string damaged = whole;
    damaged[bit / 8] = static_cast<char>(damaged[bit / 8] ^ (1 << (bit % 8)));
    write_file(path, damaged);
    ASSERT_THAT(usage_error_of([&] { open_token_file(path); }), HasSubstr("a.tokens: ")) << "bit " << bit;
  }
}

TEST(TokenFile, RefusesFilesOfOtherFormats) {
  const TemporaryFolder folder;
  EXPECT_THAT(usage_error_of([&] { open_token_file(folder / "none.tokens"); }), HasSubstr("cannot be opened"));
  const auto text = write_file(folder / "text.tokens", std::string(1000, 'a'));
  EXPECT_THAT(usage_error_of([&] { open_token_file(text); }), HasSubstr("not a token file"));
  EXPECT_THAT(usage_error_of([&] { open_token_file(folder.path()); }), HasSubstr("expected a file, found a folder"));
}

TEST(TokenStream, SliceCutsDocuments) {
  const TokenStream stream = stream_of({{1, 2, 3}, {}, {4, 5}, {6}, {7, 8, 9}});
  const TokenStream middle = stream.slice({2, 7});
  ASSERT_EQ(middle.num_documents(), 5);
  EXPECT_THAT(middle.ids(middle.document(0)), ElementsAre(3));
  EXPECT_THAT(middle.ids(middle.document(1)), ElementsAre());
  EXPECT_THAT(middle.ids(middle.document(2)), ElementsAre(4, 5));
  EXPECT_THAT(middle.ids(middle.document(4)), ElementsAre(7));
  EXPECT_EQ(middle.document_at(1), 2);
  const TokenStream inner = middle.slice({1, 3});
  EXPECT_EQ(inner.num_documents(), 1);
  EXPECT_THAT(inner.ids({0, 2}), ElementsAre(4, 5));
  EXPECT_EQ(stream.slice({4, 4}).num_documents(), 0);
}

TEST(TokenStream, ValidationIsCutBetweenDocumentsIfABorderIsNear) {
  const TokenStream many = stream_of(std::vector<std::vector<int32_t>>(100, std::vector<int32_t>(10, 1)));
  EXPECT_EQ(validation_cut(many, 0.0), 1000);
  EXPECT_EQ(validation_cut(many, 0.1), 900);
  EXPECT_EQ(validation_cut(many, 0.095), 910);  // 905 lies inside a document
  const TokenStream one = stream_of({std::vector<int32_t>(1000, 1)});
  EXPECT_EQ(validation_cut(one, 0.1), 900);  // a single document has to be cut
}

TEST(TokenStream, NamesTheLargestIdWhenTheVocabularyIsTooSmall) {
  const TokenStream stream = stream_of({{1, 256}});
  require_vocabulary(stream, 257);
  EXPECT_THAT(
      usage_error_of([&] { require_vocabulary(stream, 256); }),
      HasSubstr("memory: its largest token id is 256, but the vocabulary of the model has only 256 entries"));
}

}  // namespace
}  // namespace lehr::data
