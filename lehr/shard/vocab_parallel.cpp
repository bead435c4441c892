#include "lehr/shard/vocab_parallel.h"

#include "lehr/base/error.h"
#include "lehr/mesh/collectives.h"
#include "lehr/shard/tensor_parallel.h"
#include "lehr/shard/vocab_parallel_kl.h"
#include "lehr/shard/vocab_parallel_loss.h"

namespace lehr::shard {

namespace {
using mesh::DistributedContext;
using mesh::Group;

// Lays out a segment's weight, and returns the global ids of this rank's rows; the segment's ids begin at `first`.
Range share_rows(nn::Parameter& weight, int64_t first, const DistributedContext& context) {
  const int64_t index = context.index(mesh::axis::tp), ranks = context.size(mesh::axis::tp);
  const Placement rows = Placement::shard(0);
  if (const Placement* tied = weight.layout().find(mesh::axis::tp)) {
    require(*tied == rows, "tie_word_embeddings: embeddings are {} on axis tp, not shard(0)", describe(*tied));
  } else {
    weight.lay_out(mesh::axis::tp, rows, index, ranks);
  }
  return chunk({first, first + weight.shape()[0]}, index, ranks);
}

class LookUpOwnRows : public nn::CallHook {
 public:
  LookUpOwnRows(nn::SplitTokenEmbeddingsImpl& embeddings, std::vector<Range> rows, const Group& group)
      : embeddings_(embeddings), rows_(std::move(rows)), group_(group) {}

  at::Tensor call(const at::Tensor& ids, const Forward&) override {
    const at::Tensor input_ids = embeddings_.checked_ids(ids);
    require(
        input_ids.size(1) % group_.size() == 0,
        "training.seq_len: sequences of {} tokens cannot be split evenly over parallelism.tensor_parallel_degree = {}; "
        "choose a length that is a multiple of it",
        input_ids.size(1),
        group_.size());
    at::Tensor sum;
    for (size_t i = 0; i < rows_.size(); ++i) {
      const at::Tensor part = look_up(embeddings_.segments[i], rows_[i], input_ids);  // (B, T, H) or (B, T, D, H)
      sum = i == 0 ? part : sum + part;
    }
    return mesh::reduce_scatter(sum, group_, /*dim=*/1);
  }

 private:
  static at::Tensor look_up(const nn::Embedding& table, const Range& rows, const at::Tensor& ids) {
    if (rows.size() == 0) {
      // Zeros that depend on the table: all ranks must agree on which results need gradients, or backward would not run
      // the same collectives.
      std::vector<int64_t> shape = ids.sizes().vec();
      shape.push_back(-1);
      return table->weight.sum(0).expand(shape);
    }
    const at::Tensor others = ids.lt(rows.begin).logical_or(ids.ge(rows.end));
    return table((ids - rows.begin).masked_fill(others, 0)).masked_fill(others.unsqueeze(-1), 0);
  }

  nn::SplitTokenEmbeddingsImpl& embeddings_;  // owns the hook
  std::vector<Range> rows_;
  const Group& group_;
};

// The logits of all ranks (..., V) from those of this rank's rows. Shards differ in size, so they are summed with
// zeros.
at::Tensor whole_logits(const at::Tensor& mine, const VocabularyPart& part, const Group& group) {
  const at::NoGradGuard no_grad;
  std::vector<int64_t> shape = mine.sizes().vec();
  shape.back() = part.size;
  const at::Tensor whole = at::zeros(shape, mine.options());
  int64_t first = 0;
  for (const Range& rows : part.rows) {
    whole.narrow(-1, rows.begin, rows.size()).copy_(mine.narrow(-1, first, rows.size()));
    first += rows.size();
  }
  group.all_reduce(whole);
  return whole;
}
}  // namespace

void vocab_parallel(nn::SplitTokenEmbeddingsImpl& embeddings, DistributedContext& context) {
  if (context.size(mesh::axis::tp) == 1) {
    return;
  }
  std::vector<Range> rows;
  int64_t first = 0;
  for (const nn::Embedding& segment : embeddings.segments) {
    const auto& weight = segment->own_parameter("weight");
    rows.push_back(share_rows(*weight, first, context));
    first += weight->shape()[0];
  }
  embeddings.add_call_hook(std::make_shared<LookUpOwnRows>(embeddings, std::move(rows), context.group(mesh::axis::tp)));
}

void vocab_parallel(nn::SplitLanguageModellingHeadImpl& head, DistributedContext& context) {
  if (context.size(mesh::axis::tp) == 1) {
    return;
  }
  VocabularyPart part;
  for (const nn::Linear& segment : head.segments) {
    const bool tied = segment->tied() != nullptr;
    const auto& weight = tied ? segment->tied() : segment->own_parameter("weight");
    require(
        !segment->adapter(),
        "peft.method: adapters are not supported with parallelism.tensor_parallel_degree above 1: found one in the "
        "language-model head");
    require(
        !tied || weight->layout().find(mesh::axis::tp) != nullptr,
        "tie_word_embeddings: tensor parallelism was applied to the head before its embeddings");
    part.rows.push_back(share_rows(*weight, part.size, context));
    part.size += weight->shape()[0];
  }
  const Group& group = context.group(mesh::axis::tp);
  const std::optional<double> softcap = head.softcap();
  gather_sequence(head, context);
  head.set_sharded(
      {.loss =
           [part, softcap, &group](const at::Tensor& hidden, const at::Tensor& weight, const at::Tensor& labels) {
             return vocab_parallel_linear_cross_entropy(hidden, weight, labels, part, group, nn::kIgnoreIndex, softcap);
           },
       .compare =
           [part, &group](
               const at::Tensor& hidden,
               const at::Tensor& weight,
               const ops::TeacherHead& teacher,
               const at::Tensor& labels,
               const ops::LinearKlOptions& options) {
             return vocab_parallel_linear_kl(hidden, weight, teacher, labels, part, group, options);
           },
       .logits = [part, &group](
                     const at::Tensor& hidden,
                     const at::Tensor& weight) { return whole_logits(at::linear(hidden, weight), part, group); },
       .whole_sequence =
           [&group](const at::Tensor& positions) { return mesh::gather_invariant(positions, group, /*dim=*/1); }});
}

}  // namespace lehr::shard
