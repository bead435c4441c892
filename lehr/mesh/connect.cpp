#include "lehr/mesh/connect.h"

#include <c10/util/Exception.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/HashStore.hpp>

#include <cstdio>
#include <cstring>
#include <thread>

#include "lehr/mesh/exception_text.h"
#include "lehr/mesh/gloo_transport.h"
#include "lehr/mesh/launched_ranks.h"
#include "lehr/mesh/nccl_transport.h"

namespace lehr::mesh {

namespace {
class SingleTransport : public Transport {
 public:
  int64_t rank() const override { return 0; }
  int64_t world_size() const override { return 1; }
  std::string name() const override { return "single"; }
  c10::intrusive_ptr<c10d::Backend> connect(const std::string& group, const std::vector<int64_t>& /*ranks*/) override {
    fail("axis {}: a world of one rank has nobody to connect to", group);
  }
  c10::intrusive_ptr<c10d::Store> store() override { return store_; }

 private:
  c10::intrusive_ptr<c10d::Store> store_ = c10::make_intrusive<c10d::HashStore>();
};

// Ranks on different kinds of devices would wait for each other's connections.
void require_same_device(Transport& transport, std::chrono::milliseconds limit) {
  const auto key_of = [](int64_t rank) { return fmt::format("device/{}", rank); };
  const std::string mine = c10::DeviceTypeName(transport.device().type(), /*lower_case=*/true);
  const auto store = transport.store();
  store->set(key_of(transport.rank()), mine);
  const auto deadline = std::chrono::steady_clock::now() + limit;
  while (!store->check({key_of(0)})) {
    transport.check();
    if (std::chrono::steady_clock::now() >= deadline) {
      fail_runtime(
          "rank 0 connected, but did not say within {} s on what it computes: dead or hung", limit.count() / 1000);
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  const std::string theirs = store->get_to_str(key_of(0));
  require(
      mine == theirs,
      "training.device: rank {} would compute on {}, rank 0 on {}; start all ranks alike",
      transport.rank(),
      mine,
      theirs);
}

std::string text_of(const std::exception& problem) {
  if (dynamic_cast<const Error*>(&problem) != nullptr) {
    return problem.what();
  }
  return "failed: " + exception_text(problem);
}
}  // namespace

std::unique_ptr<Transport> single_transport() {
  return std::make_unique<SingleTransport>();
}

std::unique_ptr<Transport> connect_ranks(const ConnectOptions& options) {
  return connect_ranks(read_rank_environment(environment_variables()), options);
}

std::unique_ptr<Transport> connect_ranks(const RankEnvironment& environment, const ConnectOptions& options) {
  if (environment.world_size == 1) {
    return single_transport();
  }
  const GlooOptions host{.init_timeout = options.init_timeout, .timeout = options.timeout};
  at::Device device = options.device;
  if (!device.is_cpu() && !device.has_index()) {
    device.set_index(static_cast<c10::DeviceIndex>(environment.local_rank));
  }
  auto transport = device.is_cpu() ? gloo_transport(environment, host)
                                   : nccl_transport(environment, {.host = host, .device = device});
  run_connected(*transport, [&] { require_same_device(*transport, options.init_timeout); });
  return transport;
}

void run_connected(Transport& transport, const std::function<void()>& body) {
  try {
    body();
  } catch (const PeerFailure&) {
    throw;  // The others know.
  } catch (const std::exception& problem) {
    transport.abort(text_of(problem));
    throw;
  }
}

void report_failure(const std::exception& problem) {
  const std::string file = last_words_file();
  const auto* const peer = dynamic_cast<const PeerFailure*>(&problem);
  if (file.empty() || !write_last_words(file, {.message = text_of(problem), .consequence = peer != nullptr})) {
    fmt::print(stderr, "{}\n", text_of(problem));
  }
}

void report_stop(Transport* transport, int signal, bool second) {
  const char* const name = sigabbrev_np(signal);
  const std::string text = fmt::format(
      "stopped by SIG{} {}",
      name == nullptr ? "?" : name,
      second ? "for the second time, without saving" : "before its first step, with nothing to save");
  const std::string file = last_words_file();
  const bool alone = transport == nullptr || transport->world_size() == 1;
  if (!file.empty()) {
    write_last_words(file, {.message = text});
  } else if (!alone) {
    fmt::print(stderr, "rank {}: {}\n", transport->rank(), text);
  }
  if (!alone) {
    transport->abort(text);
  }
}

}  // namespace lehr::mesh
