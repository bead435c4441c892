// A small language model built from the blocks of lehr/nn, with awkward sizes, and its training on one device or many.
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <map>

#include "lehr/nn/activation_checkpoint.h"
#include "lehr/nn/head.h"
#include "lehr/nn/rms_norm.h"
#include "lehr/nn/swiglu.h"
#include "lehr/shard/fully_shard.h"
#include "test/shard/one_device.h"

namespace lehr::shard {

using test::on_mesh;

constexpr int64_t kHidden = 3;
constexpr int64_t kIntermediate = 5;
constexpr int64_t kVocabulary = 7;
constexpr int64_t kSpecial = 6;  // the token that the expert of a block is for

struct StackOptions {
  int64_t layers = 3;
  bool checkpoint = false;
  bool tied = false;
  std::vector<size_t> order = {};  // in which layers are called; by default each once
};

// x + mlp(norm(x)), and an expert for the chosen tokens only: without such tokens, its weight gets no gradient. `idle`
// is never used.
class BlockImpl : public nn::Module {
 public:
  BlockImpl() {
    norm = register_module("norm", nn::RMSNorm(kHidden));
    mlp = register_module("mlp", nn::SwiGLU(kHidden, kIntermediate, nn::Init::normal(0.5)));
    expert = register_module("expert", nn::Linear(kHidden, kHidden, nn::Init::normal(0.5), /*bias=*/true));
    idle = register_module("idle", nn::Linear(kHidden, 2));
  }
  at::Tensor forward(const at::Tensor& x, const at::Tensor& chosen) {
    const at::Tensor y = x + mlp(norm(x));
    const at::Tensor rows = chosen.flatten().nonzero().flatten();
    if (rows.size(0) == 0) {
      return y;
    }
    const at::Tensor flat = y.reshape({-1, kHidden});
    return flat.index_add(0, rows, expert(flat.index_select(0, rows))).view(y.sizes());
  }
  nn::RMSNorm norm{nullptr};
  nn::SwiGLU mlp{nullptr};
  nn::Linear expert{nullptr};
  nn::Linear idle{nullptr};
};
LEHR_MODULE(Block);

class Stack : public nn::Module {
 public:
  explicit Stack(const StackOptions& options) : options_(options) {
    const nn::SplitVocabulary vocabulary{.sizes = {{"all", kVocabulary}}, .order = {"all"}};
    embed = register_module("embed", nn::SplitTokenEmbeddings(vocabulary, kHidden, nn::Init::normal(0.7)));
    for (int64_t i = 0; i < options.layers; ++i) {
      layers.push_back(register_module("layer" + std::to_string(i), Block()));
    }
    norm = register_module("norm", nn::RMSNorm(kHidden));
    head = register_module("head", nn::SplitLanguageModellingHead(vocabulary, kHidden, nn::Init::normal(0.5)));
    if (options.tied) {
      head->tie_to(*embed);
    }
  }

  // The sum of the losses of all tokens.
  at::Tensor loss(const at::Tensor& ids, const at::Tensor& labels) {
    at::Tensor x = embed(ids);
    const at::Tensor chosen = ids == kSpecial;
    std::vector<size_t> order = options_.order;
    for (size_t i = 0; i < layers.size() && options_.order.empty(); ++i) {
      order.push_back(i);
    }
    for (const size_t i : order) {
      const auto block = [current = layers[i], chosen](const at::Tensor& input) { return current(input, chosen); };
      x = options_.checkpoint ? nn::checkpoint(block, x) : block(x);
    }
    return head(norm(x), labels).sum();
  }

  std::vector<UnitModules> units() const {
    std::vector<UnitModules> list;
    if (options_.tied) {
      list.push_back({"embeddings and head", {embed.ptr(), head.ptr()}});
    } else {
      list.push_back({"embeddings", {embed.ptr()}});
    }
    for (size_t i = 0; i < layers.size(); ++i) {
      list.push_back({"layer" + std::to_string(i), {layers[i].ptr()}});
    }
    if (options_.tied) {
      list.push_back({"norm", {norm.ptr()}});
    } else {
      list.push_back({"norm and head", {norm.ptr(), head.ptr()}});
    }
    return list;
  }

  nn::SplitTokenEmbeddings embed{nullptr};
  std::vector<Block> layers;
  nn::RMSNorm norm{nullptr};
  nn::SplitLanguageModellingHead head{nullptr};

