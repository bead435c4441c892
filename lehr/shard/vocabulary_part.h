// A rank's part of a vocabulary, for the losses over a vocabulary whose rows are on several ranks.
#pragma once

#include <vector>

#include "lehr/base/box.h"
#include "lehr/base/torch.h"

namespace lehr::shard {

/// The ids whose rows a rank has.
struct VocabularyPart {
  int64_t size = 0;         ///< Size of the whole vocabulary.
  std::vector<Range> rows;  ///< Ids of this rank, in the order of its weight's rows. Ranges may be empty.

  /// Number of the rank's rows.
  int64_t count() const;
  /// Returns the ids of the rank's rows, (count), on that device.
  at::Tensor ids(at::Device device) const;
  /// Returns the row of this rank's weight for each label, or -1 if it is another rank's.
  at::Tensor own_row_of(const at::Tensor& labels) const;
};

/// Throws a usage error that begins with `name` unless hidden is (N, H), weight (part.count(), H) and labels (N).
void check_head(
    const char* name,
    const at::Tensor& hidden,
    const at::Tensor& weight,
    const at::Tensor& labels,
    const VocabularyPart& part);

/// Returns each token's logit of its label (n), or 0 on ranks that do not have the label's row. `logits` (n, count())
/// are this rank's, `own_rows` (n) those of own_row_of.
at::Tensor logits_of_labels(const at::Tensor& logits, const at::Tensor& own_rows);

/// Subtracts the one-hot vectors of the labels from (n, count()) probabilities, on the rank that has a label's row.
void subtract_one_hot_(const at::Tensor& probabilities, const at::Tensor& own_rows);

/// Maximum bytes of a chunk's logits on the CPU. There are up to three copies of them, with a softcap also their
/// derivatives, and every rank of a machine has its own.
constexpr int64_t kPartLogitsBytes = 64 << 20;

/// Returns losses or gradients with 0 where the label is ignored, and NaN where it is outside the vocabulary. `labels`
/// are those of ops::all_rows; if they are undefined, the host has read them, and nothing changes.
at::Tensor masked_by_labels(const at::Tensor& numbers, const at::Tensor& labels, int64_t vocabulary);

}  // namespace lehr::shard
