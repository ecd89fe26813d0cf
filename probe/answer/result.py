"""What a comparison answers: frozen, typed, printable."""

from __future__ import annotations

import enum
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from probe.answer.metrics import Metrics
from probe.errors import ConfigError
from probe.notes import Fields, Note, fields_of, named
from probe.records import ByRole, JudgementName, ModuleInfo, Phase, PictureName, Role

if TYPE_CHECKING:
    import numpy as np

SCHEMA = 3


class Verdict(enum.StrEnum):
    """The answer in one word."""

    ALIGNED = "aligned"
    DIVERGED = "diverged"
    UNDECIDED = "undecided"


class Judged:
    """What has a verdict; true if that is aligned."""

    verdict: Verdict

    def __bool__(self) -> bool:
        return self.verdict is Verdict.ALIGNED

    def assert_aligned(self) -> None:
        """Do nothing if the verdict is aligned, else raise an AssertionError with the report: for tests.

        Raises
        ------
        AssertionError
            the verdict is diverged or undecided
        """
        __tracebackhide__ = True  # pytest shows the line of the test
        if not self:
            raise AssertionError(f"\n{self}")


class Kind(enum.StrEnum):
    """What sort of divergence it is."""

    INPUTS = "inputs"
    INIT = "init"
    INTRODUCED = "introduced"
    MISSING = "missing"
    NONFINITE = "nonfinite"
    SHAPE = "shape"
    DTYPE = "dtype"
    UPDATE = "update"
    REPLICAS = "replicas"
    """copies of a tensor on several ranks are not equal"""


@dataclass(frozen=True, slots=True)
class NodeRef:
    """A place in a run."""

    step: int
    micro: int
    path: str
    class_name: str
    call: int
    slot: str
    file: str = ""
    """source file of the class"""
    line: int = 0
    called_from: str = ""
    """``file:line`` of the program that calls a module, where operations were recorded"""

    @classmethod
    def of(cls, step: int, micro: int, module: ModuleInfo, call: int, slot: str) -> NodeRef:
        """Return the place of a module."""
        info = module.path, module.class_name, call, slot, module.file, module.line, module.called_from
        return cls(step, micro, *info)

    def as_json(self) -> dict[str, object]:
        """Return the fields by their names in JSON."""
        return {("class" if name == "class_name" else name): value for name, value in fields_of(self).items()}


@dataclass(frozen=True, slots=True)
class Divergence:
    """One place that is wrong by itself, not because of something before it."""

    phase: Phase
    role: Role
    kind: Kind
    confidence: float
    """0 to 1"""
    a: tuple[NodeRef, ...]
    b: tuple[NodeRef, ...]
    metrics: Metrics | None
    limit: float = math.nan
    """the largest error that would have been noise"""
    facts: tuple[Note, ...] = ()
    """what was found, most telling first"""
    advice: Note | None = None
    """what to look at"""
    error: float = math.nan
    """what was held against the limit, where that is not the relative error of the two tensors"""
    measure: str = ""
    """what the error that was held against the limit is, where it is not that of the two tensors"""
    event: Any = field(default=None, repr=False, compare=False)
    """the pair of tensors that shows it"""
    blame: str = ""
    """who answers, a code of `probe.answer.why`"""
    hints: tuple[dict[str, object], ...] = field(default=(), repr=False)
    """what its numbers support, the best first, by the names in JSON"""
    is_read: bool = field(default=False, repr=False)
    """the hint is a setting that was recorded: no values would tell more"""
    settings: tuple[str, ...] = field(default=(), repr=False)
    """settings that differ between the recordings and may be behind it, by their names in the table of settings"""

    def __repr__(self) -> str:
        place = ", ".join(dict.fromkeys(ref.path or "the whole model" for ref in self.a or self.b))
        return (
            f"<Divergence: {place}: step {self.step}, {self.phase.label} {self.role.label}, {self.kind.value}, "
            f"confidence {self.confidence:.2f}>"
        )

    @property
    def evidence(self) -> tuple[str, ...]:
        """What was found, in words, most telling first."""
        return tuple(map(str, self.facts))

    @property
    def hint(self) -> str:
        """What to look at, in words; empty where nothing is known."""
        return str(self.advice) if self.advice else ""

    @property
    def estimated(self) -> bool:
        """Whether the error is an estimate from sketches or statistics."""
        return self.metrics is not None and self.metrics.estimated

    @property
    def step(self) -> int:
        """The step of A in which it is."""
        return (self.a or self.b)[0].step

    @property
    def path(self) -> str:
        """The module's path, in A where A has it."""
        return (self.a or self.b)[0].path

    def as_json(self) -> dict[str, object]:
        """Return the fields by their names in JSON."""
        return {
            **named(self, "phase", "role", "kind", "blame"),
            "confidence": round(self.confidence, 3),
            **named(self, "a", "b", "metrics", "estimated", "limit", "evidence", "hint", "facts", "advice", "hints"),
            "settings": list(self.settings),
        }

    def _repr_html_(self) -> str:
        from probe.report.notebook.answers import of_divergence

        return of_divergence(self)


