"""Judging the loss: its number, and the gradient that it sends back to what it was computed from."""

from __future__ import annotations

import functools
import math
from dataclasses import replace

from probe.comparison import tolerance
from probe.comparison.forward import ForwardWalk
from probe.comparison.given_aside import Aside, is_behind_the_loss, is_from_elsewhere, shifted
from probe.comparison.metrics import Metrics, Status
from probe.comparison.result import Divergence, Kind, cause_order
from probe.comparison.step_half import Event, Node
from probe.comparison.tolerance import Level, Rule
from probe.records import Phase, Role
from probe.statistics import unit_roundoff

_LIKE_ENTROPY = 0.1
"""share of a loss that its gradient must at least be to be that of a cross entropy"""
_MOST_OF_LOSS = 0.1
"""share of the largest gradient of an output that those of other outputs are at least"""
_OF_ALIGNMENTS = 4
"""roundoffs of a sum of alignments' logarithms, of its own size (measured: 1.2 to 2.4)"""


class LossWalk(ForwardWalk):
    """Judges what is computed from what the model returns."""

    def judge_loss(self, a: dict[str, float], b: dict[str, float]) -> None:
        """Judge the loss that was given to ``probe.step``."""
        if "loss" not in a or "loss" not in b:
            return
        x, y = a["loss"], b["loss"]
        outputs = self._forward.get(None, Level())
        nodes = [node for node in self.pairs.nodes.values() if node.parent is None]
        for node in nodes:
            outputs.merge(self._forward.get(node, Level()))
        if outputs.tainted:
            return
        precisions = [tolerance.precision_of(each) for each in (x, y)]
        u = min(precisions)  # where one side alone is coarser, that side has rounded it
        inherited = max((self._loss_error(node, outputs.error, u) for node in nodes), default=0.0)
        held = self.noise.loss(x, y, max(tolerance.SCALAR_LOSS.limit(u, outputs.error), inherited, outputs.u))
        self._loss_agrees = not held.is_wrong
        if not held.is_wrong or not nodes or any(f.phase is Phase.LOSS for f in self.findings):
            return
        if not self._last_outputs_known(nodes) and self.findings:
            return
        if not self._last_outputs_known(nodes):
            if not self.state.loss_was_doubted:
                self.doubts.append(
                    f"step {self.pairs.step}: the loss differs ({x:.9g} against {y:.9g}), and the outputs that it is computed "
                    "from were not compared: record the phase forward of all modules"
                )
            self.state.loss_was_doubted = True
            return
        if self.charge_padded():
            return
        metrics = Metrics(Status.COMPARED, held.error, norm_a=abs(x), norm_b=abs(y), max_abs=abs(x - y))
        times = f" (B is {y / x:.6g} times A)" if x and math.isfinite(y / x) else ""
        facts = (
            f"the loss differs: {x:.9g} against {y:.9g}{times}",
            f"what it is computed from agrees (rel {outputs.error:.1e})",
            *([_IN_PART] if self._are_padded_outputs() else []),
            *self._unseen_before_loss(nodes[-1]),
        )
        hint = self._loss_hint(nodes[-1])
        if max(precisions) > max(u, outputs.u):
            facts += (f"{'AB'[precisions.index(max(precisions))]}'s has no more digits than a 16-bit number",)
            hint = "look at the dtype in which the loss is computed and averaged"
        self._append(Divergence(
            Phase.LOSS, Role.VALUE, Kind.INTRODUCED if math.isfinite(held.error) else Kind.NONFINITE, 0.95,
            *self.refs(nodes[0].pair, nodes[0], "loss", "loss"), metrics, held.limit, facts,
            hint, is_independent=outputs.error <= tolerance.LOSS.limit(outputs.u, 0.0), measure=held.measure,
        ))  # fmt: skip

    def _are_padded_outputs(self) -> bool:
        """Tell whether outputs with a padded vocabulary were compared in part."""
        return any(
            j.event.role is Role.OUTPUT and j.event.metrics is not None and j.event.metrics.is_lower_bound
            and self.pairs.is_padded(j.event) for j in self.events
        )  # fmt: skip

    def judge_inputs(self) -> None:
        """Judge the integers that the model was given otherwise and handed to no module, by all that was found in the step.

        They are named first, and the rest is a consequence, unless something tells that it is none.
        """
        before = [finding for finding in self.findings if finding.phase is Phase.INIT]
        others = sorted((f for f in self.findings if f.phase is not Phase.INIT), key=cause_order)
        matter = []
        for aside in self._aside:
            move = shifted(self.pairs, aside.event)
            why = self._why_it_does_not_matter(aside, others[0] if others else None, move, bool(before))
            if why:
                judged = self._judged[id(aside.event)]
                judged.verdict, judged.limit = "not judged", math.nan
                self.warnings.append(f"the model's input {aside.name} differs{f': {move}' if move else ''}; {why}")
                if why == _SHIFTED_LABELS:
                    self._tell_of_shift(others[0], aside, move)
            else:
                told = move or _UNKNOWN_SHIFT * (
                    aside.is_of_the_loss and not self.pairs.a.has_values(aside.event.row_a)
                )
                evidence = (*aside.finding.evidence, *([told] if told else ()))
                matter.append(replace(aside.finding, evidence=evidence))
        if matter:
            self.findings = [*before, *matter]
            for judged in self.events:
                late = judged.event.phase is not Phase.INIT and all(judged.event is not f.event for f in matter)
                judged.verdict = "inherited" if late and judged.verdict == "introduced" else judged.verdict

    def _why_it_does_not_matter(self, aside: Aside, first: Divergence | None, move: str, is_late: bool) -> str:
        """Return why an input that differs is not behind what was found first, if anything was; nothing where it may be.

        Parameters
        ----------
        move
            how the input is the other side's at other positions
        is_late
            whether weights differ already, so that the loss tells nothing
        """
        if first is not None and first.phase is Phase.FORWARD:
            is_other = aside.is_of_the_loss and self._is_of_another_input(first)
            return _NOT_USED if is_other or is_from_elsewhere(self.pairs, aside, first) else ""
        if first is not None and not is_behind_the_loss(first):
            of_labels = aside.is_of_the_loss and (move or self.scaling is not None)
            if of_labels and move and self.scaling is None:
                return _SHIFTED_LABELS
            return _SAME_LABELS if of_labels else ""
        compared = any(
            j.event.phase in (Phase.BACKWARD, Phase.GRADIENT) and j.verdict in ("equal", "noise") for j in self.events
        )
        return _AGREES if compared and not is_late and self._loss_is_equal() else ""

    def _tell_of_shift(self, first: Divergence, aside: Aside, move: str) -> None:
        """Say at a wrong loss, or the gradient that it sends back, how the labels that it is made of are shifted."""
        hint = f"; or at how far each side's loss shifts its {aside.name}: {move}"
        told = replace(first, evidence=(*first.evidence, f"of {aside.name}, {move}"), hint=f"{first.hint}{hint}")
        self.findings = [told if finding is first else finding for finding in self.findings]

    def _is_of_another_input(self, first: Divergence) -> bool:
        """Tell whether numbers that no labels are made into are charged to an input that one side's model alone is given."""
        if first.kind is not Kind.INPUTS or first.metrics is None or first.metrics.of_integers:
            return False
        return any(ref.slot == slot for ref in first.a for slot, _ in self.lacking_inputs())

    def _loss_is_equal(self) -> bool:
        returned = [j for j in self.events if j.event.phase is Phase.FORWARD and j.event.metrics is not None
                    and j.event.role is Role.OUTPUT and self._is_loss(j.event)]  # fmt: skip
        return self._loss_agrees or any(j.verdict in ("equal", "noise") for j in returned)

    def _rule_of_loss(self, node: Node, event: Event) -> Rule:
        """Return the thresholds for the gradient that the loss passes back to what the model returned.

        The derivative of a loss is smooth: that of cross entropy moves by twice the (absolute) error of the logits at most,
        relative to itself, and that of a squared error by ‖z‖/‖z−t‖ of the relative one.
        """
        module = self.pairs.matching.pairs[node.pair].a
        rows = self.pairs.rows_a.get((node.micro, module, node.call), Role.OUTPUT).get(event.slot_a)
        if not rows or not self.pairs.a.columns["norm"][event.row_a]:
            return tolerance.BACKWARD
        share, left = self._shares_left(rows[0], event.row_a)
        rounding = self._rounding_left(rows[0], event.row_a)
        return tolerance.loss_gradient_rule(self.pairs.a.columns["rms"][rows[0]], share, left, rounding)

    def _rounding_of_alignments(self, node: Node, event: Event) -> float:
        """Return the relative error that rounding alone makes of the gradient of a CTC loss; 0.0 where neither side has one.

        Its terms are exponentials of sums over all alignments, kept as logarithms in float32: an exponent as large as the loss of a
        sequence is off by that many roundoffs. How large that is follows from the loss and its gradient, whatever both are divided by:
        rows of the gradient of a sum have norms of about 1. The batch is taken for the shortest axis.
        """
        if not self._aligns:
            return 0.0
        module = self.pairs.matching.pairs[node.pair].a
        rows = self.pairs.rows_a.get((node.micro, module, node.call), Role.OUTPUT).get(event.slot_a)
        sizes, norm = self.pairs.a.shapes[rows[0]][:-1] if rows else (), self.pairs.a.columns["norm"][event.row_a]
        if not sizes or not norm or not min(sizes):
            return 0.0
        exponent = abs(self._loss_of_a) * math.sqrt(math.prod(sizes)) / (norm * min(sizes))
        return _OF_ALIGNMENTS * unit_roundoff("float32") * exponent

    @functools.cached_property
    def _aligns(self) -> bool:
        """Whether a run's loss sums over alignments: as its framework told, or by what the model is called."""
        readers = [half.side.reader for half in self.pairs.halves]
        named = [name for reader in readers for name in reader.listed("loss_functions")]
        named += [module.class_name for reader in readers for module in reader.modules[:1]]
        return any("ctc" in name.casefold() for name in named)

    def _is_most_of_loss(self, node: Node, event: Event) -> bool:
        """Tell whether no other output gets a far larger gradient: those of auxiliary losses are sums of few terms."""
        norm, module = self.pairs.a.columns["norm"], self.pairs.matching.pairs[node.pair].a
        rows = self.pairs.rows_a.get((node.micro, module, node.call), Role.GRAD_OUTPUT).values()
        return norm[event.row_a] >= _MOST_OF_LOSS * max(norm[row] for row, *_ in rows)

    def _loss_error(self, node: Node, error: float, u: float) -> float:
        """Return what relative error of a loss is noise where little of what it is computed from is left: z−t of z.

        A mean of squares moves by 2⟨z−t, Δz⟩ + ‖Δz‖², relative to ‖z−t‖². Of independent errors the former is 1/√n of its
        bound. Cross entropy is a difference of numbers of the size of z in each row. Four standard deviations of both.
        Any loss moves by ⟨g, Δz⟩: that is much where logits are large, as behind a low temperature, and there are few rows.
        """
        key = node.micro, self.pairs.matching.pairs[node.pair].a, node.call
        gradients, found = self.pairs.rows_a.get(key, Role.GRAD_OUTPUT), [0.0]
        for slot, rows in self.pairs.rows_a.get(key, Role.OUTPUT).items():
            shape, rms = self.pairs.a.shapes[rows[0]], self.pairs.a.columns["rms"][rows[0]]
            if slot in gradients and math.prod(shape) and self._loss_of_a:
                found.append(4 * error * self._logits_moved_by(rows[0], gradients[slot][0]) / self._loss_of_a)
                left = self._shares_left(rows[0], gradients[slot][0])[1] * error
                found.append(8 * left / math.sqrt(math.prod(shape)) + 2 * left**2)
                found.append(4 * u * rms / math.sqrt(math.prod(shape[:-1])) / self._loss_of_a)
        return max(found)

    def _logits_moved_by(self, row: int, gradient: int) -> float:
        """Return how far a mean cross entropy moves where each of its logits z moves by itself, as far as it is large.

        That is ‖g·z‖, at most ‖g‖·max|z|. The gradient of r rows is no longer than √(2/r), whatever a loss scale makes of it.
        """
        columns, shape = self.pairs.a.columns, self.pairs.a.shapes[row]
        longest = math.sqrt(2 / math.prod(shape[:-1]))
        return min(columns["norm"][gradient], longest) * max(-columns["min"][row], columns["max"][row])

    def _shares_left(self, row: int, gradient: int) -> tuple[float, float]:
        """Return ‖z‖/‖z−t‖ of what A's model returned, were the loss a mean of squared errors, and where it is one (else less).

        Of such a mean, 2‖z‖/(n‖g‖) and ‖g‖‖z‖/2L both are that; of another loss, or a small part of one, one of them is less.
        """
        norm, size = self.pairs.a.columns["norm"], math.prod(self.pairs.a.shapes[row])
        if not size or not norm[gradient]:
            return 0.0, 0.0
        share = 2 * norm[row] / (size * norm[gradient])
        left = norm[gradient] * norm[row] / (2 * self._loss_of_a) if self._loss_of_a else 0.0
        return share, min(share, left)

    def _rounding_left(self, row: int, gradient: int) -> float:
        """Return how many times the roundoff the gradient of a mean cross entropy may be off: it is p−1 where p is nearly 1.

        Then its norm over r rows is about L/√r; that of a small part of a loss is less, and is no such gradient.
        """
        shape, loss = self.pairs.a.shapes[row], self._loss_of_a
        rest = math.sqrt(math.prod(shape[:-1])) * self.pairs.a.columns["norm"][gradient]
        return max(1.0, 1 / rest) if loss and rest > _LIKE_ENTROPY * min(1.0, loss) else 1.0

    @functools.cached_property
    def _loss_of_a(self) -> float:
        """The size of A's loss; 0.0 where it was not given to ``probe.step``, or is no number."""
        loss = abs(self.pairs.a.reader.scalars_of(self.pairs.step).get("loss", 0.0))
        return loss if math.isfinite(loss) else 0.0

    def _last_outputs_known(self, tops: list[Node]) -> bool:
        """Tell whether the model's outputs were compared, or those of the module that it called last."""
        micro = max((node.micro for node in tops), default=0)
        inner = [node for node in self.pairs.nodes.values() if node.micro == micro and node.parent is not None]
        last = {(node.pair, node.call) for node in (*tops, *sorted(inner, key=lambda node: node.end)[-1:])}
        return any(
            event.role is Role.OUTPUT and event.micro == micro and (event.pair, event.call) in last
            and event.metrics is not None and event.metrics.is_known
            for event in (judged.event for judged in self.events)
        )  # fmt: skip


_IN_PART = (
    "of outputs with a padded vocabulary norm, mean and extremes are compared: whether their weight's rows stand in another order "
    "is not seen (task='tensor' compares them)"
)
_NOT_USED = "what is wrong first was not made of it"
_SAME_LABELS = "the gradient of the loss is made of the same labels"
_SHIFTED_LABELS = "that is right if the loss of the other side shifts them as far itself"
_AGREES = "the loss and the gradients agree, and nothing else is made of it"
_UNKNOWN_SHIFT = (
    "whether they are the same labels, shifted by a position, statistics do not tell: record with task='tensor'"
)
