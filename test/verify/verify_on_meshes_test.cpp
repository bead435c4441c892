// lehr verify on a mesh computes the outputs and gradients of one device.
#include <gmock/gmock.h>

#include <mutex>

#include "lehr/base/error.h"
#include "lehr/state/safetensors_writer.h"
#include "lehr/verify/verify.h"
#include "test/train/mesh_support.h"

namespace lehr::verify {
namespace {

using ::testing::HasSubstr;
using ::testing::ThrowsMessage;
using train::testing::every_nth;
using train::testing::Mesh;

VerifyOptions options_of(const std::string& name) {
  return {
      .model = std::filesystem::path(LEHR_SOURCE_DIR) / "test/data/reference" / name,
      .reference = {},
      .dtype = at::kDouble};
}

// The report of each rank.
std::vector<VerifyReport> reports_of(const Mesh& mesh, const VerifyOptions& options) {
  const train::ParallelismConfig parallelism = train::testing::with_degrees({}, mesh).parallelism;
  std::vector<VerifyReport> reports;
  std::mutex mutex;
  mesh::run_ranks(
      mesh.world(),
      [&](mesh::Transport& transport) {
        const train::Ranks ranks(parallelism, &transport);
        VerifyReport report = verify_on_ranks(options, train::testing::specs(), parallelism, ranks);
        const std::lock_guard lock(mutex);
        reports.push_back(std::move(report));
      },
      std::chrono::seconds(60));
  return reports;
}

// The tensors of training steps and of router losses, and those that stages do not have.
bool is_left_out(const std::string& name, bool staged) {
  const auto starts = [&](const char* prefix) { return name.starts_with(prefix); };
  return starts("grad_with_aux:") || starts("train_") || starts("final_param:") || starts("aux_loss") ||
         starts("loss_with_aux") ||
         (staged && (starts("grad:") || starts("hidden.") || starts("router_logits.") || starts("topk_index.")));
}

struct Case {
  const char* reference;
  std::vector<Mesh> meshes;
};
const std::vector<Mesh> kDense{
    {.dp_shard = 2},
    {.dp_shard = 4},
    {.tp = 2},
    {.pp = 2},
    {.dp_shard = 2, .tp = 2},
    {.tp = 2, .pp = 2},
    {.dp_shard = 2, .pp = 2},
    {.dp_shard = 2, .tp = 2, .pp = 2}};
const std::vector<Mesh> kExperts{
    {.dp_shard = 2, .ep = 2},
    {.dp_shard = 4, .ep = 2},
    {.dp_shard = 4, .ep = 4},
    {.tp = 2},
    {.tp = 2, .ep = 2},
    {.pp = 2},
    {.dp_shard = 2, .tp = 2, .ep = 4},
    {.dp_shard = 2, .ep = 2, .pp = 2}};

const std::vector<Mesh> kThree{{.dp_shard = 2}, {.dp_shard = 2, .tp = 2}, {.tp = 2, .pp = 2}};
const std::vector<Mesh> kThreeWithExperts{
    {.dp_shard = 4, .ep = 2}, {.tp = 2, .ep = 2}, {.dp_shard = 2, .ep = 2, .pp = 2}};

// The long lists by halves unless LEHR_ALL_MESHES=1.
class VerifyOnMeshes : public ::testing::TestWithParam<Case> {};
INSTANTIATE_TEST_SUITE_P(
    References,
    VerifyOnMeshes,
    ::testing::Values(
        Case{"qwen3_tied_v4config", every_nth(2, kDense)},
        Case{"llama_rope_llama3", every_nth(2, kDense, 1)},
        Case{"qwen3_seqcls", every_nth(2, kDense)},
        Case{"qwen3_tokcls", kThree},
        Case{"qwen3moe_sparse_step2", every_nth(2, kExperts, 1)},
        Case{
            "deepseek_v3_yarn",
            {{.dp_shard = 2, .ep = 2}, {.dp_shard = 4, .ep = 4}, {.pp = 2}, {.dp_shard = 2, .ep = 2, .pp = 2}}},
        Case{"qwen2_yarn", kThree},
        Case{"mistral_full", kThree},
        Case{"olmo2", kThree},
        Case{"olmo3_two_bases", kThree},
        Case{"qwen3_5_chunks", {{.dp_shard = 2}, {.pp = 2}, {.dp_shard = 2, .pp = 2}}},
        Case{
            "qwen3_5_moe_fused",
            {{.dp_shard = 2, .ep = 2}, {.dp_shard = 4, .ep = 4}, {.dp_shard = 2, .ep = 2, .pp = 2}}},
        Case{"smollm3_layers", kThree},
        Case{"gemma3_linear", kThree},
        Case{"gemma4_dense", {{.tp = 2}, {.dp_shard = 2, .tp = 2}, {.tp = 2, .pp = 2}}},
        Case{
            "gemma4_small",
            {{.dp_shard = 2}, {.tp = 2}, {.pp = 2}, {.pp = 3}, {.dp_shard = 2, .pp = 2}, {.tp = 2, .pp = 2}}},
        Case{"gemma4_experts", {{.dp_shard = 4, .ep = 2}, {.dp_shard = 2, .ep = 2, .pp = 2}}},
        Case{"mixtral_experts", {{.dp_shard = 4, .ep = 2}, {.dp_shard = 2, .ep = 2, .pp = 2}}},
        Case{"gpt_oss_clamp", {{.tp = 2}, {.dp_shard = 2, .tp = 2}, {.tp = 2, .pp = 2}}},
        Case{"gpt_oss_yarn", {{.dp_shard = 4, .ep = 2}, {.dp_shard = 2, .ep = 2, .pp = 2}}},
        Case{"glm4_moe_air", kThreeWithExperts},
        Case{"minimax_m2_table", {{.tp = 2}, {.dp_shard = 2, .tp = 2}, {.tp = 2, .pp = 2}}},
        Case{
            "qwen3_next_chunks",
            {{.dp_shard = 2, .ep = 2}, {.dp_shard = 4, .ep = 2}, {.dp_shard = 2, .ep = 2, .pp = 2}}}),
    [](const auto& one) { return std::string(one.param.reference); });

TEST_P(VerifyOnMeshes, ComputesTheResultsOfOneDevice) {
  const VerifyOptions options = options_of(GetParam().reference);
  const VerifyReport wanted = verify_folder(options, train::testing::families());
  for (const Mesh& mesh : GetParam().meshes) {
    SCOPED_TRACE(mesh.name());
    for (const VerifyReport& report : reports_of(mesh, options)) {
      EXPECT_TRUE(report.ok()) << format_report(report);
      for (const auto& [name, value] : wanted.computed) {
        if (is_left_out(name, mesh.pp > 1)) {
          EXPECT_FALSE(report.computed.contains(name)) << name;
          continue;
        }
        ASSERT_TRUE(report.computed.contains(name)) << name;
        const at::Tensor& found = report.computed.at(name);
        ASSERT_EQ(found.sizes(), value.sizes()) << name;
        const double scale = value.to(at::kDouble).abs().max().item<double>();
        EXPECT_LE((found - value).abs().max().item<double>(), train::testing::kTolerance * scale) << name;
      }
    }
  }
}

// Sequences of odd length are padded for tensor parallelism, and the padding is in no result.
TEST(VerifyOnMeshes, PadsSequencesOfAnyLength) {
  VerifyOptions options = options_of("qwen3_tied_v4config");
  const auto oracle = train::testing::tensors(options.model / "oracle.safetensors", "");
  const train::testing::Folder folder;
  options.reference = folder.path() / "oracle.safetensors";
  state::save_safetensors(
      *options.reference,
      {{"input_ids", oracle.at("input_ids").narrow(1, 0, 23).contiguous()},
       {"logits_f64", oracle.at("logits_f64").narrow(1, 0, 23).contiguous()},
       {"logps", oracle.at("logps").narrow(1, 0, 22).contiguous()},
       {"hidden.2", oracle.at("hidden.2").narrow(1, 0, 23).contiguous()}});
  for (const Mesh& mesh : {Mesh{.tp = 2}, Mesh{.tp = 4}, Mesh{.tp = 2, .pp = 2}}) {
    SCOPED_TRACE(mesh.name());
    for (const VerifyReport& report : reports_of(mesh, options)) {
      EXPECT_EQ(report.rows.size(), mesh.pp > 1 ? 2U : 3U);
      EXPECT_TRUE(report.ok()) << format_report(report);
    }
  }
}

// A difference is found on every rank, so that all exit alike.
TEST(VerifyOnMeshes, FindTheDifferenceOnEveryRank) {
  VerifyOptions options = options_of("qwen3_tied_v4config");
  options.atol = 0;
  for (const Mesh& mesh : {Mesh{.tp = 2}, Mesh{.pp = 2}}) {
    for (const VerifyReport& report : reports_of(mesh, options)) {
      EXPECT_FALSE(report.ok());
      EXPECT_THAT(report.left_out, ::testing::Contains("train_input_ids"));
    }
  }
}

TEST(VerifyOnMeshes, RefuseRanksWithoutWholeSequencesAndReplicas) {
  const VerifyOptions options = options_of("qwen3_tied_v4config");
  EXPECT_THAT(
      [&] { reports_of({.cp = 2}, options); },
      ThrowsMessage<Error>(HasSubstr("parallelism.context_parallel_degree: ")));
  EXPECT_THAT(
      [&] { reports_of({.dp_replicate = 2}, options); },
      ThrowsMessage<Error>(HasSubstr("parallelism.data_parallel_replicate_degree: ")));
}

}  // namespace
}  // namespace lehr::verify
