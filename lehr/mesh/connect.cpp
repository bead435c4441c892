#include "lehr/mesh/connect.h"

#include <c10/util/Exception.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/HashStore.hpp>

#include <cstdio>
#include <thread>

#include "lehr/base/printable.h"
#include "lehr/mesh/exception_text.h"
#include "lehr/mesh/gloo_transport.h"
#include "lehr/mesh/launched_ranks.h"
#include "lehr/mesh/nccl_transport.h"
#include "lehr/mesh/rank_device.h"

namespace lehr::mesh {

namespace {
class SingleTransport : public Transport {
 public:
  int64_t rank() const override { return 0; }
  int64_t world_size() const override { return 1; }
  std::string name() const override { return "single"; }
  c10::intrusive_ptr<c10d::Backend> connect(const std::string& group, const std::vector<int64_t>& /*ranks*/) override {
    fail("axis {}: a world of one rank has no connections", group);
  }
  c10::intrusive_ptr<c10d::Store> store() override { return store_; }

 private:
  c10::intrusive_ptr<c10d::Store> store_ = c10::make_intrusive<c10d::HashStore>();
};

// Returns the devices that all ranks compute on. Rank 0 decides from the offers of all ranks, and the others read its
// decision.
DeviceAgreement agree_on_device(Transport& transport, const DeviceOffer& mine, std::chrono::milliseconds limit) {
  const std::string kAgreed = "device/agreed";
  const auto store = transport.store();
  const auto wait_for = [&](const std::vector<std::string>& keys, const char* who) {
    const auto deadline = std::chrono::steady_clock::now() + limit;
    while (!store->check(keys)) {
      transport.check();
      if (std::chrono::steady_clock::now() >= deadline) {
        fail_runtime(
            "{} connected, but did not report its device within {} s: dead or hung", who, limit.count() / 1000);
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
  };
  const auto key_of = [](int64_t rank) { return fmt::format("device/{}", rank); };
  store->set(key_of(transport.rank()), mine.to_text());
  if (transport.rank() == 0) {
    std::vector<std::string> keys;
    for (int64_t rank = 0; rank < transport.world_size(); ++rank) {
      keys.push_back(key_of(rank));
    }
    wait_for(keys, "a rank");
    std::vector<DeviceOffer> offers;
    for (const std::string& key : keys) {
      offers.push_back(DeviceOffer::from_text(store->get_to_str(key)));
    }
    const DeviceAgreement agreed = agree_on_device(offers);
    store->set(kAgreed, agreed.type + "\n" + agreed.why_cpu);
    return agreed;
  }
  wait_for({kAgreed}, "rank 0");
  const std::string text = store->get_to_str(kAgreed);
  const size_t line = text.find('\n');
  return {.type = text.substr(0, line), .why_cpu = text.substr(line + 1)};
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
  DeviceOffer offer{
      .type = c10::DeviceTypeName(options.device.type(), /*lower_case=*/true),
      .require_device = options.require_device,
      .why_cpu = options.why_cpu};
  auto transport = options.device.is_cpu() ? gloo_transport(environment, host)
                                           : nccl_transport(environment, {.host = host, .device = options.device});
  DeviceAgreement agreed;
  run_connected(*transport, [&] {
    if (!transport->device().is_cpu()) {
      offer.gpu = nccl_device_name(transport->device().index());
    }
    agreed = agree_on_device(*transport, offer, options.init_timeout);
  });
  if (options.on_cpu_fallback && !agreed.why_cpu.empty()) {
    options.on_cpu_fallback(agreed.why_cpu);
  }
  const bool without_gpus = agreed.type == "cpu" && !options.device.is_cpu();
  return without_gpus ? hosts_of(std::move(transport)) : std::move(transport);
}

void run_connected(Transport& transport, const std::function<void()>& body) {
  try {
    body();
  } catch (const PeerFailure&) {
    throw;  // The other ranks know already.
  } catch (const std::exception& problem) {
    transport.abort(text_of(problem));
    throw;
  }
}

void report_failure(const std::exception& problem) {
  const std::string file = crash_report_file();
  const auto* const peer = dynamic_cast<const PeerFailure*>(&problem);
  const std::string message = printable(text_of(problem));
  if (file.empty() || !write_crash_report(file, {.message = message, .consequence = peer != nullptr})) {
    std::fputs((message + "\n").c_str(), stderr);  // fmt::print throws if the terminal has gone
  }
}

void report_stop(Transport* transport, int signal, bool second) {
  const char* const name = sigabbrev_np(signal);
  const std::string text = fmt::format(
      "stopped by SIG{} {}",
      name == nullptr ? "?" : name,
      second ? "for the second time, without saving" : "before its first step, with nothing to save");
  const std::string file = crash_report_file();
  const bool alone = transport == nullptr || transport->world_size() == 1;
  if (!file.empty()) {
    write_crash_report(file, {.message = text});
  } else if (!alone) {
    std::fputs(fmt::format("rank {}: {}\n", transport->rank(), text).c_str(), stderr);
  }
  if (!alone) {
    transport->abort(text);
  }
}

}  // namespace lehr::mesh
