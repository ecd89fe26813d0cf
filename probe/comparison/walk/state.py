"""The ledger of a step: every event with its verdict, and the findings so far."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from probe.comparison.distance.metrics import Metrics, Status
from probe.comparison.exemptions.label_inputs import Aside
from probe.comparison.exemptions.moved_factor import MovedFactors
from probe.comparison.exemptions.other_sizes import OtherSizes
from probe.comparison.exemptions.padding import Padded, Padding
from probe.comparison.exemptions.reordered_tokens import Reordering
from probe.comparison.fusion.parts import agreeing, facts
from probe.comparison.noise import tolerance
from probe.comparison.noise.interface import Check, StepNoise
from probe.comparison.noise.tolerance import Level, Rule
from probe.comparison.notes import Note, note
from probe.comparison.once import once
from probe.comparison.result import Divergence, Kind, NodeRef
from probe.comparison.steps.dataflow import Flow
from probe.comparison.steps.events import StepPairs
from probe.comparison.steps.step_half import Event, Loose, Node
from probe.comparison.steps.unpaired_calls import is_noop, lies
from probe.comparison.steps.weight_history import Place, Sketches, WrittenWeights
from probe.numbers.layouts import counterpart, unpacked
from probe.numbers.statistics import smallest_rounding
from probe.records import Phase, Role
from probe.structure.tree import Tree

_NOTHING = 1.0
"""relative error from which on a limit lets any other tensor of that size pass"""


def _is_judged_before(event: Event) -> bool:
    """Tell whether an optimizer makes a tensor of a gradient, which was judged against what it is a sum of.

    A gradient that is rounding alone (of a key's bias) leaves nothing to judge in what is made of it; updates are judged by
    their lengths too.
    """
    return event.phase is Phase.UPDATE and event.role in (Role.PARAM_GRAD, Role.STATE, Role.DELTA)


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
    other_buffers: set[tuple[int, str]] = field(default_factory=set)
    """buffers that differ before the first step that is compared"""
    variances: dict[tuple[int, str], tuple[np.ndarray, np.ndarray]] = field(default_factory=dict)
    """running variances of both sides after the step, where the frameworks divide by different numbers"""
    variance_was_told: bool = False
    padding_was_told: bool = False
    loss_was_doubted: bool = False
    parts_were_told: bool = False
    moved_factors: set[tuple[int, str]] = field(default_factory=set)
    """outputs, by pair and slot, of which it was said that a factor stands elsewhere"""
    unpaired: dict[int, tuple[dict[str, None], dict[str, None]]] = field(default_factory=dict)
    """parameters, of A and of B, that have no counterpart, by the pair of modules"""
    elsewhere: set[tuple[int, str]] = field(default_factory=set)
    """those of `unpaired` that stand in another module on the other side"""
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
    check: Check | None = None
    """how it was judged; None where the built-in model alone is asked"""
    exemption: str = ""
    """why it is not judged, a code of `probe.comparison.exemptions.table`"""
    tried: tuple[str, ...] = ()
    """codes of `exemptions.REFITS` that were tried on it, in their order"""
    blame: str = ""
    """who answers for it, a code of `probe.comparison.blame.table`, where it is wrong by itself"""

    def exempt(self, code: str) -> None:
        """Take the verdict back: it is not judged, for a reason of `probe.comparison.exemptions.table`."""
        self.verdict, self.limit, self.exemption = "not judged", math.nan, code


@dataclass(eq=False)
class Walk:
    """What is known of a step while it is walked."""

    pairs: StepPairs
    """the step's paired calls and observations"""
    state: State
    """errors that the step before left in the parameters"""
    tree_a: Tree
    """the modules of A"""
    noise: StepNoise
    """what decides how much of an error is noise"""
    written: WrittenWeights = field(init=False)
    """weights as calls find them"""
    roundoffs: tuple[Sequence[float], Sequence[float]] = field(init=False)
    """of all rows, of both sides"""
    own_parameters: dict[Node, Level | None] = field(default_factory=dict)
    kept: dict[Any, Any] = field(default_factory=dict)
    """what functions that are worked out once found"""
    tried: dict[int, list[str]] = field(default_factory=dict)
    """codes of the exemptions that were tried on an event, by its id"""
    findings: list[Divergence] = field(default_factory=list)
    events: list[Judged] = field(default_factory=list)
    judged: dict[int, Judged] = field(default_factory=dict)
    """by the id of the event"""
    notes: list[Note] = field(default_factory=list)
    reasons: list[Note] = field(default_factory=list)
    """what keeps the step from being called aligned"""
    missing: dict[int, tuple[str, str]] = field(default_factory=dict)
    """pairs of modules of which one has a parameter that is not zero and the other lacks: (slot, side)"""
    forward: dict[Node | None, Level] = field(default_factory=dict)
    own: dict[int, Level] = field(default_factory=dict)
    backward: dict[Node | None, Level] = field(default_factory=dict)
    passed_back: dict[object, Level] = field(default_factory=dict)
    """errors of what whole models passed back to their inputs, by the hash of the input"""
    beside: dict[Node, float] = field(default_factory=dict)
    """largest error of an element that was noise, of what came back to a call's own code and what that passes on"""
    norms_beside: dict[tuple[int, int], float] = field(default_factory=dict)
    errors_beside: dict[tuple[int, int], float] = field(default_factory=dict)
    """the same of parameters' gradients, where nothing on the way to them was compared; by the caller and the size"""
    arrived: dict[int, Level] = field(default_factory=dict)
    """errors of the gradients of a pair's outputs, over all calls"""
    inside: dict[int, Level] = field(default_factory=dict)
    """errors of all gradients inside of a pair's modules: what a container's own parameter was used for goes through them"""
    grad_norm: dict[int, float] = field(default_factory=dict)
    last_good: dict[Node | None, int] = field(default_factory=dict)
    last_good_b: dict[Node | None, int] = field(default_factory=dict)
    with_inputs: set[Node] = field(default_factory=set)
    """calls of which an input was compared"""
    unknown: dict[int, set[str]] = field(default_factory=dict)
    """by the id of a call: inputs of which it is not known whether they agree"""
    lacking: dict[int, list[tuple[str, str]]] = field(default_factory=dict)
    """by the id of a call: inputs that one side alone has, as (slot, side)"""
    told_of_order: set[object] = field(default_factory=set)
    """changes of order that are findings already"""
    rearranged: set[Node] = field(default_factory=set)
    """calls that were given elements in another order, though a caller of theirs returns the same"""
    flipped: dict[tuple[Node, tuple[int, ...]], float] = field(default_factory=dict)
    """by calls that return integers which differ, and their shape: the share of those that do"""
    aside: list[Aside] = field(default_factory=list)
    """inputs of the model that differ, of which it is not known yet whether that matters"""
    padding: Padding = field(init=False)
    padded: list[Padded] = field(default_factory=list)
    """tensors that differ in padding alone"""
    moved_factors: dict[tuple[Node, str], float] = field(default_factory=dict)
    """outputs that are a multiple of A's for which the code outside makes up, by call and slot: what B's are times A's"""
    with_border: set[tuple[Node, str]] = field(default_factory=set)
    """outputs that differ though all that is made of them agrees, and are no multiples, by call and slot"""
    borders: dict[str, None] = field(default_factory=dict)
    """what to call them"""
    other_sizes: OtherSizes = field(default_factory=OtherSizes)
    """tensors of other sizes, of which it is not known yet whether that matters"""
    borders_of_size: dict[str, None] = field(default_factory=dict)
    """those of which what is computed agrees"""
    with_addend: set[tuple[Node, str]] = field(default_factory=set)
    """inputs of calls that are sums, of which one side's module is given the terms"""
    unseen_sums: dict[str, None] = field(default_factory=dict)
    """paths of those whose sum could not be compared"""
    with_mask: set[tuple[Node, str]] = field(default_factory=set)
    """what calls are given that holds a mask on one side alone, by slot: there it was made for this call, and has a gradient of its own"""
    in_parts: list[Event] = field(default_factory=list)
    """weights of which a rank of one side holds a part, and the other side more"""
    loss_agrees: bool = False
    """the numbers that the program gave as loss were compared, and agree"""
    digests_aside: set[tuple[object, object]] = field(default_factory=set)
    around: dict[str, None] = field(default_factory=dict)
    """paths of those callers"""
    flattened: dict[str, None] = field(default_factory=dict)
    """paths of calls that were given tokens in another order, and make one axis of two"""
    flattened_after: dict[str, None] = field(default_factory=dict)
    """calls that are given tokens in another order, since what was made before them has two axes changed"""
    largest: float = 0.0
    """the largest error, of what calls of a micro-batch have returned so far, that is noise"""
    choosing: dict[Node, int] = field(default_factory=dict)
    """calls inside which one side alone returns integers"""
    begins_alike: bool = False
    """the step is known to begin with the same weights, up to rounding"""
    other_batch: bool = False
    """an input of the model has another size"""
    frozen: set[int] = field(default_factory=set)
    """modules of A that own a parameter which learns on one side only"""
    modes: dict[int, tuple[bool, bool]] = field(default_factory=dict)
    """whether pairs of modules that run in another mode run in training mode, in A and in B"""
    unshown: Divergence | None = None
    """settings of the optimizers that differ and do not show in the numbers: told where nothing else is found"""
    uncalled: set[int] = field(default_factory=set)
    """pairs of modules of which it is a finding that one side does not call them"""
    cut: list[Divergence] = field(default_factory=list)
    learns_otherwise: set[Node | None] = field(default_factory=set)
    """calls that got, or of which a call inside returned, a tensor that needs a gradient on one side only"""
    asked_for: set[str] = field(default_factory=set)
    """sides that alone differentiate by what the model is given, integers too, as MindSpore does"""
    drifted: list[Event] = field(default_factory=list)
    """parameters that differ before the step, which is not the first, and of which that alone says nothing"""
    factors_of_passes: list[float] = field(default_factory=list)
    """what B's gradients are times A's, by micro-batch"""
    factors: dict[int, float] = field(default_factory=dict)
    """the same by its number, of those in which that could be told"""
    scaling: tuple[float, Divergence] | None = None
    """that factor, and the finding, which is none if the optimizer used them without it"""
    reordering: Reordering = field(init=False)
    """in which orders elements stand, in the micro-batch that is walked"""
    moving: MovedFactors = field(init=False)
    """factors and borders that the code behind a module makes up for, in that micro-batch"""
    other_totals: set[tuple[Role, Node, str]] = field(default_factory=set)
    """gradients that other code contributes to on the two sides"""
    largest_behind: float = 0.0
    """the largest error of a parameter's gradient behind the one that is judged, where nothing on the way to them was compared"""
    flow: Flow = field(init=False)
    has_flow: bool = False
    """a backward pass is compared call by call: not where the batch is split otherwise"""

    def __post_init__(self) -> None:
        state = self.state
        self.written = WrittenWeights(self.pairs, state.weights, state.gradients, state.parameters, state.left_alone)
        self.roundoffs = (self.pairs.a.roundoffs, self.pairs.b.roundoffs)


def record(
    walk: Walk, event: Event, limit: float, wrong: bool, sources: float = 0.0, *, error: float | None = None,
    exempt: str = "", check: Check | None = None,
) -> bool:  # fmt: skip
    """Note an event's verdict, or that it is not judged and why; return whether it is a finding."""
    metrics = event.metrics
    assert metrics is not None
    if check is not None and check.is_wrong and not exempt:
        walk.noise.introduced(check.error)
    verdict = (check.verdict if check is not None else "") or _verdict(walk, event, metrics, wrong)
    exempt = exempt or (check.exemption if check is not None else "")
    if verdict == "noise" and limit >= _NOTHING and not exempt and not _is_judged_before(event):
        exempt = "no-limit"
    judged = Judged(
        event, limit, "not judged" if exempt else verdict, metrics.rel_l2 if error is None else error, sources, check, exempt,
        tuple(walk.tried.pop(id(event), ())),
    )  # fmt: skip
    walk.events.append(judged)
    walk.judged[id(event)] = judged
    return wrong


def _verdict(walk: Walk, event: Event, metrics: Metrics, wrong: bool) -> str:
    if not metrics.is_known:
        return "not comparable"
    if metrics.status is Status.EQUAL:
        return "equal"
    if wrong:
        return "introduced"
    if walk.findings and metrics.rel_l2 > tolerance.FORWARD.limit(roundoff(walk, event), 0.0):
        return "inherited"
    return "noise"


def parameters_of(walk: Walk, node: Node) -> Level | None:
    """Return the errors of the parameters that a call uses, as it finds them; None where it has none that were compared."""
    if node not in walk.own_parameters:
        level = walk.written.level(node, parameter_owners(walk))
        before = walk.state.parameters.get(node.pair)
        if level is not None and before is not None:  # of its weights, some may be as they were
            level.merge(before)
        walk.own_parameters[node] = level or before
    return walk.own_parameters[node]


def note_missing(walk: Walk, event: Event) -> None:
    """Keep what is known of a parameter that one side alone has."""
    is_b = event.row_a < 0
    half = walk.pairs.half("B" if is_b else "A")
    slot = half.slot(event)
    stands_elsewhere = is_elsewhere(walk, event)
    if stands_elsewhere:
        walk.state.elsewhere.add((event.pair, slot))
    is_needed = are_alike(walk, event.pair) and not stands_elsewhere
    if is_needed and half.side.columns["norm"][half.row(event)] > 0:
        walk.missing[event.pair] = (slot, half.name)
    walk.state.unpaired.setdefault(event.pair, ({}, {}))[is_b][slot] = None


def unpaired(walk: Walk, pair: int) -> tuple[str, str]:
    """Return the parameters of a pair that were not compared though both sides have some: those of A, and of B."""
    a, b = walk.state.unpaired.get(pair, ({}, {}))
    return (", ".join(a), ", ".join(b)) if a and b else ("", "")


def add(
    walk: Walk, phase: Phase, kind: Kind, event: Event, pair: int | None, rule: Rule, said: Iterable[Note], *,
    advice: Note | None, node: Node | None = None, slot: str | None = None, root: bool = False, is_apart: bool = False,
) -> None:  # fmt: skip
    """Add a finding at a pair of modules, or at the model as a whole.

    The event's slot is named with it where the event is one of the module's own. It is apart from others where its
    own evidence tells, whatever its sources are.
    """
    if root:
        refs = root_refs(walk)
    else:
        assert pair is not None
        own = (event.slot_a, event.slot_b) if pair == event.pair else ("", "")
        refs = refs_of(walk, pair, node, *(own if slot is None else (slot, slot)))
    judged = walk.judged.get(id(event))
    limit, error = (
        (rule.limit(roundoff(walk, event), 0.0), math.nan) if judged is None else (judged.limit, judged.error)
    )
    check = None if judged is None else judged.check
    about = (
        *(() if check is None else check.facts),
        *(() if root or pair != event.pair else facts(walk.pairs, event, limit)),
    )
    right = () if root or pair != event.pair else agreeing(walk.pairs, event, limit)
    share, guess = guessed(walk, event, pair)
    append(walk, Divergence(phase, event.role, kind, share * confidence(walk, event, node), *refs, event.metrics, limit,
                            (*said, *about, *guess), advice, error, is_apart or stands_apart(walk, event, rule),
                            "" if check is None else check.measure, event, agreeing=right))  # fmt: skip


def guessed(walk: Walk, event: Event, pair: int | None) -> tuple[float, tuple[Note, ...]]:
    """Return by how much what a finding was seen at is less surely a pair than the place that it names, and a fact.

    The place's own guess is weighed in `probe.comparison.blame.guesses`.
    """
    seen = walk.pairs.matching.pairs[event.pair]
    named = 1.0 if pair is None else walk.pairs.matching.pairs[pair].confidence
    if seen.confidence >= named:
        return 1.0, ()
    places = {"a": path_a(walk, event.pair), "b": path_b(walk, event.pair)}
    by = seen.reason.value
    return seen.confidence / named, (note("seen-at-a-guessed-pair", **places, by=by, confidence=seen.confidence),)


def append(walk: Walk, divergence: Divergence, event: Event | None = None) -> None:
    """Add a finding; with what was held against what, by the rung that judged, at the event that shows it."""
    judged = walk.judged.get(id(event))
    if judged is not None:
        check = judged.check or Check(judged.error, judged.limit)
        divergence = replace(divergence, limit=judged.limit, error=judged.error, measure=check.measure,
                             facts=(*divergence.facts, *check.facts))  # fmt: skip
    walk.findings.append(divergence)


def stands_apart(walk: Walk, event: Event, rule: Rule) -> bool:
    """Tell whether what an event was computed from agrees, up to rounding: then it is no consequence of anything."""
    judged = walk.judged.get(id(event))
    if judged is not None and judged.check is not None and judged.check.inherits is not None:
        return not judged.check.inherits
    return judged is None or judged.sources <= rule.limit(roundoff(walk, event), 0.0)


def confidence(walk: Walk, event: Event, node: Node | None) -> float:
    """Return how sure it is that an event differs."""
    value = 0.99
    if event.metrics is not None and event.metrics.estimated:
        value *= 0.97
    if node is not None and id(node) in walk.unknown:
        value *= 0.9
    if node is not None and any(unpaired(walk, node.pair)):
        value *= 0.5
    if node is not None and unpaired_between(walk, node, node.end):
        value *= 0.9
    judged = walk.judged.get(id(event))
    if judged is not None and judged.error < 2 * judged.limit:
        value *= 0.7
    return value


def refs_of(
    walk: Walk, pair: int, node: Node | None, slot_a: str, slot_b: str
) -> tuple[tuple[NodeRef, ...], tuple[NodeRef, ...]]:
    """Return a place in A and in B: several where one side has several modules, or parameters, for one."""
    modules = walk.pairs.matching.pairs[pair]
    micro, call, call_b = (node.micro, node.call, node.call_b) if node is not None else (0, 0, 0)
    found = []
    for side, module, slot in ((walk.pairs.a, modules.a, slot_a), (walk.pairs.b, modules.b, slot_b)):
        infos = [(side.reader.modules[at], name) for at, name in side.places_of(module, slot)]
        found.append(tuple(NodeRef(side.step, micro, info.path, info.class_name, call, name) for info, name in infos))
    return found[0], found[1]


def root_refs(walk: Walk) -> tuple[tuple[NodeRef, ...], tuple[NodeRef, ...]]:
    """Return the whole model in A and in B."""
    a, b = walk.pairs.a.reader.modules[0], walk.pairs.b.reader.modules[0]
    return (
        (NodeRef(walk.pairs.step, 0, a.path, a.class_name, 0, ""),),
        (NodeRef(walk.pairs.step_b, 0, b.path, b.class_name, 0, ""),),
    )


def order(walk: Walk, event: Event) -> int:
    """Return an event's place in the order of cause."""
    return walk.pairs.a.columns["order"][event.row_a] if event.row_a >= 0 else 0


def roundoff(walk: Walk, event: Event) -> float:
    """Return the unit roundoff of the less precise of both dtypes; 0 for integers."""
    a = walk.roundoffs[0][event.row_a] if event.row_a >= 0 else 0.0
    b = walk.roundoffs[1][event.row_b] if event.row_b >= 0 else 0.0
    return a if a > b else b


def peaks_of(walk: Walk, event: Event) -> float:
    """Return how many elements as large as the largest would have the norm of A's tensor."""
    row, columns = event.row_a, walk.pairs.a.columns
    largest = max(-columns["min"][row], columns["max"][row])
    return tolerance.peaks_of(math.prod(walk.pairs.a.shapes[row]), columns["rms"][row], largest)


def underflow_limit(walk: Walk, event: Event) -> float:
    """Return the error that is noise where numbers are so small that their dtype has few of them: float16's gradients."""
    share = 0.0
    for side, row in ((walk.pairs.a, event.row_a), (walk.pairs.b, event.row_b)):
        rms = side.columns["rms"][row] if row >= 0 else 0.0
        if rms > 0:
            share = max(share, smallest_rounding(side.dtypes[row]) / rms)
    return tolerance.UNDERFLOW * share


def requires_grad_of(walk: Walk, event: Event) -> tuple[bool, bool]:
    """Return requires_grad of both sides."""
    a, b = (walk.pairs.a.columns["requires_grad"], walk.pairs.b.columns["requires_grad"])
    return bool(a[event.row_a]), bool(b[event.row_b])


def class_a(walk: Walk, module: int) -> str:
    """Return the class of a module of A."""
    return walk.pairs.a.reader.modules[module].class_name


def _class_b(walk: Walk, module: int) -> str:
    return walk.pairs.b.reader.modules[module].class_name


def classes_of(walk: Walk, pair: int) -> tuple[str, str]:
    """Return the classes of a pair of modules."""
    modules = walk.pairs.matching.pairs[pair]
    return class_a(walk, modules.a), _class_b(walk, modules.b)


@once
def parameter_owners(walk: Walk) -> dict[tuple[int, str], list[int]]:
    """For the parameters of A, by pair and slot: the pairs of all modules that hold them, as tied ones have several."""
    found = {}
    by_path = {module.path: i for i, module in enumerate(walk.pairs.a.reader.modules)}
    for parameter in walk.pairs.a.parameters:
        holders = [by_path.get(name.rpartition(".")[0], -1) for name in parameter.names]
        pairs = [walk.pairs.pair_of_a[holder] for holder in holders if holder in walk.pairs.pair_of_a]
        first = walk.pairs.pair_of_a.get(parameter.module)
        if first is not None:
            found[first, parameter.slot] = pairs
    return found


def are_alike(walk: Walk, pair: int) -> bool:
    """Tell whether both modules are of one class, or of classes by which two frameworks call the same."""
    a, b = classes_of(walk, pair)
    here, there = (side.reader.info.framework for side in (walk.pairs.a, walk.pairs.b))
    if a == b or here == there:
        return a == b
    return a.casefold() == b.casefold() or counterpart(here, (a,), there) == b


def is_elsewhere(walk: Walk, event: Event) -> bool:
    """Tell whether what one side alone has is packed into one parameter, or part of one, on the other."""
    half = walk.pairs.half("A" if event.row_a >= 0 else "B")
    reader = half.side.reader
    names = (reader.modules[half.modules[event.pair]].class_name,)
    return bool(unpacked(reader.info.framework, names, half.slot(event).partition(".")[0]))


def path_a(walk: Walk, pair: int) -> str:
    """Return the path of a pair's module in A."""
    return walk.pairs.a.reader.modules[walk.pairs.matching.pairs[pair].a].path or "the root"


def path_b(walk: Walk, pair: int) -> str:
    """Return the path of a pair's module in B."""
    return walk.pairs.b.reader.modules[walk.pairs.matching.pairs[pair].b].path or "the root"


def unpaired_between(walk: Walk, caller: Node, before: int, name: str = "A") -> list[Loose]:
    """Return one side's calls without a partner that began and ended inside a call since the last good event there."""
    half, since = walk.pairs.half(name), last_agreeing(walk, caller, name)
    return [each for each in half.loose(caller) if lies(each, since, before, half.stepped) and not is_noop(half, each)]


def last_agreeing(walk: Walk, caller: Node, name: str) -> int:
    """Return when the last good event of one side was inside a call."""
    if name == "A":
        return walk.last_good.get(caller, caller.begin)
    return walk.last_good_b.get(caller, caller.begin_b)


def when(walk: Walk) -> Note:
    """Say between which steps weights came to differ."""
    step = walk.pairs.step
    return note("before-step", step=step) if step else note("before-first-step")


def kind_of_finding(metrics: Metrics) -> Kind:
    """Return ``nonfinite`` where NaN or Inf was born, else ``introduced``."""
    return Kind.NONFINITE if metrics.status is Status.NONFINITE else Kind.INTRODUCED


def scale_hint(metrics: Metrics | None, what: str = "scale-of-value") -> Note | None:
    """Say so when the error, and so B, is parallel to the value; the error of what is much smaller is so in any direction."""
    if metrics is None or not min(abs(metrics.coherence), abs(metrics.cosine)) > 0.98 or not metrics.norm_a:
        return None
    return Note(what, {"factor": metrics.norm_ratio})
