// The number of communicators of a rank on its GPU, by mesh: the table in docs/parallelism.md.
//
// Threads stand in for both parts of the transport. All float32 tensors of a dense model are on the device, except
// numbers of the hosts: counts, requests to stop and names.
#include <gmock/gmock.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>

#include <mutex>

#include "lehr/mesh/nccl_transport.h"
#include "lehr/mesh/thread_backend.h"
#include "test/train/mesh_support.h"

namespace lehr::train {
namespace {

using testing::Folder;
using testing::Mesh;
using testing::tiny_run;

class Devices {
 public:
  c10::intrusive_ptr<c10d::Backend> connect(const mesh::DeviceGroup& group) {
    const std::lock_guard lock(mutex_);
    auto& communicator = communicators_[group.name];
    if (!communicator) {
      communicator =
          std::make_shared<mesh::ThreadCommunicator>(group.name, group.size, abort_, std::chrono::seconds(60));
    }
    return mesh::make_thread_backend(communicator, group.rank);
  }

 private:
  std::mutex mutex_;
  std::map<std::string, std::shared_ptr<mesh::ThreadCommunicator>> communicators_;
  std::shared_ptr<mesh::ThreadAbort> abort_ = std::make_shared<mesh::ThreadAbort>();
};

bool on_device(const at::Tensor& tensor) {
  const bool number_of_host = tensor.dim() == 1 && tensor.numel() == 1 && tensor.scalar_type() != at::kFloat;
  const bool counts_of_host =
      tensor.dim() == 1 && tensor.numel() == 3 && tensor.scalar_type() == at::kLong;  // the work of a step
  return !number_of_host && !counts_of_host && tensor.scalar_type() != at::kChar;
}

// The number of the rank that has most.
int64_t count(const Mesh& mesh, Overrides overrides) {
  overrides.insert(
      overrides.end(),
      {{"training.dtype", "float32"},
       {"training.steps", "2"},
       {"lr_scheduler.warmup_steps", "1"},
       {"validation.enable", "false"},
       {"checkpoint.enable", "false"},
       {"parallelism.data_parallel_replicate_degree", std::to_string(mesh.dp_replicate)},
       {"parallelism.data_parallel_shard_degree", std::to_string(mesh.dp_shard)},
       {"parallelism.context_parallel_degree", std::to_string(mesh.cp)},
       {"parallelism.tensor_parallel_degree", std::to_string(mesh.tp)},
       {"parallelism.pipeline_parallel_degree", std::to_string(mesh.pp)}});
  Overrides all = testing::family("qwen3");
  all.insert(all.end(), overrides.begin(), overrides.end());
  const Folder folder;
  const TrainConfig config = tiny_run(folder.path(), all);
  Devices devices;
  const auto hub = mesh::make_thread_hub(mesh.world(), std::chrono::seconds(60));
  std::mutex mutex;
  int64_t most = 0;
  mesh::run_ranks(mesh.world(), [&](mesh::Transport& thread) {
    const auto transport = mesh::nccl_transport(
        [&](const std::function<void()>&) { return mesh::thread_transport(hub, thread.rank()); },
        {.device = at::kCPU,
         .connect = [&](const mesh::DeviceGroup& group) { return devices.connect(group); },
         .on_device = on_device});
    Logger quiet("", true);
    const auto list = testing::specs();
    Trainer trainer(config, {.specs = list, .log = quiet, .transport = transport.get()});
    trainer.run();
    const std::lock_guard lock(mutex);
    most = std::max(most, transport->num_communicators());
  });
  return most;
}

const Overrides kRing{{"parallelism.context_parallel_rotate_method", "ring"}};
const Overrides k1F1B{{"parallelism.pipeline_parallel_schedule", "1F1B"}};
const Overrides kRingAnd1F1B{kRing[0], k1F1B[0]};

TEST(Communicators, AreAsManyAsInTheTableOfTheDocumentation) {
  struct Case {
    Mesh mesh;
    Overrides overrides;
    int64_t communicators;
  };
  for (const Case& one : std::vector<Case>{
           {{.dp_replicate = 8}, {}, 1},
           {{.dp_shard = 8}, {}, 1},
           {{.dp_shard = 2, .tp = 4}, {}, 3},
           {{.dp_replicate = 2, .dp_shard = 2, .tp = 2}, {}, 5},
           {{.dp_shard = 2, .cp = 2, .tp = 2}, {}, 4},
           {{.dp_shard = 2, .cp = 2, .tp = 2}, kRing, 6},
           {{.dp_shard = 2, .tp = 2, .pp = 2}, k1F1B, 6},
           {{.cp = 2, .tp = 2, .pp = 2}, kRingAnd1F1B, 8}}) {
    EXPECT_EQ(count(one.mesh, one.overrides), one.communicators) << one.mesh.name();
  }
}

}  // namespace
}  // namespace lehr::train
