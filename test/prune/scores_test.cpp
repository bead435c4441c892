// Folders of scores: round trips, and errors.
#include "lehr/prune/scores.h"

#include <gmock/gmock.h>

#include "lehr/base/file.h"
#include "lehr/config/json.h"
#include "lehr/state/safetensors_writer.h"
#include "test/train/written_model.h"

namespace lehr::prune {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;
using train::testing::error_of;
using train::testing::Folder;

TEST(Scores, AreWrittenAndRead) {
  const Folder folder;
  Scores scores;
  scores.facts.set("num_tokens", Node(int64_t{4096}));
  scores.values[{0, Kind::ffn_channels}] = at::tensor({0.5, NAN, -1e300});
  scores.values[{11, Kind::expert_channels}] = at::ones({2, 3}, at::kFloat);
  write_scores(folder.path() / "new" / "scores", scores);
  write_scores(folder.path() / "new" / "scores", scores);  // replaces existing scores
  const Scores back = read_scores(folder.path() / "new" / "scores");
  EXPECT_EQ(back.facts.at("num_tokens").as_int(), 4096);
  EXPECT_EQ(back.values.size(), 2U);
  ASSERT_NE(back.find(0, Kind::ffn_channels), nullptr);
  EXPECT_TRUE(at::allclose(
      *back.find(0, Kind::ffn_channels), at::tensor({0.5, NAN, -1e300}), /*rtol=*/0, /*atol=*/0, /*equal_nan=*/true));
  EXPECT_TRUE(at::equal(*back.find(11, Kind::expert_channels), at::ones({2, 3}, at::kDouble)));
  EXPECT_EQ(back.find(1, Kind::ffn_channels), nullptr);
  EXPECT_TRUE(back.has(Kind::ffn_channels));
  EXPECT_FALSE(back.has(Kind::kv_heads));
}

TEST(Scores, AreKeptUntilNewOnesAreOnTheDisk) {
  const Folder folder;
  Scores scores;
  scores.facts.set("num_tokens", Node(int64_t{1}));
  scores.values[{0, Kind::kv_heads}] = at::ones({2}, at::kDouble);
  write_scores(folder.path(), scores);
  const fs::path in_the_way = folder.path() / ".scores.json.new" / "file";
  fs::create_directories(in_the_way);
  scores.facts.set("num_tokens", Node(int64_t{2}));
  scores.values[{0, Kind::kv_heads}] = at::zeros({2}, at::kDouble);
  EXPECT_THAT(error_of([&] { write_scores(folder.path(), scores); }), HasSubstr("scores.json.new"));
  const Scores old = read_scores(folder.path());
  EXPECT_EQ(old.facts.at("num_tokens").as_int(), 1);
  EXPECT_TRUE(at::equal(*old.find(0, Kind::kv_heads), at::ones({2}, at::kDouble)));
  fs::remove_all(in_the_way.parent_path());
  write_scores(folder.path(), scores);
  EXPECT_TRUE(at::equal(*read_scores(folder.path()).find(0, Kind::kv_heads), at::zeros({2}, at::kDouble)));
  EXPECT_EQ(std::distance(fs::directory_iterator(folder.path()), {}), 2) << "nothing else is left";
}

TEST(Scores, RefuseAnOutputThatCannotBeCreated) {
  const Folder folder;
  write_file_atomically(folder.path() / "file", "");
  const auto problem = [](const fs::path& output) { return error_of([&] { require_writable(output); }); };
  EXPECT_THAT(problem(folder.path() / "file"), HasSubstr("file: expected a folder for scores, but "));
  EXPECT_THAT(problem(folder.path() / "file/scores"), HasSubstr("file is not a folder"));
  EXPECT_THAT(problem("/proc/scores"), HasSubstr("/proc/scores: /proc cannot be written to: "));
  EXPECT_THAT(problem(""), HasSubstr("expected the name of a folder"));
  require_writable(folder.path());
  require_writable(folder.path() / "new" / "scores");
  EXPECT_EQ(std::distance(fs::directory_iterator(folder.path()), {}), 1) << "nothing is left";
}

TEST(Scores, RefuseAnInvalidFolder) {
  const Folder folder;
  const auto problem = [&] { return error_of([&] { read_scores(folder.path()); }); };
  EXPECT_THAT(problem(), HasSubstr("expected a folder of scores, found no scores.json in it; lehr score creates one"));
  write_file_atomically(folder.path() / "scores.json", "{}");
  EXPECT_THAT(problem(), HasSubstr("found no scores.safetensors in it"));
  const auto save = [&](const std::string& name, const at::Tensor& values) {
    state::save_safetensors(folder.path() / "scores.safetensors", {{name, values}});
  };
  for (const char* name : {"layers.kv_heads", "layers.-1.kv_heads", "layers.01.kv_heads", "layers.1.heads", "ffn"}) {
    save(name, at::ones({2}, at::kDouble));
    EXPECT_THAT(problem(), HasSubstr(fmt::format("scores.safetensors: {}: expected layers.N.KIND, where KIND", name)));
  }
  save("layers.1.kv_heads", at::ones({2}));
  EXPECT_THAT(
      problem(), HasSubstr("layers.1.kv_heads: expected float64 values in 1 dimension, found F32 of shape (2)"));
  save("layers.1.expert_channels", at::ones({2}, at::kDouble));
  EXPECT_THAT(problem(), HasSubstr("expected float64 values in 2 dimensions, found F64 of shape (2)"));
}

}  // namespace
}  // namespace lehr::prune
