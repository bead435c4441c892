#include "lehr/peft/lora.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <utility>

#include "lehr/base/error.h"
#include "lehr/base/parallel.h"
#include "lehr/base/random.h"
#include "lehr/memory/side_stream.h"
#include "lehr/meter/on_meta.h"
#include "lehr/ops/grouped_linear/grouped_linear.h"
#include "lehr/ops/linear/linear.h"

namespace lehr::peft {

double Lora::scaling() const {
  return use_rslora ? alpha / std::sqrt(static_cast<double>(r)) : alpha / static_cast<double>(r);
}

namespace {
nn::Init init_of_a(int64_t in_features) {
  const double bound = 1 / std::sqrt(static_cast<double>(in_features));  // kaiming_uniform with a = sqrt(5)
  return nn::Init::uniform(-bound, bound);
}
}  // namespace

LoraAdapter::LoraAdapter(const Lora& settings) : settings_(settings) {
  require(settings.r >= 1, "peft.r: expected a rank of 1 or more, found {}", settings.r);
  require(settings.alpha > 0, "peft.alpha: expected a positive number, found {}", settings.alpha);
  require(
      settings.dropout >= 0 && settings.dropout < 1, "peft.dropout: expected 0 <= p < 1, found {}", settings.dropout);
}

at::Tensor LoraAdapter::delta_weight() const {
  at::NoGradGuard no_grad;
  const auto wide = A.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  return at::matmul(B.to(wide), A.to(wide)) * settings_.scaling();
}

LoraLinear::LoraLinear(std::string name, int64_t in_features, int64_t out_features, const Lora& settings)
    : LoraAdapter(settings), name_(std::move(name)) {
  declare_parameter("A", A, {settings.r, in_features}, init_of_a(in_features));
  declare_parameter("B", B, {out_features, settings.r}, nn::Init::zeros());
}

void LoraLinear::set_dropout_stream(uint64_t seed, uint64_t step, int64_t first_row) {
  dropout_seed_ = seed;
  dropout_step_ = step;
  dropout_first_row_ = first_row;
}

void LoraLinear::set_sequence_part(int64_t part, int64_t parts) {
  require(part >= 0 && part < parts, "adapter {}: part {} of {} of a sequence does not exist", name_, part, parts);
  sequence_part_ = part;
  sequence_parts_ = parts;
}

// Returns the smaller chunks that the inputs hold: sequence parallelism cuts each of sequence_chunks_ into
// sequence_parts_ chunks, and gives this part as many consecutive ones as there are sequence_chunks_.
std::vector<int64_t> LoraLinear::chunks_of_part() const {
  std::vector<int64_t> chunks;
  const auto count = static_cast<int64_t>(sequence_chunks_.size());
  for (int64_t place = sequence_part_ * count; place < (sequence_part_ + 1) * count; ++place) {
    const int64_t chunk = sequence_chunks_[static_cast<size_t>(place / sequence_parts_)];
    chunks.push_back(chunk * sequence_parts_ + place % sequence_parts_);
  }
  return chunks;
}

// Element c of token t of sequence r of the step's batch has index t * C + c in the sequence's part of the stream,
// where t counts from the start of the whole sequence and C are all features, even if this rank has a shard of them.
at::Tensor LoraLinear::drop(const at::Tensor& input) const {
  require(
      input.dim() == 3,
      "peft.dropout: {}: masks need an input of shape (B, T, C), but this module's input has {} dimensions; set it to "
      "0 or leave the module out of peft.target_pattern",
      name_,
      input.dim());
  if (runs_on_meta(input)) {
    return input.masked_fill(at::empty(input.sizes(), input.options().dtype(at::kBool)), 0);
  }
  const RandomStream random(dropout_seed_, name_ + " lora_dropout " + std::to_string(dropout_step_));
  const int64_t features = input_matrix()->shape()[1];
  const int64_t first_feature = input_matrix()->box()[1].begin;
  const at::Tensor dropped = at::empty(input.sizes(), at::kBool);
  auto* out = dropped.data_ptr<bool>();
  constexpr int64_t kBlock = 1024;
  // Runs of elements that follow each other in the stream: a chunk of a sequence, or this rank's features of a token.
  const std::vector<int64_t> chunks = chunks_of_part();
  const int64_t chunk_tokens = input.size(1) / static_cast<int64_t>(chunks.size());
  const int64_t run_tokens = input.size(2) == features ? chunk_tokens : 1;
  const int64_t run_size = run_tokens * input.size(2);
  const int64_t runs = input.size(1) * input.size(2) / std::max<int64_t>(1, run_size);  // per sequence
  const int64_t blocks = (run_size + kBlock - 1) / kBlock;                              // per run
  const double p = settings_.dropout;
  parallel_for(0, input.size(0) * runs * blocks, 8, [&](int64_t begin, int64_t end) {
    std::array<double, kBlock> draws;
    for (int64_t block = begin; block < end; ++block) {
      const int64_t run = block / blocks;
      const int64_t start = block % blocks * kBlock;
      const int64_t count = std::min(kBlock, run_size - start);
      const int64_t token = run % runs * run_tokens;  // among those of this rank, and then in the sequence
      const int64_t position = chunks[static_cast<size_t>(token / chunk_tokens)] * chunk_tokens + token % chunk_tokens;
      const int64_t place = position * features + first_feature + start;
      const uint64_t first = nn::dropout_row(dropout_first_row_ + run / runs) + static_cast<uint64_t>(place);
      random.fill_uniform(first, count, draws.data());
      std::transform(
          draws.data(), draws.data() + count, out + run * run_size + start, [p](double draw) { return draw < p; });
    }
  });
  return input.masked_fill(to_device_pinned(dropped, input.device()), 0);
}

at::Tensor LoraLinear::forward(const at::Tensor& input) {
  const bool drops = is_training() && settings_.dropout > 0;
  // The scaling is applied to the smallest tensor, (..., r).
  const double scaling = settings_.scaling() / (drops ? 1 - settings_.dropout : 1);
  return ops::linear(ops::linear(drops ? drop(input) : input, A) * scaling, B);
}

LoraGroupedLinear::LoraGroupedLinear(
    const std::string& name, int64_t num_groups, int64_t in_features, int64_t out_features, const Lora& settings)
    : LoraAdapter(settings) {
  require(
      settings.dropout == 0,
      "peft.dropout: {}: adapters of experts do not support dropout, because their inputs have no fixed order; set it "
      "to 0 or leave the experts out of peft.target_pattern",
      name);
  declare_parameter("A", A, {num_groups, settings.r, in_features}, init_of_a(in_features));
  declare_parameter("B", B, {num_groups, out_features, settings.r}, nn::Init::zeros());
}

at::Tensor LoraGroupedLinear::forward(const at::Tensor& rows, const at::Tensor& ends, int64_t first) {
  const auto of_groups = [&](const at::Tensor& matrices) {
    const int64_t groups = ends.size(0);
    return groups == matrices.size(0) ? matrices : matrices.narrow(0, first, groups);  // a leaf defers its gradient
  };
  return ops::grouped_linear(ops::grouped_linear(rows, of_groups(A), ends) * settings_.scaling(), of_groups(B), ends);
}

}  // namespace lehr::peft
