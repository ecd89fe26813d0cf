"""Whether both models read the rows of a weight in the order in which they lie: what is made of them agrees then.

A weight whose rows lie in another order in all layers is a layout, or was loaded wrongly everywhere. It is decided
once, in pairing, and stays decided.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence

from probe.matching import Bundle, Matching
from probe.matching.automatic.weights.lying import may_lie_otherwise
from probe.matching.one_to_many import completed
from probe.notes import Note
from probe.records import Phase, Role
from probe.store.reading.reader import Reader
from probe.structure.tree import Tree
from probe.verdict.distance.estimates import look_permuted
from probe.verdict.distance.measure import measure
from probe.verdict.distance.values import FITS
from probe.verdict.noise.model import FORWARD
from probe.verdict.side import Side
from probe.verdict.steps.events import Event
from probe.verdict.steps.step import Step

_OTHER = 0.5
"""error from which on two tensors are others: the shares of heads that are mixed up have nothing in common"""


def with_orders(matching: Matching, a: Reader, b: Reader, steps: tuple[int, int] | None) -> tuple[Matching, list[Note]]:
    """Return a matching with what lies in one weight, and the orders of rows that the first ``steps`` allow."""
    if not may_lie_otherwise(matching, a, b):
        return completed(matching, a, b), []
    from probe.matching.automatic.outline import outline_of
    from probe.matching.automatic.weights.packing import notes_of_orders, packed_as_read

    outlines = [outline_of(reader, Tree(reader.modules)) for reader in (a, b)]
    packing = packed_as_read(matching, outlines[0], outlines[1])
    found = completed(packing.matching, a, b)
    if packing.found:
        refuted = list(packing.found)
        if steps is not None:
            sides = Side(a, steps[0], found.views_a), Side(b, steps[1], found.views_b)
            refuted = _refuted(Step(*sides, found), packing.found)
        packing = packing.without(refuted)
        found = completed(packing.matching, a, b)
    return found, [*packing.notes, *packing.lost, *notes_of_orders(packing, outlines[0], outlines[1])]


def _refuted(step: Step, bundles: Sequence[Bundle]) -> list[Bundle]:
    """Return the modules that are not read in another order; what holds in most layers of an order holds in all."""
    kinds: dict[tuple[object, ...], list[Bundle]] = defaultdict(list)
    for bundle in bundles:
        half = step.a if bundle.side == "A" else step.b
        modules = half.reader.modules
        names = (modules[part].path.rpartition(".")[2] for part in bundle.parts) if len(bundle.parts) > 1 else ()
        kinds[*bundle.order, *names].append(bundle)
    wrong: list[Bundle] = []
    for kind in kinds.values():
        seen = list(_by_next(step, kind)) if len(kind[0].parts) > 1 else list(_by_gradients(step, kind))
        seen = seen or [is_alike for bundle in kind for is_alike in _by_caller(step, bundle)]
        if 2 * sum(seen) <= len(seen):
            wrong += kind
    return wrong


def _by_gradients(step: Step, bundles: Sequence[Bundle]) -> Iterator[bool]:
    """Yield whether the gradient of each weight is alike in the order of its rows, rather than as it lies."""
    wholes = {bundle.whole for bundle in bundles}
    for event in step.parameters.events(Phase.GRADIENT, Role.PARAM_GRAD):
        b = event.b
        if event.place is None or event.place[0] not in wholes or event.a is None or b is None or not b.parts:
            continue
        error, as_it_lies = step.error(event), measure(event.a, b.parts[0][0])
        if error is None or as_it_lies is None:
            continue
        if not error.is_bound:
            yield error.size < as_it_lies.size
        elif as_it_lies.size < _OTHER or look_permuted(event.a, b):
            yield as_it_lies.size > FITS and look_permuted(event.a, b)


def _by_next(step: Step, bundles: Sequence[Bundle]) -> Iterator[bool]:
    """Yield whether the next module is given the same behind the layer that was given the most similar."""
    wanted = {bundle.parts[0] if bundle.side == "A" else step.a_of.get(bundle.parts[0]) for bundle in bundles}
    seen = []
    for place, node in enumerate(step.nodes):
        later = (it for it in step.nodes[place + 1 :] if it.a.micro == node.a.micro and it.a.begin >= node.a.end)
        following = next(later, None) if node.a.module in wanted else None
        if following is not None:
            given, made = _worst(step, node.inputs), _worst(step, following.inputs)
            if given is not None and made is not None:
                seen.append((given, made, max(event.u for event in following.inputs)))
    if seen:
        given, made, u = min(seen)
        yield made <= FORWARD.k * max(given, u)


def _by_caller(step: Step, bundle: Bundle) -> Iterator[bool]:
    """Yield whether what the caller of a module returns is alike."""
    module = bundle.whole if bundle.side == "B" else step.a_of.get(bundle.whole)
    for node in (each for each in step.nodes if each.a.module == module and each.parent is not None):
        assert node.parent is not None
        made = _worst(step, node.parent.outputs)
        if made is not None:
            yield made < _OTHER
            return


def _worst(step: Step, events: Sequence[Event]) -> float | None:
    return max((error.size for error in map(step.error, events) if error is not None), default=None)
