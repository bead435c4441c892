#include "lehr/mesh/rank_environment.h"

#include <unistd.h>

#include <charconv>
#include <optional>
#include <sstream>
#include <string_view>

#include "lehr/base/error.h"
#include "lehr/mesh/launched_ranks.h"

namespace lehr::mesh {

namespace {
// Ports below those that systems assign to outgoing connections.
constexpr int64_t kFirstPort = 15000;
constexpr int64_t kNumPorts = 16000;

struct Names {
  const char* launcher;
  const char* rank;
  const char* world_size;
  const char* local_rank;
  const char* local_size;  // null: no variable of its own
};

class Reader {
 public:
  explicit Reader(const Variables& variables) : variables_(variables) {}

  // Empty text counts as absent: schedulers clear variables that way.
  bool has(const std::string& name) const { return !text(name).empty(); }

  std::string text(const std::string& name) const {
    const auto found = variables_.find(name);
    return found == variables_.end() ? "" : found->second;
  }

  int64_t number(const std::string& name, int64_t least) const {
    const std::string value = text(name);
    int64_t parsed = 0;
    const char* const end = value.data() + value.size();
    const auto [rest, problem] = std::from_chars(value.data(), end, parsed);
    require(
        problem == std::errc() && rest == end && parsed >= least,
        "environment: {}: expected a number of at least {}, found '{}'",
        name,
        least,
        value);
    return parsed;
  }

  RankEnvironment ranks(const Names& names) const {
    for (const char* const name : {names.rank, names.world_size, names.local_rank}) {
      if (!has(name)) {
        fail(
            "environment: {} is missing beside {}; {} sets {}, {} and {} together",
            name,
            has(names.rank)         ? names.rank
            : has(names.world_size) ? names.world_size
                                    : names.local_rank,
            names.launcher,
            names.rank,
            names.world_size,
            names.local_rank);
      }
    }
    RankEnvironment result{
        .launcher = names.launcher,
        .rank = number(names.rank, 0),
        .world_size = number(names.world_size, 1),
        .local_rank = number(names.local_rank, 0)};
    require(
        result.rank < result.world_size,
        "environment: {}={}: expected less than {}={}",
        names.rank,
        result.rank,
        names.world_size,
        result.world_size);
    require(
        result.local_rank < result.world_size,
        "environment: {}={}: expected less than {}={}",
        names.local_rank,
        result.local_rank,
        names.world_size,
        result.world_size);
    if (names.local_size != nullptr && has(names.local_size)) {
      result.local_world_size = number(names.local_size, 1);
    }
    return result;
  }

  int64_t port(const std::string& name) const {
    const int64_t value = number(name, 1);
    require(value < 65536, "environment: {}: expected a port below 65536, found {}", name, value);
    return value;
  }

  std::optional<int64_t> chosen_port() const {
    for (const char* const name : {"MASTER_PORT", "LEHR_MASTER_PORT"}) {
      if (has(name)) {
        return port(name);
      }
    }
    return std::nullopt;
  }

