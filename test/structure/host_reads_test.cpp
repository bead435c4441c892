// The places where the host reads a tensor, in the code of a step. On a GPU each could make the host wait for the
// device, and tests on the CPU see a copy to the host as an ordinary copy; so a new place must be stated here.
#include <gmock/gmock.h>

#include <map>
#include <regex>
#include <string>

#include "tree.h"

namespace {

TEST(HostReads, OfAStepAreWhereTheyAreKnown) {
  const std::map<std::string, int> expected{
      {"lehr/nn/embedding.cpp", 5},                       // ids on the CPU; the error after late results
      {"lehr/nn/head.cpp", 1},                            // classifiers: one wait per micro-batch (docs/train.md)
      {"lehr/nn/rotary.cpp", 1},                          // position ids on the CPU
      {"lehr/nn/router_losses.cpp", 1},                   // sums on the CPU
      {"lehr/ops/attention/attention_meta.cpp", 1},       // only while a profile counts FLOPs
      {"lehr/ops/chunked_loss.cpp", 1},                   // gradients on the CPU
      {"lehr/ops/global_norm/global_norm.cpp", 3},        // a factor on the CPU
      {"lehr/ops/grouped_linear/grouped_linear.cpp", 1},  // groups on the CPU, and float32 on a GPU (docs/train.md)
      {"lehr/ops/grouped_linear/grouped_weight.cpp", 1},  // the same
      {"lehr/ops/grouped_linear/reference.cpp", 2},       // the same
      {"lehr/ops/grouped_linear_float8/grouped_linear_float8.cpp", 1},  // the trial at the start
      {"lehr/ops/label_rows.cpp", 2},                                   // an error of labels, which are on the host
      {"lehr/ops/linear_float8/linear_float8.cpp", 1},                  // the trial of float8 at the start
      {"lehr/optim/per_parameter.cpp", 2},                              // a divisor on the CPU; saved state
      {"lehr/optim/stochastic_rounding.cpp", 2},                        // numbers on the CPU
      {"lehr/shard/aten_rules_pointwise.cpp", 1},                       // a scalar argument
      {"lehr/shard/gradient_sync.cpp", 1},                              // offloaded gradients
      {"lehr/shard/replica_hashes.cpp", 2},                             // checks for silent corruption, every n steps
      {"lehr/train/step.cpp", 2},                                       // the results of a step, once copied
      {"lehr/train/step_again.cpp", 1},                                 // checks for silent corruption, every n steps
      {"lehr/train/step_work.cpp", 1},                                  // masks on the host
  };
  const std::regex reads(R"(\.cpu\(\)|\.item(<\w+>)?\(|to\(at::kCPU)");
  std::map<std::string, int> found;
  for (const std::string& name :
       files_below({"lehr/ops", "lehr/nn", "lehr/shard", "lehr/optim", "lehr/model", "lehr/train"}, {".cpp"})) {
    if (name.starts_with("lehr/train/") && !name.starts_with("lehr/train/step")) {
      continue;
    }
    const std::string text = read(kRoot / name);
    const auto count = std::distance(std::sregex_iterator(text.begin(), text.end(), reads), std::sregex_iterator());
    if (count > 0) {
      found[name] = static_cast<int>(count);
    }
  }
  EXPECT_EQ(found, expected);
}

}  // namespace
