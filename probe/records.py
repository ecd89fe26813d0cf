"""The words of probe as types: phases, roles, statistics and the facts about a model."""

from __future__ import annotations

import enum
from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Self, SupportsIndex, TypeVar, overload

from probe.errors import ConfigError, NotRecordedError

if TYPE_CHECKING:
    import numpy as np

T = TypeVar("T")

# What the public functions take and return where a fixed set of names is meant; the tables that they stand for are held against these.

TaskName = Literal["structure", "norms", "statistics", "tensor"]
"""`Task`, as `probe.start` takes it"""
LevelName = Literal["module", "op", "mix"]
PhaseName = Literal["init", "forward", "loss", "backward", "gradient", "update"]
"""`Phase`"""
BatchName = Literal["hash", "all", "ids"]
"""what ``task="norms"`` keeps of what the model is given"""
CompressionName = Literal["lz4", "zstd"]
"""how stored values are compressed"""
MetricName = Literal["allclose", "max_abs", "mean_abs", "max_rel", "rel_l2", "cosine"]
"""what an error is measured by"""
DirectionName = Literal["a-to-b", "b-to-a"]
"""which side a mapping is written from"""
PresetName = Literal[
    "r-forward", "p-forward", "p-forward-code", "p-forward-distributed", "paddlenlp/qwen2-0.5b", "paddlenlp/qwen2-1.5b",
    "paddlenlp/qwen2-7b", "paddlenlp/qwen1.5-14b",
]  # fmt: skip
"""an acceptance table"""
JudgementName = Literal["", "equal", "noise", "introduced", "inherited", "not comparable", "not judged"]
"""what became of a pair of tensors; empty where nothing was compared"""
PassName = Literal["forward", "backward"]
"""a phase in which something goes from module to module"""
ViewName = Literal["error", "graph"]
"""of an answer, as a picture"""
PictureName = Literal["values", "error", "scatter"]
"""of a pair of tensors"""
FrameworkName = Literal["torch", "paddle", "mindspore"]
"""whose weights can be converted"""
WeightsDtypeName = Literal["float32", "float16", "bfloat16", "float64"]
"""that converted weights may have"""
AutocastName = Literal["", "bfloat16", "float16"]
"""what autocast computes in; empty without it"""
SideName = Literal["a", "b"]
"""whose weights are replayed with"""
PassesName = Literal["both", "forward"]
"""of `probe.auto_diff`"""
CompareModeName = Literal["strict", "mean"]
"""of `probe.auto_diff`"""


class Phase(enum.IntEnum):
    """Where in a step something happens, in the order of cause and effect."""

    INIT = 0
    FORWARD = 1
    LOSS = 2
    BACKWARD = 3
    GRADIENT = 4
    UPDATE = 5

    @property
    def label(self) -> str:
        """The name in files, messages and JSON, for example ``forward``."""
        return self.name.lower()


class Role(enum.IntEnum):
    """What a tensor is to its module."""

    PARAM = 0
    BUFFER = 1
    INPUT = 2
    OUTPUT = 3
    VALUE = 4
    GRAD_OUTPUT = 5
    GRAD_INPUT = 6
    GRAD_TOTAL = 7
    PARAM_GRAD = 8
    STATE = 9
    DELTA = 10

    @property
    def label(self) -> str:
        """The name in files, messages and JSON, for example ``grad_output``."""
        return self.name.lower()


MASTER = ".master_weight"
"""how the slot of a state ends that is the copy of a parameter, in a wider dtype, which the optimizer trains in its stead"""

NEVER_STEPPED = "probe.step() was never called"
"""how the note begins of a run whose steps were not told apart"""
STEPPED_EARLY = "probe.step() comes before the optimizer's step"
"""how the note begins of a run whose updates stand in the step after theirs"""
REPLACED = "added or replaced after probe.start(), and not recorded"
"""how the note begins that names what a model has got since"""


class Task(enum.StrEnum):
    """How much is recorded of every tensor."""

    STRUCTURE = "structure"
    """modules, calls, shapes and dtypes; no numbers"""
    NORMS = "norms"
    """for whole runs: gradient norms, and statistics without hash and sketch of some outputs"""
    STATISTICS = "statistics"
    """min, max, mean, rms, norm, counts, hash and sketch"""
    TENSOR = "tensor"
    """statistics, and the values themselves"""


