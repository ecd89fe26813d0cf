"""Both sides' data flow: which node of B is which of A, and which pair of tensors each edge is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from probe.answer.result import Divergence, SlotResult
from probe.records import Role
from probe.report.graph.flow import Flow, Kind, first_micro, flow_of
from probe.verdict.steps.step import Step

ABSENT = -1


@dataclass(frozen=True, slots=True)
class BothFlows:
    """The graphs of one micro-batch of A and of B, and how they belong together."""

    a: Flow
    b: Flow
    twins: tuple[int, ...]
    """for each node of B the node of A that it is, −1 where it is none"""
    tensors_a: dict[int, int]
    """by a record of A, the pair of tensors that it was compared in: its place among the slots"""
    tensors_b: dict[int, int]

    @property
    def sides(self) -> tuple[tuple[Flow, dict[int, int]], ...]:
        """Each flow with the pairs of tensors of its records."""
        return (self.a, self.tensors_a), (self.b, self.tensors_b)


def pairs_of(flow: Flow, tensors: Mapping[int, int]) -> tuple[list[int], list[int]]:
    """Return the pair of tensors that each edge carries, and of each node that is no call the one that it is; −1 where it was not compared.

    Parameters
    ----------
    flow
        of one side
    tensors
        by a record of it, its pair of tensors
    """
    of_maker: dict[int, int] = {}
    for row, maker in flow.makers.items():
        if row in tensors:
            of_maker.setdefault(maker, tensors[row])
    return (
        [tensors.get(edge.row, of_maker.get(edge.source, ABSENT)) for edge in flow.edges],
        [ABSENT if node.kind is Kind.CALL else tensors.get(node.row, of_maker.get(at, ABSENT))
         for at, node in enumerate(flow.nodes)],
    )  # fmt: skip


def looked_at(steps: Mapping[int, Step], first: Divergence | None, step: int | None = None) -> tuple[Step, int] | None:
    """Return the step and the micro-batch of the first divergence, or else the first ones; None if nothing ran.

    Parameters
    ----------
    steps
        what was compared, by A's step
    first
        the first divergence
    step
        another one that was chosen
    """
    ref = None if first is None else (first.a or first.b)[0]
    if step is None:
        step = ref.step if ref is not None and ref.step in steps else next(iter(steps), None)
    if step is None or not steps[step].nodes:
        return None
    micros = {node.a.micro for node in steps[step].nodes}
    is_there = ref is not None and ref.step == step and ref.micro in micros
    return steps[step], ref.micro if ref is not None and is_there else first_micro(micros)


def both_flows(step: Step, micro: int, slots: Sequence[SlotResult]) -> BothFlows:
    """Return the data flow of a micro-batch of both sides.

    Parameters
    ----------
    step
        both sides of it
    micro
        the micro-batch, by A's number
    slots
        everything that was compared
    """
    nodes = [node for node in step.nodes if node.a.micro == micro]
    a, b = flow_of(step.a, micro), flow_of(step.b, nodes[0].b.micro if nodes else micro)
    calls_a, calls_b = a.calls, b.calls
    twins = [ABSENT] * len(b.nodes)
    for node in nodes:
        mine, theirs = calls_a.get((node.a.module, node.a.number)), calls_b.get((node.b.module, node.b.number))
        if mine is not None and theirs is not None:
            twins[theirs] = mine
    taken = set(twins)
    of_a, of_b = {}, {}
    for at, slot in enumerate(slots):
        if (slot.step, slot.micro) == (step.a.step, micro) and slot.role in (Role.INPUT, Role.OUTPUT):
            of_a.setdefault(slot.row_a, at)
            of_b.setdefault(slot.row_b, at)
            _pair_makers(a, b, slot, twins, taken)
    return BothFlows(a, b, tuple(twins), of_a, of_b)


def _pair_makers(a: Flow, b: Flow, slot: SlotResult, twins: list[int], taken: set[int]) -> None:
    """Let what code makes on both sides, or both models are given, be one where it was compared.

    Parameters
    ----------
    a, b
        both flows
    slot
        what was compared
    twins
        see `BothFlows`; is added to
    taken
        nodes of A that have a twin; is added to
    """
    mine, theirs = a.makers.get(slot.row_a, ABSENT), b.makers.get(slot.row_b, ABSENT)
    if mine < 0 or theirs < 0 or twins[theirs] != ABSENT or mine in taken:
        return
    kinds = a.nodes[mine].kind, b.nodes[theirs].kind
    if kinds[0] is kinds[1] and kinds[0] is not Kind.CALL:
        twins[theirs] = mine
        taken.add(mine)
