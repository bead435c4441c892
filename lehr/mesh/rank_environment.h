// The rank of this process, from the variables of its launcher: torchrun, srun, mpirun, lehr launch, or none.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace lehr::mesh {

/// A process of a run, as its launcher describes it.
struct RankEnvironment {
  std::string launcher = "";  ///< "torchrun", "lehr launch", "srun", "mpirun" (Open MPI), "mpiexec" (PMI); empty: none.
  int64_t rank = 0;
  int64_t world_size = 1;
  int64_t local_rank = 0;           ///< Index among the processes of this machine.
  int64_t local_world_size = 0;     ///< Processes of this machine; 0: unknown.
  std::string master_address = "";  ///< Address of rank 0; empty for one rank.
  int64_t master_port = 0;
  /// The launcher keeps the store (torchrun and lehr launch do), so rank 0 must not.
  bool launcher_keeps_store = false;
  /// The store may hold the keys of earlier starts (torchrun's).
  bool has_earlier_keys = false;
};

/// Environment variables by name.
using Variables = std::map<std::string, std::string>;

/// This process's environment variables.
Variables environment_variables();

/// Reads the variables of the launchers, in this order:
///
/// | launcher              | rank, size, local rank                       | address of rank 0                      |
/// | torchrun, lehr launch | RANK, WORLD_SIZE, LOCAL_RANK                 | MASTER_ADDR, MASTER_PORT               |
/// | mpirun                | OMPI_COMM_WORLD_RANK, .._SIZE, .._LOCAL_RANK | MASTER_ADDR, or this machine if all    |
/// | mpiexec               | PMI_RANK, PMI_SIZE, MPI_LOCALRANKID          | are on it, or as srun (mpirun: only    |
/// |                       |                                              | SLURM_JOB_NODELIST)                    |
/// | srun                  | SLURM_PROCID, SLURM_STEP_NUM_TASKS or        | MASTER_ADDR, or the first host of      |
/// |                       | SLURM_NTASKS, SLURM_LOCALID                  | SLURM_STEP_NODELIST or .._JOB_NODELIST |
///
/// The number of processes on this machine is LOCAL_WORLD_SIZE, OMPI_COMM_WORLD_LOCAL_SIZE, MPI_LOCALNRANKS, or the
/// entry of SLURM_STEP_TASKS_PER_NODE (SLURM_TASKS_PER_NODE) for node SLURM_NODEID. The port is MASTER_PORT,
/// LEHR_MASTER_PORT, or derived from the job's id. Throws a usage error that names the variables if some are missing,
/// are not numbers, or contradict each other, so that a process never runs alone although a launcher started several.
/// Without a launcher: rank 0 of 1.
RankEnvironment read_rank_environment(const Variables& variables);

/// A description of the launcher if it started this process together with others: "torchrun started 4 processes
/// (RANK=1, WORLD_SIZE=4)"; empty if it did not, or if that cannot be determined. For programs that run alone; never
/// throws.
struct StartedBeside {
  std::string description = "";
  std::vector<std::string> variables = {};  ///< The names of the variables that it was determined from.
};
StartedBeside started_beside_others(const Variables& variables);

/// Returns the first host of a list in SLURM's format: "node003" for "node[003-006,010],gpu7". Throws a usage error for
/// text in another format.
std::string first_host(const std::string& node_list);

/// Returns the number of tasks on a node from a list in SLURM's format: 2 for "4(x3),2" and node 3; 0 for a node after
/// the end of the list. Throws as first_host does.
int64_t tasks_on_node(const std::string& tasks_per_node, int64_t node);

}  // namespace lehr::mesh