class HashKind(enum.IntEnum):
    """The algorithm behind a record's 128 bits; hashes of different kinds are not compared."""

    NONE = 0
    XXH3_128 = 1
    WSUM64 = 2


JOINED_HASH = 255
"""kind of the hashes, in memory alone, of what several ranks hold together"""


class StepState(enum.IntEnum):
    """How a step ended."""

    CLOSED = 0
    ABORTED = 1


class TensorStats(NamedTuple):
    """What is known of one tensor without its values (``docs/reference/file-format.md`` has the formulas).

    All but the counts are over the finite elements, accumulated in float64. A complex tensor is taken as
    a real one with a last axis of size 2.
    """

    min: float
    max: float
    mean: float
    rms: float
    norm: float
    """L2 norm"""
    nan: int
    posinf: int
    neginf: int
    zeros: int
    hash_lo: int
    hash_hi: int
    hash_kind: HashKind
    sketch: np.ndarray
    """float64, shape (61,)"""


@dataclass(frozen=True, slots=True)
class ModuleInfo:
    """A module of the tree as it stands in the file."""

    path: str
    """qualified name as the framework gives it; the root is ``""``"""
    class_name: str
    parent: int
    """index of the parent in the list of modules, −1 for the root"""
    file: str = ""
    """source file of the class, as Python knows it"""
    line: int = 0
    n_params: int = 0
    """elements of all parameters in the module and below"""
    arguments: str = ""
    """of an operation inside a module: what it was given beside tensors, as JSON; empty for a module"""
    called_from: str = ""
    """``file:line`` of the program that calls a module first; empty where operations are not recorded"""

    @property
    def is_operation(self) -> bool:
        """Whether this is an operation inside the module ``parent``: ``class_name`` is its function, ``file`` and ``line`` call it."""
        return bool(self.arguments)


@dataclass(frozen=True, slots=True)
class ParameterInfo:
    """A parameter or buffer: one tensor, all of its names."""

    names: tuple[str, ...]
    """every qualified name, the first is the one that records use"""
    module: int
    """index of the module that owns the first name"""
    slot: str
    """last component of the first name"""
    shape: tuple[int, ...]
    dtype: str
    requires_grad: bool
    is_buffer: bool = False
    axes: tuple[int, ...] = ()
    """order of the axes in the canonical layout; empty when it is the order of the shape"""
    canonical: str = ""
    """the slot's name in the canonical layout; empty when it is the same"""
    is_persistent: bool = True
    """it stands in a state_dict"""

    @property
    def canonical_slot(self) -> str:
        """The slot's name in the canonical layout."""
        return self.canonical or self.slot


@dataclass(frozen=True, slots=True)
class OptimizerGroup:
    """One parameter group of an optimizer at one step."""

    optimizer: int
    class_name: str
    group: int
    hyper: dict[str, object]
    """lr, weight_decay, betas, eps … as the framework names them"""
    parameters: tuple[int, ...]
    """indices into the file's parameters"""


@dataclass(frozen=True, slots=True)
class RunInfo:
    """The attributes at the top of a file."""

    run_id: str
    framework: str
    framework_version: str
    probe_version: str
    created: str
    rank: int
    world_size: int
    closed: bool = False
    tells_writes: bool = False
    """of weights that the program writes to by itself, too, it is recorded what a step leaves"""
    parallel: dict[str, object] = field(default_factory=dict, repr=False)
    config: dict[str, object] = field(default_factory=dict, repr=False)
    model_config: dict[str, object] = field(default_factory=dict, repr=False)


_MOST_SHOWN = 20
_MOST_LISTED = 8


class ByPath(Mapping[str, T]):
    """A mapping from paths of modules to what is known of them. Globs work in ``[]``, ``in`` and ``get``.

    It is true even if it is empty.
    """

    @abstractmethod
    def _paths(self) -> tuple[str, ...]:
        """Return the keys, in order."""

    @abstractmethod
    def _found(self, path: str) -> Sequence[object]:
        """Return what a path, or a glob, names; nothing where there is no such module."""

    def _not_a_path(self, key: object) -> NotRecordedError:
        """Return the error of a key that is neither a path nor a glob."""
        return NotRecordedError(f"[{key!r}]: expected the path of a module or a glob, got {type(key).__name__}")

    def __contains__(self, path: object) -> bool:
        return isinstance(path, str) and bool(self._found(path))

    def __iter__(self) -> Iterator[str]:
        return iter(self._paths())

    def __len__(self) -> int:
        return len(self._paths())

    def __bool__(self) -> bool:
        return True

    def __dir__(self) -> list[str]:
        return _public(super().__dir__())

    def _ipython_key_completions_(self) -> list[str]:
        return list(self._paths())