 private:
  StackOptions options_;
};

struct Rows {
  at::Tensor ids;     // (B, T)
  at::Tensor labels;  // (B, T)
};

// The special token is in the first sequence only.
inline Rows make_rows(int64_t count, int64_t step) {
  const at::Tensor index = at::arange(count * 4, at::kLong).view({count, 4}) + 5 * step;
  at::Tensor ids = (index * index + index.div(3, "floor")) % kSpecial;
  ids[0][1] = kSpecial;
  at::Tensor labels = (index * 3 + 1) % kVocabulary;
  labels[count - 1][2] = nn::kIgnoreIndex;
  return {ids, labels};
}

inline Rows rows_of(const Rows& rows, int64_t first, int64_t count) {
  return {rows.ids.narrow(0, first, count), rows.labels.narrow(0, first, count)};
}

// The result of a training on one device: whole tensors by name; gradients of the last step.
struct Trained {
  std::vector<double> losses;
  std::map<std::string, at::Tensor> values;
  std::map<std::string, at::Tensor> gradients;
};

constexpr int64_t kRows = 16;
constexpr int64_t kSteps = 3;
constexpr double kRate = 0.05;

inline void update(torch::nn::Module& model) {
  const at::NoGradGuard no_grad;
  for (const auto& [name, parameter] : nn::named_parameters(model)) {
    at::Tensor value = parameter->value();
    if (value.grad().defined()) {
      value.sub_(value.grad(), kRate);
    }
  }
}

inline void clear_gradients(torch::nn::Module& model) {
  for (const auto& [name, parameter] : nn::named_parameters(model)) {
    at::Tensor value = parameter->value();
    value.mutable_grad().reset();
  }
}

constexpr double kTolerance = 1e-12;  // relative, in float64: only the order of sums differs

using Prepare = std::function<void(Stack&)>;

inline Trained train_on_one_device(const StackOptions& options, const Prepare& prepare = {}) {
  Stack model(options);
  if (prepare) {
    prepare(model);
  }
  nn::materialize(model, at::kCPU, at::kDouble);
  model.reset_parameters({.seed = 3});
  Trained trained;
  for (int64_t step = 0; step < kSteps; ++step) {
    clear_gradients(model);
    const Rows rows = make_rows(kRows, step);
    const at::Tensor loss = model.loss(rows.ids, rows.labels) / (4 * kRows - 1);
    loss.backward();
    trained.losses.push_back(loss.item<double>());
    update(model);
  }
  for (const auto& [name, parameter] : nn::named_parameters(model)) {
    trained.values[name] = parameter->value().detach();
    trained.gradients[name] = parameter->value().grad();
  }
  return trained;
}

inline const FullyShardOptions kDouble{.compute = at::kDouble, .reduce = at::kDouble};

// One step on a rank: the gradients of its sequences, summed. Returns the loss over all ranks.
inline double step_on_rank(
    mesh::DistributedContext& context, Stack& model, FullySharded& sharded, int64_t step, int64_t microbatches) {
  const int64_t mine = kRows / context.data_parallel_size();
  const int64_t rows = mine / microbatches;
  const Rows all = make_rows(kRows, step);
  clear_gradients(model);
  sharded.begin_step();
  at::Tensor total = at::zeros({}, at::kDouble);
  for (int64_t i = 0; i < microbatches; ++i) {
    const Rows part = rows_of(all, context.data_parallel_rank() * mine + i * rows, rows);
    sharded.set_last_microbatch(i + 1 == microbatches);
    const at::Tensor loss = model.loss(part.ids, part.labels) / (4 * kRows - 1);
    loss.backward();
    sharded.finish_backward();
    total += loss.detach();
  }
  context.world().all_reduce(total);
  return total.item<double>();
}

// Values and gradients are those of one device, relative to the largest number of the whole tensor.
inline void expect_equal(torch::nn::Module& model, const Trained& expected) {
  const at::NoGradGuard no_grad;
  const auto difference = [](const at::Tensor& part, const at::Tensor& whole, const Box& box) {
    return part.numel() == 0
               ? 0
               : ((part - narrow_to(whole, box)).abs().max() / whole.abs().max().clamp_min(1e-3)).item<double>();
  };
  for (const auto& [name, parameter] : nn::named_parameters(model)) {
    const at::Tensor &value = parameter->value(), &gradient = expected.gradients.at(name);
    EXPECT_LT(difference(value, expected.values.at(name), parameter->box()), kTolerance) << name;
    ASSERT_EQ(value.grad().defined(), gradient.defined()) << name;
    if (gradient.defined()) {
      EXPECT_EQ(value.grad().device(), value.device());
      EXPECT_LT(difference(value.grad(), gradient, parameter->box()), kTolerance) << name;
    }
  }
}

// One step on a rank; returns the loss over all ranks.
using Step =
    std::function<double(mesh::DistributedContext& context, Stack& model, FullySharded& sharded, int64_t step)>;

inline void expect_equal_to_one_device(
    const mesh::DeviceMeshParameters& mesh,
    const StackOptions& stack,
    const FullyShardOptions& options,
    const Prepare& prepare,
    const Step& step_on_one) {
  SCOPED_TRACE(mesh.describe());
  const Trained expected = train_on_one_device(stack, prepare);
  on_mesh(mesh, [&](mesh::DistributedContext& context) {
    Stack model(stack);
    if (prepare) {
      prepare(model);
    }
    FullySharded sharded = fully_shard(context, model, model.units(), options);
    nn::materialize(model, at::kCPU, at::kDouble);
    model.reset_parameters({.seed = 3});
    for (int64_t step = 0; step < kSteps; ++step) {
      const double loss = step_on_one(context, model, sharded, step);
      EXPECT_NEAR(loss, expected.losses[static_cast<size_t>(step)], kTolerance * loss) << step;
      update(model);
    }
    EXPECT_EQ(sharded.gathered_bytes(), 0);
    expect_equal(model, expected);
  });
}

}  // namespace lehr::shard
