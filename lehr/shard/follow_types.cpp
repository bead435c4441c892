#include "lehr/shard/follow_types.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/library.h>

#include "lehr/base/error.h"
#include "lehr/meter/operator_watch.h"
#include "lehr/shard/aten_call.h"
#include "lehr/shard/stated_rules.h"

namespace lehr::shard {

namespace {
// Tells a checker about Lehr's own operators and the modules that run.
class CheckerWatch final : public OperatorWatch {
 public:
  explicit CheckerWatch(TypeChecker& checker) : checker_(checker) {}
  TypeChecker& checker() { return checker_; }

  at::Tensor state(const Statement& statement) override {
    const at::Tensor output = at::empty(statement.shape, at::TensorOptions(at::kMeta).dtype(statement.dtype));
    try {
      checker_.set(output, stated_type(checker_, statement));
    } catch (const Error& error) {
      checker_.fail_at(statement.name, error.what());
    }
    return output;
  }
  void enter(const torch::nn::Module& module) override { checker_.enter(module); }
  void leave() override { checker_.leave(); }

 private:
  TypeChecker& checker_;
};

// A dispatch key that LibTorch reserves for test modes: no tensor has it, and nothing else in LibTorch uses it.
constexpr auto kFollowed = c10::DispatchKey::TESTING_ONLY_GenericMode;

void follow(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
  auto* watch = dynamic_cast<CheckerWatch*>(operator_watch());
  const auto run = [&] {
    const c10::impl::ExcludeDispatchKeyGuard unseen(kFollowed);
    op.callBoxed(stack);
  };
  if (watch == nullptr) {
    return run();
  }
  TypeChecker& checker = watch->checker();
  AtenCall call(checker, op, *stack);
  const bool all_the_same = call.operands().empty();
  if (all_the_same) {
    return run();
  }
  const auto rule = aten_rules().find(call.name());
  if (rule == aten_rules().end()) {
    if (op.hasKernelForDispatchKey(c10::DispatchKey::CompositeImplicitAutograd)) {
      op.redispatchBoxed(keys & c10::DispatchKeySet(c10::DispatchKeySet::FULL_AFTER, kFollowed), stack);
      return;
    }
    checker.fail_at(
        call.name(),
        "there is no rule for the layouts of this operator; use operators that have one (docs/parallelism.md, Typed "
        "layouts), or state its placements (meter/operator_watch.h)");
  }
  try {
    rule->second(call);
  } catch (const Error& error) {
    checker.fail_at(call.name(), error.what());
  }
}

// Registers the fallback once per process. It has no effect on threads that do not include the key.
void catch_operators() {
  static const auto library = [] {
    auto made = std::make_unique<torch::Library>(torch::Library::IMPL, "_", kFollowed, __FILE__, __LINE__);
    made->fallback(torch::CppFunction::makeFromBoxedFunction<&follow>());
    return made;
  }();
}
}  // namespace

struct FollowTypes::Guards {
  explicit Guards(TypeChecker& followed) : checker(followed), watch(checker), follow(kFollowed) {}
  CheckerWatch checker;
  WatchOperators watch;
  at::NoGradGuard no_grad;
  c10::impl::IncludeDispatchKeyGuard follow;
};

FollowTypes::FollowTypes(TypeChecker& checker) {
  catch_operators();
  guards_ = std::make_unique<Guards>(checker);
}

FollowTypes::~FollowTypes() = default;

}  // namespace lehr::shard
