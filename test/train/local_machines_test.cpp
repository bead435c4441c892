// Local checkpoints of ranks on several machines. The ranks are threads, and each machine has a local folder of its
// own: that is what another machine looks like to a rank.
#include <gmock/gmock.h>

#include <fstream>

#include "lehr/base/error.h"
#include "lehr/state/checkpoint_part.h"
#include "lehr/train/local_checkpoints.h"
#include "lehr/train/store_coordinator.h"
#include "test/train/mesh_support.h"

namespace lehr::train {
namespace {
using testing::checkpoint;
using testing::expect_same_bits;
using testing::flip_last_bit;
using testing::Folder;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing::Mesh;
using ::testing::Not;
using ::testing::SizeIs;
using testing::tensors;
using testing::tiny_run;
namespace fs = std::filesystem;

using MachineOfRank = std::vector<int>;

constexpr Mesh kTwo{.dp_shard = 2};
constexpr Mesh kFour{.dp_shard = 2, .tp = 2};

// A run with checkpoints in steps 5, 10 and 12, and a local one in every step.
class RunOnMachines {
 public:
  explicit RunOnMachines(const Overrides& more = {}) {
    Overrides all{{"checkpoint.interval", "5"}, {"checkpoint.local_interval", "1"}};
    all.insert(all.end(), more.begin(), more.end());
    config_ = tiny_run(folder_.path(), all);
  }

  const TrainConfig& config() const { return config_; }
  // The local folder of a machine.
  fs::path machine(int number) const {
    const fs::path path = folder_.path() / ("machine-" + std::to_string(number));
    fs::create_directories(path);
    return path;
  }
  std::vector<fs::path> entries(int number) const {
    return {fs::directory_iterator(machine(number)), fs::directory_iterator()};
  }
  // The folder of its local checkpoints.
  fs::path local(int number) const { return entries(number).at(0); }
  fs::path part(int number, int64_t step, int64_t rank, int64_t ranks) const {
    return local(number) / ("step-" + std::to_string(step)) / state::folder_name({.rank = rank, .world_size = ranks});
  }
  void lose(int number) const { fs::remove_all(machine(number)); }

  // Steps that were trained, and warnings of rank 0.
  struct Trained {
    int64_t first = 0;
    std::string log;
  };
  using Handler = std::function<void(int64_t rank, int64_t step)>;

  // Trains on these machines; all ranks seem to die as step `dies_in` begins. When gradients are ready, no save is
  // running.
  Trained train(
      const Mesh& mesh, const MachineOfRank& machines, int64_t dies_in = 0, const Handler& gradients_ready = {}) const {
    Trained trained;
    ::testing::internal::CaptureStderr();
    try {
      mesh::run_ranks(
          mesh.world(),
          [&](mesh::Transport& transport) {
            TrainConfig mine = testing::with_degrees(config_, mesh);
            mine.checkpoint.local_folder = machine(machines.at(static_cast<size_t>(transport.rank()))).string();
            Logger log("", /*quiet=*/transport.rank() > 0);
            const auto list = testing::specs();
            Trainer trainer(mine, {.specs = list, .log = log, .transport = &transport});
            trainer.events().subscribe(Event::step_begin, [&](const EventContext& context) {
              if (transport.rank() == 0) {
                trained.first = trained.first == 0 ? context.step : trained.first;
              }
              if (context.step == dies_in) {
                throw std::runtime_error("killed");
              }
            });
            if (gradients_ready) {
              trainer.events().subscribe(Event::gradients_ready, [&](const EventContext& context) {
                gradients_ready(transport.rank(), context.step);
              });
            }
            trainer.run();
          },
          std::chrono::seconds(60));
    } catch (const std::runtime_error& error) {
      EXPECT_THAT(error.what(), HasSubstr("killed"));
    }
    trained.log = ::testing::internal::GetCapturedStderr();
    return trained;
  }

  // The run has ended with the bits of an undisturbed one, which had no local checkpoints, and leaves none.
  void expect_ended_undisturbed(const Mesh& mesh, const std::vector<int>& machines) const {
    static const Folder whole;
    static const TrainConfig once = [&] {
      const auto config = tiny_run(whole.path(), {{"checkpoint.interval", "5"}});
      testing::train_on(mesh, config);
      return config;
    }();
    for (const char* stem : {"model", "optimizer"}) {
      expect_same_bits(tensors(checkpoint(once, 12), stem), tensors(checkpoint(config_, 12), stem));
    }
    for (const int number : machines) {
      EXPECT_THAT(entries(number), IsEmpty()) << "machine " << number;
    }
    EXPECT_FALSE(fs::exists(LocalCheckpoints::pointer_in(checkpoint(config_, 12).parent_path())));
  }

