#include "lehr/shard/vocab_parallel_kl.h"

#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <limits>

#include "lehr/base/autograd_function.h"
#include "lehr/base/error.h"
#include "lehr/meter/operator_profile.h"
#include "lehr/ops/autograd.h"
#include "lehr/ops/chunked_loss.h"
#include "lehr/ops/cpu.h"
#include "lehr/ops/cuda.h"
#include "lehr/ops/label_rows.h"
#include "lehr/ops/logit_softcap.h"
#include "lehr/ops/matmul/matmul.h"

namespace lehr::shard {

namespace {
using mesh::Group;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

constexpr double kInfinity = std::numeric_limits<double>::infinity();

// Both models' final hidden states (N, own hidden size) and rows of their heads (V of this rank, own hidden size).
struct Heads {
  at::Tensor hidden, weight, teacher_hidden, teacher_weight;
  std::optional<double> cap, teacher_cap;  // softcaps of the logits

  at::ScalarType wide() const { return ops::cpu::wide_type(hidden.scalar_type()); }
};

// Calls body(first, count, student, teacher, slope) for chunks of tokens, with this rank's logits (count, V of this
// rank) of both in the wide type, and with `gradient` the derivative of the student's softcap, if it has one. The body
// may overwrite them.
template <class Body>
void for_chunks(const Heads& heads, bool gradient, const Body& body) {
  const int64_t count = heads.hidden.size(0);
  const auto bytes = 2 * static_cast<int64_t>(c10::elementSize(heads.wide()));
  const int64_t chunk = ops::chunk_rows(count, heads.weight.size(0), bytes, heads.weight.is_cuda(), kPartLogitsBytes);
  for (int64_t first = 0; first < count; first += chunk) {
    const int64_t size = std::min(chunk, count - first);
    const at::Tensor s = ops::product(heads.hidden.narrow(0, first, size), heads.weight.t()).to(heads.wide());
    const at::Tensor t =
        ops::product(heads.teacher_hidden.narrow(0, first, size), heads.teacher_weight.t()).to(heads.wide());
    ops::softcap_(t, heads.teacher_cap, /*gradient=*/false);
    const at::Tensor slope = ops::softcap_(s, heads.cap, gradient);
    body(first, size, s, t, slope);
  }
}

// Per token (n), over the whole vocabulary. Logits are s of the student and t of the teacher, c is 1 / temperature.
struct Sums {
  at::Tensor student;   // log sum exp(c s)
  at::Tensor teacher;   // log sum exp(c t)
  at::Tensor unscaled;  // log sum exp(s)
  at::Tensor kl, nll, agrees;
};

// This rank's maxima and sums; those of exponentials are relative to its own maxima.
struct OwnSums {
  at::Tensor largest;  // (2, n): of s, of t
  at::Tensor ids;      // (2, n): the ids that have them
  at::Tensor numbers;  // (5, n): sum exp(c s), sum exp(c t), sum exp(c t) c (t - s), sum exp(s), the label's s
};

OwnSums own_sums(const Heads& heads, const at::Tensor& own_rows, const VocabularyPart& part, double c) {
  const int64_t count = heads.hidden.size(0);
  const auto options = heads.hidden.options().dtype(heads.wide());
  OwnSums own{
      .largest = at::full({2, count}, -kInfinity, options),
      .ids = at::full({2, count}, part.size, options),
      .numbers = at::zeros({5, count}, options)};
  if (heads.weight.size(0) == 0) {
    return own;
  }
  const at::Tensor ids = part.ids(heads.hidden.device());
  for_chunks(heads, false, [&](int64_t first, int64_t size, const at::Tensor& s, const at::Tensor& t, const auto&) {
    const auto set = [&](const at::Tensor& rows, int64_t row, const at::Tensor& values) {
      rows[row].narrow(0, first, size).copy_(values);
    };
    const auto [largest_s, where_s] = s.max(1);
    const auto [largest_t, where_t] = t.max(1);
    set(own.largest, 0, largest_s);
    set(own.largest, 1, largest_t);
    set(own.ids, 0, ids.index_select(0, where_s));
    set(own.ids, 1, ids.index_select(0, where_t));
    const at::Tensor above_s = s - largest_s.unsqueeze(1);
    // A teacher may exclude all of this rank's tokens, or some, by a logit of -inf: they have no weight.
    const at::Tensor weights = (t - largest_t.masked_fill(largest_t.eq(-kInfinity), 0).unsqueeze(1)).mul_(c).exp_();
    set(own.numbers, 0, (above_s * c).exp_().sum(1));
    set(own.numbers, 1, weights.sum(1));
    set(own.numbers, 2, (t - s).mul_(c).mul_(weights).masked_fill_(weights.eq(0), 0).sum(1));
    set(own.numbers, 3, c == 1 ? own.numbers[0].narrow(0, first, size) : above_s.exp().sum(1));
    set(own.numbers, 4, logits_of_labels(s, own_rows.narrow(0, first, size)));
  });
  return own;
}

Sums sum_rows(
    const Heads& heads, const at::Tensor& own_rows, const VocabularyPart& part, const Group& group, double c) {
  const OwnSums own = own_sums(heads, own_rows, part, c);
  if (heads.hidden.size(0) == 0) {
    const at::Tensor none = own.numbers[0];
    return {.student = none, .teacher = none, .unscaled = none, .kl = none, .nll = none, .agrees = none};
  }
  const at::Tensor largest = own.largest.clone();
  group.all_reduce_max(largest);
  // The least id that has the maximum of all ranks.
  const at::Tensor ids = own.ids.masked_fill(own.largest.ne(largest), static_cast<double>(part.size)).neg_();
  group.all_reduce_max(ids);
  // Each rank rescales its sums to the maxima of all ranks; exp(-inf) = 0 on a rank without rows.
  const at::Tensor lower = own.largest - largest;
  const at::Tensor scaled = (lower * c).exp_(), numbers = own.numbers;
  numbers[0].mul_(scaled[0]);
  numbers[1].mul_(scaled[1]);
  numbers[2].mul_(scaled[1]);
  numbers[3].mul_(lower[0].exp());
  group.all_reduce(numbers);
  Sums sums{
      .student = numbers[0].log().add_(largest[0], c),
      .teacher = numbers[1].log().add_(largest[1], c),
      .unscaled = numbers[3].log().add_(largest[0]),
      .kl = {},
      .nll = {},
      .agrees = ids[0].eq(ids[1]).to(heads.wide())};
  // sum p (log p - log q), with log p = c t - teacher and log q = c s - student.
  sums.kl = numbers[2] / numbers[1] - sums.teacher + sums.student;
  sums.nll = sums.unscaled - numbers[4];
  return sums;
}

// The gradients for an incoming gradient of row_scale (n) of each token's loss; that of hidden is partial. `logs` (3,
// n) are Sums::student, teacher and unscaled.
ops::HeadGradients gradients_of(
    const Heads& heads,
    const at::Tensor& own_rows,
    const at::Tensor& logs,
    const at::Tensor& row_scale,
    const ops::LinearKlOptions& options,
    bool hidden_wanted,
    bool weight_wanted) {
  ops::HeadGradients gradients{
      .hidden = hidden_wanted ? at::zeros_like(heads.hidden) : at::Tensor(),
      .weight = weight_wanted ? at::zeros_like(heads.weight) : at::Tensor()};
  if (heads.weight.size(0) == 0) {
    return gradients;
  }
  const double c = 1 / options.temperature;
  const auto add = [&](int64_t first, int64_t size, const at::Tensor& s, const at::Tensor& t, const at::Tensor& slope) {
    const auto log = [&](int64_t row) { return logs[row].narrow(0, first, size).unsqueeze(1); };
    const at::Tensor q = (s * c).sub_(log(0)).exp_(), p = (t * c).sub_(log(1)).exp_();
    at::Tensor of_logits = (q - p).mul_(options.kl_weight * c);
    if (options.nll_weight != 0) {
      const at::Tensor of_nll = (s - log(2)).exp_();  // softmax - one_hot(label)
      subtract_one_hot_(of_nll, own_rows.narrow(0, first, size));
      of_logits.add_(of_nll, options.nll_weight);
    }
    if (slope.defined()) {
      of_logits.mul_(slope);
    }
    const at::Tensor gradient =
        of_logits.mul_(row_scale.narrow(0, first, size).unsqueeze(1)).to(heads.hidden.scalar_type());
    if (hidden_wanted) {
      ops::put_product(gradients.hidden.narrow(0, first, size), gradient, heads.weight);
    }
    if (weight_wanted) {
      ops::add_product_(gradients.weight, gradient.t(), heads.hidden.narrow(0, first, size));
    }
  };
  for_chunks(heads, true, add);
  return gradients;
}

struct VocabParallelKl : AutogradFunction<VocabParallelKl> {
  static variable_list forward(
      AutogradContext* ctx,
      const at::Tensor& hidden,
      const at::Tensor& weight,
      const ops::TeacherHead& teacher,
      const at::Tensor& labels,
      const VocabularyPart* part,
      const Group* group,
      const ops::LinearKlOptions* options) {
    const ops::LabelRows rows = ops::loss_rows(hidden, labels, part->size, options->ignore_index);
    const at::Tensor own_rows = part->own_row_of(rows.labels);
    const at::Tensor teacher_rows = ops::select_rows(teacher.hidden, rows.index);
    const Heads heads{rows.hidden, weight, teacher_rows, teacher.weight, options->softcap, teacher.softcap};
    const Sums sums = sum_rows(heads, own_rows, *part, *group, 1 / options->temperature);
    const at::Tensor gpu_labels = ops::cuda::on_gpu(labels) ? rows.labels : at::Tensor();
    ctx->save_for_backward(
        {hidden,
         weight,
         teacher.hidden,
         teacher.weight,
         rows.index,
         own_rows,
         at::stack({sums.student, sums.teacher, sums.unscaled}),
         gpu_labels});
    ctx->saved_data["vocabulary"] = part->size;
    ctx->saved_data["temperature"] = options->temperature;
    ctx->saved_data["kl_weight"] = options->kl_weight;
    ctx->saved_data["nll_weight"] = options->nll_weight;
    ctx->saved_data["softcap"] = ops::saved_softcap(options->softcap);
    ctx->saved_data["teacher_softcap"] = ops::saved_softcap(teacher.softcap);
    const auto all = [&](const at::Tensor& values) {
      return ops::spread(masked_by_labels(values, gpu_labels, part->size), rows.index, labels.size(0));
    };
    const at::Tensor loss = options->kl_weight * sums.kl + options->nll_weight * sums.nll;
    const variable_list results{all(loss), all(sums.kl), all(sums.nll), all(sums.agrees)};
    ctx->mark_non_differentiable({results[1], results[2], results[3]});
    return results;
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    const OperatorScope scope(OperatorKind::loss, "lehr::vocab_parallel_linear_kl_backward");
    ops::refuse_double_backward("vocab_parallel_linear_kl");
    const auto saved = ctx->get_saved_variables();
    const at::Tensor &hidden = saved[0], &index = saved[4];
    const ops::LinearKlOptions options{
        .temperature = ctx->saved_data["temperature"].toDouble(),
        .kl_weight = ctx->saved_data["kl_weight"].toDouble(),
        .nll_weight = ctx->saved_data["nll_weight"].toDouble()};
    ops::HeadGradients gradients = gradients_of(
        {ops::select_rows(hidden, index),
         saved[1],
         ops::select_rows(saved[2], index),
         saved[3],
         ops::softcap_of(ctx->saved_data["softcap"].toDouble()),
         ops::softcap_of(ctx->saved_data["teacher_softcap"].toDouble())},
        saved[5],
        saved[6],
        masked_by_labels(ops::select_rows(grads[0], index), saved[7], ctx->saved_data["vocabulary"].toInt()),
        options,
        ctx->needs_input_grad(0),
        ctx->needs_input_grad(1));
    if (gradients.hidden.defined()) {
      gradients.hidden = ops::spread(gradients.hidden, index, hidden.size(0));
    }
    return {gradients.hidden, gradients.weight, {}, {}, {}, {}, {}};
  }
};

void check(
    const at::Tensor& hidden,
    const at::Tensor& weight,
    const ops::TeacherHead& teacher,
    const at::Tensor& labels,
    const VocabularyPart& part) {
  const int64_t own = part.count();
  check_head("vocab_parallel_linear_kl", hidden, weight, labels, part);
  require(
      teacher.hidden.dim() == 2 && teacher.weight.dim() == 2 && teacher.hidden.size(0) == hidden.size(0) &&
          teacher.hidden.size(1) == teacher.weight.size(1) && teacher.weight.size(0) == own,
      "vocab_parallel_linear_kl: expected the teacher's hidden ({}, its hidden size) and weight ({}, its hidden size), "
      "found {} and {}",
      hidden.size(0),
      own,
      ops::shape_of(teacher.hidden),
      ops::shape_of(teacher.weight));
}
}  // namespace

ops::LinearKl vocab_parallel_linear_kl(
    const at::Tensor& hidden,
    const at::Tensor& weight,
    const ops::TeacherHead& teacher,
    const at::Tensor& labels,
    const VocabularyPart& part,
    const Group& group,
    const ops::LinearKlOptions& options) {
  const OperatorScope scope(OperatorKind::loss, "lehr::vocab_parallel_linear_kl");
  check(hidden, weight, teacher, labels, part);
  ops::check_softcap("vocab_parallel_linear_kl", options.softcap);
  ops::check_softcap("vocab_parallel_linear_kl", teacher.softcap);
  if (!ops::cuda::on_gpu(labels)) {  // where the host would wait, a wrong label makes the loss NaN
    ops::check_labels(labels, part.size, options.ignore_index);
  }
  const ops::TeacherHead t{
      .hidden = teacher.hidden.detach().contiguous(),
      .weight = teacher.weight.detach().contiguous(),
      .softcap = teacher.softcap};
  const variable_list values =
      VocabParallelKl::apply(hidden.contiguous(), weight.contiguous(), t, labels.contiguous(), &part, &group, &options);
  return {.loss = values[0], .kl = values[1], .nll = values[2], .agrees = values[3]};
}

}  // namespace lehr::shard
