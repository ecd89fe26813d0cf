"""The ledger of a step: every event with its verdict, and the findings so far."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field

from probe.comparison import tolerance
from probe.comparison.events import Event, Node, StepPairs
from probe.comparison.flow import Flow
from probe.comparison.metrics import Metrics, Status
from probe.comparison.result import Divergence, Kind, NodeRef
from probe.comparison.tolerance import Level, Rule
from probe.records import Phase
from probe.statistics import unit_roundoff
from probe.tree import Tree


@dataclass
class State:
    """What one step leaves for the next."""

    parameters: dict[int, Level] = field(default_factory=dict)
    """relative errors of the parameters a pair of modules owns, pooled"""
    gradients: dict[tuple[int, str], float] = field(default_factory=dict)
    """relative errors of parameter gradients"""
    buffers: dict[tuple[int, str], float] = field(default_factory=dict)
    """relative errors of buffers after the step"""
    optimizer: dict[tuple[int, str], float] = field(default_factory=dict)
    """relative errors of the optimizer's state after the step"""

    @property
    def worst(self) -> Level:
        """The largest of all parameters' errors."""
        level = Level()
        for each in self.parameters.values():
            level.merge(each)
        return level


class Ledger:
    """What is known of a step while it is walked.

    Parameters
    ----------
    pairs
        the step's paired calls and observations
    state
        errors that the step before left in the parameters
    tree_a
        the modules of A
    """

    def __init__(self, pairs: StepPairs, state: State, tree_a: Tree) -> None:
        self.pairs, self.state = pairs, state
        self._tree_a = tree_a
        self.findings: list[Divergence] = []
        self.events: list[tuple[Event, float, str]] = []
        """every event with its limit and verdict"""
        self.warnings: list[str] = []
        self.doubts: list[str] = []
        """what keeps the step from being called aligned"""
        self._missing: dict[int, tuple[str, str]] = {}
        """pairs of modules of which one has a parameter that is not zero and the other lacks: (slot, side)"""
        self._forward: dict[Node | None, Level] = {}
        self._own: dict[int, Level] = {}
        self._backward: dict[Node | None, Level] = {}
        self._arrived: dict[int, Level] = {}
        """errors of the gradients of a pair's outputs, over all calls"""
        self._grad_norm: dict[int, float] = {}
        self._last_good: dict[Node | None, int] = {}
        self._with_inputs: set[Node] = set()
        """calls of which an input was compared"""
        self._unknown: dict[int, set[str]] = {}
        self._other_batch = False
        """an input of the model has another size"""
        self._frozen: set[int] = set()
        """modules of A that own a parameter which learns on one side only"""
        self._cut: list[Divergence] = []
        self._flow: Flow

    def settle(self, event: Event, limit: float, wrong: bool, sources: float = 0.0) -> bool:
        """Note an event's verdict; return whether it is a finding."""
        metrics = event.metrics
        assert metrics is not None
        if not metrics.is_known:
            verdict = "not comparable"
        elif metrics.status is Status.EQUAL:
            verdict = "equal"
        elif wrong:
            verdict = "introduced"
        elif self.findings and metrics.rel_l2 > tolerance.FORWARD.limit(self.u(event), 0.0):
            verdict = "inherited"
        else:
            verdict = "noise"
        self.events.append((event, limit, verdict))
        return wrong

    def _add(
        self, phase: Phase, kind: Kind, event: Event, pair: int | None, rule: Rule, evidence: Iterable[str], *,
        hint: str, node: Node | None = None, slot: str | None = None, root: bool = False,
    ) -> None:  # fmt: skip
        limit = next((limit for e, limit, _ in reversed(self.events) if e is event), rule.limit(self.u(event), 0.0))
        if root:
            refs = self.root_refs(event)
        else:
            assert pair is not None
            refs = self.refs(pair, node, slot or event.slot_a, slot or event.slot_b)
        self._append(Divergence(phase, event.role, kind, self._confidence(event, node), *refs, event.metrics, limit,
                                tuple(evidence), hint))  # fmt: skip

    def _append(self, divergence: Divergence) -> None:
        self.findings.append(divergence)

    def _confidence(self, event: Event, node: Node | None) -> float:
        value = 0.99
        if event.metrics is not None and event.metrics.estimated:
            value *= 0.97
        if node is not None and id(node) in self._unknown:
            value *= 0.9
        if node is not None and self._between(node, node.end):
            value *= 0.9
        limit = next((limit for e, limit, _ in reversed(self.events) if e is event), math.nan)
        if event.metrics is not None and event.metrics.rel_l2 < 2 * limit:
            value *= 0.7
        return value

    def unknown_inputs(self, node: Node) -> set[str]:
        """Return the inputs of a call of which nothing is known."""
        return self._unknown.get(id(node), set())

    def refs(
        self, pair: int, node: Node | None, slot_a: str, slot_b: str
    ) -> tuple[tuple[NodeRef, ...], tuple[NodeRef, ...]]:
        """Return a place in A and in B."""
        modules = self.pairs.matching.pairs[pair]
        a, b = self.pairs.a.reader.modules[modules.a], self.pairs.b.reader.modules[modules.b]
        micro, call = (node.micro, node.call) if node is not None else (0, 0)
        return (
            (NodeRef(self.pairs.step, micro, a.path, a.class_name, call, slot_a),),
            (NodeRef(self.pairs.step_b, micro, b.path, b.class_name, call, slot_b),),
        )

    def root_refs(self, event: Event) -> tuple[tuple[NodeRef, ...], tuple[NodeRef, ...]]:
        """Return the whole model in A and in B."""
        a, b = self.pairs.a.reader.modules[0], self.pairs.b.reader.modules[0]
        return (
            (NodeRef(self.pairs.step, 0, a.path, a.class_name, 0, ""),),
            (NodeRef(self.pairs.step_b, 0, b.path, b.class_name, 0, ""),),
        )

    def _order(self, event: Event) -> int:
        return self.pairs.a.columns["order"][event.row_a] if event.row_a >= 0 else 0

    def u(self, event: Event) -> float:
        """Return the unit roundoff of the less precise of both dtypes; 0 for integers."""
        rows = ((self.pairs.a, event.row_a), (self.pairs.b, event.row_b))
        return max(unit_roundoff(side.dtypes[row]) for side, row in rows if row >= 0)

    def _class_a(self, module: int) -> str:
        return self.pairs.a.reader.modules[module].class_name

    def _class_b(self, module: int) -> str:
        return self.pairs.b.reader.modules[module].class_name

    def _classes(self, pair: int) -> tuple[str, str]:
        modules = self.pairs.matching.pairs[pair]
        return self._class_a(modules.a), self._class_b(modules.b)

    def _path_a(self, pair: int) -> str:
        return self.pairs.a.reader.modules[self.pairs.matching.pairs[pair].a].path or "the root"


def common_factor(events: Iterable[Event]) -> list[str]:
    """Say so when all of B's tensors are the same multiple of A's."""
    found = [event.metrics for event in events if event.metrics is not None]
    ratios = [metrics.norm_ratio for metrics in found]
    if not ratios or not max(ratios) - min(ratios) < 1e-3 * abs(max(ratios)):
        return []
    if any(abs(metrics.norm_ratio - 1) < 0.5 * metrics.rel_l2 for metrics in found):
        return []  # the factor is not what makes them differ
    return [f"all by the same factor: B is {ratios[0]:.6g} times A"]


def kind_of_finding(metrics: Metrics) -> Kind:
    """Return ``nonfinite`` where NaN or Inf was born, else ``introduced``."""
    return Kind.NONFINITE if metrics.status is Status.NONFINITE else Kind.INTRODUCED


def scale_hint(metrics: Metrics | None, what: str = "eps, a scale or a weight") -> str:
    """Say so when the error is parallel to the value."""
    if metrics is None or not abs(metrics.coherence) > 0.98 or not metrics.norm_a:
        return ""
    return f"B is {metrics.norm_ratio:.7g} times A, a uniform scale of the value: look at {what}"