 private:
  Folder folder_;
  TrainConfig config_;
};

TEST(LocalCheckpointsOnMachines, ARunThatLosesAnyMachineContinuesFromTheLastStepWithTheSameBits) {
  for (const MachineOfRank& machines : {MachineOfRank{0, 0, 1, 1}, MachineOfRank{0, 0, 1, 2}}) {
    for (int lost = 0; lost <= machines.back(); ++lost) {
      const RunOnMachines run;
      run.train(kFour, machines, 9);
      run.lose(lost);
      const auto trained = run.train(kFour, machines);
      EXPECT_EQ(trained.first, 9) << "machine " << lost << " of " << machines.back() + 1;
      EXPECT_THAT(trained.log, Not(HasSubstr("local checkpoint")));
      run.expect_ended_undisturbed(kFour, {0, 1, 2});
    }
  }
}

TEST(LocalCheckpointsOnMachines, AMachineKeepsThePartsOfItsRanksAndOfTheMachineBeforeInTheNewestStepOnly) {
  const RunOnMachines run;
  run.train(kFour, {0, 0, 1, 2}, 4);
  const std::vector<std::vector<int64_t>> kept{{0, 1, 3}, {0, 1, 2}, {2, 3}};
  for (int machine = 0; machine < 3; ++machine) {
    EXPECT_THAT(run.entries(machine), SizeIs(1));
    EXPECT_EQ(run.local(machine).filename(), run.local(0).filename());
    EXPECT_EQ(fs::status(run.local(machine)).permissions(), fs::perms::owner_all);
    const std::vector<fs::path> steps{fs::directory_iterator(run.local(machine)), fs::directory_iterator()};
    ASSERT_THAT(steps, SizeIs(1));
    EXPECT_EQ(steps[0].filename(), "step-3");
    std::vector<int64_t> ranks;
    for (int64_t rank = 0; rank < 4; ++rank) {
      if (fs::exists(run.part(machine, 3, rank, 4))) {
        ranks.push_back(rank);
      }
    }
    EXPECT_EQ(ranks, kept.at(static_cast<size_t>(machine)));
  }
  EXPECT_EQ(read_file(run.part(0, 3, 1, 4) / state::kPartFile), read_file(run.part(1, 3, 1, 4) / state::kPartFile));
}

TEST(LocalCheckpointsOnMachines, FewerRanksContinueOnTheMachineThatIsLeft) {
  const RunOnMachines run;
  run.train(kFour, {0, 0, 1, 1}, 9);
  run.lose(0);
  EXPECT_EQ(run.train(kTwo, {1, 1}, 11).first, 9);
  EXPECT_EQ(run.train(kTwo, {1, 1}).first, 11) << "local checkpoints of one machine";
  EXPECT_TRUE(fs::exists(checkpoint(run.config(), 12)));
  EXPECT_THAT(run.entries(1), IsEmpty());
}

// As after a start on one machine. (A start of threads would see it.)
TEST(FoundParts, AWholeCheckpointThatNotAllRanksSeeIsCopiedToTheOthers) {
  const RunOnMachines run;
  run.train(kTwo, {0, 0}, 9);
  const fs::path root = run.machine(7) / "checkpoints";
  mesh::run_ranks(2, [&](mesh::Transport& transport) {
    const auto coordinator = std::make_shared<StoreCoordinator>(transport, "test", std::chrono::seconds(20));
    FoundParts found(transport.rank() == 1 ? run.local(0) : fs::path(), coordinator);
    EXPECT_EQ(found.newest(), 8);
    state::CheckpointStore store(root);
    EXPECT_EQ(found.write_to(store, true), std::nullopt);
    EXPECT_THAT(found.warnings(5), IsEmpty());
  });
  for (const auto& entry : fs::directory_iterator(run.local(0) / "step-8")) {
    EXPECT_EQ(read_file(root / "step-8" / entry.path().filename()), read_file(entry.path()));
  }
}

TEST(LocalCheckpointsOnMachines, IfAPartIsLostTheRunSaysSoAndUsesItsOtherCheckpoints) {
  const RunOnMachines run;
  run.train(kFour, {0, 0, 1, 2}, 9);
  run.lose(1);
  run.lose(2);
  const auto trained = run.train(kFour, {0, 0, 1, 2}, 7);
  EXPECT_EQ(trained.first, 6);
  EXPECT_THAT(trained.log, HasSubstr("step 8 is lost: no machine of this start has the part of rank 2 of 4"));
}

TEST(LocalCheckpointsOnMachines, IfAllAreLostNothingIsSaid) {
  const RunOnMachines run;
  run.train(kTwo, {0, 1}, 9);
  run.lose(0);
  run.lose(1);
  const auto trained = run.train(kTwo, {0, 1}, 7);
  EXPECT_EQ(trained.first, 6);
  EXPECT_THAT(trained.log, Not(HasSubstr("lost")));
}

// The machines die while they publish step 8: some have it already, others only the one before.
TEST(LocalCheckpointsOnMachines, TheNewestStepThatIsCompleteOverAllMachinesIsUsed) {
  for (const int published : {0, 2}) {
    const RunOnMachines run;
    const fs::path before = run.machine(7);
    run.train(kFour, {0, 0, 1, 2}, 9, [&](int64_t rank, int64_t step) {
      if (rank == 0 && step == 8) {
        for (const int machine : {0, 1, 2}) {
          fs::copy(run.local(machine), before / std::to_string(machine), fs::copy_options::recursive);
        }
      }
    });
    for (const int machine : {0, 1, 2}) {
      const fs::path local = run.local(machine);
      fs::copy(before / std::to_string(machine), local, fs::copy_options::recursive);
      if (machine != published) {
        fs::rename(local / "step-8", local / ".step-8.saving");
      }
    }
    // Each machine has two thirds of step 8.
    EXPECT_EQ(run.train(kFour, {0, 0, 1, 2}).first, 8) << published;
    run.expect_ended_undisturbed(kFour, {0, 1, 2});
  }
}

TEST(LocalCheckpointsOnMachines, ADamagedPartIsReplacedByItsCopy) {
  const RunOnMachines run;
  run.train(kFour, {0, 0, 1, 1}, 9);
  flip_last_bit(run.part(0, 8, 0, 4) / state::kPartFile);
  const auto trained = run.train(kFour, {0, 0, 1, 1});
  EXPECT_EQ(trained.first, 9);
  EXPECT_THAT(trained.log, HasSubstr("part.safetensors: its bytes changed since it was saved"));
  EXPECT_THAT(trained.log, HasSubstr("the copy of another machine is used"));
  run.expect_ended_undisturbed(kFour, {0, 1});
}

TEST(LocalCheckpointsOnMachines, ACheckpointWithAPartThatIsDamagedOrCutShortOnAllMachinesIsNotUsed) {
  for (const bool cut : {false, true}) {
    const RunOnMachines run;
    run.train(kFour, {0, 0, 1, 1}, 9);
    run.lose(1);
    const fs::path file = run.part(0, 8, 3, 4) / state::kPartFile;
    cut ? fs::resize_file(file, fs::file_size(file) - 1) : flip_last_bit(file);
    const auto trained = run.train(kFour, {0, 0, 1, 1}, 7);
    EXPECT_EQ(trained.first, 6);
    EXPECT_THAT(trained.log, HasSubstr(cut ? "were saved" : "its bytes changed since it was saved"));
    EXPECT_THAT(trained.log, HasSubstr("that local checkpoint is not used"));
  }
}

TEST(LocalCheckpointsOnMachines, ReplaceADamagedCheckpointOfTheRunOfTheSameStep) {
  const RunOnMachines run;
  run.train(kTwo, {0, 1}, 11);
  flip_last_bit(checkpoint(run.config(), 10) / "model.safetensors");
  const auto trained = run.train(kTwo, {0, 1}, 12);
  EXPECT_EQ(trained.first, 11);
  EXPECT_THAT(trained.log, HasSubstr("set aside as step-10.damaged, and the run resumes from step 10"));
  EXPECT_TRUE(fs::exists(checkpoint(run.config(), 10).string() + ".damaged"));
}

TEST(LocalCheckpointsOnMachines, TheRunsOwnCheckpointOfTheSameStepIsPreferred) {
  const RunOnMachines run;
  run.train(kTwo, {0, 1}, 11);
  const auto written = fs::last_write_time(checkpoint(run.config(), 10) / "model.safetensors");
  EXPECT_EQ(run.train(kTwo, {0, 1}, 12).first, 11);
  EXPECT_EQ(fs::last_write_time(checkpoint(run.config(), 10) / "model.safetensors"), written);
}

// As if its folder were full.
TEST(LocalCheckpointsOnMachines, IfOneMachineCannotWriteTheOthersKeepThePreviousOne) {
  const RunOnMachines run;
  const auto trained = run.train(kFour, {0, 0, 1, 1}, 9, [&](int64_t rank, int64_t step) {
    if (rank == 2 && step == 7) {  // 6 is complete
      const fs::path local = run.local(1);
      fs::remove_all(local);
      std::ofstream(local) << "no folder";
    }
  });
  EXPECT_THAT(trained.log, HasSubstr("the local checkpoint of step 7 was not saved: rank 2: "));
  EXPECT_EQ(run.train(kFour, {0, 0, 1, 1}, 8).first, 7) << "machine 0 has all parts of step 6";
}

TEST(LocalCheckpointsOnMachines, AFolderThatOthersCanWriteIsNeitherReadNorWritten) {
  const RunOnMachines run;
  const auto trained = run.train(kFour, {0, 0, 1, 1}, 9, [&](int64_t rank, int64_t step) {
    if (rank == 2 && step == 7) {  // 6 is complete
      fs::permissions(run.local(1), fs::perms::others_write, fs::perm_options::add);
    }
  });
  EXPECT_THAT(trained.log, HasSubstr("the local checkpoint of step 7 was not saved: rank 2: "));
  EXPECT_THAT(trained.log, HasSubstr("another user may write to it"));
  run.lose(0);
  EXPECT_EQ(run.train(kFour, {0, 0, 1, 1}, 7).first, 6) << "machine 1 alone has all parts, but is not trusted";
}

TEST(LocalCheckpointsOnMachines, ARunThatGoesBackDropsThoseOfAllMachines) {
  const RunOnMachines run;
  run.train(kTwo, {0, 1}, 9);
  const RunOnMachines back(Overrides{{"checkpoint.load_step", "5"}});
  TrainConfig config = back.config();
  config.job.dump_folder = run.config().job.dump_folder;
  mesh::run_ranks(2, [&](mesh::Transport& transport) {
    TrainConfig mine = testing::with_degrees(config, kTwo);
    mine.checkpoint.local_interval = 0;
    mine.checkpoint.local_folder = run.machine(static_cast<int>(transport.rank())).string();
    Logger quiet("", true);
    const auto list = testing::specs();
    Trainer trainer(mine, {.specs = list, .log = quiet, .transport = &transport});
    trainer.run();
  });
  EXPECT_THAT(run.entries(0), IsEmpty());
  EXPECT_THAT(run.entries(1), IsEmpty());
}

TEST(Machines, AreGroupsOfRanksThatSeeTheSameFolder) {
  const Folder folder;
  const MachineOfRank of_rank{1, 0, 1, 2};
  mesh::run_ranks(4, [&](mesh::Transport& transport) {
    StoreCoordinator coordinator(transport, "test", std::chrono::seconds(20));
    const fs::path mine = folder.path() / std::to_string(of_rank.at(static_cast<size_t>(transport.rank())));
    fs::create_directories(mine);
    const Machines machines = machines_of(mine, coordinator);
    EXPECT_EQ(machines.ranks, (std::vector<std::vector<int64_t>>{{0, 2}, {1}, {3}}));
    EXPECT_EQ(machines.mine, (std::vector<size_t>{0, 1, 0, 2}.at(static_cast<size_t>(transport.rank()))));
    EXPECT_EQ(machines.is_first(transport.rank()), transport.rank() != 2);
  });
  for (const auto& entry : fs::directory_iterator(folder.path())) {
    EXPECT_TRUE(fs::is_empty(entry)) << entry;
  }
}

// A part of one vector with `size` numbers of that rank.
state::CheckpointContents numbers_of(int64_t rank, int64_t size) {
  state::CheckpointContents contents{.step = 3, .weights = {}};
  contents.weights.push_back(
      {.tensors = {}, .parts = {{.name = "numbers", .box = {{0, size}}, .tensor = at::full({size}, rank, at::kLong)}}});
  return contents;
}

TEST(PartReplicator, CopiesPartsOfAnySizeInPieces) {
  const Folder folder;
  const Machines machines{.ranks = {{0, 1}, {2}, {3}}, .mine = 0};
  const std::vector<size_t> machine_of{0, 0, 1, 2};
  const auto root_of = [&](size_t machine) { return folder.path() / std::to_string(machine); };
  mesh::run_ranks(4, [&](mesh::Transport& transport) {
    const auto coordinator = std::make_shared<StoreCoordinator>(transport, "test", std::chrono::seconds(20));
    Machines mine = machines;
    mine.mine = machine_of.at(static_cast<size_t>(transport.rank()));
    PartReplicator replicator(mine, transport, coordinator, /*piece_bytes=*/100);
    state::CheckpointStore store(root_of(mine.mine), state::CheckpointStore::Access::owner);
    replicator.save(store, numbers_of(transport.rank(), 10 + 30 * transport.rank()), "");
  });
  for (size_t rank = 0; rank < 4; ++rank) {
    const size_t machine = machine_of[rank];
    const auto file = [&](size_t on) {
      const state::PartName name{.rank = static_cast<int64_t>(rank), .world_size = 4};
      return root_of(on) / "step-3" / state::folder_name(name) / state::kPartFile;
    };
    EXPECT_EQ(read_file(file(machine)), read_file(file(machines.after(machine)))) << rank;
    const auto numbers = state::read_part(file(machines.after(machine)).parent_path()).weights.at(0).parts.at(0).tensor;
    EXPECT_TRUE(
        at::equal(numbers, at::full({10 + 30 * static_cast<int64_t>(rank)}, static_cast<int64_t>(rank), at::kLong)));
  }
}

TEST(PartReplicator, AFailureOnOneRankFailsOnAllAndLeavesNothing) {
  const Folder folder;
  mesh::run_ranks(2, [&](mesh::Transport& transport) {
    const auto coordinator = std::make_shared<StoreCoordinator>(transport, "test", std::chrono::seconds(20));
    const Machines machines{.ranks = {{0}, {1}}, .mine = static_cast<size_t>(transport.rank())};
    PartReplicator replicator(machines, transport, coordinator);
    state::CheckpointStore store(
        folder.path() / std::to_string(transport.rank()), state::CheckpointStore::Access::owner);
    EXPECT_THAT(
        [&] { replicator.save(store, numbers_of(transport.rank(), 5), transport.rank() == 1 ? "no memory" : ""); },
        ::testing::ThrowsMessage<Error>("rank 1: no memory"));
    EXPECT_THAT(store.list(), IsEmpty());
  });
}

TEST(Machines, NeedRoomForTheirOwnPartsAndThoseOfTheMachineBefore) {
  const Machines machines{.ranks = {{0, 2}, {1}, {3}}, .mine = 1};
  const auto kept = PartReplicator::kept(machines, {1, 10, 100, 1000});
  EXPECT_EQ(kept.own, 10);
  EXPECT_EQ(kept.all, 10 + 101);
}

TEST(Machines, CopiesOfAnotherCountAsMemoryOfTheRun) {
  CheckpointConfig config;
  EXPECT_EQ(config.copies(/*on_several_machines=*/true), 1);
  config.local_interval = 1;
  EXPECT_EQ(config.copies(), 4);
  EXPECT_EQ(config.copies(/*on_several_machines=*/true), 4 + 2);
}

TEST(LocalCheckpointsOnMachines, AreRefusedIfOneMachineHasNoRoom) {
  const Folder folder;
  mesh::run_ranks(2, [&](mesh::Transport& transport) {
    CheckpointConfig config;
    config.local_interval = 1;
    config.local_folder = (folder.path() / std::to_string(transport.rank())).string();
    fs::create_directories(config.local_folder);
    const auto coordinator = std::make_shared<StoreCoordinator>(transport, "test", std::chrono::seconds(20));
    LocalCheckpoints local(config, folder.path() / "run", coordinator, &transport);
    const int64_t share = transport.rank() == 1 ? int64_t{1} << 59 : 1;
    EXPECT_THAT(
        [&] { local.open(false, false, share, share); },
        ::testing::Throws<Error>(::testing::Property(
            &Error::what,
            HasSubstr("on the machine of rank 0, with copies of another's: two local checkpoints take"))));
    EXPECT_THAT(local.open(true, false, share, share).value_or(""), HasSubstr("this start has no local"));
    EXPECT_EQ(local.open(true, false, 1, 1), std::nullopt);
    EXPECT_TRUE(local.are_on());
    local.close();
  });
}

}  // namespace
}  // namespace lehr::train
