// Files of others: regular ones only, and beneath their folder.
#include "lehr/base/open_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <fstream>
#include <string>
#include <utility>

#include "lehr/base/file.h"
#include "test/base/error_of.h"
#include "test/base/temporary_folder.h"

namespace lehr {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

class OpenFiles : public ::testing::Test {
 protected:
  OpenFiles() {
    fs::create_directories(root_ / "model/sub");
    fs::create_directory(root_ / "other");
    write("secret", "key");
    write("model/config.json", "{}");
  }

  void write(const fs::path& name, const std::string& text) { std::ofstream(root_ / name) << text; }
  fs::path model() const { return root_ / "model"; }
  void link(const fs::path& target, const fs::path& name) { fs::create_symlink(target, root_ / name); }

  const TemporaryFolder folder_;
  const fs::path& root_ = folder_.path();
};

TEST_F(OpenFiles, RefusesPipesDevicesAndFoldersWithoutBlocking) {
  ASSERT_EQ(::mkfifo((model() / "pipe.json").c_str(), 0600), 0);
  EXPECT_THAT(
      error_of([&] { read_file(model() / "pipe.json"); }), HasSubstr("pipe.json: expected a file, found a pipe"));
  EXPECT_THAT(error_of([&] { MappedFile map(model() / "pipe.json"); }), HasSubstr("found a pipe"));
  EXPECT_THAT(error_of([&] { read_file("/dev/zero"); }), HasSubstr("/dev/zero: expected a file, found a device"));
  EXPECT_THAT(error_of([&] { read_file(model()); }), HasSubstr("expected a file, found a folder"));
  EXPECT_THAT(error_of([&] { read_file(model() / "none"); }), HasSubstr("cannot be opened: No such file"));
  EXPECT_EQ(read_file(model() / "config.json"), "{}");
}

TEST_F(OpenFiles, AreReplacedByFilesOnlyIfTheyAreFiles) {
  ASSERT_EQ(::mkfifo((model() / "pipe").c_str(), 0600), 0);
  link("pipe", "model/to_pipe");
  link("config.json", "model/to_file");
  for (const char* name : {"pipe", "to_pipe", "sub"}) {
    EXPECT_THAT(
        error_of([&] { write_file_atomically(model() / name, "x"); }),
        HasSubstr(std::string(name) + ": is a folder, a device or a pipe, not a file"));
  }
  EXPECT_THAT(
      error_of([&] { write_file_atomically("/dev/null", "x"); }),
      HasSubstr("/dev/null: is a folder, a device or a pipe"));
  write_file_atomically(model() / "to_file", "x");
  EXPECT_EQ(read_file(model() / "config.json"), "{}") << "a link is replaced";
  EXPECT_EQ(read_file(model() / "to_file"), "x");
}

TEST_F(OpenFiles, FollowsLinksWithinTheFolderOnly) {
  link("config.json", "model/same.json");
  link("../config.json", "model/sub/up.json");
  link("../secret", "model/out.json");
  link(root_ / "secret", "model/absolute.json");
  link("../other", "model/folder");
  link("loop.json", "model/loop.json");
  write("other/x.json", "{}");
  EXPECT_EQ(path_beneath(model(), "config.json"), model() / "config.json");
  EXPECT_EQ(read_file(path_beneath(model(), "same.json")), "{}");
  EXPECT_EQ(read_file(path_beneath(model(), "sub/up.json")), "{}");
  EXPECT_EQ(path_beneath(model(), "not_there.json"), model() / "not_there.json");
  for (const char* name : {"out.json", "absolute.json", "folder/x.json", "loop.json"}) {
    EXPECT_THAT(error_of([&] { path_beneath(model(), name); }), HasSubstr("is a link out of its folder")) << name;
  }
  link("model", "alias");
  EXPECT_EQ(read_file(path_beneath(root_ / "alias", "config.json")), "{}") << "the folder itself may be a link";
}

TEST_F(OpenFiles, RefusesNamesThatLeaveTheFolder) {
  for (const std::string& name :
       {std::string("../secret"),
        std::string("sub/../../secret"),
        (root_ / "secret").string(),
        std::string(),
        std::string("a\0b", 3)}) {
    EXPECT_THAT(
        error_of([&] { path_beneath(model(), name); }), HasSubstr("expected the name of a file in this folder"));
  }
}

TEST_F(OpenFiles, FollowsTheLinksOfTheHubCache) {
  const std::string hash(64, 'a');
  const fs::path repository = root_ / "models--org--name", snapshot = repository / "snapshots/1f2e";
  fs::create_directories(repository / "blobs");
  fs::create_directories(snapshot / "onnx");
  std::ofstream(repository / "blobs" / hash) << "blob";
  fs::create_symlink(fs::path("../../blobs") / hash, snapshot / "config.json");
  fs::create_symlink(fs::path("../../../blobs") / hash, snapshot / "onnx/config.json");
  EXPECT_EQ(read_file(path_beneath(snapshot, "config.json")), "blob");
  EXPECT_EQ(read_file(path_beneath(snapshot / "onnx", "config.json")), "blob");
  // A folder of a user's own that links to files in the cache, as hf download with local-dir made them.
  fs::create_symlink(repository / "blobs" / hash, model() / "model.safetensors");
  EXPECT_EQ(read_file(path_beneath(model(), "model.safetensors")), "blob");
  // Out of the repository.
  fs::create_symlink("../../../secret", snapshot / "tokenizer.json");
  EXPECT_THAT(error_of([&] { path_beneath(snapshot, "tokenizer.json"); }), HasSubstr("is a link out of its folder"));
  // A folder that only looks like one of blobs.
  fs::create_directories(root_ / "evil/blobs");
  std::ofstream(root_ / "evil/blobs" / hash) << "x";
  fs::create_symlink(root_ / "evil/blobs" / hash, model() / "evil.json");
  EXPECT_THAT(error_of([&] { path_beneath(model(), "evil.json"); }), HasSubstr("is a link out of its folder"));
}

TEST_F(OpenFiles, HaveThePermissionsThatTheUmaskLeaves) {
  const mode_t before = ::umask(0);
  const std::pair<mode_t, int> cases[] = {{0077, 0600}, {0027, 0640}, {0002, 0664}};
  for (const auto& [mask, expected] : cases) {
    ::umask(mask);
    write_file_atomically(model() / "written.json", "{}");
    struct stat info {};
    ASSERT_EQ(::stat((model() / "written.json").c_str(), &info), 0);
    EXPECT_EQ(info.st_mode & 0777, expected);
  }
  ::umask(before);
}

TEST_F(OpenFiles, FollowsAllLinksIfTheUserSaysSo) {
  link("../secret", "model/out.json");
  ASSERT_EQ(::setenv("LEHR_FOLLOW_LINKS", "1", 1), 0);
  EXPECT_EQ(read_file(path_beneath(model(), "out.json")), "key");
  ::setenv("LEHR_FOLLOW_LINKS", "0", 1);
  EXPECT_THAT(error_of([&] { path_beneath(model(), "out.json"); }), HasSubstr("LEHR_FOLLOW_LINKS=1"));
  ::unsetenv("LEHR_FOLLOW_LINKS");
}

}  // namespace
}  // namespace lehr
