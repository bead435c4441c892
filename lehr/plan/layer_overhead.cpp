#include "lehr/plan/layer_overhead.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/randn.h>

#include <algorithm>
#include <vector>

#include "lehr/nn/attention.h"
#include "lehr/nn/residual_stream.h"
#include "lehr/nn/swiglu.h"

namespace lehr::plan {

namespace {
constexpr int64_t kHidden = 32, kTokens = 16, kHeads = 2;
constexpr size_t kLayers = 8;

// The layer that most families have: norms before attention and before the FFN.
struct Layer {
  nn::GroupedQueryAttention attention{nn::GroupedQueryAttentionParameters{
      .hidden_size = kHidden,
      .num_attention_heads = kHeads,
      .num_key_value_heads = kHeads,
      .head_dim = kHidden / kHeads}};
  nn::SwiGLU ffn{kHidden, 2 * kHidden};
  nn::RMSNorm first{kHidden};
  nn::RMSNorm second{kHidden};

  Layer() {
    for (nn::Module* module :
         std::initializer_list<nn::Module*>{attention.get(), ffn.get(), first.get(), second.get()}) {
      nn::materialize(*module, at::kCPU, at::kFloat);
      module->reset_parameters();
    }
  }
  at::Tensor operator()(const at::Tensor& x, const nn::PositionEmbeddings& positions) {
    nn::ResidualStream stream(x);
    stream.add(attention(stream.normed(first), positions));
    stream.add(ffn(stream.normed(second)));
    return stream.hidden_states();
  }
};
}  // namespace

double layer_overhead(double seconds, const metric::ThroughputMeter::Clock& clock) {
  std::vector<Layer> layers(kLayers);
  const nn::RotaryEmbeddingProvider rope(10000, kHidden / kHeads);
  const nn::PositionEmbeddings positions = rope(at::arange(kTokens, at::kLong).unsqueeze(0), at::kFloat);
  const at::Tensor input = at::randn({1, kTokens, kHidden});
  const auto step = [&] {
    const double begin = clock();
    at::Tensor x = input;
    for (Layer& layer : layers) {
      x = layer(x, positions);
    }
    const double forward = clock() - begin;
    const at::Tensor loss = x.sum();
    const double middle = clock();
    loss.backward();
    return forward + (clock() - middle);
  };
  double least = step();  // warm-up: the first one allocates
  for (const double deadline = clock() + seconds; clock() < deadline;) {
    least = std::min(least, step());
  }
  return least / 2 / static_cast<double>(kLayers);
}

}  // namespace lehr::plan
