// The folder of checkpoints: names, replacement, deletion, and recovery.
#include "lehr/state/checkpoint.h"

#include <gmock/gmock.h>
#include <sys/resource.h>
#include <unistd.h>

#include "lehr/base/error.h"
#include "lehr/state/integrity.h"
#include "test/state/checkpoint_support.h"

namespace lehr::state {
namespace {

using ::testing::ElementsAre;
using testing::error_of;
using ::testing::HasSubstr;
using testing::hidden_entries;
using testing::holds;
using ::testing::IsEmpty;
using testing::make_contents;
using testing::steps_of;
using testing::TemporaryFolder;
using testing::write_bytes;

TEST(Checkpoint, ChecksumsOfTextsFindAFlippedBitInThem) {
  const TemporaryFolder folder;
  CheckpointStore store(folder.path());
  CheckpointContents contents = make_contents(7, 1);
  contents.checked_texts = {"trainer.json"};
  write_checkpoint(store, contents);
  const fs::path checkpoint = store.path_of(7);
  OneRank alone;
  EXPECT_EQ(find_damage(checkpoint, true, alone), std::nullopt);
  write_bytes(checkpoint / "nested/config.json", "[]");
  EXPECT_EQ(find_damage(checkpoint, true, alone), std::nullopt) << "a text that others may edit";
  write_bytes(checkpoint / "trainer.json", "{\"mark\": 3}");  // 1 and 3 differ in one bit
  EXPECT_THAT(
      find_damage(checkpoint, true, alone).value_or(""),
      HasSubstr("trainer.json: its bytes changed since it was saved"));
}

// The next open of a file fails while it exists.
class NoMoreFiles {
 public:
  NoMoreFiles() {
    ::getrlimit(RLIMIT_NOFILE, &before_);
    const rlimit none{.rlim_cur = 0, .rlim_max = before_.rlim_max};
    ::setrlimit(RLIMIT_NOFILE, &none);
  }
  ~NoMoreFiles() { ::setrlimit(RLIMIT_NOFILE, &before_); }
  NoMoreFiles(const NoMoreFiles&) = delete;
  NoMoreFiles& operator=(const NoMoreFiles&) = delete;

