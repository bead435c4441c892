// The check of ids on their device, so that an id outside of its table neither ends the CUDA context nor makes the host
// wait.
#include <ATen/ops/arange.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/where.h>

#include "lehr/meter/operation_meter.h"
#include "lehr/meter/operator_profile.h"
#include "lehr/ops/autograd.h"
#include "lehr/ops/device.h"
#include "lehr/ops/embedding/embedding.h"
#include "lehr/ops/embedding/kernels.h"

namespace lehr::ops {

namespace {
void check_note(const at::Tensor& ids, const at::Tensor& note) {
  require(
      note.scalar_type() == at::kLong && note.dim() == 1 && note.size(0) == 2 && note.is_contiguous() &&
          note.device() == ids.device(),
      "known_ids: expected a note of 2 int64 on the device of the ids, {}, found {} {} on {}",
      ids.device().str(),
      c10::toString(note.scalar_type()),
      shape_of(note),
      note.device().str());
}
}  // namespace

at::Tensor known_ids(const at::Tensor& ids, int64_t size, const at::Tensor& note) {
  const OperatorScope scope(OperatorKind::embedding, "lehr::known_ids");
  check_note(ids, note);
  if (!cuda::has_kernels(ids)) {
    return reference::known_ids(ids, size, note);
  }
  const at::Tensor all = ids.to(at::kLong).contiguous();
  const at::Tensor known = at::empty_like(all);
  report_pointwise({all, known});
  const c10::DeviceGuard guard(all.device());
  cuda::check_status(
      "known_ids",
      cuda::table().get<cuda::KnownIdsLaunches>().known_ids(
          cpu::elements<int64_t>(all), all.numel(), size, cpu::elements<int64_t>(known), cpu::elements<int64_t>(note)));
  note.unsafeGetTensorImpl()->bump_version();
  return known;
}

at::Tensor reference::known_ids(const at::Tensor& ids, int64_t size, const at::Tensor& note) {
  const at::Tensor all = ids.to(at::kLong).flatten();
  const int64_t count = all.numel();
  if (count == 0) {
    return all.view(ids.sizes());
  }
  const at::Tensor unknown = all.lt(0).logical_or(all.ge(size));
  const at::Tensor first = at::where(unknown, at::arange(count, all.options()), count).min().view({1});
  const at::Tensor found = at::stack({first + 1, all.index_select(0, first.clamp_max(count - 1))}).view({2});
  note.copy_(at::where(note[0].eq(0).logical_and(first.lt(count)), found, note));
  return all.masked_fill(unknown, 0).view(ids.sizes());
}

}  // namespace lehr::ops
