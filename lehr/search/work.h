// Forecast of the work of a search, before any of it is done: lehr search --dry-run.
#pragma once

#include <cstdint>
#include <string>

namespace lehr::search {

class Search;

/// The amount of work in the stages of a search.
struct SearchWork {
  int64_t layers = 0;
  int64_t variants = 0;
  int64_t trainable = 0;  ///< Variants that local distillation trains.
  int64_t importance_batches = 0;
  int64_t held_out_batches = 0;
  int64_t layer_forwards = 0;        ///< Of the scores, per batch, with prefixes reused and the teacher's own.
  int64_t layer_forwards_whole = 0;  ///< The same if each candidate ran from the embeddings.
  int64_t candidates = 0;
  int64_t local_steps = 0;
  int64_t distillation_steps = 0;
  int64_t library_bytes = 0;   ///< Weights, gradients and moments of the variants in local distillation.
  int64_t teacher_bytes = 0;   ///< Weights of the teacher.
  int64_t boundary_bytes = 0;  ///< Hidden states before each layer, of one held-out batch.
};

/// Counts the work, without running a model.
SearchWork work_of(const Search& search);

/// One batch of held-out data: times, and the memory of tensors.
struct PassCosts {
  double layer = 0;       ///< Seconds of the forward of a layer, with its part of embeddings and final norm.
  double comparison = 0;  ///< Seconds of the logits of teacher and student, and of their divergence.
  int64_t bytes = 0;      ///< The most while one variant is measured, with the teacher's weights; 0 on a device other
                          ///< than the CPU, where tensors are not metered.
  int64_t library_bytes = 0;  ///< Weights of variants that the library holds: trained ones, and linear layers.
};

/// Runs the teacher on one batch, and measures one variant.
PassCosts measure_pass(const Search& search);

/// Returns the bytes of tensors at the peak of the stage `score`.
int64_t score_bytes(const SearchWork& work, const PassCosts& pass);

/// Returns a table of the stages with their work, FLOPs, time and memory.
std::string describe_work(const Search& search);

}  // namespace lehr::search