 private:
  const Variables& variables_;
};

constexpr Names kTorchrun{"torchrun", "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"};
constexpr Names kOpenMpi{
    "mpirun",
    "OMPI_COMM_WORLD_RANK",
    "OMPI_COMM_WORLD_SIZE",
    "OMPI_COMM_WORLD_LOCAL_RANK",
    "OMPI_COMM_WORLD_LOCAL_SIZE"};
constexpr Names kPmi{"mpiexec", "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"};

Names slurm_names(const Reader& reader) {
  // The step's number counts the tasks that this srun started; the job's may be larger.
  return {
      "srun",
      "SLURM_PROCID",
      reader.has("SLURM_STEP_NUM_TASKS") ? "SLURM_STEP_NUM_TASKS" : "SLURM_NTASKS",
      "SLURM_LOCALID",
      nullptr};
}

// FNV-1a hash of the job: all ranks of a job get the same port, the next job gets another one.
int64_t port_from(const std::string& job) {
  uint64_t hash = 14695981039346656037ULL;
  for (const char c : job) {
    hash = (hash ^ static_cast<unsigned char>(c)) * 1099511628211ULL;
  }
  return kFirstPort + static_cast<int64_t>(hash % static_cast<uint64_t>(kNumPorts));
}

// What identifies the job to all of its ranks.
struct Job {
  const char* id;        // null: no variable
  bool is_step = false;  // its ranks are the tasks of one SLURM step
};

void find_master(const Reader& reader, RankEnvironment& ranks, const char* local_size, const Job& job) {
  if (ranks.world_size == 1) {
    return;
  }
  const char* const nodes =
      job.is_step && reader.has("SLURM_STEP_NODELIST") ? "SLURM_STEP_NODELIST" : "SLURM_JOB_NODELIST";
  if (reader.has("MASTER_ADDR")) {
    ranks.master_address = reader.text("MASTER_ADDR");
  } else if (local_size != nullptr && reader.has(local_size) && reader.number(local_size, 1) == ranks.world_size) {
    ranks.master_address = "127.0.0.1";
  } else if (reader.has(nodes)) {
    ranks.master_address = first_host(reader.text(nodes));
  } else {
    fail(
        "environment: {} started {} ranks and does not say where rank 0 is: set MASTER_ADDR to its host name",
        ranks.launcher,
        ranks.world_size);
  }
  if (const auto port = reader.chosen_port()) {
    ranks.master_port = *port;
  } else if (job.id != nullptr && reader.has(job.id)) {
    // SLURM steps of one job may run concurrently.
    ranks.master_port = port_from(reader.text(job.id) + "." + (job.is_step ? reader.text("SLURM_STEP_ID") : ""));
  } else {
    fail(
        "environment: {} started {} ranks: set MASTER_PORT to a free port of {}, the same on all of them",
        ranks.launcher,
        ranks.world_size,
        ranks.master_address);
  }
}

RankEnvironment from_torchrun(const Reader& reader) {
  RankEnvironment result = reader.ranks(kTorchrun);
  if (reader.text("TORCHELASTIC_RUN_ID") == kLaunchRunId) {
    result.launcher = "lehr launch";
  }
  result.launcher_keeps_store = reader.text("TORCHELASTIC_USE_AGENT_STORE") == "True";
  result.has_earlier_keys = result.launcher_keeps_store && result.launcher == "torchrun";
  if (result.world_size > 1) {
    for (const char* const name : {"MASTER_ADDR", "MASTER_PORT"}) {
      require(
          reader.has(name),
          "environment: {} is missing beside WORLD_SIZE={}; torchrun sets it",
          name,
          result.world_size);
    }
    result.master_address = reader.text("MASTER_ADDR");
    result.master_port = reader.port("MASTER_PORT");
  }
  return result;
}

// An exported RANK would hide the variables of mpirun or srun. torchrun itself may well run under them, with other
// numbers.
void refuse_contradiction(const Reader& reader, const RankEnvironment& torchrun) {
  if (reader.has("TORCHELASTIC_RUN_ID")) {
    return;
  }
  for (const Names& other : {kOpenMpi, kPmi, slurm_names(reader)}) {
    if (!reader.has(other.rank) || !reader.has(other.world_size)) {
      continue;
    }
    require(
        reader.number(other.rank, 0) == torchrun.rank && reader.number(other.world_size, 1) == torchrun.world_size,
        "environment: RANK={} and WORLD_SIZE={} contradict {}={} and {}={}; unset the pair that is not meant",
        torchrun.rank,
        torchrun.world_size,
        other.rank,
        reader.text(other.rank),
        other.world_size,
        reader.text(other.world_size));
  }
}

bool any(const Reader& reader, const Names& names) {
  return reader.has(names.rank) || reader.has(names.world_size) || reader.has(names.local_rank);
}
}  // namespace

Variables environment_variables() {
  Variables result;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string text = *entry;
    const size_t equals = text.find('=');
    if (equals != std::string::npos) {
      result[text.substr(0, equals)] = text.substr(equals + 1);
    }
  }
  return result;
}

std::string first_host(const std::string& node_list) {
  std::string host;
  for (size_t i = 0; i < node_list.size() && node_list[i] != ','; ++i) {
    if (node_list[i] != '[') {
      host += node_list[i];
      continue;
    }
    const size_t close = node_list.find(']', i);
    const size_t end = node_list.find_first_of("-,]", i);
    require(
        close != std::string::npos && end > i + 1,
        "environment: '{}': expected a list of hosts as node[01-04,07]",
        node_list);
    host += node_list.substr(i + 1, end - i - 1);
    i = close;
  }
  require(!host.empty(), "environment: '{}': expected a list of hosts as node[01-04,07]", node_list);
  return host;
}

