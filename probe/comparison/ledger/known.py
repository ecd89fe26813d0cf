"""What is known of a step while it is walked, by phase; what one step leaves for the next."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from probe.comparison.exemptions.label_inputs import Aside
from probe.comparison.exemptions.moved_factor import MovedFactors
from probe.comparison.exemptions.other_sizes import OtherSizes
from probe.comparison.exemptions.padding import Padded, Padding
from probe.comparison.exemptions.reordered_tokens import Reordering
from probe.comparison.noise.interface import Check, StepNoise
from probe.comparison.noise.tolerance import Level
from probe.comparison.notes import Note
from probe.comparison.result import Divergence
from probe.comparison.steps.dataflow import Flow
from probe.comparison.steps.events import StepPairs
from probe.comparison.steps.step_half import Event, Node
from probe.comparison.steps.weight_history import Place, Sketches, WrittenWeights
from probe.records import JudgementName, Role
from probe.structure.tree import Tree


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
    verdict: JudgementName
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
class Ledger:
    """What the walk has found: only ever added to."""

    events: list[Judged] = field(default_factory=list)
    judged: dict[int, Judged] = field(default_factory=dict)
    """by the id of the event"""
    findings: list[Divergence] = field(default_factory=list)
    notes: list[Note] = field(default_factory=list)
    reasons: list[Note] = field(default_factory=list)
    """what keeps the step from being called aligned"""
    tried: dict[int, list[str]] = field(default_factory=dict)
    """codes of the exemptions that were tried on an event, by its id"""
    unshown: Divergence | None = None
    """settings of the optimizers that differ and do not show in the numbers: told where nothing else is found"""


@dataclass(eq=False)
class Weights:
    """What is known of the weights that a step begins with, and that its calls find."""

    written: WrittenWeights = field(init=False)
    """weights as calls find them"""
    own_parameters: dict[Node, Level | None] = field(default_factory=dict)
    """errors of the parameters that a call uses, as it finds them"""
    missing: dict[int, tuple[str, str]] = field(default_factory=dict)
    """pairs of modules of which one has a parameter that is not zero and the other lacks: (slot, side)"""
    in_parts: list[Event] = field(default_factory=list)
    """weights of which a rank of one side holds a part, and the other side more"""
    frozen: set[int] = field(default_factory=set)
    """modules of A that own a parameter which learns on one side only"""
    drifted: list[Event] = field(default_factory=list)
    """parameters that differ before the step, which is not the first, and of which that alone says nothing"""
    begins_alike: bool = False
    """the step is known to begin with the same weights, up to rounding"""
    uncalled: set[int] = field(default_factory=set)
    """pairs of modules of which it is a finding that one side does not call them"""


@dataclass(eq=False)
class ForwardPass:
    """What is known of the forward pass of the micro-batch that is walked."""

    errors: dict[Node | None, Level] = field(default_factory=dict)
    """of all that a call has been given and its children have returned so far; None stands for the program"""
    last_good: dict[Node | None, int] = field(default_factory=dict)
    """by caller: when A's last tensor inside was seen to agree"""
    last_good_b: dict[Node | None, int] = field(default_factory=dict)
    with_inputs: set[Node] = field(default_factory=set)
    """calls of which an input was compared"""
    unknown: dict[int, set[str]] = field(default_factory=dict)
    """by the id of a call: inputs of which it is not known whether they agree"""
    one_sided: dict[int, list[tuple[str, str]]] = field(default_factory=dict)
    """by the id of a call: inputs that one side alone has, as (slot, side)"""
    told_of_order: set[object] = field(default_factory=set)
    """changes of order that are findings already"""
    largest: float = 0.0
    """the largest error, of what calls of a micro-batch have returned so far, that is noise"""
    other_batch: bool = False
    """an input of the model has another size"""
    modes: dict[int, tuple[bool, bool]] = field(default_factory=dict)
    """whether pairs of modules that run in another mode run in training mode, in A and in B"""
    loss_agrees: bool = False
    """the numbers that the program gave as loss were compared, and agree"""