 private:
  rlimit before_{};
};

TEST(Checkpoint, FilesThatCannotBeOpenedNowAreNotDamage) {
  const TemporaryFolder folder;
  CheckpointStore store(folder.path());
  write_checkpoint(store, make_contents(7, 1));
  OneRank alone;
  try {
    const NoMoreFiles limit;
    find_damage(store.path_of(7), true, alone);
    ADD_FAILURE() << "expected an error";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::runtime);
    EXPECT_THAT(error.what(), HasSubstr("integrity.json: cannot be opened: Too many open files"));
  }
  EXPECT_EQ(find_damage(store.path_of(7), true, alone), std::nullopt);
}

TEST(CheckpointStore, FindsOnlyFoldersWithTheExactName) {
  const TemporaryFolder folder;
  for (const char* name :
       {"step-2",
        "step-10",
        "step-10.bak",
        "step-007",
        "step--3",
        "step-",
        "step-1x",
        "Step-4",
        ".step-5.saving",
        "step-99999999999999999999",
        "step-+8",
        "xstep-9",
        "step-6 "}) {
    fs::create_directory(folder.path() / name);
  }
  write_bytes(folder.path() / "step-30", "a file");
  const CheckpointStore store(folder.path());
  EXPECT_THAT(steps_of(store), ElementsAre(2, 10));
  EXPECT_EQ(store.latest()->step, 10);
  EXPECT_EQ(store.latest()->path, folder.path() / "step-10");
}

TEST(CheckpointStore, IsEmptyWithoutCheckpoints) {
  const TemporaryFolder folder;
  CheckpointStore store(folder.path() / "checkpoints");
  EXPECT_FALSE(store.latest().has_value());
  store.recover();
  store.keep_latest(1);
  EXPECT_FALSE(fs::exists(store.root())) << "only a save makes the folder";
}

TEST(CheckpointStore, ReadsBackASaveBitForBit) {
  const TemporaryFolder folder;
  CheckpointStore store(folder.path() / "deep" / "checkpoints");
  CheckpointContents contents = make_contents(7, 1);
  write_bytes(folder.path() / "tokenizer.json", "{\"a\": 1}");
  contents.copies = {{"tokenizer.json", folder.path() / "tokenizer.json"}};
  write_checkpoint(store, contents);
  EXPECT_TRUE(holds(store.latest()->path, contents));
  EXPECT_EQ(read_file(store.path_of(7) / "tokenizer.json"), "{\"a\": 1}");
  EXPECT_THAT(hidden_entries(store.root()), IsEmpty());
}

TEST(CheckpointStore, ReplacesTheCheckpointOfTheSameStep) {
  const TemporaryFolder folder;
  CheckpointStore store(folder.path());
  write_checkpoint(store, make_contents(7, 1));
  write_checkpoint(store, make_contents(7, 2));
  EXPECT_THAT(steps_of(store), ElementsAre(7));
  EXPECT_TRUE(holds(store.path_of(7), make_contents(7, 2)));
  EXPECT_FALSE(holds(store.path_of(7), make_contents(7, 1)));
  EXPECT_THAT(hidden_entries(store.root()), IsEmpty());
}

TEST(CheckpointStore, ASaveIsInvisibleUntilItIsCommitted) {
  const TemporaryFolder folder;
  CheckpointStore store(folder.path());
  store.begin(3);
  write_bytes(store.temporary_path(3) / "model.safetensors", "half");
  EXPECT_THAT(steps_of(store), IsEmpty());
  store.begin(3);
  EXPECT_TRUE(fs::is_empty(store.temporary_path(3))) << "a second begin starts anew";
  store.commit(3);
  EXPECT_THAT(steps_of(store), ElementsAre(3));
  store.begin(4);
  store.abandon(4);
  EXPECT_THAT(steps_of(store), ElementsAre(3));
  EXPECT_THAT(hidden_entries(store.root()), IsEmpty());
  EXPECT_THAT(error_of([&] { store.commit(5); }), HasSubstr(".step-5.saving"));
  EXPECT_THAT(error_of([&] { store.begin(-1); }), HasSubstr("expected a step from 0"));
}

TEST(CheckpointStore, RecoversFromEveryKindOfLeftover) {
  const TemporaryFolder folder;
  const auto make = [&](const std::string& name) {
    fs::create_directory(folder.path() / name);
    write_bytes(folder.path() / name / "origin", name);
  };
  make("step-1");
  make("step-3");
  make(".step-2.saving");
  make(".step-3.replaced");  // the new one is in its place
  make(".step-4.replaced");  // the new one is not
  make(".step-1.deleted");
  make(".step-5.other");
  make(".unrelated");
  CheckpointStore store(folder.path());
  store.recover();
  EXPECT_THAT(steps_of(store), ElementsAre(1, 3, 4));
  EXPECT_EQ(read_file(store.path_of(3) / "origin"), "step-3");
  EXPECT_EQ(read_file(store.path_of(4) / "origin"), ".step-4.replaced");
  EXPECT_THAT(hidden_entries(folder.path()), ::testing::UnorderedElementsAre(".step-5.other", ".unrelated"));
}

TEST(CheckpointStore, KeepsTheBestBesidesTheLatest) {
  const TemporaryFolder folder;
  CheckpointStore store(folder.path());
  for (const char* name : {"step-1", "step-2", "step-3", "step-4", "step-5"}) {
    fs::create_directory(folder.path() / name);
  }
  store.keep_latest(2, 5, 2);
  EXPECT_THAT(steps_of(store), ElementsAre(2, 4, 5));
  store.keep_latest(2, 5, 4);
  EXPECT_THAT(steps_of(store), ElementsAre(4, 5)) << "one of the latest";
  store.keep_latest(1, 5, 4);
  EXPECT_THAT(steps_of(store), ElementsAre(4, 5));
  store.keep_latest(1, 5, 3);
  EXPECT_THAT(steps_of(store), ElementsAre(5));
}

// Files in a folder without permission to write cannot be deleted. The superuser may anyway, so it becomes another
// user.
TEST(CheckpointStore, LeavesAProtectedCheckpointAndSaysSo) {
  const TemporaryFolder folder;
  CheckpointStore store(folder.path());
  for (const char* name : {"step-1", "step-2", "step-3"}) {
    fs::create_directory(folder.path() / name);
    write_bytes(folder.path() / name / "model.safetensors", "x");
  }
  for (const char* name : {"step-2", "step-3"}) {
    fs::permissions(folder.path() / name, fs::perms::all);
  }
  fs::permissions(folder.path() / "step-1", fs::perms(0555));
  fs::permissions(folder.path(), fs::perms::all);
  const uid_t user = ::geteuid();
  if (user == 0) {
    ASSERT_EQ(::seteuid(65534), 0);
  }
  const bool may_look = ::access(folder.path().c_str(), W_OK) == 0;
  const std::string problem = may_look ? store.keep_latest(2) : "";
  store.recover();
  ASSERT_EQ(::seteuid(user), 0);
  fs::permissions(folder.path() / "step-1", fs::perms::owner_all);
  if (!may_look) {
    GTEST_SKIP() << "other users cannot reach the folder of temporary files";
  }
  EXPECT_THAT(problem, HasSubstr("step-1: cannot be deleted, since its files are protected"));
  EXPECT_THAT(steps_of(store), ElementsAre(1, 2, 3));
}

TEST(CheckpointStore, KeepsTheLatestAndTheNewestSave) {
  const TemporaryFolder folder;
  CheckpointStore store(folder.path());
  for (const char* name : {"step-9", "step-10", "step-100", "step-20", "step-5.bak"}) {
    fs::create_directory(folder.path() / name);
  }
  store.keep_latest(3);
  EXPECT_THAT(steps_of(store), ElementsAre(10, 20, 100));
  store.keep_latest(5);
  EXPECT_THAT(steps_of(store), ElementsAre(10, 20, 100));
  store.keep_latest(2, 10);
  EXPECT_THAT(steps_of(store), ElementsAre(10, 100));
  store.keep_latest(1);
  EXPECT_THAT(steps_of(store), ElementsAre(100));
  EXPECT_THAT(error_of([&] { store.keep_latest(0); }), HasSubstr("expected 1 or more, found 0"));
  EXPECT_THAT(steps_of(store), ElementsAre(100));
  EXPECT_TRUE(fs::exists(folder.path() / "step-5.bak"));
  EXPECT_THAT(hidden_entries(folder.path()), IsEmpty());
}

TEST(MeantCheckpoint, IsTheNewestInAFolderOfAnyNameInThatOfTheRun) {
  const TemporaryFolder folder;
  EXPECT_EQ(meant_checkpoint(folder.path()), "");
  write_bytes(folder.path() / "config.toml", "");  // a file, which is no folder of checkpoints
  EXPECT_EQ(meant_checkpoint(folder.path()), "");
  for (const char* name : {"saved/step-3", "saved/step-20", "other/step-7"}) {
    fs::create_directories(folder.path() / name);
  }
  const std::string newest = (folder.path() / "saved/step-20").string();
  for (const fs::path& given : {folder.path(), folder.path() / "saved"}) {
    EXPECT_EQ(meant_checkpoint(given), "; did you mean the newest checkpoint in it, " + newest + "?");
  }
}

TEST(MeantCheckpoint, LooksAtALimitedNumberOfEntries) {
  const TemporaryFolder folder;
  fs::create_directories(folder.path() / "saved/step-3");
  EXPECT_EQ(meant_checkpoint(folder.path(), 1), "") << "only at the folder saved";
  EXPECT_NE(meant_checkpoint(folder.path(), 2), "");
}

TEST(CheckpointContents, RefusesInvalidAndDuplicateNames) {
  const auto refusal = [](std::vector<std::pair<std::string, std::string>> texts) {
    return error_of([&] { check({.step = 1, .weights = {{.tensors = {}}}, .texts = std::move(texts)}); });
  };
  EXPECT_THAT(refusal({{"../a", ""}}), HasSubstr("expected the name of a file in its folder, found \"../a\""));
  EXPECT_THAT(refusal({{"/a", ""}}), HasSubstr("found \"/a\""));
  EXPECT_THAT(refusal({{"", ""}}), HasSubstr("found \"\""));
  EXPECT_THAT(refusal({{"a/", ""}}), HasSubstr("found \"a/\""));
  EXPECT_THAT(refusal({{"a", ""}, {"./a", ""}}), HasSubstr("./a: written twice"));
  EXPECT_THAT(refusal({{"model.safetensors", ""}}), HasSubstr("model.safetensors: written twice"));
  EXPECT_THAT(
      error_of([] {
        check({.step = 1, .weights = {}, .copies = {{"a", "/nonexistent"}}});
      }),
      HasSubstr("/nonexistent: no such file"));
}

}  // namespace
}  // namespace lehr::state
