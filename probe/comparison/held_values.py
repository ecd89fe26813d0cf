"""What a value of the forward pass is held against, and what of it is left aside: padding, a factor, a mask."""

from __future__ import annotations

import math
from dataclasses import replace

from probe.comparison import conditioning, tolerance
from probe.comparison.added_inputs import addend
from probe.comparison.added_masks import have_other_masks, mask_alike, side_with_mask, where_not_masked
from probe.comparison.combined import add_sum
from probe.comparison.initial import InitialWalk
from probe.comparison.noise import SCALE_MEASURE, Held
from probe.comparison.padded import Padded
from probe.comparison.step_half import Event, Node
from probe.comparison.tolerance import Level
from probe.records import Phase, Role


class HeldValues(InitialWalk):
    """Says of what modules were given and returned how large an error would be noise."""

    def _held(self, node: Node, event: Event, u: float, sources: Level) -> Held:
        assert event.metrics is not None
        size, error = math.prod(self.pairs.a.shapes[event.row_a]), event.metrics.rel_l2
        if self.u(event) == 0.0:
            return self.noise.exact(event, tolerance.integer_limit(sources.error, size))
        is_loss = self._is_loss(event)
        peaks = self.peaks(event)
        alike = self._begins_alike and not self.findings
        shift = self._shift(event, size)
        of_value = tolerance.forward_rule(error, event.metrics.norm_ratio, shift, size, peaks, alike=alike)
        rule = tolerance.LOSS if is_loss else of_value
        held = self.noise.held(event, error, rule, u, sources)
        if held.is_wrong and held.measure == SCALE_MEASURE:
            held = held.widened(self._learned(node, event))
        elif held.is_wrong and rule.plain is not None:
            held = held.widened(rule.plain.gain * self._learned(node, event))
        return held

    def _learned(self, node: Node, event: Event) -> float:
        """Return the error of the weights by which a value is made: updates have a direction, and so has what they make of it."""
        makers = (node, node.parent) if event.role is Role.INPUT else (node,)
        levels = [self.parameters_of(maker) for maker in makers if maker is not None]
        return max((level.error for level in levels if level is not None), default=0.0)

    def _shift(self, event: Event, size: int) -> float:
        """Return the part of an error that is a constant, as a share of A's norm; 0 where a part of the tensor was compared."""
        assert event.metrics is not None
        a, b = self.pairs.a.columns, self.pairs.b.columns
        norm = a["norm"][event.row_a]
        is_whole = event.factor == 1 and norm and math.isclose(event.metrics.norm_a, norm, rel_tol=1e-6)
        away = abs(b["mean"][event.row_b] - a["mean"][event.row_a])
        return away * math.sqrt(size) / norm if is_whole else 0.0

    def _weights_agree(self) -> bool:
        """Tell whether a step's calls are known to use the same weights, up to rounding: updates would have a direction."""
        worst = self.state.worst
        is_known = all(half.rows.has(Phase.INIT, Role.PARAM) for half in self.pairs.halves)
        return is_known and not self._written.are_there and worst.error <= tolerance.INIT.limit(worst.u, 0.0)

    def _with_cancelled(self, node: Node, event: Event, sources: Level, u: float) -> Level:
        """Return the sources' errors as what a matrix product has left of them: where terms cancel out, their errors stay.

        Sums of n terms without a common direction have the norm ‖W‖·‖x‖/√n; what is smaller has cancelled out.
        """
        norm, made = self.pairs.a.columns["norm"], event.row_a
        shapes, module = self.pairs.a.shapes, self._module_a(node)
        given = [rows[0] for rows in self.pairs.rows_a.get((node.micro, module, node.call), Role.INPUT).values()]
        if len(given) != 1 or not shapes[given[0]] or not shapes[made] or not norm[made]:
            return sources
        sizes = shapes[given[0]][-1], shapes[made][-1]
        weights = self.pairs.rows_a.get((0, module, 0), Role.PARAM).values()
        matrices = [rows[0] for rows in weights if sorted(shapes[rows[0]]) == sorted(sizes)]
        factor = norm[matrices[0]] * norm[given[0]] / (math.sqrt(sizes[0]) * norm[made]) if matrices else 1.0
        if not 1 < factor < math.inf:
            return sources
        error = factor * max(sources.error, u)
        return replace(sources, error=error)

    def _with_hidden(self, node: Node, event: Event, sources: Level, u: float) -> Level:
        """Return the sources' errors as attention's scores make them, and with those that large elements hide.

        An error that a tensor had is still in what it was added to, though a few elements there are so large that it is
        no part of the whole; a normalisation of single tokens, or weights for single channels, bring it back. Neither makes a
        multiple of the value.
        """
        assert event.metrics is not None
        if tolerance.is_scaled(event.metrics.rel_l2, event.metrics.norm_ratio):
            return sources
        error = sources.error
        place = node.parent if event.role is Role.INPUT else node
        if event.role is Role.OUTPUT and conditioning.is_given_uneven(self.pairs, node):
            error = max(error, self._largest)
        scores = conditioning.score_size(self.pairs, place) / tolerance.SCORES
        return replace(sources, error=scores * max(error, u) if scores > 1 else error)

    def _with_angles(self, node: Node, event: Event, sources: Level) -> Level:
        """Return the sources' errors with those of angles, where a tensor may be sines and cosines of them: on one side it does not learn."""
        if all(self._learns(event)):
            return sources
        error = conditioning.angle_error(self.pairs, node, event) / tolerance.FORWARD.gain
        return replace(sources, error=max(sources.error, error))

    def _without_padding(self, node: Node, event: Event, u: float, sources: Level, held: Held) -> Held:
        """Leave out an error that is in padding alone, and what later tensors have of it; values are needed for that."""
        kept, whole = self._padding.without(event), event.metrics
        if kept is None or whole is None:
            return held
        event.metrics = kept
        found = self._held(node, event, u, sources)
        if found.is_wrong and not self._padded:
            event.metrics = whole
            return held
        if not found.is_wrong:
            self._padded.append(Padded(node, event, whole, self._padding))
        return found

    def _without_factor(self, node: Node, event: Event, u: float, sources: Level, held: Held) -> Held:
        """Leave out a factor between what a module returns on the two sides which the code outside makes up for."""
        whole = event.metrics
        assert whole is not None
        factor = self._compensation.factor(node, event, held.limit)
        if factor == 1:
            return held
        event.metrics = self.pairs.measured(event, factor)
        found = self._held(node, event, u, sources)
        if found.is_wrong or event.metrics.is_lower_bound:
            event.metrics, event.factor = whole, 1.0
            return held
        self._compensated[node, event.slot_a] = factor
        if (event.pair, event.slot_a) not in self.state.compensated:
            self.state.compensated.add((event.pair, event.slot_a))
            self.warnings.append(
                f"output {event.slot_a} of {self._path_a(event.pair)} is {factor:.6g} times A's in B, and what is made of it agrees: the "
                "factor stands elsewhere, and is left out here"
            )
        return found

    def _made_up_for(self, node: Node, event: Event, held: Held) -> Held:
        """Pass over what a module returns otherwise on the two sides where all that is made of it agrees: the border lies elsewhere."""
        error = self._compensation.error_of_uses(node, event, held.limit)
        if error is None:
            return held
        self._with_border.add((node, event.slot_a))
        self._borders[f"output {event.slot_a} of {self._path_a(event.pair)}"] = None
        for level in map(self._context, (node, node.parent)):
            level.add(error, self.u(event), error)
        return held._replace(verdict="not judged")

    def _without_mask(self, node: Node, event: Event, u: float, sources: Level, held: Held) -> Held:
        """Leave out the mask that one side alone has put into what its attention is given, or hands on; the other side's code adds it.

        Where both have one and hide by other numbers, what either hides is left out, if that is the same.
        """
        if node.parent is None:
            return held
        frameworks = {half.side.reader.info.framework for half in self.pairs.halves}
        side = side_with_mask(self.pairs, event) if len(frameworks) > 1 or not self._same_code(node) else ""
        if not side and not (have_other_masks(self.pairs, event) and mask_alike(self.pairs, event)):
            return held
        whole, event.metrics = event.metrics, where_not_masked(self.pairs, event)
        found = held._replace(verdict="not judged") if event.metrics is None else self._held(node, event, u, sources)
        if found.is_wrong or event.metrics is None:
            event.metrics = whole
        if not found.is_wrong:
            if side and event.role is Role.INPUT:
                self._with_mask.add((node, event.slot_a))
            place = f"the {event.role.label} {event.slot_a} of {self._path_a(node.pair)}"
            but = "is not judged: its values were not recorded" if found.verdict else "agrees where that masks nothing"
            what = f"a mask in {side} only" if side else "masks of other numbers"
            self.warnings.append(f"{place} holds {what}, and {but}")
        return found

    def _without_addend(self, node: Node, event: Event, u: float, sources: Level, held: Held) -> Held:
        """Take an input for the sum of two, where one side's module adds them itself: the residual, in a norm that is fused with it."""
        whole, rows = event.metrics, (event.row_a, event.row_b)
        found = held
        for half in self.pairs.halves if event.role is Role.INPUT and node.parent is not None else ():
            row = addend(half, node, event, self._lacking.get(id(node), ()))
            if row is None:
                continue
            total = add_sum(half.side, (half.row(event), row), half.modules[node.pair])
            event.row_a, event.row_b = (total, rows[1]) if half.name == "A" else (rows[0], total)
            event.metrics = self.pairs.measured(event, event.factor)
            found = (
                self._held(node, event, u, sources) if event.metrics.is_known else held._replace(verdict="not judged")
            )
            event.row_a, event.row_b = rows
            if not found.is_wrong:
                self._with_addend.add((node, event.slot_a))
                if found.verdict:
                    self._unseen_sums[self._path_a(node.pair)] = None
                return found
        event.metrics = whole
        return held

    def charge_padded(self) -> bool:
        """Charge the first error in padding that A's loss may be computed from after all; tell whether there is one."""
        matters = [padded.matters for padded in self._padded]
        if self.findings or not matters or (False in matters and True not in matters):
            return False
        first = next(padded for padded, does in zip(self._padded, matters, strict=True) if does is not False)
        first.event.metrics = first.whole
        self._padded.clear()
        judged = self._judged[id(first.event)]
        judged.verdict, judged.error = "introduced", first.whole.rel_l2
        if first.event.role is Role.INPUT:
            self._charge_input(first.node, first.event, tolerance.FORWARD)
        else:
            self._charge_output(first.node, first.event)
        return True

    def warn_of_padding(self) -> None:
        """Say once what differs in padding alone."""
        if self._padded and not self.state.padding_was_told:
            self.state.padding_was_told = True
            first, count = self._padded[0], len(self._padded)
            place = f"{first.event.role.label} {first.event.slot_a} of {self._path_a(first.event.pair)}"
            self.warnings.append(
                f"{count} {'tensor differs' if count == 1 else 'tensors differ'} only where {first.padding.name} is 0, in padding "
                f"(verified), first the {place} (rel {first.whole.rel_l2:.1e}): the other positions are compared"
            )
