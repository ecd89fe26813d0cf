"""Walking the forward pass of a step in causal order."""

from __future__ import annotations

import math
from collections.abc import Iterable

from probe.comparison import choices, tolerance
from probe.comparison.arrangement import Arrangement
from probe.comparison.charge import SAME_BATCH, mode_name
from probe.comparison.compensated import Compensation
from probe.comparison.given import given_otherwise, is_given, logged_apart
from probe.comparison.given_aside import Aside, is_handed_on
from probe.comparison.guessed_inputs import without_wrong_guesses
from probe.comparison.held_values import HeldValues
from probe.comparison.metrics import Status, are_merged, squeezed
from probe.comparison.noise import Held
from probe.comparison.padded import Padding
from probe.comparison.result import Divergence, Kind
from probe.comparison.step_half import Event, Node
from probe.comparison.tolerance import Level
from probe.records import Phase, Role
from probe.statistics import unit_roundoff

_FILL, _FILL_TO_REST = 1e3, 300
"""how far below 0, and how many times the largest element, what a mask puts in is at least"""


class ForwardWalk(HeldValues):
    """Judges what the modules were given and returned."""

    def judge_forward(self, micro: int) -> None:
        """Judge what the modules of a micro-batch were given and returned."""
        self._forward[None] = Level()
        self._last_good, self._last_good_b = {}, {}
        self._with_inputs = set()
        self._largest = 0.0
        self._padding = Padding(self.pairs, micro)
        events = [*self.pairs.node_events(micro, backward=False), *given_otherwise(self.pairs, micro),
                  *logged_apart(self.pairs, micro)]  # fmt: skip
        events = list(without_wrong_guesses(self.pairs, events))
        for node, event in events:
            if event.is_one_sided and event.role is Role.INPUT:
                slot, side = (event.slot_a, "A") if event.row_a >= 0 else (event.slot_b, "B")
                self._unknown.setdefault(id(node), set()).add(slot)
                self._lacking.setdefault(id(node), []).append((slot, side))
        tops = [e for n, e in events if n.parent is None and e.role is Role.INPUT and e.metrics is not None]
        self._other_batch = not all(self._same_size(event) for event in tops)
        self._compare_modes({id(node): node for node, _ in events}.values())
        self._begins_alike = self._weights_agree()
        self._arrangement = Arrangement(self.pairs, events, self.state.parameters, self.u)
        self._compensation = Compensation(self.pairs, events)
        self._choosing = choices.choosing(self.pairs, events)
        self._flipped = {
            (node, self.pairs.a.shapes[event.row_a]): share
            for node, event in events
            if (share := self._other_choices(event))
        }
        self._compare_batches(events)
        for node, event in sorted(events, key=lambda pair: self._order(pair[1])):
            if event.metrics is not None:
                self._judge_forward_event(node, event)
                self._look_for_cut(node, event)
                if event.role is Role.OUTPUT:
                    self.state.returned.add(self._digests(event))

    def _other_choices(self, event: Event) -> float:
        """Return the share of the integers that a call returns which differ: whether noise may have changed them is judged with them."""
        is_integer = event.role is Role.OUTPUT and not event.is_one_sided and not self.u(event)
        return event.metrics.rel_l2 if is_integer and event.metrics is not None else 0.0

    def _digests(self, event: Event) -> tuple[object, object]:
        return self.pairs.a.digest(event.row_a), self.pairs.b.digest(event.row_b)

    def warn_of_order(self) -> None:
        """Say where elements stood in another order."""
        for where, places, what in (
            ("at", self._borders, "the sides differ, and what modules are given of it agrees: what the module does on one side, the code behind it "
             "does on the other; it is not judged"),
            ("at", self._borders_before, "the shapes differ, and what is returned there agrees: what the module does on one side (padding), "
             "the code before it does on the other; it is not judged"),
            ("inside", self._around, "the elements stand in another order, or are split otherwise: what is returned agrees, what is "
             "inside is not judged"),
            ("inside", self._flattened, "the tokens stand in another order, as they are given to it, with two axes changed: what it "
             "returns is judged, what is inside is not"),
            ("at", self._unseen_sums, "a residual is added inside on one side, and the sum could not be compared: what is returned is judged"),
            ("at", self._flattened_after, "the tokens stand in another order, as two axes are changed in what was made before: what is "
             "made of them is judged, they are not"),
        ):  # fmt: skip
            if places:
                first, *others = places
                self.warnings.append(f"{where} {first}{f' and {len(others)} more' if others else ''} {what}")

    def _is_inside_rearranged(self, node: Node) -> bool:
        return bool(self._rearranged) and any(call in self._rearranged for call in (node, *node.ancestors()))

    def _pass_over(self, node: Node, event: Event) -> bool:
        """Pass over what differs because it stands in another order inside a call that returns the same, or was given it so."""
        around, told = self._arrangement.flattened(node, event), self._flattened
        if around is None and self._arrangement.flattened_after(node, event):
            around, told = node, self._flattened_after
        if around is None:
            around, told = self._arrangement.around(node, event), self._around
        if around is None:
            return False
        self._rearranged.add(node)
        told[self._path_a(around.pair)] = None
        self.settle(event, math.nan, False, verdict="not judged")
        return True

    def _compare_batches(self, events: Iterable[tuple[Node, Event]]) -> None:
        """The model's inputs have other sizes, and so has what it returns: it is another batch."""
        tops = [(n, e) for n, e in events if n.parent is None and e.metrics is not None]
        other = [(n, e) for n, e in tops if e.role is Role.INPUT and not self._same_size(e)]
        outputs = [e for _, e in tops if e.role is Role.OUTPUT]
        if other and not self.findings and not (outputs and all(map(self._same_size, outputs))):
            self._charge_input(*other[0], tolerance.FORWARD)
            self._context(None).tainted = True

    def _same_size(self, event: Event) -> bool:
        sizes = {math.prod(half.side.shapes[half.row(event)]) for half in self.pairs.halves}
        return len(sizes) == 1 or self.pairs.is_padded(event)

    def _compare_modes(self, nodes: Iterable[Node]) -> None:
        """Warn where one side runs in training mode and the other in evaluation mode."""
        differing = [node for node in nodes if node.training[0] != node.training[1]]
        if differing:
            first = min(differing, key=lambda node: node.begin)
            self.modes |= {node.pair: node.training for node in differing}
            self.warnings.append(
                f"{len(differing)} modules run in another mode, first {self._path_a(first.pair)}: "
                f"{mode_name(first.training[0])} in A, {mode_name(first.training[1])} in B (dropout, BatchNorm)"
            )

    def _learn_alone(self, event: Event) -> str | None:
        """Return the side, if there is one, on which alone a tensor needs a gradient."""
        learns = self._learns(event)
        return None if learns[0] == learns[1] else "A" if learns[0] else "B"

    def _look_for_cut(self, node: Node, event: Event) -> None:
        """Note the first tensor that learns on one side only, though all that it was made from learns alike."""
        if not node.grad_enabled or event.role is Role.VALUE:
            return
        alone = self._learn_alone(event)
        if alone is None or self._is_filled(event):
            return  # beside what masks fill in nothing shows: it may be a mask on one side, and a learned bias with it on the other
        if node.parent is None and event.role is Role.INPUT:
            self._asked_for.add(alone)
        if self.u(event) == 0.0 or alone in self._asked_for:
            return  # what is made of the batch alone (a mask) learns where the batch does; another cut shows in the gradients
        if not self._same_size(event) and not self._same_code(node):
            return  # what another class is given at that place, or returns, may be something else: a mask, a table of positions
        place = (node.shared or node.parent) if event.role is Role.INPUT else node
        inherits = place in self._learns_otherwise
        self._learns_otherwise |= {node, node.parent, place}
        if self._cut or inherits or place is None or self._frozen & set(self._tree_a.subtree(self._module_a(place))):
            return
        side = "B" if alone == "A" else "A"
        what = f"{event.role.label} {event.slot_a} of {self._path_a(node.pair)}"
        slots = (event.slot_a, event.slot_b) if place is node else ("", "")
        self._cut.append(Divergence(
            Phase.BACKWARD, event.role, Kind.MISSING, 0.95, *self.refs(place.pair, place, *slots),
            None, math.nan, (f"the {what} needs a gradient on {alone} only",),
            f"{side} cuts the graph here: look for detach(), no_grad() or .data",
        ))  # fmt: skip

    def _judge_forward_event(self, node: Node, event: Event) -> None:
        metrics = event.metrics
        assert metrics is not None
        is_input = event.role is Role.INPUT
        context = self._context_of_input(node) if is_input else self._context(node)
        if self._is_inside_rearranged(node):
            self.settle(event, math.nan, False, verdict="not judged")
            return
        if is_given(self.pairs, node, event):
            self._judge_given(node, event)
            return
        if not metrics.is_known:
            self._leave_open(node, event, context)
            return
        if is_input and self._sets_aside(node, event):
            return
        u = max(self.u(event), context.u, unit_roundoff(node.autocast) if node.autocast else 0.0)
        sources = context
        digests = self._digests(event) if is_input and node.parent is None else None
        if digests is not None and (digests in self.state.carried or digests in self.state.returned):
            sources = Level(metrics.rel_l2, u, excess=metrics.rel_l2)  # an earlier call returned it
        elif digests is not None and not all(self._learns(event)):
            sources = Level(u=u)
        elif metrics.rel_l2 > tolerance.FORWARD.limit(u, sources.error):
            sources = sources if is_input else self._with_cancelled(node, event, sources, u)
            sources = self._with_hidden(node, event, sources, u)
            sources = self._with_angles(node, event, sources)
        held = self._held(node, event, u, sources)
        if held.is_wrong and not context.tainted and not held.is_fixed:
            held = self._without_padding(node, event, u, sources, held)
            held = self._without_factor(node, event, u, sources, held) if held.is_wrong else held
            held = self._without_mask(node, event, u, sources, held) if held.is_wrong else held
            held = self._made_up_for(node, event, held) if held.is_wrong else held
            held = self._without_addend(node, event, u, sources, held) if held.is_wrong else held
            if held.verdict:
                self.settle(event, math.nan, False, verdict=held.verdict)
                return
        if is_input and node.parent is None and self._has_other_axes(node, event):
            self._charge_other_axes(node, event)
            return
        wrong = held.is_wrong and not context.tainted
        if wrong and (
            self._pass_over(node, event)
            or self._is_chosen_otherwise(node, event)
            or self._may_be_chosen_otherwise(node, event, held, context, u)
        ):
            return
        self.settle(event, held.limit, wrong, sources.error, error=held.error, held=held)
        if wrong:
            if is_input:
                self._charge_input(node, event, tolerance.FORWARD)
            else:
                self._charge_output(node, event)
        elif event.role is Role.OUTPUT and not context.tainted:
            self._charge_dtype(node, event, sources.error)
        is_noise = not held.is_wrong and not context.tainted and not self.findings
        if is_noise and event.role is Role.OUTPUT and self.u(event):
            self._largest = max(self._largest, metrics.rel_l2)
        if held.verdict != "not judged" or self.u(event):
            self._take_in(node, event, context, wrong)

    def _context_of_input(self, node: Node) -> Level:
        """Return the errors of all that a call's input may have been made from: where B calls it elsewhere, in all callers up to a shared one."""
        if node.shared is node.parent:
            return self._context(node.parent)
        level = Level()
        for caller in node.callers_from_parent():
            level.merge(self._context(caller))
        return level

    def _is_chosen_otherwise(self, node: Node, event: Event) -> bool:
        """Pass over what a call returns for each of the integers that it returns where some differ: the weights of other experts.

        Such a share of the weights may be others, and no more.
        """
        assert event.metrics is not None
        share = self._flipped.get((node, self.pairs.a.shapes[event.row_a]), 0.0)
        if event.role is not Role.OUTPUT or not self.u(event) or event.metrics.rel_l2 > math.sqrt(share):
            return False
        self.settle(event, math.nan, False, verdict="not judged")
        self._take_in(node, event, self._context(node), False)
        return True

    def _may_be_chosen_otherwise(self, node: Node, event: Event, held: Held, context: Level, u: float) -> bool:
        """Pass over a few tokens of what a call returns, or hands on, where it chooses and 16 bits may have made it choose otherwise."""
        is_input = event.role is Role.INPUT
        begun = self._choosing.get(node.parent if is_input else node)
        if begun is None or is_input and node.begin < begun or u <= tolerance.SIXTEEN_BIT:
            return False
        text, is_seen = choices.explain(self.pairs, event, max(context.error, u), held.limit)
        if not text:
            return False
        what = f"the {event.role.label} {event.slot_a} of {self._path_a(node.pair)} differs (rel {held.error:.1e})"
        if not self.findings and is_seen:
            self.warnings.append(f"{what} {text}, as rounding can route them otherwise: it is not judged")
        elif not self.findings:
            self.doubts.append(
                f"{what}, {text} that rounding routes otherwise: record with task='tensor' to see how many they are"
            )
        self.noise.routes_differ = True
        self.settle(event, math.nan, False, verdict="not judged")
        self._take_in(node, event, context, is_input)  # what the caller goes on with has these tokens, too
        return True

    def _sets_aside(self, node: Node, event: Event) -> bool:
        """Set integers aside that the model is given otherwise and hands to no module: whether they matter is told later."""
        assert event.metrics is not None
        if self.u(event) or not event.metrics.rel_l2:
            return False
        digests = self._digests(event)
        if node.parent is not None:
            if digests not in self._digests_aside:
                return False
            self.settle(event, math.nan, False, verdict="not judged")
            return True
        is_known = digests in self.state.carried | self.state.returned
        if is_known or self._held(node, event, 0.0, Level()).verdict or is_handed_on(self.pairs, node, event):
            return False
        self.settle(event, 0.0, True)
        self._charge_input(node, event, tolerance.FORWARD)
        self._aside.append(Aside(event, self.findings.pop()))
        self._digests_aside.add(digests)
        self._with_inputs.add(node)
        return True

    def _has_other_axes(self, node: Node, event: Event) -> bool:
        """Tell whether as many elements stand in axes that are neither swapped nor merged, in the same class."""
        shapes = squeezed(self.pairs.a.shapes[event.row_a]), squeezed(self.pairs.b.shapes[event.row_b])
        return self._same_code(node) and sorted(shapes[0]) != sorted(shapes[1]) and not are_merged(*shapes)

    def _charge_other_axes(self, node: Node, event: Event) -> None:
        shapes = [list(half.side.shapes[half.row(event)]) for half in self.pairs.halves]
        self.settle(event, math.nan, False)
        self._add(Phase.FORWARD, Kind.INPUTS, event, node.pair, tolerance.FORWARD,
                  (f"shape {shapes[0]} against {shapes[1]}",), node=node, hint=SAME_BATCH)  # fmt: skip
        for level in (self._context(node), self._context(None)):
            level.tainted = True

    def _take_in(self, node: Node, event: Event, context: Level, wrong: bool) -> None:
        """Make an event a source of what comes after it."""
        assert event.metrics is not None
        own_u = self.u(event)
        error = event.metrics.rel_l2 if own_u or context.u or node.autocast else math.sqrt(event.metrics.rel_l2)
        excess = self.noise.excess(event, error) if own_u else error
        if event.metrics.is_lower_bound or (event.role is Role.INPUT and self._is_filled(event)):
            error, excess = (
                max(error, context.error),
                max(excess, context.excess),
            )  # no less than its own sources explain
        size, ratio = math.prod(self.pairs.a.shapes[event.row_a]), event.metrics.norm_ratio
        places = (node,) if event.role is Role.INPUT else (node, node.parent)
        for level in map(self._context, places):
            level.add(error, own_u, excess)
            level.add_scale(ratio, size)
        if event.role is Role.INPUT:
            self._with_inputs.add(node)
            if error and not own_u and not self.findings and not self._context(node).tainted:
                self._taint(node, event)
            if wrong:
                context.add(error, own_u, excess)
            else:
                self._last_good[node.parent] = node.begin
                self._last_good_b[node.parent] = max(node.begin_b, self._last_good_b.get(node.parent, -1))
        elif not wrong:
            self._last_good[node.parent] = node.end
            self._last_good_b[node.parent] = max(node.end_b, self._last_good_b.get(node.parent, -1))

    def _is_filled(self, event: Event) -> bool:
        """Tell whether large negative numbers, as masks put them in for softmax, are nearly all of a tensor's norm."""
        columns = self.pairs.a.columns
        low, high = columns["min"][event.row_a], columns["max"][event.row_a]
        return bool(low <= -_FILL and -low >= _FILL_TO_REST * abs(high))

    def _leave_open(self, node: Node, event: Event, context: Level) -> None:
        """Two tensors cannot be compared: a wrong size is a finding, what may be permuted is a doubt, both hide the rest."""
        assert event.metrics is not None
        is_input = event.role is Role.INPUT
        place = node.parent if is_input else node
        is_permuted = event.metrics.status is Status.PERMUTED
        same_code = place is not None and self._same_code(node) and self._same_code(place)
        is_part = bool(same_code and not self._same_size(event) and self._side_with_part(event))
        is_wrong = same_code and not self._other_batch and not self._same_size(event) and not is_part
        if is_input and is_wrong and not context.tainted and self._arrangement.returns_alike(node, context.error):
            self._borders_before[f"input {event.slot_a} of {self._path_a(node.pair)}"] = None
            self.settle(event, math.nan, False, verdict="not judged")
            self._context(node).merge(context)  # it is made of what its caller has
            return
        if (is_permuted or is_wrong) and not context.tainted and self._pass_over(node, event):
            return
        is_wrong = is_wrong and not self._is_in_chunks(node, event)
        self.settle(event, math.nan, False, context.error)
        if is_input:
            self._unknown.setdefault(id(node), set()).add(event.slot_a)
        what = f"the {event.role.label} {event.slot_a} of {self._path_a(node.pair)}"
        if is_part and not self._other_batch:
            self._doubt_part(what, event)
        if is_permuted and not context.tainted:
            self.doubts.append(
                f"step {event.step}: {what} differs, but only as it would if its axes or elements were in another "
                f"order: {event.metrics.reason}"
            )
        elif is_wrong and not context.tainted:
            place = self._place_of(node) if is_input else node
            if place is None:
                self._charge_input(node, event, tolerance.FORWARD)
                return
            if not (is_input and self._charge_change(node, event, tolerance.FORWARD)):
                self._add(Phase.FORWARD, Kind.SHAPE, event, place.pair, tolerance.FORWARD,
                          (f"{what}: {event.metrics.reason}",), node=place, hint="look at sizes, padding and strides there")  # fmt: skip
        levels = (self._context(node), context if is_input else self._context(node.parent))
        if not is_wrong and not is_permuted:
            for level in levels:
                level.add(0.0, self.u(event))  # its dtype is known, and rounds what comes after it
            return
        for level in levels:
            level.tainted = True

    def _is_in_chunks(self, node: Node, event: Event) -> bool:
        """Tell whether one side calls a module more often, each time with a part of what the other side gives it at once."""
        calls, sizes = [], []
        for half in self.pairs.halves:
            module, slot = half.modules[node.pair], half.slot(event)
            own = [call.key for call in half.calls if call.micro == node.micro and call.module == module]
            found = [rows for key in own for rows in [half.rows.get(key, event.role).get(slot)] if rows]
            calls.append(len(own))
            sizes.append(sum(math.prod(half.side.shapes[rows[0]]) for rows in found))
        return calls[0] != calls[1] and sizes[0] == sizes[1]

    def _doubt_part(self, what: str, event: Event) -> None:
        """Doubt a run of which one side's modules are handed parts, as of a sequence, of what the other side's are; once."""
        if self.state.in_parts or self.state.parts_were_told or event.metrics is None:
            return
        self.state.parts_were_told = True
        a, b = (half.side.reader.info for half in self.pairs.halves)
        self.doubts.append(
            f"A is rank {a.rank} of {a.world_size}, B rank {b.rank} of {b.world_size}: {what} is held in parts on one side "
            f"({event.metrics.reason}); what a rank holds is compared with a run that is split alike"
        )

    def _same_code(self, node: Node) -> bool:
        """Tell whether both sides run the same class, so that their tensors correspond slot by slot."""
        classes = self._classes(node.pair)
        return classes[0] == classes[1]

    def _taint(self, node: Node, event: Event) -> None:
        """A few of the integers that a module is given differ (routing): do not judge what it makes of them."""
        assert event.metrics is not None
        self._context(node).tainted = self.noise.routes_differ = True
        self.warnings.append(
            f"{event.metrics.rel_l2:.2%} of {event.slot_a} of {self._path_a(node.pair)} differ, as noise can make them (routing): "
            "what is inside is not judged"
        )
