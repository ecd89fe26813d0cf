"""Walking the weights, the forward pass and the loss of a step in causal order."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable

from probe.comparison import tolerance
from probe.comparison.arrangement import Arrangement
from probe.comparison.buffers import BufferWalk
from probe.comparison.charge import SAME_BATCH, mode_name
from probe.comparison.elsewhere import Elsewhere
from probe.comparison.events import Event, Node
from probe.comparison.given import given_otherwise, is_given, logged_apart
from probe.comparison.known_differences import EXACT
from probe.comparison.ledger import scale_hint
from probe.comparison.metrics import Metrics, Status, are_merged, kind_of, squeezed
from probe.comparison.noise import Held
from probe.comparison.parts import other_order
from probe.comparison.result import Divergence, Kind
from probe.comparison.tolerance import Level
from probe.records import Phase, Role
from probe.statistics import unit_roundoff

_REORDERED = 0.01
"""from this error on, equal sums cannot be those of a weight that only changed a little"""


class ForwardWalk(BufferWalk):
    """Judges what the modules were given and returned."""

    # Init

    def judge_init(self) -> None:
        """Judge the weights that the step began with."""
        found, judged = [], 0
        pooled: dict[int, list[tuple[float, float, float]]] = {}
        for event in self.pairs.parameter_events(Phase.INIT, Role.PARAM):
            if event.is_one_sided:
                self._note_missing(event)
                continue
            metrics = event.metrics
            assert metrics is not None
            judged += 1
            if self._learns(event)[0] != self._learns(event)[1]:
                self._frozen.add(self.pairs.matching.pairs[event.pair].a)
            u = self.u(event)
            held = self.noise.start(event, self._init_limit(u))
            if metrics.status is Status.NOT_COMPARABLE:
                self._form_mismatch(event)
            if self.settle(event, held.limit, metrics.is_known and held.is_wrong, error=held.error, held=held):
                found.append(event)
            if metrics.is_known:
                norm = max(metrics.norm_a, metrics.norm_b)
                for owner in self.owners.get((event.pair, event.slot_a), [event.pair]):
                    pooled.setdefault(owner, []).append((metrics.rel_l2 * norm, norm, u))
        self.pool(pooled)
        if self.pairs.step and not self._have_parted(pooled):
            self._drifted = found
        elif len(found) > max(1, tolerance.MOST * judged) and len({event.pair for event in found}) > 1:
            self._charge_all_weights(found, judged)
        else:
            for event in found:
                self._add(Phase.INIT, Kind.INIT, event, event.pair, tolerance.INIT, (f"the weights differ {self._when}",),
                          hint=self._elsewhere.said(event) or self._not_recorded
                          or other_order(self.pairs, event, self._judged[id(event)].limit) or self._reordered(event)
                          or scale_hint(event.metrics) or "look at how this weight is loaded or converted")  # fmt: skip

    def _init_limit(self, u: float) -> float:
        """Return the largest error that is noise; weights that steps before have changed drift apart."""
        return tolerance.INIT.limit(u, 0.0) * (tolerance.DRIFT if self.pairs.step else 1)

    def _have_parted(self, pooled: dict[int, list[tuple[float, float, float]]]) -> bool:
        """Tell whether all weights together differ by more than rounding in the steps before explains."""
        parts = [part for each in pooled.values() for part in each]
        total = math.hypot(*(norm for _, norm, _ in parts))
        error = math.hypot(*(error for error, _, _ in parts))
        return error > total * self._init_limit(max((u for *_, u in parts), default=0.0))

    def judge_drift(self) -> None:
        """Doubt a step that begins with some other weights if what the model returns differs too."""
        if not self._drifted:
            return
        outputs = [
            j for j in self.events if j.event.role is Role.OUTPUT and self._is_top(j.event) and not math.isnan(j.error)
        ]
        if outputs and all(j.error <= self._init_limit(self.u(j.event)) for j in outputs):
            return
        first = self._drifted[0]
        assert first.metrics is not None
        self.doubts.append(
            f"{len(self._drifted)} parameters differ {self._when}, first {first.slot_a} of {self._path_a(first.pair)} (rel "
            f"{first.metrics.rel_l2:.1e}): {self._not_recorded}"
        )

    def _is_top(self, event: Event) -> bool:
        key = (event.micro, self.pairs.matching.pairs[event.pair].a, event.call)
        return key in self.pairs.nodes and self.pairs.nodes[key].parent is None

    def _charge_all_weights(self, found: list[Event], judged: int) -> None:
        text = f"{len(found)} of {judged} parameters differ {self._when}"
        other = "the two runs do not start from the same weights: load or convert one side's into the other"
        hint = self._moved(found) or self._not_recorded or other
        self._add(Phase.INIT, Kind.INIT, found[0], None, tolerance.INIT, (text,), hint=hint, root=True)

    @property
    def _when(self) -> str:
        step = self.pairs.step
        return f"before step {step}; step {step - 1} was not recorded" if step else "before the first step"

    @property
    def _not_recorded(self) -> str:
        step = self.pairs.step
        return (
            f"record the steps before {step} too: the runs part there, or do not start from the same weights"
            if step
            else ""
        )

    def _reordered(self, event: Event) -> str:
        """Say so when B's weight has A's numbers at other places."""
        metrics, a, b = event.metrics, self.pairs.a.columns, self.pairs.b.columns
        assert metrics is not None
        i, j = event.row_a, event.row_b
        same = (
            metrics.rel_l2 > _REORDERED
            and all(a[name][i] == b[name][j] for name in ("min", "max", "zeros"))
            and math.isclose(metrics.norm_ratio, 1, rel_tol=EXACT)
            and math.isclose(a["mean"][i], b["mean"][j], rel_tol=EXACT, abs_tol=EXACT * a["rms"][i])
        )
        return (
            "B has the same numbers in another order: it is transposed, or its rows or parts are swapped; look at how this "
            "weight is converted"
            if same
            else ""
        )

    @functools.cached_property
    def _elsewhere(self) -> Elsewhere:
        return Elsewhere(self.pairs)

    def _moved(self, found: list[Event]) -> str:
        """Say so when most of the weights that differ stand at another place in B: layers in another order."""
        weights = [j.event for j in self.events if j.event.phase is Phase.INIT and j.event.role is Role.PARAM]
        places = {self.pairs.b.digest(event.row_b): event.pair for event in reversed(weights)}
        columns = self.pairs.a.columns
        there = {
            event.pair: places.get(self.pairs.a.digest(event.row_a))
            for event in found
            if columns["min"][event.row_a] < columns["max"][event.row_a]
        }
        moved = [(mine, theirs) for mine, theirs in there.items() if theirs is not None and theirs != mine]
        if 2 * len(moved) <= len({event.pair for event in found}):
            return ""
        mine, theirs = moved[0]
        return f"what {self._path_a(mine)} has in A, {self._path_b(theirs)} has in B: look at the order of the layers"

    def pool(self, pooled: dict[int, list[tuple[float, float, float]]], gain: float = 1.0) -> None:
        """Keep one error per module for its parameters: of all of them, taken as one vector."""
        for pair, parts in pooled.items():
            total = math.sqrt(sum(norm**2 for _, norm, _ in parts))
            error = math.sqrt(sum(error**2 for error, _, _ in parts)) / total if total else 0.0
            self.state.parameters[pair] = level = Level()
            level.add(gain * error, max(u for *_, u in parts))

    def _form_mismatch(self, event: Event) -> None:
        """A parameter has another shape, or integers where the other side has floats."""
        a, b = self.pairs.a, self.pairs.b
        sizes = [math.prod(side.shapes[row]) for side, row in ((a, event.row_a), (b, event.row_b))]
        kinds = [kind_of(side.dtypes[row]) for side, row in ((a, event.row_a), (b, event.row_b))]
        if not self._are_alike(event.pair) or event.metrics is None:
            return
        if kinds[0] != kinds[1]:
            self._add(Phase.INIT, Kind.DTYPE, event, event.pair, tolerance.INIT, (event.metrics.reason,),
                      hint="the two models do not hold this parameter in the same kind of numbers")  # fmt: skip
        elif sizes[0] != sizes[1]:
            self._add(Phase.INIT, Kind.SHAPE, event, event.pair, tolerance.INIT, (event.metrics.reason,),
                      hint="the two models are not built with the same sizes")  # fmt: skip

    # Forward

    def judge_forward(self, micro: int) -> None:
        """Judge what the modules of a micro-batch were given and returned."""
        self._forward[None] = Level()
        self._last_good, self._last_good_b = {}, {}
        self._with_inputs = set()
        events = [*self.pairs.node_events(micro, backward=False), *given_otherwise(self.pairs, micro),
                  *logged_apart(self.pairs, micro)]  # fmt: skip
        for node, event in events:
            if event.is_one_sided and event.role is Role.INPUT:
                slot, side = (event.slot_a, "A") if event.row_a >= 0 else (event.slot_b, "B")
                self._unknown.setdefault(id(node), set()).add(slot)
                self._lacking.setdefault(id(node), []).append((slot, side))
        tops = [e for n, e in events if n.parent is None and e.role is Role.INPUT and e.metrics is not None]
        self._other_batch = not all(self._same_size(event) for event in tops)
        self._compare_modes({id(node): node for node, _ in events}.values())
        self._arrangement = Arrangement(self.pairs, events, self.state.parameters, self.u)
        for node, event in sorted(events, key=lambda pair: self._order(pair[1])):
            if event.metrics is not None:
                self._judge_forward_event(node, event)
                self._look_for_cut(node, event)
        self._compare_batches(events)
        self.state.returned |= {self._digests(e) for _, e in events if e.role is Role.OUTPUT and e.metrics is not None}

    def _digests(self, event: Event) -> tuple[object, object]:
        return self.pairs.a.digest(event.row_a), self.pairs.b.digest(event.row_b)

    def warn_of_order(self) -> None:
        """Say where elements stood in another order."""
        if self._around:
            first, *others = self._around
            more = f" and {len(others)} more" if others else ""
            self.warnings.append(
                f"inside {first}{more} the elements stand in another order, or are split otherwise: what is returned agrees, "
                "what is inside is not judged"
            )

    def _is_inside_rearranged(self, node: Node) -> bool:
        return any(call in self._rearranged for call in (node, *node.ancestors()))

    def _pass_over(self, node: Node, event: Event) -> bool:
        """Pass over what differs because it stands in another order inside a call that returns the same."""
        around = self._arrangement.around(node, event)
        if around is None:
            return False
        self._rearranged.add(node)
        self._around[self._path_a(around.pair)] = None
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
        return math.prod(self.pairs.a.shapes[event.row_a]) == math.prod(self.pairs.b.shapes[event.row_b])

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

    def _look_for_cut(self, node: Node, event: Event) -> None:
        """Note the first tensor that learns on one side only, though all that it was made from learns alike."""
        if not node.grad_enabled or event.role is Role.VALUE or self.u(event) == 0.0:
            return
        learns = self._learns(event)
        if learns[0] == learns[1]:
            return
        place = node.parent if event.role is Role.INPUT else node
        inherits = place in self._learns_otherwise
        self._learns_otherwise |= {node, node.parent}
        if self._cut or inherits or place is None or self._frozen & set(self._tree_a.subtree(self._module_a(place))):
            return
        side = "B" if learns[0] else "A"
        what = f"{event.role.label} {event.slot_a} of {self._path_a(node.pair)}"
        slots = (event.slot_a, event.slot_b) if place is node else ("", "")
        self._cut.append(Divergence(
            Phase.BACKWARD, event.role, Kind.MISSING, 0.95, *self.refs(place.pair, place, *slots),
            None, math.nan, (f"the {what} needs a gradient on {'A' if side == 'B' else 'B'} only",),
            f"{side} cuts the graph here: look for detach(), no_grad() or .data",
        ))  # fmt: skip

    def _judge_forward_event(self, node: Node, event: Event) -> None:
        metrics = event.metrics
        assert metrics is not None
        is_input = event.role is Role.INPUT
        context = self._context(node.parent if is_input else node)
        if self._is_inside_rearranged(node):
            self.settle(event, math.nan, False, verdict="not judged")
            return
        if is_given(self.pairs, node, event):
            self._judge_given(node, event)
            return
        if not metrics.is_known:
            self._leave_open(node, event, context)
            return
        u = max(self.u(event), context.u, unit_roundoff(node.autocast) if node.autocast else 0.0)
        sources = context
        if is_input and node.parent is None:  # what an earlier call returned may be handed in again
            is_known = self._digests(event) in self.state.carried | self.state.returned
            sources = Level(metrics.rel_l2, u, excess=metrics.rel_l2) if is_known else Level(u=u)
        held = self._held(event, u, sources)
        if is_input and node.parent is None and self._has_other_axes(node, event):
            self._charge_other_axes(node, event)
            return
        wrong = held.is_wrong and not context.tainted
        if wrong and self._pass_over(node, event):
            return
        self.settle(event, held.limit, wrong, sources.error, error=held.error, held=held)
        if wrong:
            if is_input:
                self._charge_input(node, event, tolerance.FORWARD)
            else:
                self._charge_output(node, event)
        elif event.role is Role.OUTPUT and not context.tainted:
            self._charge_dtype(node, event, sources.error)
        self._take_in(node, event, context, wrong)

    def _has_other_axes(self, node: Node, event: Event) -> bool:
        """Tell whether as many elements stand in axes that are neither swapped nor merged, in the same class."""
        shapes = squeezed(self.pairs.a.shapes[event.row_a]), squeezed(self.pairs.b.shapes[event.row_b])
        return self._same_code(node) and sorted(shapes[0]) != sorted(shapes[1]) and not are_merged(*shapes)

    def _charge_other_axes(self, node: Node, event: Event) -> None:
        shapes = [list(side.shapes[row]) for side, row in ((self.pairs.a, event.row_a), (self.pairs.b, event.row_b))]
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
        if event.metrics.is_lower_bound:  # no less than what its own sources explain
            error, excess = max(error, context.error), max(excess, context.excess)
        self._context(node).add(error, own_u, excess)
        if event.role is Role.INPUT:
            self._with_inputs.add(node)
            if error and not own_u and not self.findings and not self._context(node).tainted:
                self._taint(node, event)
            if wrong:
                context.add(error, own_u, excess)
            else:
                self._last_good[node.parent], self._last_good_b[node.parent] = node.begin, node.begin_b
        else:
            self._context(node.parent).add(error, own_u, excess)
            if not wrong:
                self._last_good[node.parent], self._last_good_b[node.parent] = node.end, node.end_b

    def _leave_open(self, node: Node, event: Event, context: Level) -> None:
        """Two tensors cannot be compared: a wrong size is a finding, what may be permuted is a doubt, both hide the rest."""
        assert event.metrics is not None
        is_input = event.role is Role.INPUT
        place = node.parent if is_input else node
        is_permuted = event.metrics.status is Status.PERMUTED
        same_code = place is not None and self._same_code(node) and self._same_code(place)
        is_wrong = same_code and not self._other_batch and not self._same_size(event)
        if (is_permuted or is_wrong) and not context.tainted and self._pass_over(node, event):
            return
        self.settle(event, math.nan, False, context.error)
        if is_input:
            self._unknown.setdefault(id(node), set()).add(event.slot_a)
        what = f"the {event.role.label} {event.slot_a} of {self._path_a(node.pair)}"
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
        elif not is_permuted:
            return
        for level in (self._context(node), context if is_input else self._context(node.parent)):
            level.tainted = True

    def _same_code(self, node: Node) -> bool:
        """Tell whether both sides run the same class, so that their tensors correspond slot by slot."""
        classes = self._classes(node.pair)
        return classes[0] == classes[1]

    def _taint(self, node: Node, event: Event) -> None:
        """A few of the integers that a module is given differ (routing): do not judge what it makes of them."""
        assert event.metrics is not None
        self._context(node).tainted = True
        self.warnings.append(
            f"{event.metrics.rel_l2:.2%} of {event.slot_a} of {self._path_a(node.pair)} differ, as noise can make them (routing): "
            "what is inside is not judged"
        )

    def _held(self, event: Event, u: float, sources: Level) -> Held:
        assert event.metrics is not None
        if self.u(event) == 0.0:
            size = math.prod(self.pairs.a.shapes[event.row_a])
            return Held(event.metrics.rel_l2, tolerance.integer_limit(sources.error, size))
        rule = tolerance.LOSS if self._is_loss(event) else tolerance.FORWARD
        return self.noise.held(event, event.metrics.rel_l2, rule, u, sources)

    # Loss

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
        u = max(map(tolerance.precision_of, (x, y)))
        held = self.noise.loss(x, y, max(tolerance.SCALAR_LOSS.limit(u, outputs.error), outputs.u))
        if not held.is_wrong or not nodes or any(f.phase is Phase.LOSS for f in self.findings):
            return
        if not self._last_outputs_known(nodes) and self.findings:
            return
        if not self._last_outputs_known(nodes):
            self.doubts.append(
                f"step {self.pairs.step}: the loss differs ({x:.9g} against {y:.9g}), and the outputs that it is computed "
                "from were not compared: record the phase forward of all modules"
            )
            return
        metrics = Metrics(Status.COMPARED, held.error, norm_a=abs(x), norm_b=abs(y), max_abs=abs(x - y))
        times = f" (B is {y / x:.6g} times A)" if x and math.isfinite(y / x) else ""
        facts = (
            f"the loss differs: {x:.9g} against {y:.9g}{times}",
            f"what it is computed from agrees (rel {outputs.error:.1e})",
        )
        self._append(Divergence(
            Phase.LOSS, Role.VALUE, Kind.INTRODUCED if math.isfinite(held.error) else Kind.NONFINITE, 0.95,
            *self.refs(nodes[0].pair, nodes[0], "loss", "loss"), metrics, held.limit, facts,
            "look at the loss function: reduction, label smoothing, ignored index, weights",
            is_independent=outputs.error <= tolerance.LOSS.limit(outputs.u, 0.0), measure=held.measure,
        ))  # fmt: skip

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
