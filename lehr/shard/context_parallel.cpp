#include "lehr/shard/context_parallel.h"

#include "lehr/base/error.h"
#include "lehr/nn/attention.h"
#include "lehr/nn/head.h"
#include "lehr/nn/low_rank_adapter.h"
#include "lehr/shard/context_attention.h"
#include "lehr/shard/context_delta.h"

namespace lehr::shard {

nn::ModelInputs take_context_part(const nn::ModelInputs& inputs, const mesh::DistributedContext& context) {
  const int64_t size = context.size(mesh::axis::cp);
  if (size == 1) {
    return inputs;
  }
  const int64_t index = context.index(mesh::axis::cp);
  require(
      inputs.caches == nullptr,
      "context parallelism: key/value caches hold whole sequences; generate with one cp rank");
  require(
      !inputs.attention_mask.allowed.defined() && !inputs.attention_mask.bias.defined(),
      "context parallelism: attention_mask.allowed and .bias are not supported; use document_ids and key_padding");
  require(
      !inputs.hidden_states_agg_mask.defined() && !inputs.hidden_states_snapshot.defined(),
      "parallelism.context_parallel_degree: a snapshot that averages the tokens of a sequence needs all of them on one "
      "rank; set it to 1");
  nn::ModelInputs part = inputs;
  if (!part.position_ids.defined()) {
    require(inputs.input_ids.defined(), "position_ids: required under context parallelism if there are no input_ids");
    part.position_ids = at::arange(inputs.input_ids.size(1), inputs.input_ids.options()).unsqueeze(0);
  }
  for (at::Tensor* tensor :
       {&part.input_ids,
        &part.position_ids,
        &part.labels,
        &part.future_ids,
        &part.future_labels,
        &part.pooling_mask,
        &part.token_mask,
        &part.attention_mask.document_ids,
        &part.attention_mask.key_padding}) {
    if (tensor->defined()) {
      *tensor = take_context_part(*tensor, 1, index, size);
    }
  }
  part.attention_mask.sequence_ends.reset();  // describe whole sequences, not a shard of one
  part.attention_mask.cumulative_lengths.reset();
  return part;
}

void parallelize_context(mesh::DistributedContext& context, torch::nn::Module& module, ContextParallelMethod method) {
  if (context.size(mesh::axis::cp) == 1) {
    return;
  }
  const mesh::Group& group = context.group(mesh::axis::cp);
  if (method == ContextParallelMethod::ring) {
    std::vector<mesh::DistributedContext::Route> routes;
    for (int64_t rank = 0; rank < group.size(); ++rank) {
      routes.push_back({.from = rank, .to = (rank + 1) % group.size()});
    }
    context.connect_messages(group, routes);
  }
  const auto attend = method == ContextParallelMethod::ring ? ring_attention : all_gather_attention;
  const auto require_plain = [](bool has_own, const torch::nn::Module& one) {
    require(!has_own, "context parallelism: module {} has its own attention core", one.name());
  };
  const auto replace_core = [&](torch::nn::Module& one) {
    if (auto* attention = dynamic_cast<nn::HasAttentionCore*>(&one)) {
      require_plain(attention->has_own_attention_core(), one);
      attention->set_attention_core(
          [&group, attend](
              const at::Tensor& q,
              const at::Tensor& k,
              const at::Tensor& v,
              const ops::AttentionMask& mask,
              const ops::AttentionOptions& options) { return attend(q, k, v, mask, options, group); });
    } else if (auto* linear = dynamic_cast<nn::HasLinearAttentionCore*>(&one)) {
      require_plain(linear->has_own_core(), one);
      linear->set_core([&group](const nn::LinearAttentionStreams& streams, const ops::AttentionMask& mask) {
        return context_gated_delta(streams, mask, group);
      });
    }
  };
  replace_core(module);
  for (const auto& below : module.modules(/*include_self=*/false)) {
    replace_core(*below);
  }
}

void follow_whole_sequences(const mesh::DistributedContext& context, const torch::nn::Module& root) {
  const int64_t ranks = context.size(mesh::axis::cp), rank = context.index(mesh::axis::cp);
  if (ranks == 1) {
    return;
  }
  for (const auto& module : root.modules(/*include_self=*/false)) {
    if (auto* adapter = dynamic_cast<nn::LowRankAdapter*>(module.get())) {
      adapter->set_sequence_chunks({context_chunk(0, rank, ranks), context_chunk(1, rank, ranks)});
    }
    if (auto* classifier = dynamic_cast<nn::ClassificationHeadImpl*>(module.get())) {
      classifier->set_sequence_chunks({context_chunk(0, rank, ranks), context_chunk(1, rank, ranks)});
    }
  }
}

void share_largest_position(mesh::DistributedContext& context, nn::RotaryEmbeddingProvider& rope) {
  if (context.size(mesh::axis::cp) > 1 && rope.depends_on_length()) {
    const mesh::Group& group = context.group(mesh::axis::cp);
    rope.set_largest_over_ranks([&group](const at::Tensor& largest) { group.all_reduce_max(largest); });
  }
}

}  // namespace lehr::shard
