#include "lehr/plan/peer_design.h"

#include "lehr/mesh/distributed_context.h"

namespace lehr::plan {

namespace {
// Communication: what overlaps, and how many bytes are sent.
void communication_fields(FieldVisitor& v, PeerDesign& peer) {
  v.optional(
      "tensor_parallel_overlap",
      peer.tensor_parallel_overlap,
      "Fraction of the time of tensor-parallel collectives that overlaps with matmuls (async TP).",
      between(0, 1));
  v.optional(
      "context_parallel_overlap",
      peer.context_parallel_overlap,
      "Fraction of the time of the exchange of keys and values that overlaps with attention.",
      between(0, 1));
  v.optional(
      "expert_parallel_overlap",
      peer.expert_parallel_overlap,
      "Fraction of the time of all-to-alls that overlaps with another micro-batch.",
      between(0, 1));
  v.optional(
      "dispatch_bytes",
      peer.dispatch_bytes,
      "Bytes of all-to-alls over those of Lehr: below 1 if a token is sent once to a node that has several of its "
      "experts.",
      positive());
  v.optional(
      "sharding_overlap",
      peer.sharding_overlap,
      "Part of machine.communication_overlap that holds for what is in flight while a rank computes: collectives of "
      "parameters and gradients, and messages between stages; 0: none of it overlaps.",
      between(0, 1));
  v.optional(
      "replicate_bytes",
      peer.replicate_bytes,
      "Bytes of the all-reduces of replicas over those of Lehr: 0.5 for gradients in bfloat16.",
      positive());
  v.optional(
      "tensor_parallel_gather_bytes",
      peer.tensor_parallel_gather_bytes,
      "Bytes of tensor-parallel all-gathers over those of Lehr: 0.5 for float8 instead of bfloat16.",
      positive());
  v.optional(
      "context_parallel_bytes",
      peer.context_parallel_bytes,
      "Bytes of the exchange of keys and values over those of Lehr: above 1 if they are repeated for all heads.",
      positive());
}
}  // namespace

void PeerDesign::fields(FieldVisitor& v) {
  communication_fields(v, *this);
  v.optional(
      "pointwise_bytes",
      pointwise_bytes,
      "Bytes that memory-bound operators move over those of Lehr's fused ones: above 1 for eager operators.",
      positive());
  v.optional(
      "gathers_once",
      gathers_once,
      "Parameters are all-gathered once per step instead of for each micro-batch, even without a pipeline (ZeRO-1).");
  v.optional(
      "accumulates_in_matmul",
      accumulates_in_matmul,
      "The matmul of a weight's gradient adds to the gradient in float32, without a copy in between.");
  v.optional(
      "logit_bytes",
      logit_bytes,
      "Bytes per logit of a whole micro-batch that are held at once; 0: the loss is computed in chunks, as in Lehr.",
      at_least(0));
  v.optional("gathered_logits", gathered_logits, "Each tensor-parallel rank holds the logits of the whole vocabulary.");
  v.optional(
      "whole_embedding",
      whole_embedding,
      "Each tensor-parallel rank holds the whole embedding table, its gradient and its optimizer state.");
  v.optional(
      "stops_recompute",
      stops_recompute,
      "Recomputation of a dense layer ends at the last activation that backward needs, before the down projection.");
  v.optional(
      "context_merge_bytes",
      context_merge_bytes,
      "Bytes per element of the queries that merging moves, for each piece of a context-parallel sequence and each "
      "forward's worth of attention.",
      at_least(0));
  v.optional(
      "cuda_graphs",
      cuda_graphs,
      "CUDA graphs capture routing and its preparation: MoE layers have no machine.expert_layer_overhead_us.");
  v.optional("float8", float8, "Linear layers compute in float8 on any mesh.");
  v.optional("float8_experts", float8_experts, "Experts compute in float8, too.");
}

double PeerDesign::overlap(const std::string& axes) const {
  return axes == mesh::axis::tp   ? tensor_parallel_overlap
         : axes == mesh::axis::cp ? context_parallel_overlap
         : axes == mesh::axis::ep ? expert_parallel_overlap
                                  : 0;
}

}  // namespace lehr::plan
