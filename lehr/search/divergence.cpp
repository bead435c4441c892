#include "lehr/search/divergence.h"

#include <algorithm>

#include "lehr/nn/head.h"

namespace lehr::search {

namespace {
constexpr int64_t kLogitsBytes = int64_t{64} << 20;

// In float32 at least, since the divergences of close models are below the resolution of bfloat16.
at::Tensor log_probabilities(nn::Model& head, const at::Tensor& hidden_states) {
  const at::Tensor logits = head.logits(hidden_states);
  return at::log_softmax(logits, -1, logits.scalar_type() == at::kDouble ? at::kDouble : at::kFloat);
}

double sum_of(const at::Tensor& values) {
  return values.sum(at::kDouble).item<double>();
}
}  // namespace

DivergenceSums& DivergenceSums::operator+=(const DivergenceSums& other) {
  tokens += other.tokens;
  kl += other.kl;
  nll += other.nll;
  agreement += other.agreement;
  cosine += other.cosine;
  mse += other.mse;
  return *this;
}

DivergenceSums divergence(const Prediction& teacher, const Prediction& student, const at::Tensor& labels) {
  const at::NoGradGuard no_grad;
  const at::Tensor counted = labels.flatten().ne(nn::kIgnoreIndex).nonzero().flatten();
  const auto rows_of = [&](const at::Tensor& values) {
    return values.reshape({-1, values.size(-1)}).index_select(0, counted);
  };
  const at::Tensor teachers = rows_of(teacher.hidden_states);  // (N, H)
  const at::Tensor students = rows_of(student.hidden_states);
  const at::Tensor targets = labels.flatten().index_select(0, counted);
  DivergenceSums sums;
  sums.tokens = counted.size(0);
  if (sums.tokens == 0) {
    return sums;
  }
  const at::Tensor one = teacher.head.logits(teachers.narrow(0, 0, 1));  // for the size of the vocabulary
  const int64_t step = std::max<int64_t>(1, kLogitsBytes / static_cast<int64_t>(one.nbytes()));
  for (int64_t first = 0; first < sums.tokens; first += step) {
    const int64_t count = std::min(step, sums.tokens - first);
    const at::Tensor p = log_probabilities(teacher.head, teachers.narrow(0, first, count));  // (count, V)
    const at::Tensor q = log_probabilities(student.head, students.narrow(0, first, count));
    sums.kl += sum_of(p.exp() * (p - q));
    sums.nll -= sum_of(q.gather(1, targets.narrow(0, first, count).unsqueeze(1)));
    sums.agreement += sum_of(p.argmax(-1).eq(q.argmax(-1)).to(at::kDouble));
  }
  if (teachers.size(1) != students.size(1)) {
    return sums;
  }
  const at::Tensor wide_teacher = teachers.to(at::kDouble);
  const at::Tensor wide_student = students.to(at::kDouble);
  sums.cosine = sum_of(1 - at::cosine_similarity(wide_teacher, wide_student, -1));
  sums.mse = sum_of((wide_student - wide_teacher).square().sum(-1) / wide_teacher.square().sum(-1));
  return sums;
}

}  // namespace lehr::search
