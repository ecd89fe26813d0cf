"""The code of one module call between the calls that it makes: what goes in, what comes out, and the gradients of both.

What goes in (*sources*) are the arguments of the call and what the calls inside it returned; what comes out (*targets*) are the arguments that
it hands to those and what it returns itself. Sources have A's values, and the gradients of targets are A's, wherever A recorded them.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from probe.adapters.replaying import Place, Replaying, Run
from probe.recorder.calls import Call
from probe.records import Role
from probe.verdict.side import Call as RecordedCall
from probe.verdict.tensors import Tensor


@dataclass(eq=False)
class Source:
    """What goes in."""

    role: Role
    """`Role.INPUT` of the call itself, or `Role.OUTPUT` of a call inside it"""
    call: Call
    slots: tuple[str, ...]
    """several, where one tensor stands in several"""
    leaf: Any
    given: Any
    """what code was handed for the leaf"""
    learns: bool
    """it has a gradient"""
    gradient: Any = None
    """what was pulled back to it"""
    inner: Any = None
    """the part of the gradient that comes back through the code which returned it"""
    made_by: RecordedCall | None = None
    """the call that returned it, where A's returned nothing like it: what comes back to it was not pulled back through that"""
    is_captured: bool = False
    """code around its caller has it too, by a hook"""


@dataclass(eq=False)
class Held:
    """What a module returned, in the hands of code around its caller, which got it by a hook."""

    call: Call
    slots: tuple[str, ...]
    tensor: Callable[[], Any]
    """returns it, as long as somebody has it"""
    gradient: Any
    """as far as it is known"""


@dataclass(eq=False)
class Target:
    """What comes out."""

    role: Role
    """`Role.INPUT` of a call inside it, or `Role.OUTPUT` of the call itself"""
    call: Call
    slot: str
    tensor: Any
    place: Place
    gradient: Any = None
    """what came back to it; None: nothing, or it is not known"""

    @property
    def is_known(self) -> bool:
        """Whether there is something to pull back from it."""
        return self.gradient is not None and self.place is not None


@dataclass(eq=False)
class Given:
    """An argument of the call."""

    slot: str
    leaf: Any
    tensor: Any
    """what the module was given"""
    arrived: Any
    """what its caller had there"""
    version: int | None
    first: str
    """the slot of its source, which several arguments may share"""
    is_settled: bool = False
    """what was written to it has been written to the caller's, too"""


@dataclass(eq=False)
class Inside:
    """A call that the code made."""

    call: Call
    output: Any
    """what the code got for it"""
    sources: list[Source] = field(default_factory=list)
    through: dict[str, str] = field(default_factory=dict)
    """the slots of arguments that it returned as they were, by those of the results"""


@dataclass(frozen=True)
class Made:
    """A call of a module of B, as its caller made it."""

    module: Any
    run: Run
    args: tuple[Any, ...]
    kwargs: dict[str, Any]


@dataclass(eq=False)
class Segment:
    """One call under way."""

    call: Call
    recorded: RecordedCall
    index: int
    made: Made
    grad: bool
    sources: list[Source] = field(default_factory=list)
    targets: list[Target] = field(default_factory=list)
    inside: list[Inside] = field(default_factory=list)
    given: list[Given] = field(default_factory=list)
    inner: dict[str, Any] = field(default_factory=dict)
    """see `Gradients.inside`"""
    arrived: dict[str, Tensor] = field(default_factory=dict)
    """what of A it was given, by slot"""
    returned: dict[str, Tensor] = field(default_factory=dict)
    """the same for what it returned"""
    through: dict[str, str] = field(default_factory=dict)
    """see `Inside.through`"""
    foreign: set[str] = field(default_factory=set)
    """slots of what it returned that code inside was given, and that hooks have got hold of"""
    again: int = -1
    """while its code runs once more, to be differentiated as a function: how many of the calls inside have been made"""
    renewed: dict[int, Any] = field(default_factory=dict)
    """by the ids of sources, what they are then"""
    handed: dict[tuple[int, str], Any] = field(default_factory=dict)
    """by call and slot, what comes out then"""

    def is_own_input(self, tensor: Any) -> bool:
        """Return True if a tensor is one that the call itself was given."""
        return any(tensor is each.tensor for each in self.given)


