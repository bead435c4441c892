// Gradients are summed over exactly the axes on which they are partial, even if only some ranks have one.
#include "lehr/shard/gradient_sync.h"

#include <gtest/gtest.h>

#include "lehr/shard/ownership.h"
#include "tiny_stack.h"

namespace lehr::shard {
namespace {

class PiecesImpl : public nn::Module {
 public:
  PiecesImpl() {
    declare_parameter("everywhere", everywhere, {3}, nn::Init::zeros());
    declare_parameter("cut", cut, {4}, nn::Init::zeros());
    declare_parameter("same", same, {2}, nn::Init::zeros());
    declare_parameter("expert", expert, {2, 2}, nn::Init::zeros());
    declare_parameter("rare", rare, {2}, nn::Init::zeros());
    declare_parameter("idle", idle, {3}, nn::Init::zeros());
    declare_parameter("frozen", frozen, {3}, nn::Init::zeros())->set_trainable(false);
  }
  at::Tensor everywhere, cut, same, expert, rare, idle, frozen;
};

TEST(GradientSync, SumsOverTheAxesThatHoldReplicas) {
  // Ranks are dp_replicate x dp_shard x tp; experts use dp_shard x tp as ep_shard x ep.
  const mesh::DeviceMeshParameters mesh{
      .data_parallel_replicate = 2, .data_parallel_shard = 2, .tensor_parallel = 2, .expert_parallel = 2};
  for (const int64_t bucket_bytes : {1, 30, 1 << 20}) {
    for (const bool early : {false, true}) {
      on_mesh(mesh, [&](mesh::DistributedContext& context) {
        PiecesImpl pieces;
        const auto lay_out = [&](const char* name, const char* axis, Placement placement) {
          pieces.own_parameter(name)->lay_out(axis, placement, context.index(axis), context.size(axis));
        };
        lay_out("cut", "tp", Placement::shard(0));
        lay_out("cut", "fsdp", Placement::shard(0));
        lay_out("same", "tp", Placement::invariant());
        lay_out("expert", "ep", Placement::shard(0));
        for (const auto& parameter : pieces.own_parameters()) {
          replicate_elsewhere(*parameter, context);
        }
        const auto named = nn::named_parameters(pieces);
        GradientSync sync(context, named, bucket_bytes);
        nn::materialize(pieces, at::kCPU, at::kDouble);
        const auto gradient = [&](const char* name) { return pieces.own_parameter(name)->value().grad(); };
        for (int step = 0; step < 2; ++step) {
          for (const auto& [name, parameter] : named) {
            at::Tensor value = parameter->value();
            value.mutable_grad().reset();
            const bool has = name != "idle" && name != "frozen" && (name != "rare" || context.rank() == 5);
            if (has) {
              value.mutable_grad() = at::full_like(value, std::pow(10.0, static_cast<double>(context.rank())));
            }
            if (early && name != "cut") {
              sync.ready(*parameter);
            }
          }
          sync.finish();
          const auto expect = [&](const char* name, double sum) {
            EXPECT_TRUE(at::equal(gradient(name), at::full_like(gradient(name), sum))) << name << gradient(name);
          };
          expect("everywhere", 11111111);
          expect("cut", std::vector<double>{10001, 100010, 1000100, 10001000}[static_cast<size_t>(context.rank() % 4)]);
          expect("same", context.rank() % 2 == 0 ? 1010101 : 10101010);
          expect("expert", context.rank() % 2 == 0 ? 1010101 : 10101010);
          expect("rare", 100000);
          EXPECT_FALSE(gradient("idle").defined());
          EXPECT_FALSE(gradient("frozen").defined());
        }
      });
    }
  }
}

}  // namespace
}  // namespace lehr::shard
