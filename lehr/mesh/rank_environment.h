// Which rank this process is, as whatever started it says: torchrun, srun, mpirun, lehr launch, or nobody.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace lehr::mesh {

/// A process among those that one launcher started.
struct RankEnvironment {
  std::string launcher =
      "";  ///< "torchrun", "lehr launch", "srun", "mpirun" (Open MPI), "mpiexec" (PMI); empty: nobody.
  int64_t rank = 0;
  int64_t world_size = 1;
  int64_t local_rank = 0;           ///< Among the processes of this machine: which GPU.
  std::string master_address = "";  ///< Where rank 0 is found; empty for one rank.
  int64_t master_port = 0;
  /// The launcher keeps the store (torchrun and lehr launch do), so rank 0 must not.
  bool launcher_keeps_store = false;
  /// Sets the keys of this start apart from those of earlier ones that the store may hold.
  std::string key_prefix = "";
};

using Variables = std::map<std::string, std::string>;

/// This process's environment variables.
Variables environment_variables();

/// | launcher              | rank, size, local rank                       | where rank 0 is                        |
/// | torchrun, lehr launch | RANK, WORLD_SIZE, LOCAL_RANK                 | MASTER_ADDR, MASTER_PORT               |
/// | mpirun                | OMPI_COMM_WORLD_RANK, .._SIZE, .._LOCAL_RANK | MASTER_ADDR, or this machine if all    |
/// | mpiexec               | PMI_RANK, PMI_SIZE, MPI_LOCALRANKID          | are on it, or as srun                  |
/// | srun                  | SLURM_PROCID, SLURM_STEP_NUM_TASKS or        | MASTER_ADDR, or the first host of      |
/// |                       | SLURM_NTASKS, SLURM_LOCALID                  | SLURM_STEP_NODELIST or .._JOB_NODELIST |
///
/// in this order. The port is MASTER_PORT, LEHR_MASTER_PORT, or derived from the job's id. Throws a usage error that
/// names the variables when some are missing, are no numbers, or contradict each other, so that a run never takes
/// itself for alone while a launcher started several. No launcher: rank 0 of 1.
RankEnvironment read_rank_environment(const Variables& variables);

/// What says that a launcher started this process beside others: "torchrun started 4 processes (RANK=1, WORLD_SIZE=4)";
/// empty where nothing does, or too little to tell. For programs that work alone; it never throws.
struct StartedBeside {
  std::string description = "";
  std::vector<std::string> variables = {};  ///< Their names.
};
StartedBeside started_beside_others(const Variables& variables);

/// "node003" for "node[003-006,010],gpu7": the first host of a list as SLURM writes it. Throws a usage error for text
/// that is none.
std::string first_host(const std::string& node_list);

}  // namespace lehr::mesh
