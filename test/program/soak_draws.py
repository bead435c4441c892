"""The random choices of a soak: models, meshes, launches and faults, all by the seed and the number of an episode."""
import math, random
from dataclasses import dataclass

KINDS = {
    "kill": "SIGKILL at a random instant",
    "kill-save": "SIGKILL while a checkpoint is written",
    "stop": "SIGSTOP",
    "term": "SIGTERM",
    "disk": "disk full",
    "flip": "a flipped bit in a file of the newest checkpoint",
    "ranks": "another number of ranks after the restart",
    "launcher": "SIGKILL of the launcher",
}
EXPERTS = {"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 8}
# Families, and the settings that differ from SETTINGS. Four layers: every kind of layer, and up to four stages.
FAMILIES = {
    "qwen3": {}, "llama3": {}, "qwen2": {}, "mistral": {}, "olmo2": {}, "olmo3": {}, "smollm3": {}, "gemma3": {},
    "gemma4": {},
    "qwen3_moe": EXPERTS, "mixtral": EXPERTS, "gpt_oss": EXPERTS, "glm4_moe": {**EXPERTS, "expert_bias": "true"},
    "minimax_m2": {**EXPERTS, "expert_bias": "true"},
    "deepseek_v3": {**EXPERTS, "expert_bias": "true", "num_key_value_heads": 8, "head_dim": 16},
    "qwen3_next": {**EXPERTS, "head_dim": 8}, "qwen3_5": {"head_dim": 8}, "qwen3_5_moe": {**EXPERTS, "head_dim": 8},
    "nemotron_h": {},
}
AXES = {"pp": "pipeline_parallel", "dp_replicate": "data_parallel_replicate", "dp_shard": "data_parallel_shard",
        "cp": "context_parallel", "tp": "tensor_parallel"}
MOST_RANKS = 8
STEPS = 40
SEQUENCES = 8  # of a step
SETTINGS = {
    "model.args.hidden_size": 16, "model.args.intermediate_size": 24, "model.args.num_hidden_layers": 4,
    "model.args.num_attention_heads": 8, "model.args.num_key_value_heads": 4, "model.args.head_dim": 4,
    "training.seq_len": 32, "training.local_batch_size": 1, "training.dtype": "float64",
    "training.global_batch_size": SEQUENCES, "training.steps": STEPS, "checkpoint.keep_latest_k": 3,
    "validation.enable": "true", "validation.freq": 10, "validation.steps": 2, "validation.local_batch_size": 1,
    "comm.init_timeout_seconds": 120, "comm.train_timeout_seconds": 10,
}


def arguments_of(settings):
    """Returns the arguments of a run, whose settings differ from SETTINGS in these."""
    return [f"--{key}={value}" for key, value in {**SETTINGS, **settings}.items()]


@dataclass(frozen=True)
class Mesh:
    """Degrees by axis, and the expert-parallel degree, which divides dp_shard x cp x tp."""
    degrees: tuple  # in the order of AXES
    ep: int = 1
    schedule: str = "1F1B"

    def degree(self, axis):
        return self.degrees[list(AXES).index(axis)]

    @property
    def ranks(self):
        return math.prod(self.degrees)

    def arguments(self):
        words = [f"--parallelism.{AXES[axis]}_degree={self.degree(axis)}" for axis in AXES]
        if self.degree("pp") > 1:
            words.append(f"--parallelism.pipeline_parallel_schedule={self.schedule}")
        return words + [f"--parallelism.expert_parallel_degree={self.ep}"]

    def __str__(self):
        named = [f"{axis} {self.degree(axis)}" for axis in AXES if self.degree(axis) > 1]
        named += [f"ep {self.ep}"] if self.ep > 1 else []
        return " x ".join(named) or "one device"


def draw_mesh(rng, experts):
    """Returns a mesh of up to MOST_RANKS ranks; each data-parallel rank has a sequence of a step for each stage."""
    degrees = dict.fromkeys(AXES, 1)
    ranks = rng.choice([1, 2, 2, 4, 4, MOST_RANKS])
    while ranks > 1:
        axis = rng.choice(list(AXES))
        # Four key and value heads and four layers; two micro-batches per stage must be left.
        rows = degrees["dp_replicate"] * degrees["dp_shard"] * degrees["pp"]
        if degrees[axis] < 4 and (axis in ("cp", "tp") or 2 * rows <= SEQUENCES // 2):
            degrees[axis] *= 2
            ranks //= 2
    split = degrees["dp_shard"] * degrees["cp"] * degrees["tp"]
    ep = rng.choice([one for one in (1, 2, 4) if split % one == 0]) if experts else 1
    return Mesh(tuple(degrees.values()), ep, rng.choice(["GPipe", "1F1B", "ZBH1"]))


class Episode:
    """One disturbed run."""

    def __init__(self, seed, number):
        self.number = number
        rng = self.rng = random.Random(f"{seed}-{number}")
        self.family = rng.choice(list(FAMILIES))
        self.mesh = draw_mesh(rng, self.experts)
        self.threads = self.mesh.ranks > 1 and rng.random() < 0.3
        kinds = [kind for kind in KINDS if kind != "launcher" or (self.mesh.ranks > 1 and not self.threads)]
        # Half of the episodes repeat one kind of fault, so that each has a goodput of its own.
        count = rng.randrange(1, 4)
        self.faults = tuple([rng.choice(kinds)] * count if rng.random() < 0.5 else [rng.choice(kinds) for _ in range(count)])
        self.interval = rng.choice([1, 1, 2, 3])

    @property
    def experts(self):
        return "num_experts" in FAMILIES[self.family]

    def settings(self):
        """Returns the arguments that do not depend on the mesh."""
        args = {f"model.args.{key}": value for key, value in FAMILIES[self.family].items()}
        return arguments_of({"model.name": self.family, **args, "checkpoint.interval": self.interval})

    def other_mesh(self):
        """Returns a mesh of another number of ranks."""
        while True:
            mesh = draw_mesh(self.rng, self.experts)
            if mesh.ranks != self.mesh.ranks:
                return mesh

    def __str__(self):
        how = "" if self.mesh.ranks == 1 else " as threads" if self.threads else " as processes"
        return f"{self.family} on {self.mesh}{how}"