@dataclass(frozen=True, slots=True)
class Coverage(Fields):
    """How much of the two runs was compared."""

    paired: int
    """module calls that both sides have"""
    only_a: int
    only_b: int
    not_comparable: int
    """pairs of tensors that could not be compared"""
    compared: int
    """pairs of tensors that were compared"""

    @property
    def smaller(self) -> Literal["A", "B"]:
        """The side that made fewer calls, A or B."""
        return "B" if self.only_b < self.only_a else "A"

    @property
    def total(self) -> int:
        """Module calls of the smaller side."""
        return self.paired + min(self.only_a, self.only_b)

    @property
    def share(self) -> float:
        """Paired calls as a share of the smaller side's."""
        return self.paired / self.total if self.total else 0.0


@dataclass(frozen=True, slots=True)
class Inputs(Fields):
    """How what both runs were given compares: names of the model's inputs, and of what was logged beside it."""

    equal: tuple[str, ...] = ()
    """bit for bit, in every step"""
    close: tuple[str, ...] = ()
    """but for rounding"""
    different: tuple[str, ...] = ()
    not_comparable: tuple[str, ...] = ()
    only_a: tuple[str, ...] = ()
    only_b: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class SlotResult:
    """One pair of tensors that was compared: a row of the table."""

    step: int
    micro: int
    phase: Phase
    role: Role
    call: int
    path_a: str
    class_a: str
    slot_a: str
    path_b: str
    class_b: str
    slot_b: str
    dtype_a: str
    dtype_b: str
    shape_a: tuple[int, ...]
    shape_b: tuple[int, ...]
    reason: str
    """why the modules are a pair"""
    metrics: Metrics
    row_a: int
    row_b: int
    """rows among the records of the step"""
    limit: float = math.nan
    error: float = math.nan
    """what was held against the limit: of a parameter's gradient, relative to the gradients it was computed from"""
    parts_a: tuple[tuple[str, str], ...] = ()
    """(path, slot) of what A has in the place of one tensor, where it has several"""
    parts_b: tuple[tuple[str, str], ...] = ()
    verdict: JudgementName = ""
    """``equal``, ``noise``, ``introduced``, ``inherited``, ``not comparable`` or ``not judged``"""
    measure: str = ""
    """what the error that was held against the limit is, where it is not that of the two tensors"""
    is_fixed: bool = False
    """the limit is a tolerance that was chosen, whatever rounding does"""
    sources: float = math.nan
    """the largest error among what it was computed from"""
    exemption: str = ""
    """why it is no finding though it differs, or is not judged: a code of `probe.answer.why`"""
    blame: str = ""
    """who answers where it is wrong by itself: a code of `probe.answer.why`"""
    in_run: float = math.nan
    """of a replay: its relative error in a run of B by itself, what it inherits there included"""
    reads: Callable[[SlotResult], tuple[np.ndarray, np.ndarray]] | None = field(default=None, repr=False, compare=False)
    """gives the values of both sides; of what ``answer[path]`` returns"""

    def __repr__(self) -> str:
        micro = f", micro {self.micro}" if self.micro else ""
        size = self.metrics.reason or self.metrics.status.value
        if self.metrics.is_known:
            share = "of the elements differ" if self.metrics.of_integers else "relative error"
            size = f"{self.metrics.rel_l2:.1e} {share}, norm B/A {self.metrics.norm_ratio:.6g}"
        return (
            f"<{self.path_a or 'the whole model'} {self.role.label} {self.slot_a}, step {self.step}{micro}: "
            f"{size}, {self.verdict or 'not judged'}>"
        )

    @property
    def is_healed(self) -> bool:
        """Whether it is no finding though it differs, since every use takes the difference back."""
        return self.verdict == "noise" and bool(self.exemption)

    @property
    def limited_by(self) -> str:
        """What gives the limit, where that is not the noise rule by itself: a code of `probe.answer.why`."""
        if self.is_fixed or not self.limit:
            return "" if math.isnan(self.limit) else "chosen" if self.is_fixed else "exact"
        return getattr(self.limit, "why", "")

    @property
    def rel_l2(self) -> float:
        """The relative error ‖A − B‖ / max(‖A‖, ‖B‖), of integers the share that differs; NaN where nothing is known."""
        return self.metrics.rel_l2

    @property
    def cosine(self) -> float:
        """The cosine of the angle between A and B."""
        return self.metrics.cosine

    @property
    def max_abs(self) -> float:
        """The largest difference of two elements; NaN where only statistics were recorded."""
        return self.metrics.max_abs

    def values(self) -> tuple[np.ndarray, np.ndarray]:
        """Return the values of A and of B, B's in the order in which they were compared with A's.

        Raises
        ------
        NotRecordedError
            they were not recorded on both sides, or have no shape in common
        StoreError, FormatError
            a recording is no longer where it was, or cannot be read
        ConfigError
            it was not taken out of a comparison by ``answer[path]``
        """
        if self.reads is None:
            raise ConfigError("this pair of tensors does not know its recordings: take it as answer[path].output[0]")
        return self.reads(self)

    def to_xarray(self) -> Any:
        """Return an xarray.Dataset with the values of both sides, ``a`` and ``b`` (needs xarray).

        Raises
        ------
        NotRecordedError
            they were not recorded on both sides, or have no shape in common
        ImportError
            xarray is not installed
        """
        from probe.report.formats.arrays import data_set

        return data_set(self)

    def plot(self, kind: PictureName | None = None, *, axes: tuple[int, int] | None = None, ax: Any = None) -> Any:
        """Draw both tensors and their error (needs matplotlib and recorded values).

        Parameters
        ----------
        kind
            ``"values"``: histograms of A and B; ``"error"``: its size over two axes, as a heat map; ``"scatter"``: B
            against A; all three when None
        axes
            of the tensor, for the heat map; the last two when None
        ax
            where to draw one kind

        Returns
        -------
        matplotlib Axes
            where it is drawn; an array of three when kind is None
        """
        from probe.report.plots.pair import draw

        return draw(self, kind, axes, ax)

    def _repr_html_(self) -> str:
        from probe.report.notebook.tensors import of_pair

        return of_pair(self)

    @property
    def places_a(self) -> tuple[tuple[str, str], ...]:
        """All (path, slot) of A that it is about."""
        return self.parts_a or ((self.path_a, self.slot_a),)

    @property
    def places_b(self) -> tuple[tuple[str, str], ...]:
        """All (path, slot) of B that it is about."""
        return self.parts_b or ((self.path_b, self.slot_b),)

    @property
    def paths(self) -> set[str]:
        """The paths of all modules that it is about."""
        return {self.path_a, self.path_b, *(path for path, _ in (*self.parts_a, *self.parts_b))}


class SlotResults(ByRole[SlotResult]):
    """What was compared of a module, in causal order; ``.output[0]`` is its first output."""

    def to_xarray(self) -> Any:
        """Return the values of one pair of tensors over the steps as an xarray.Dataset with the dimension ``step`` (needs xarray).

        Raises
        ------
        ConfigError
            there are several pairs, or several of one step: `sel` chooses
        NotRecordedError
            values were not recorded on both sides
        ImportError
            xarray is not installed
        """
        from probe.report.formats.arrays import over_steps

        return over_steps(self)

    def _repr_html_(self) -> str:
        from probe.report.notebook.tensors import of_pairs

        return of_pairs(self)