int64_t tasks_on_node(const std::string& tasks_per_node, int64_t node) {
  std::istringstream parts(tasks_per_node);
  for (std::string part; std::getline(parts, part, ',');) {
    int64_t tasks = 0, nodes = 1;
    const char* const end = part.data() + part.size();
    auto [rest, problem] = std::from_chars(part.data(), end, tasks);
    if (problem == std::errc() && std::string_view(rest, end).starts_with("(x")) {
      const auto times = std::from_chars(rest + 2, end, nodes);
      problem = times.ec;
      rest = times.ptr + (times.ptr != end && *times.ptr == ')' ? 1 : 0);
    }
    require(
        problem == std::errc() && rest == end,
        "environment: '{}': expected a list of tasks by node as 4(x2),3",
        tasks_per_node);
    if (node < nodes) {
      return tasks;
    }
    node -= nodes;
  }
  return 0;
}

RankEnvironment read_rank_environment(const Variables& variables) {
  const Reader reader(variables);
  if (any(reader, kTorchrun)) {
    const RankEnvironment result = from_torchrun(reader);
    refuse_contradiction(reader, result);
    return result;
  }
  if (any(reader, kOpenMpi)) {
    RankEnvironment result = reader.ranks(kOpenMpi);
    // Ranks of other machines are in a step of Open MPI's own, without the machine of mpirun, whose ranks are in none.
    const bool has_jobid = reader.has("OMPI_MCA_ess_base_jobid");
    find_master(
        reader, result, "OMPI_COMM_WORLD_LOCAL_SIZE", {has_jobid ? "OMPI_MCA_ess_base_jobid" : "PMIX_NAMESPACE"});
    return result;
  }
  // srun --mpi=pmi2 sets PMI's variables too, but not the local rank.
  const bool slurm = reader.has("SLURM_PROCID");
  if (any(reader, kPmi) && (reader.has(kPmi.local_rank) || !slurm)) {
    RankEnvironment result = reader.ranks(kPmi);
    find_master(reader, result, "MPI_LOCALNRANKS", {slurm ? "SLURM_JOB_ID" : nullptr, /*is_step=*/true});
    return result;
  }
  if (!slurm) {
    return {};  // A shell of salloc has SLURM's variables of the job, but no task's.
  }
  RankEnvironment result = reader.ranks(slurm_names(reader));
  const char* const tasks =
      reader.has("SLURM_STEP_TASKS_PER_NODE") ? "SLURM_STEP_TASKS_PER_NODE" : "SLURM_TASKS_PER_NODE";
  if (reader.has(tasks) && reader.has("SLURM_NODEID")) {
    result.local_world_size = tasks_on_node(reader.text(tasks), reader.number("SLURM_NODEID", 0));
  }
  require(
      result.world_size == 1 || reader.text("ENVIRONMENT") != "BATCH" || reader.has("SLURM_STEP_ID"),
      "environment: SLURM_NTASKS={}, but this is the job's script itself: write srun before the command",
      result.world_size);
  find_master(reader, result, nullptr, {"SLURM_JOB_ID", /*is_step=*/true});
  return result;
}

StartedBeside started_beside_others(const Variables& variables) {
  const Reader reader(variables);
  const bool job_script =
      reader.has("SLURM_PROCID") && reader.text("ENVIRONMENT") == "BATCH" && !reader.has("SLURM_STEP_ID");
  for (const Names& names : {kTorchrun, kOpenMpi, kPmi, slurm_names(reader)}) {
    if (job_script && names.rank == std::string_view("SLURM_PROCID")) {
      continue;  // SLURM started one process, the script, whatever its variables state about tasks
    }
    int64_t rank = 0, size = 1;
    try {
      rank = reader.number(names.rank, 0);
      size = reader.number(names.world_size, 1);
    } catch (const Error&) {
      continue;  // absent, or not a launcher's
    }
    if (size > 1) {
      const bool own = names.rank == kTorchrun.rank && reader.text("TORCHELASTIC_RUN_ID") == kLaunchRunId;
      return {
          .description = fmt::format(
              "{} started {} processes ({}={}, {}={})",
              own ? "lehr launch" : names.launcher,
              size,
              names.rank,
              rank,
              names.world_size,
              size),
          .variables = {names.rank, names.world_size, names.local_rank}};
    }
  }
  return {};
}

}  // namespace lehr::mesh
