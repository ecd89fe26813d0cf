"""The ledger of a step: every event with its verdict, and the findings so far."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable
from dataclasses import dataclass, field, replace

import numpy as np

from probe.comparison import tolerance
from probe.comparison.events import StepPairs
from probe.comparison.flow import Flow
from probe.comparison.given_aside import Aside
from probe.comparison.metrics import Metrics, Status
from probe.comparison.noise import Held, StepNoise
from probe.comparison.padded import Padded, Padding
from probe.comparison.parts import facts
from probe.comparison.result import Divergence, Kind, NodeRef
from probe.comparison.step_half import Event, Node
from probe.comparison.tolerance import Level, Rule
from probe.comparison.written_weights import Place, Sketches, WrittenWeights
from probe.layouts import counterpart, unpacked
from probe.records import Phase
from probe.statistics import smallest_rounding
from probe.tree import Tree


@dataclass
class State:
    """What one step leaves for the next."""

    goes_on: bool = True
    """another step is compared behind this one, and what it begins with is to be kept"""
    parameters: dict[int, Level] = field(default_factory=dict)
    """relative errors of the parameters a pair of modules owns, pooled"""
    weights: dict[Place, Sketches] = field(default_factory=dict)
    """as they were known last at one moment of both sides"""
    left_alone: set[Place] = field(default_factory=set)
    """weights that one side alone left written to, and that no call has used since"""
    gradients: dict[tuple[int, str], float] = field(default_factory=dict)
    """relative errors of parameter gradients"""
    buffers: dict[tuple[int, str], float] = field(default_factory=dict)
    """relative errors of buffers after the step"""
    variances: dict[tuple[int, str], tuple[np.ndarray, np.ndarray]] = field(default_factory=dict)
    """running variances of both sides after the step, where the frameworks divide by different numbers"""
    variance_was_told: bool = False
    padding_was_told: bool = False
    loss_was_doubted: bool = False
    parts_were_told: bool = False
    compensated: set[tuple[int, str]] = field(default_factory=set)
    """outputs, by pair and slot, of which it was said that a factor stands elsewhere"""
    unpaired: dict[int, tuple[dict[str, None], dict[str, None]]] = field(default_factory=dict)
    """parameters, of A and of B, that have no counterpart, by the pair of modules"""
    in_parts: set[tuple[int, str]] = field(default_factory=set)
    """weights, by module of A and slot, of which a rank of one side holds a part"""
    drifted: dict[int, Level] = field(default_factory=dict)
    """how large the errors may be of parameters that were not compared, by the module of A"""
    optimizer: dict[tuple[int, str], float] = field(default_factory=dict)
    """relative errors of the optimizer's state after the step"""
    returned: set[tuple[object, object]] = field(default_factory=set)
    """hashes, in A and in B, of what the calls of this step returned"""
    carried: set[tuple[object, object]] = field(default_factory=set)
    """the same of the step before: recurrent states are handed in again"""

    @property
    def worst(self) -> Level:
        """The largest of all parameters' errors."""
        level = Level()
        for each in self.parameters.values():
            level.merge(each)
        return level


