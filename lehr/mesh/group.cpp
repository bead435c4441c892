#include "lehr/mesh/group.h"

#include <fmt/ranges.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>

#include <algorithm>
#include <chrono>

#include "lehr/base/error.h"
#include "lehr/mesh/exception_text.h"
#include "lehr/mesh/watchdog.h"
#include "lehr/meter/operator_profile.h"
#include "lehr/meter/operator_watch.h"

namespace lehr::mesh {

// Adds its lifetime to the group's waiting time.
class Group::Waiting {
 public:
  explicit Waiting(const Group& group) : group_(group) {}
  ~Waiting() {
    using std::chrono::nanoseconds;
    group_.nanoseconds_waited_ += std::chrono::duration_cast<nanoseconds>(Clock::now() - begun_).count();
  }
  Waiting(const Waiting&) = delete;
  Waiting& operator=(const Waiting&) = delete;

 private:
  using Clock = std::chrono::steady_clock;
  const Group& group_;
  Clock::time_point begun_ = Clock::now();
};

Pending::Pending() = default;
Pending::Pending(
    const Group& group,
    std::string what,
    int64_t ticket,
    bool message,
    c10::intrusive_ptr<c10d::Work> work,
    std::vector<at::Tensor> alive)
    : group_(&group),
      what_(std::move(what)),
      ticket_(ticket),
      message_(message),
      work_(std::move(work)),
      alive_(std::move(alive)) {}
Pending::Pending(Pending&&) noexcept = default;
Pending& Pending::operator=(Pending&&) noexcept = default;
Pending::~Pending() = default;
Pending::operator bool() const {
  return static_cast<bool>(work_);
}

void Pending::wait() {
  if (!work_) {
    return;
  }
  const OperatorScope scope(OperatorKind::communication, "lehr::wait_for_ranks");
  const Group::Waiting waiting(*group_);
  const auto work = std::move(work_);
  work_.reset();
  try {
    if (group_->watch_ != nullptr) {
      group_->watch_->wait(work, ticket_, message_, group_->ranks_);
    } else {
      work->wait();
    }
  } catch (const Error&) {
    throw;
  } catch (const std::exception& problem) {
    fail_runtime("{}: {}", what_, exception_text(problem));
  }
  alive_.clear();
}

Group::Group(
    std::string name,
    std::vector<int64_t> ranks,
    int64_t global_rank,
    c10::intrusive_ptr<c10d::Backend> backend,
    Watchdog* watch)
    : name_(std::move(name)), ranks_(std::move(ranks)), backend_(std::move(backend)), watch_(watch) {
  const auto place = std::find(ranks_.begin(), ranks_.end(), global_rank);
  invariant(place != ranks_.end(), "group {}: rank {} is not in it", name_, global_rank);
  rank_ = place - ranks_.begin();
  invariant(size() == 1 || backend_, "group {}: {} ranks need a backend", name_, size());
  if (watch_ != nullptr) {
    watch_group_ = watch_->log().add_group(name_, fmt::format("{}", fmt::join(ranks_, ",")));
  }
}

Group::~Group() = default;

template <class Start>
Pending Group::start(
    const char* collective, std::vector<at::Tensor> tensors, const Start& start_work, int64_t peer) const {
  const OperatorScope scope(OperatorKind::communication, "lehr::communicate");
  const bool message = peer >= 0;
  const std::string other =
      message ? fmt::format(" (rank {} of the world)", ranks_.at(static_cast<size_t>(peer))) : std::string();
  const std::string what = fmt::format("{}{} on axis {} (ranks {})", collective, other, name_, fmt::join(ranks_, ", "));
  require(
      operator_watch() == nullptr,
      "{}: states no placements, so a plan with it cannot be checked; use the operators of mesh/collectives.h, or "
      "state the placements of the operator around it (meter/operator_watch.h)",
      what);
  int64_t bytes = 0;
  for (const auto& tensor : tensors) {
    require(tensor.is_contiguous(), "{}: expected contiguous tensors", what);
    bytes += static_cast<int64_t>(tensor.nbytes());
  }
  add_to_profile(0, bytes);
  int64_t ticket = -1;
  const Waiting waiting(*this);  // ranks that are threads wait here
  try {
    if (watch_ != nullptr) {
      watch_->check();
      ticket = watch_->log().begin(watch_group_, collective, bytes, /*counted=*/!message);
    }
    return Pending(*this, what, ticket, message, start_work(), std::move(tensors));
  } catch (const Error&) {
    throw;
  } catch (const std::exception& problem) {
    if (watch_ != nullptr) {
      watch_->explain(ticket, ranks_, exception_text(problem));
    }
    fail_runtime("{}: {}", what, exception_text(problem));
  }
}

Pending Group::start_all_reduce(at::Tensor tensor) const {
  if (size() == 1) {
    return {};
  }
  return start("all_reduce", {tensor}, [&] {
    std::vector<at::Tensor> tensors{tensor};
    return backend_->allreduce(tensors);
  });
}

void Group::all_reduce_max(at::Tensor tensor) const {
  if (size() == 1) {
    return;
  }
  start("all_reduce_max", {tensor}, [&] {
    std::vector<at::Tensor> tensors{tensor};
    c10d::AllreduceOptions options;
    options.reduceOp = c10d::ReduceOp::MAX;
    return backend_->allreduce(tensors, options);
  }).wait();
}

Pending Group::start_all_gather(at::Tensor output, at::Tensor input) const {
  require(
      output.numel() == size() * input.numel(),
      "all_gather on axis {}: expected room for {} times {} elements, found {}",
      name_,
      size(),
      input.numel(),
      output.numel());
  if (size() == 1) {
    output.view(-1).copy_(input.view(-1));
    return {};
  }
  // Gloo takes the first dimension as that of the ranks.
  at::Tensor to = output.view(-1);
  at::Tensor from = input.view(-1);
  return start("all_gather", {to, from}, [&] { return backend_->_allgather_base(to, from); });
}

Pending Group::start_reduce_scatter(at::Tensor output, at::Tensor input) const {
  require(
      input.numel() == size() * output.numel(),
      "reduce_scatter on axis {}: expected {} times {} elements, found {}",
      name_,
      size(),
      output.numel(),
      input.numel());
  if (size() == 1) {
    output.view(-1).copy_(input.view(-1));
    return {};
  }
  at::Tensor to = output.view(-1);
  at::Tensor from = input.view(-1);
  return start("reduce_scatter", {to, from}, [&] { return backend_->_reduce_scatter_base(to, from); });
}

Pending Group::start_all_to_all(
    at::Tensor output,
    at::Tensor input,
    const std::vector<int64_t>& output_sizes,
    const std::vector<int64_t>& input_sizes) const {
  if (size() == 1) {
    output.copy_(input);
    return {};
  }
  return start("all_to_all", {output, input}, [&] {
    auto to = output_sizes;
    auto from = input_sizes;
    return backend_->alltoall_base(output, input, to, from);
  });
}

void Group::broadcast(at::Tensor tensor, int64_t root) const {
  if (size() == 1) {
    return;
  }
  start("broadcast", {tensor}, [&] {
    std::vector<at::Tensor> tensors{tensor};
    c10d::BroadcastOptions options;
    options.rootRank = root;
    return backend_->broadcast(tensors, options);
  }).wait();
}

Pending Group::start_send(at::Tensor tensor, int64_t to) const {
  const auto work = [&] {
    std::vector<at::Tensor> tensors{tensor};
    return backend_->send(tensors, static_cast<int>(to), 0);
  };
  return start("send", {tensor}, work, to);
}

Pending Group::start_receive(at::Tensor tensor, int64_t from) const {
  const auto work = [&] {
    std::vector<at::Tensor> tensors{tensor};
    return backend_->recv(tensors, static_cast<int>(from), 0);
  };
  return start("receive", {tensor}, work, from);
}

void Group::barrier() const {
  if (size() > 1) {
    start("barrier", {}, [&] { return backend_->barrier(); }).wait();
  }
}

}  // namespace lehr::mesh
