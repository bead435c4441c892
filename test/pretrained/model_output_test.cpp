#include "lehr/pretrained/model_output.h"

#include <gtest/gtest.h>

#include "lehr/base/file.h"
#include "lehr/config/json.h"
#include "test/train/support.h"

namespace lehr::pretrained {
namespace {
using train::testing::Folder;

TEST(ConfigText, IsThatOfTheSourceUnlessAValueDiffers) {
  const Folder folder;
  const auto source = folder.path() / "config.json";
  const std::string text = "{\"hidden_size\":   64,\n\n\"rms_norm_eps\": 1e-06}";
  write_file_atomically(source, text);
  Node config = parse_json_file(source);
  EXPECT_EQ(config_text(source, config), text);
  config.set("hidden_size", Node(int64_t{32}));
  EXPECT_EQ(config_text(source, config), to_json(config, true) + "\n");
}

}  // namespace
}  // namespace lehr::pretrained