@dataclass(slots=True)
class Judged:
    """An event with its verdict."""

    event: Event
    limit: float
    """the largest error that would have been noise"""
    verdict: str
    error: float
    """what was held against the limit: of a parameter's gradient, relative to the gradients it was computed from"""
    sources: float
    """the largest error among what it was computed from"""
    held: Held | None = None
    """how it was judged; None where the built-in model alone is asked"""


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
    noise
        what decides how much of an error is noise
    """

    def __init__(self, pairs: StepPairs, state: State, tree_a: Tree, noise: StepNoise) -> None:
        self.pairs, self.state, self.noise = pairs, state, noise
        self._tree_a, self._roundoffs = tree_a, (pairs.a.roundoffs, pairs.b.roundoffs)
        self._written = WrittenWeights(pairs, state.weights, state.gradients, state.parameters, state.left_alone)
        self._own_parameters: dict[Node, Level | None] = {}
        self.findings: list[Divergence] = []
        self.events: list[Judged] = []
        self._judged: dict[int, Judged] = {}
        """by the id of the event"""
        self.warnings: list[str] = []
        self.doubts: list[str] = []
        """what keeps the step from being called aligned"""
        self._missing: dict[int, tuple[str, str]] = {}
        """pairs of modules of which one has a parameter that is not zero and the other lacks: (slot, side)"""
        self._forward: dict[Node | None, Level] = {}
        self._own: dict[int, Level] = {}
        self._backward: dict[Node | None, Level] = {}
        self._passed_back: dict[object, Level] = {}
        """errors of what whole models passed back to their inputs, by the hash of the input"""
        self._beside: dict[Node, float] = {}
        """largest error of an element that was noise, of what came back to a call's own code and what that passes on"""
        self._norms_beside: dict[tuple[int, int], float] = {}
        self._errors_beside: dict[tuple[int, int], float] = {}
        """the same of parameters' gradients, where nothing on the way to them was compared; by the caller and the size"""
        self._arrived: dict[int, Level] = {}
        """errors of the gradients of a pair's outputs, over all calls"""
        self._inside: dict[int, Level] = {}
        """errors of all gradients inside of a pair's modules: what a container's own parameter was used for goes through them"""
        self._grad_norm: dict[int, float] = {}
        self._last_good: dict[Node | None, int] = {}
        self._last_good_b: dict[Node | None, int] = {}
        self._with_inputs: set[Node] = set()
        """calls of which an input was compared"""
        self._unknown: dict[int, set[str]] = {}
        """by the id of a call: inputs of which it is not known whether they agree"""
        self._lacking: dict[int, list[tuple[str, str]]] = {}
        """by the id of a call: inputs that one side alone has, as (slot, side)"""
        self._charged: set[object] = set()
        """changes of order that are findings already"""
        self._rearranged: set[Node] = set()
        """calls that were given elements in another order, though a caller of theirs returns the same"""
        self._flipped: dict[tuple[Node, tuple[int, ...]], float] = {}
        """by calls that return integers which differ, and their shape: the share of those that do"""
        self._aside: list[Aside] = []
        """inputs of the model that differ, of which it is not known yet whether that matters"""
        self._padding: Padding
        self._padded: list[Padded] = []
        """tensors that differ in padding alone"""
        self._compensated: dict[tuple[Node, str], float] = {}
        """outputs that are a multiple of A's for which the code outside makes up, by call and slot: what B's are times A's"""
        self._with_border: set[tuple[Node, str]] = set()
        """outputs that differ though all that is made of them agrees, and are no multiples, by call and slot"""
        self._borders: dict[str, None] = {}
        """what to call them"""
        self._borders_before: dict[str, None] = {}
        """inputs of another shape, of calls that return the same"""
        self._with_addend: set[tuple[Node, str]] = set()
        """inputs of calls that are sums, of which one side's module is given the terms"""
        self._unseen_sums: dict[str, None] = {}
        """paths of those whose sum could not be compared"""
        self._with_mask: set[tuple[Node, str]] = set()
        """what calls are given that holds a mask on one side alone, by slot: there it was made for this call, and has a gradient of its own"""
        self._in_parts: list[Event] = []
        """weights of which a rank of one side holds a part, and the other side more"""
        self._loss_agrees = False
        """the numbers that the program gave as loss were compared, and agree"""
        self._digests_aside: set[tuple[object, object]] = set()
        self._around: dict[str, None] = {}
        """paths of those callers"""
        self._flattened: dict[str, None] = {}
        """paths of calls that were given tokens in another order, and make one axis of two"""
        self._flattened_after: dict[str, None] = {}
        """calls that are given tokens in another order, since what was made before them has two axes changed"""
        self._largest = 0.0
        """the largest error, of what calls of a micro-batch have returned so far, that is noise"""
        self._choosing: dict[Node, int] = {}
        """calls inside which one side alone returns integers"""
        self._begins_alike = False
        """the step is known to begin with the same weights, up to rounding"""
        self._other_batch = False
        """an input of the model has another size"""
        self._frozen: set[int] = set()
        """modules of A that own a parameter which learns on one side only"""
        self.modes: dict[int, tuple[bool, bool]] = {}
        """whether pairs of modules that run in another mode run in training mode, in A and in B"""
        self.unshown: Divergence | None = None
        """settings of the optimizers that differ and do not show in the numbers: told where nothing else is found"""
        self.uncalled: set[int] = set()
        """pairs of modules of which it is a finding that one side does not call them"""
        self._cut: list[Divergence] = []
        self._learns_otherwise: set[Node | None] = set()
        """calls that got, or of which a call inside returned, a tensor that needs a gradient on one side only"""
        self._asked_for: set[str] = set()
        """sides that alone differentiate by what the model is given, integers too, as MindSpore does"""
        self._drifted: list[Event] = []
        """parameters that differ before the step, which is not the first, and of which that alone says nothing"""
        self._factors: list[float] = []
        """what B's gradients are times A's, by micro-batch"""
        self.factors: dict[int, float] = {}
        """the same by its number, of those in which that could be told"""
        self.scaling: tuple[float, Divergence] | None = None
        """that factor, and the finding, which is none if the optimizer used them without it"""
        self._flow: Flow
        self._has_flow = False
        """a backward pass is compared call by call: not where the batch is split otherwise"""

    def settle(
        self, event: Event, limit: float, wrong: bool, sources: float = 0.0, *, error: float | None = None,
        verdict: str = "", held: Held | None = None,
    ) -> bool:  # fmt: skip
        """Note an event's verdict; return whether it is a finding."""
        metrics = event.metrics
        assert metrics is not None
        if held is not None and held.is_wrong and not verdict:
            self.noise.charged(held.error)
        verdict = verdict or (held.verdict if held is not None else "") or self._verdict(event, metrics, wrong)
        judged = Judged(event, limit, verdict, metrics.rel_l2 if error is None else error, sources, held)
        self.events.append(judged)
        self._judged[id(event)] = judged
        return wrong

    def _verdict(self, event: Event, metrics: Metrics, wrong: bool) -> str:
        if not metrics.is_known:
            return "not comparable"
        if metrics.status is Status.EQUAL:
            return "equal"
        if wrong:
            return "introduced"
        if self.findings and metrics.rel_l2 > tolerance.FORWARD.limit(self.u(event), 0.0):
            return "inherited"
        return "noise"

    def parameters_of(self, node: Node) -> Level | None:
        """Return the errors of the parameters that a call uses, as it finds them; None where it has none that were compared."""
        if node not in self._own_parameters:
            level = self._written.level(node, self.owners)
            before = self.state.parameters.get(node.pair)
            if level is not None and before is not None:  # of its weights, some may be as they were
                level.merge(before)
            self._own_parameters[node] = level or before
        return self._own_parameters[node]

    def _note_missing(self, event: Event) -> None:
        """Keep what is known of a parameter that one side alone has."""
        is_b = event.row_a < 0
        half = self.pairs.half("B" if is_b else "A")
        slot = half.slot(event)
        is_needed = self._are_alike(event.pair) and not self._stands_elsewhere(event)
        if is_needed and half.side.columns["norm"][half.row(event)] > 0:
            self._missing[event.pair] = (slot, half.name)
        self.state.unpaired.setdefault(event.pair, ({}, {}))[is_b][slot] = None

    def _unpaired(self, pair: int) -> tuple[str, str]:
        """Return the parameters of a pair that were not compared though both sides have some: those of A, and of B."""
        a, b = self.state.unpaired.get(pair, ({}, {}))
        return (", ".join(a), ", ".join(b)) if a and b else ("", "")

    def _add(
        self, phase: Phase, kind: Kind, event: Event, pair: int | None, rule: Rule, evidence: Iterable[str], *,
        hint: str, node: Node | None = None, slot: str | None = None, root: bool = False, is_apart: bool = False,
    ) -> None:  # fmt: skip
        """Add a finding at a pair of modules, or at the model as a whole.

        The event's slot is named with it where the event is one of the module's own. It is apart from others where its
        own evidence tells, whatever its sources are.
        """
        if root:
            refs = self.root_refs()
        else:
            assert pair is not None
            own = (event.slot_a, event.slot_b) if pair == event.pair else ("", "")
            refs = self.refs(pair, node, *(own if slot is None else (slot, slot)))
        judged = self._judged.get(id(event))
        limit, error = (rule.limit(self.u(event), 0.0), math.nan) if judged is None else (judged.limit, judged.error)
        held = None if judged is None else judged.held
        about = (
            *(() if held is None else held.facts),
            *(() if root or pair != event.pair else facts(self.pairs, event, limit)),
        )
        share, guess = self._guessed(event, pair)
        self._append(Divergence(phase, event.role, kind, share * self._confidence(event, node), *refs, event.metrics, limit,
                                (*evidence, *about, *guess), hint, error, is_apart or self._is_apart(event, rule),
                                "" if held is None else held.measure, event))  # fmt: skip

    def _guessed(self, event: Event, pair: int | None) -> tuple[float, tuple[str, ...]]:
        """Return by how much what a finding was seen at is less surely a pair than the place that it names, and a fact.

        The place's own guess is weighed in `probe.comparison.guesses`.
        """
        seen = self.pairs.matching.pairs[event.pair]
        named = 1.0 if pair is None else self.pairs.matching.pairs[pair].confidence
        if seen.confidence >= named:
            return 1.0, ()
        places = f"{self._path_a(event.pair)} and {self._path_b(event.pair)}"
        return seen.confidence / named, (
            f"that {places}, at which it was seen, are a pair is a guess by {seen.reason.value} ({seen.confidence:.2f})",
        )

    def _append(self, divergence: Divergence, event: Event | None = None) -> None:
        """Add a finding; with what was held against what, by the rung that judged, at the event that shows it."""
        judged = self._judged.get(id(event))
        if judged is not None:
            held = judged.held or Held(judged.error, judged.limit)
            divergence = replace(divergence, limit=judged.limit, error=judged.error, measure=held.measure,
                                 evidence=(*divergence.evidence, *held.facts))  # fmt: skip
        self.findings.append(divergence)

    def _is_apart(self, event: Event, rule: Rule) -> bool:
        """Tell whether what an event was computed from agrees, up to rounding: then it is no consequence of anything."""
        judged = self._judged.get(id(event))
        if judged is not None and judged.held is not None and judged.held.inherits is not None:
            return not judged.held.inherits
        return judged is None or judged.sources <= rule.limit(self.u(event), 0.0)

    def _confidence(self, event: Event, node: Node | None) -> float:
        value = 0.99
        if event.metrics is not None and event.metrics.estimated:
            value *= 0.97
        if node is not None and id(node) in self._unknown:
            value *= 0.9
        if node is not None and any(self._unpaired(node.pair)):
            value *= 0.5
        if node is not None and self._between(node, node.end):
            value *= 0.9
        judged = self._judged.get(id(event))
        if judged is not None and judged.error < 2 * judged.limit:
            value *= 0.7
        return value

    def refs(
        self, pair: int, node: Node | None, slot_a: str, slot_b: str
    ) -> tuple[tuple[NodeRef, ...], tuple[NodeRef, ...]]:
        """Return a place in A and in B: several where one side has several modules, or parameters, for one."""
        modules = self.pairs.matching.pairs[pair]
        micro, call, call_b = (node.micro, node.call, node.call_b) if node is not None else (0, 0, 0)
        found = []
        for side, module, slot in ((self.pairs.a, modules.a, slot_a), (self.pairs.b, modules.b, slot_b)):
            infos = [(side.reader.modules[at], name) for at, name in side.places_of(module, slot)]
            found.append(
                tuple(NodeRef(side.step, micro, info.path, info.class_name, call, name) for info, name in infos)
            )
        return found[0], found[1]

    def root_refs(self) -> tuple[tuple[NodeRef, ...], tuple[NodeRef, ...]]:
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
        a = self._roundoffs[0][event.row_a] if event.row_a >= 0 else 0.0
        b = self._roundoffs[1][event.row_b] if event.row_b >= 0 else 0.0
        return a if a > b else b

    def peaks(self, event: Event) -> float:
        """Return how many elements as large as the largest would have the norm of A's tensor."""
        row, columns = event.row_a, self.pairs.a.columns
        largest = max(-columns["min"][row], columns["max"][row])
        return tolerance.peaks_of(math.prod(self.pairs.a.shapes[row]), columns["rms"][row], largest)

    def underflow_limit(self, event: Event) -> float:
        """Return the error that is noise where numbers are so small that their dtype has few of them: float16's gradients."""
        share = 0.0
        for side, row in ((self.pairs.a, event.row_a), (self.pairs.b, event.row_b)):
            rms = side.columns["rms"][row] if row >= 0 else 0.0
            if rms > 0:
                share = max(share, smallest_rounding(side.dtypes[row]) / rms)
        return tolerance.UNDERFLOW * share

    def _learns(self, event: Event) -> tuple[bool, bool]:
        """Return requires_grad of both sides."""
        a, b = (self.pairs.a.columns["requires_grad"], self.pairs.b.columns["requires_grad"])
        return bool(a[event.row_a]), bool(b[event.row_b])

    def _class_a(self, module: int) -> str:
        return self.pairs.a.reader.modules[module].class_name

    def _class_b(self, module: int) -> str:
        return self.pairs.b.reader.modules[module].class_name

    def _classes(self, pair: int) -> tuple[str, str]:
        modules = self.pairs.matching.pairs[pair]
        return self._class_a(modules.a), self._class_b(modules.b)

    @functools.cached_property
    def owners(self) -> dict[tuple[int, str], list[int]]:
        """For the parameters of A, by pair and slot: the pairs of all modules that hold them, as tied ones have several."""
        found = {}
        by_path = {module.path: i for i, module in enumerate(self.pairs.a.reader.modules)}
        for parameter in self.pairs.a.parameters:
            holders = [by_path.get(name.rpartition(".")[0], -1) for name in parameter.names]
            pairs = [self.pairs.pair_of_a[holder] for holder in holders if holder in self.pairs.pair_of_a]
            first = self.pairs.pair_of_a.get(parameter.module)
            if first is not None:
                found[first, parameter.slot] = pairs
        return found

    def _are_alike(self, pair: int) -> bool:
        """Tell whether both modules are of one class, or of classes by which two frameworks call the same."""
        a, b = self._classes(pair)
        here, there = (side.reader.info.framework for side in (self.pairs.a, self.pairs.b))
        if a == b or here == there:
            return a == b
        return a.casefold() == b.casefold() or counterpart(here, (a,), there) == b

    def _stands_elsewhere(self, event: Event) -> bool:
        """Tell whether what one side alone has is packed into one parameter, or part of one, on the other."""
        half = self.pairs.half("A" if event.row_a >= 0 else "B")
        reader = half.side.reader
        names = (reader.modules[half.modules[event.pair]].class_name,)
        return bool(unpacked(reader.info.framework, names, half.slot(event).partition(".")[0]))

    def _path_a(self, pair: int) -> str:
        return self.pairs.a.reader.modules[self.pairs.matching.pairs[pair].a].path or "the root"

    def _path_b(self, pair: int) -> str:
        return self.pairs.b.reader.modules[self.pairs.matching.pairs[pair].b].path or "the root"


def kind_of_finding(metrics: Metrics) -> Kind:
    """Return ``nonfinite`` where NaN or Inf was born, else ``introduced``."""
    return Kind.NONFINITE if metrics.status is Status.NONFINITE else Kind.INTRODUCED


def scale_hint(metrics: Metrics | None, what: str = "eps, a scale or a weight") -> str:
    """Say so when the error, and so B, is parallel to the value; the error of what is much smaller is so in any direction."""
    if metrics is None or not min(abs(metrics.coherence), abs(metrics.cosine)) > 0.98 or not metrics.norm_a:
        return ""
    return f"B is {metrics.norm_ratio:.7g} times A, a uniform scale of the value: look at {what}"