class ByRole(tuple[T, ...]):
    """What was seen of a module, in the order of the run; ``.output[0]`` is its first output."""

    param: Self
    buffer: Self
    input: Self
    output: Self
    value: Self
    grad_output: Self
    grad_input: Self
    grad_total: Self
    param_grad: Self
    state: Self
    delta: Self

    def of(self, role: Role) -> Self:
        """Return what has a role."""
        return type(self)(each for each in self if each.role is role)  # type: ignore[attr-defined]

    def sel(self, **wanted: Any) -> Self:
        """Return what was seen at some places: ``.sel(step=[0, 1], role="output")``.

        Parameters
        ----------
        wanted
            ``step``, ``micro``, ``call``, ``phase``, ``role`` or ``slot``: one value, several, or a slice with both ends

        Raises
        ------
        NotRecordedError
            nothing was seen there
        ConfigError
            another name
        """
        found: Iterable[Any] = self
        for name, values in wanted.items():
            if name not in _PLACES:
                raise ConfigError(f"sel({name}=…) is not known; expected {', '.join(_PLACES)}")
            known = [(each, _PLACES[name](each)) for each in found]
            found = [each for each, places in known if any(is_among(place, values) for place in places)]
            if not found:
                there = dict.fromkeys(str(place) for _, places in known for place in places)
                raise NotRecordedError(f"nothing here has {name} {values!r}; there is {listed(there) or 'nothing'}")
        return type(self)(found)

    @overload
    def __getitem__(self, at: SupportsIndex | str, /) -> T: ...

    @overload
    def __getitem__(self, at: slice, /) -> Self: ...

    def __getitem__(self, at: Any, /) -> Any:
        """Return one by its number, the first with a slot's name, or a slice."""
        if isinstance(at, str):
            return self.sel(slot=at)[0]
        found = super().__getitem__(at)
        return type(self)(found) if isinstance(at, slice) else found

    if not TYPE_CHECKING:  # a type checker would let every name pass: it has those above

        def __getattr__(self, name: str) -> ByRole[T]:
            try:
                return self.of(Role[name.upper()])
            except KeyError:
                known = ", ".join(role.label for role in Role)
                raise AttributeError(f"no role {name!r}; there are {known}") from None

    def __dir__(self) -> list[str]:
        seen = {each.role.label for each in self}  # type: ignore[attr-defined]
        return _public({*super().__dir__(), *seen})

    def __repr__(self) -> str:
        lines = [f" {each!r}," for each in self[:_MOST_SHOWN]]
        left = len(self) - len(lines)
        more = [f" … {left} more"] if left > 0 else []
        return "\n".join([f"{type(self).__name__}(", *lines, *more, ")"])


_PLACES: dict[str, Callable[[Any], tuple[Any, ...]]] = {
    "step": lambda each: (each.step,),
    "micro": lambda each: (each.micro,),
    "call": lambda each: (each.call,),
    "phase": lambda each: (each.phase.label,),
    "role": lambda each: (each.role.label,),
    "slot": lambda each: (each.slot,) if hasattr(each, "slot") else tuple(dict.fromkeys((each.slot_a, each.slot_b))),
}
"""where something was seen, by what `ByRole.sel` takes; of a pair both slots"""


def is_among(place: Any, wanted: Any) -> bool:
    """Return True if a place is the one wanted, one of several, or in a slice, whose ends count."""
    if isinstance(wanted, slice):
        return (wanted.start is None or place >= wanted.start) and (wanted.stop is None or place <= wanted.stop)
    if isinstance(wanted, (Phase, Role)):
        return bool(place == wanted.label)
    if isinstance(wanted, Iterable) and not isinstance(wanted, str):
        return any(is_among(place, each) for each in wanted)
    return str(place) == str(wanted)


def listed(values: Iterable[object]) -> str:
    """Return the first values, as messages list them."""
    texts = list(map(str, values))
    return ", ".join(texts[:_MOST_LISTED]) + (" …" if len(texts) > _MOST_LISTED else "")


def _public(names: Iterable[str]) -> list[str]:
    """Return names without those that begin with one underscore."""
    return sorted(name for name in names if not name.startswith("_") or name.startswith("__"))
