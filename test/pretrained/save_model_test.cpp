#include "lehr/pretrained/save_model.h"

#include <gmock/gmock.h>

#include "lehr/base/error.h"
#include "test/train/support.h"

namespace lehr::pretrained {
namespace {
using ::testing::HasSubstr;
using train::testing::checkpoint;
using train::testing::families;
using train::testing::Folder;
using train::testing::tensors;
using train::testing::tiny_run;
using train::testing::train;

TEST(SaveModel, WritesAFolderThatLoadsAsTheSameModel) {
  const Folder folder;
  const auto config = tiny_run(folder.path(), {{"training.steps", "4"}, {"validation.enable", "false"}});
  train(config);
  const ModelFolder trained = ModelFolder::open(checkpoint(config, 4), families());
  const auto model = trained.load(at::kCPU, at::kFloat);
  const auto output = folder.path() / "saved";
  const SaveOptions options{.output = output, .dtype = at::kBFloat16, .texts = {{"note.txt", "text"}}};
  save_model(*model, *trained.args, options);
  EXPECT_EQ(read_file(output / "note.txt"), "text");
  EXPECT_FALSE(std::filesystem::exists(output.string() + ".saving"));
  const auto before = tensors(checkpoint(config, 4), "model");
  const auto after = tensors(output, "model");
  ASSERT_EQ(after.size(), before.size());
  for (const auto& [name, tensor] : after) {
    EXPECT_EQ(tensor.scalar_type(), at::kBFloat16) << name;
    EXPECT_TRUE(at::equal(tensor, before.at(name).to(at::kBFloat16))) << name;
  }
  EXPECT_NE(ModelFolder::open(output, families()).load(at::kCPU, at::kFloat), nullptr);
  EXPECT_THAT(
      [&] { save_model(*model, *trained.args, options); },
      ::testing::ThrowsMessage<Error>(HasSubstr("exists already; name a new folder")));
}

}  // namespace
}  // namespace lehr::pretrained