@dataclass(eq=False)
class Exempted:
    """What differs and is right, as far as it was found: by kind of exemption."""

    padding: Padding = field(init=False)
    padded: list[Padded] = field(default_factory=list)
    """tensors that differ in padding alone"""
    moving: MovedFactors = field(init=False)
    """factors and borders that the code behind a module makes up for, in that micro-batch"""
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
    reordering: Reordering = field(init=False)
    """in which orders elements stand, in the micro-batch that is walked"""
    rearranged: set[Node] = field(default_factory=set)
    """calls that were given elements in another order, though a caller of theirs returns the same"""
    around: dict[str, None] = field(default_factory=dict)
    """paths of those callers"""
    flattened: dict[str, None] = field(default_factory=dict)
    """paths of calls that were given tokens in another order, and make one axis of two"""
    flattened_after: dict[str, None] = field(default_factory=dict)
    """calls that are given tokens in another order, since what was made before them has two axes changed"""
    choosing: dict[Node, int] = field(default_factory=dict)
    """calls inside which one side alone returns integers"""
    flipped: dict[tuple[Node, tuple[int, ...]], float] = field(default_factory=dict)
    """by calls that return integers which differ, and their shape: the share of those that do"""
    label_inputs: list[Aside] = field(default_factory=list)
    """inputs of the model that differ, of which it is not known yet whether that matters"""
    label_digests: set[tuple[object, object]] = field(default_factory=set)
    other_totals: set[tuple[Role, Node, str]] = field(default_factory=set)
    """gradients that other code contributes to on the two sides"""


@dataclass(eq=False)
class BackwardPass:
    """What is known of the backward pass, and of the gradients of parameters."""

    errors: dict[Node | None, Level] = field(default_factory=dict)
    """of all gradients that came back inside a call so far"""
    passed_back: dict[object, Level] = field(default_factory=dict)
    """errors of what whole models passed back to their inputs, by the hash of the input"""
    beside: dict[Node, float] = field(default_factory=dict)
    """largest error of an element that was noise, of what came back to a call's own code and what that passes on"""
    arrived: dict[int, Level] = field(default_factory=dict)
    """errors of the gradients of a pair's outputs, over all calls"""
    inside: dict[int, Level] = field(default_factory=dict)
    """errors of all gradients inside of a pair's modules: what a container's own parameter was used for goes through them"""
    grad_norm: dict[int, float] = field(default_factory=dict)
    """norm of the gradients that came to a pair's outputs, over all calls"""
    norms_beside: dict[tuple[int, int], float] = field(default_factory=dict)
    errors_beside: dict[tuple[int, int], float] = field(default_factory=dict)
    """the same of parameters' gradients, where nothing on the way to them was compared; by the caller and the size"""
    largest_behind: float = 0.0
    """the largest error of a parameter's gradient behind the one that is judged, where nothing on the way to them was compared"""
    cut: list[Divergence] = field(default_factory=list)
    learns_otherwise: set[Node | None] = field(default_factory=set)
    """calls that got, or of which a call inside returned, a tensor that needs a gradient on one side only"""
    asked_for: set[str] = field(default_factory=set)
    """sides that alone differentiate by what the model is given, integers too, as MindSpore does"""
    factors_of_passes: list[float] = field(default_factory=list)
    """what B's gradients are times A's, by micro-batch"""
    factors: dict[int, float] = field(default_factory=dict)
    """the same by its number, of those in which that could be told"""
    scaling: tuple[float, Divergence] | None = None
    """that factor, and the finding, which is none if the optimizer used them without it"""
    flow: Flow = field(init=False)
    has_flow: bool = False
    """a backward pass is compared call by call: not where the batch is split otherwise"""


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
    roundoffs: tuple[Sequence[float], Sequence[float]] = field(init=False)
    """of all rows, of both sides"""
    kept: dict[Any, Any] = field(default_factory=dict)
    """what functions that are worked out once found"""
    ledger: Ledger = field(default_factory=Ledger)
    weights: Weights = field(default_factory=Weights)
    forward: ForwardPass = field(default_factory=ForwardPass)
    exempted: Exempted = field(default_factory=Exempted)
    backward: BackwardPass = field(default_factory=BackwardPass)

    def __post_init__(self) -> None:
        state = self.state
        self.weights.written = WrittenWeights(
            self.pairs, state.weights, state.gradients, state.parameters, state.left_alone
        )
        self.roundoffs = (self.pairs.a.roundoffs, self.pairs.b.roundoffs)
