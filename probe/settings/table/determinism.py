"""What makes each framework deterministic, what is set and read by nobody, and which devices lack a dtype."""

from __future__ import annotations

from dataclasses import dataclass

ANY = ""
"""a framework: all of them"""


@dataclass(frozen=True, slots=True)
class Step:
    """One thing to set so that a run gives the same numbers twice."""

    framework: str
    """torch, paddle, mindspore, or `ANY`"""
    device: str
    """gpu, npu, or "" where the device does not matter"""
    variable: str = ""
    """what to export before the program starts"""
    value: str = ""
    also: tuple[str, ...] = ()
    """other values that do it"""
    call: str = ""
    """what to call in the program, before the model is made"""
    facts: tuple[tuple[str, object], ...] = ()
    """in a recording: names of the environment with the value that shows it"""
    why: str = ""
    by_seed_all: bool = False
    """probe.seed_all() does it"""


STEPS: tuple[Step, ...] = (
    Step(ANY, "", variable="PYTHONHASHSEED", value="0",
         why="the order of sets of strings; set in the program it does nothing"),
    Step(ANY, "gpu", variable="NVIDIA_TF32_OVERRIDE", value="0", why="float32 products without TF32, in every library"),
    Step(ANY, "gpu", variable="CUBLAS_WORKSPACE_CONFIG", value=":4096:8", also=(":16:8",),
         why="cuBLAS sums in one order", by_seed_all=True),
    Step(ANY, "gpu", variable="NCCL_ALGO", value="Ring", also=("Tree",),
         why="NCCL sums in one order, under several ranks"),
    Step(ANY, "npu", variable="HCCL_DETERMINISTIC", value="true", also=("strict", "1"), why="HCCL sums in one order",
         by_seed_all=True),
    Step(ANY, "npu", variable="ASCEND_LAUNCH_BLOCKING", value="1", why="operators run one after the other"),
    Step("torch", "", call="torch.use_deterministic_algorithms(True)", facts=(("deterministic_algorithms", True),),
         why="deterministic operations, an error where there are none", by_seed_all=True),
    Step("torch", "gpu", call="torch.backends.cudnn.deterministic = True", facts=(("cudnn_deterministic", True),),
         why="deterministic convolutions", by_seed_all=True),
    Step("torch", "gpu", call="torch.backends.cudnn.benchmark = False", facts=(("cudnn_benchmark", False),),
         why="the same convolution algorithm each time", by_seed_all=True),
    Step("torch", "gpu", call="torch.set_float32_matmul_precision(\"highest\")",
         facts=(("float32_matmul_precision", "highest"),), why="float32 products without TF32"),
    Step("torch", "gpu", variable="NVTE_ALLOW_NONDETERMINISTIC_ALGO", value="0",
         why="Transformer Engine, where it is used (Megatron)"),
    Step("paddle", "gpu", variable="FLAGS_cudnn_deterministic", value="1", also=("True", "true"),
         why="deterministic convolutions", facts=(("flags.FLAGS_cudnn_deterministic", True),), by_seed_all=True),
    Step("paddle", "gpu", variable="FLAGS_embedding_deterministic", value="1",
         why="deterministic gradients of embeddings", facts=(("flags.FLAGS_embedding_deterministic", 1),),
         by_seed_all=True),
    Step("mindspore", "", call="mindspore.set_deterministic(True)",
         facts=(("deterministic", "ON"), ("deterministic", True)),
         why="deterministic operators; read on Ascend alone", by_seed_all=True),
    Step("mindspore", "npu", variable="TE_PARALLEL_COMPILER", value="1", why="operators are compiled in one order",
         by_seed_all=True),
    Step("mindspore", "npu", variable="MS_ASCEND_CHECK_OVERFLOW_MODE", value="INFNAN_MODE",
         why="overflow gives Inf and NaN, as in PyTorch"),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Trap:
    """A variable that looks as if it did something."""

    variable: str
    why: str
    instead: str = ""
    packages: tuple[tuple[str, str], ...] = ()
    """(package, version from which it holds); empty: always"""


_PADDLE = (("paddlepaddle", "3.0"), ("paddlepaddle-gpu", "3.0"))
_HYBRID = "fleet.DistributedStrategy().hybrid_configs['mp_configs']"
TRAPS: tuple[Trap, ...] = (
    Trap("FLAGS_shard_norm_align_dp", "no flag of paddlepaddle 3 has this name", packages=_PADDLE),
    Trap("FLAGS_shard_use_reduce", "no flag of paddlepaddle 3 has this name", packages=_PADDLE),
    Trap("Flags_mp_aysnc_allreduce", "PaddlePaddle reads names that begin with FLAGS_, and none of this name",
         f'{_HYBRID}.mp_async_allreduce'),
    Trap("Flags_skip_mp_c_identity", "PaddlePaddle reads names that begin with FLAGS_, and none of this name",
         f'{_HYBRID}.mp_skip_c_identity'),
    Trap("FLAGS_mp_aysnc_allreduce", "no flag of paddlepaddle 3 has this name", f'{_HYBRID}.mp_async_allreduce',
         _PADDLE),
    Trap("FLAGS_skip_mp_c_identity", "no flag of paddlepaddle 3 has this name", f'{_HYBRID}.mp_skip_c_identity',
         _PADDLE),
    Trap("HCCL_DETERMINSTIC", "a spelling that nothing reads", "HCCL_DETERMINISTIC=true"),
    Trap("CUBLAS_WORKSPACE", "nothing reads this name", "CUBLAS_WORKSPACE_CONFIG=:4096:8"),
    Trap("CUDNN_DETERMINISTIC", "PyTorch does not read it", "torch.backends.cudnn.deterministic = True"),
    Trap("TORCH_DETERMINISTIC", "PyTorch does not read it", "torch.use_deterministic_algorithms(True)"),
    Trap("TF_CUDNN_DETERMINISTIC", "TensorFlow alone reads it", "torch.backends.cudnn.deterministic = True"),
    Trap("PYTHON_HASH_SEED", "a spelling that nothing reads", "PYTHONHASHSEED=0"),
)  # fmt: skip
"""variables that are set in public scripts and guides, and that nothing reads"""
FAMILIES: dict[str, str] = {"FLAGS_": "paddle"}
"""how variables begin that one framework alone reads, and by exactly these letters"""

ATTRIBUTES: tuple[tuple[str, str], ...] = (
    (
        "torch.backends.cudnn.enable = False",
        "is no attribute: the module takes any name; torch.backends.cudnn.enabled is",
    ),
    ("os.environ['PYTHONHASHSEED'] = '0'", "does nothing in the process that runs it: Python reads it when it starts"),
)
"""lines of public guides that do nothing"""


@dataclass(frozen=True, slots=True)
class Lacks:
    """A dtype that some devices do not compute in."""

    dtype: str
    capability: float
    """of NVIDIA devices: the least compute capability that has it"""
    example: str
    devices: tuple[str, ...]
    """globs of other devices that lack it, in small letters"""


LACKING: tuple[Lacks, ...] = (
    Lacks("bfloat16", 8.0, "A100", ("ascend910a*", "ascend910", "ascend910pro*", "ascend310*")),
    Lacks("float16", 7.0, "V100", ()),
    Lacks("float8", 8.9, "L40", ("ascend*",)),
)  # fmt: skip