@dataclass
class Gradients:
    """What pulling back through a segment gave."""

    of_sources: list[tuple[Source, Any]]
    of_targets: list[tuple[Target, Any]]
    """the whole gradients of what it handed to calls inside"""
    of_parameters: list[tuple[Any, Any]]
    of_held: list[tuple[Held, Any]]
    inside: dict[str, Any]
    """of what it returns and uses itself, too: by slot, the part of the gradient that comes back through its own code"""


Again = Callable[[Sequence[Any]], Sequence[Any]]


def pulled_back(
    replaying: Replaying, segment: Segment, parameters: Sequence[Any], held: Sequence[Held], again: Again
) -> Gradients:
    """Return the gradients of what went into a segment, given those of what came out.

    What A recorded of a tensor that the call returned is its whole gradient. Where the call's own code makes something else of that
    tensor too (a loss of its logits), a part of it is pulled back anyway, and must not count twice.
    """
    sources = [each for each in segment.sources if each.learns]
    totals = [
        each
        for each in segment.targets
        if each.role is Role.INPUT and each.place is not None and not segment.is_own_input(each.tensor)
    ]
    returned = [each for each in segment.targets if each.role is Role.OUTPUT and each.is_known]
    there = [(each, replaying.place(tensor)) for each in held if (tensor := each.tensor()) is not None]
    places = [place for _, place in there if place is not None]

    def pull(wanted: list[Any], without: Target | None = None) -> tuple[list[Any], list[Any], list[Any]]:
        known = [each for each in segment.targets if each.is_known and each is not without]
        return replaying.pulled_back(
            again, [each.leaf for each in sources], wanted, parameters, [each.place for each in known],
            [each.gradient for each in known],
        )  # fmt: skip

    wanted = [*(each.place for each in totals), *places]
    found = pull([*wanted, *(each.place for each in returned)])
    inside: dict[str, Any] = {}
    for target, gradient in reversed(list(zip(returned, found[1][len(wanted) :], strict=True))):
        parts = [each.inner for each in segment.sources if each.given is target.tensor and each.inner is not None]
        parts += [each.gradient for each in held if each.tensor() is target.tensor and each.gradient is not None]
        if gradient is not None and not _are_equal(replaying, gradient, target.gradient):
            parts += [each for each in pull([target.place], target)[1] if each is not None]
        if parts:
            inside[target.slot] = functools.reduce(replaying.added, parts)
            target.gradient = _less(replaying, target, inside[target.slot])
    if inside:
        found = pull(wanted)
    of_places = iter(found[1])
    return Gradients(
        list(zip(sources, found[0], strict=True)), [(each, next(of_places)) for each in totals],
        list(zip(parameters, found[2], strict=True)),
        [(each, next(of_places)) for each, place in there if place is not None], inside,
    )  # fmt: skip


def _are_equal(replaying: Replaying, a: Any, b: Any) -> bool:
    with replaying.adapter.quiet():
        return a is b or np.array_equal(replaying.adapter.values(a), replaying.adapter.values(b))


def _less(replaying: Replaying, target: Target, part: Any) -> Any:
    """Return what of a gradient is left without a part of it."""
    adapter = replaying.adapter
    with adapter.quiet():
        whole, own = (np.asarray(adapter.values(each)) for each in (target.gradient, part))
    kind = whole.dtype if whole.dtype.kind == "c" else np.float64
    left = (whole.astype(kind) - own.astype(kind)).astype(whole.dtype)
    return replaying.tensor(left, target.gradient, None)
