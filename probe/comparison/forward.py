"""Walking the weights, the forward pass and the loss of a step in causal order."""

from __future__ import annotations

import math
from collections.abc import Iterable

from probe.comparison import tolerance
from probe.comparison.events import Event, Loose, Node, Rows
from probe.comparison.ledger import Ledger, kind_of_finding, scale_hint
from probe.comparison.metrics import Metrics, Side, Status, kind_of, squeezed
from probe.comparison.result import Divergence, Kind, NodeRef
from probe.comparison.tolerance import Level, Rule
from probe.matching import Reason
from probe.records import Phase, Role
from probe.statistics import unit_roundoff


class ForwardWalk(Ledger):
    """Judges what the modules were given and returned; a wrong value is charged to the code that made it."""

    # Init

    def judge_init(self) -> None:
        """Judge the weights that the step began with."""
        found = []
        judged = 0
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
            limit = tolerance.INIT.limit(u, 0.0)
            if metrics.status is Status.NOT_COMPARABLE:
                self._form_mismatch(event)
            wrong = self.settle(event, limit, metrics.is_known and metrics.rel_l2 > limit)
            if wrong:
                found.append(event)
            if metrics.is_known:
                norm = max(metrics.norm_a, metrics.norm_b)
                pooled.setdefault(event.pair, []).append((metrics.rel_l2 * norm, norm, u))
        self.pool(pooled)
        if len(found) > max(1, tolerance.MOST * judged):
            text = f"{len(found)} of {judged} parameters differ before the first step"
            self._add(Phase.INIT, Kind.INIT, found[0], None, tolerance.INIT, (text,),
                      hint="the two runs do not start from the same weights: load or convert one side's into the other",
                      root=True)  # fmt: skip
            return
        for event in found:
            self._add(Phase.INIT, Kind.INIT, event, event.pair, tolerance.INIT,
                      ("the weights differ before the first step",),
                      hint=scale_hint(event.metrics) or "look at how this weight is loaded or converted")  # fmt: skip

    def pool(self, pooled: dict[int, list[tuple[float, float, float]]], gain: float = 1.0) -> None:
        """Keep one error per module for its parameters: of all of them, taken as one vector."""
        for pair, parts in pooled.items():
            total = math.sqrt(sum(norm**2 for _, norm, _ in parts))
            error = math.sqrt(sum(error**2 for error, _, _ in parts)) / total if total else 0.0
            self.state.parameters[pair] = Level(gain * error, max(u for *_, u in parts))

    def _note_missing(self, event: Event) -> None:
        pair = self.pairs.matching.pairs[event.pair]
        classes = (self._class_a(pair.a), self._class_b(pair.b))
        side, row, slot = (
            (self.pairs.a, event.row_a, event.slot_a) if event.row_a >= 0 else (self.pairs.b, event.row_b, event.slot_b)
        )
        if classes[0] == classes[1] and side.columns["norm"][row] > 0:
            self._missing[event.pair] = (slot, "A" if event.row_a >= 0 else "B")

    def _form_mismatch(self, event: Event) -> None:
        """A parameter has another shape, or integers where the other side has floats."""
        pair = self.pairs.matching.pairs[event.pair]
        a, b = self.pairs.a, self.pairs.b
        sizes = [math.prod(side.shapes[row]) for side, row in ((a, event.row_a), (b, event.row_b))]
        kinds = [kind_of(side.dtypes[row]) for side, row in ((a, event.row_a), (b, event.row_b))]
        if self._class_a(pair.a) != self._class_b(pair.b) or event.metrics is None:
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
        self._forward = {None: Level()}
        self._last_good = {}
        self._with_inputs = set()
        events = [(n, e) for n, e in self.pairs.node_events(micro, backward=False)]
        for node, event in events:
            if event.is_one_sided and event.role is Role.INPUT:
                self._unknown.setdefault(id(node), set()).add(event.slot_a or event.slot_b)
        tops = [e for n, e in events if n.parent is None and e.role is Role.INPUT and e.metrics is not None]
        self._other_batch = not all(self._same_size(event) for event in tops)
        self._compare_modes({id(node): node for node, _ in events}.values())
        for node, event in sorted(events, key=lambda pair: self._order(pair[1])):
            if event.metrics is not None:
                self._judge_forward_event(node, event)
                self._look_for_cut(node, event)
        self._compare_batches(events)

    def _compare_batches(self, events: Iterable[tuple[Node, Event]]) -> None:
        """The model's inputs have other shapes, and none of them can be compared: it is another batch."""
        tops = [(n, e) for n, e in events if n.parent is None and e.role is Role.INPUT and e.metrics is not None]
        other = [(n, e) for n, e in tops if not self._same_size(e)]
        if other and not any(e.metrics.is_known for _, e in tops if e.metrics is not None):
            self._charge_input(*other[0], tolerance.FORWARD)

    def _same_size(self, event: Event) -> bool:
        return math.prod(self.pairs.a.shapes[event.row_a]) == math.prod(self.pairs.b.shapes[event.row_b])

    def _compare_modes(self, nodes: Iterable[Node]) -> None:
        """Warn where one side runs in training mode and the other in evaluation mode."""
        differing = [node for node in nodes if node.training[0] != node.training[1]]
        if differing:
            first = min(differing, key=lambda node: node.begin)
            self.warnings.append(
                f"{len(differing)} modules run in another mode, first {self._path_a(first.pair)}: "
                f"{_mode(first.training[0])} in A, {_mode(first.training[1])} in B (dropout, BatchNorm)"
            )

    def _look_for_cut(self, node: Node, event: Event) -> None:
        """Note the first tensor that learns on one side only, where no frozen parameter explains it."""
        if self._cut or not node.grad_enabled or event.role is Role.VALUE or self.u(event) == 0.0:
            return
        learns = self._learns(event)
        place = node.parent if event.role is Role.INPUT else node
        if learns[0] == learns[1] or place is None or self._frozen & set(self._tree_a.subtree(self._module_a(place))):
            return
        side = "B" if learns[0] else "A"
        what = f"{event.role.label} {event.slot_a} of {self._path_a(node.pair)}"
        self._cut.append(Divergence(
            Phase.BACKWARD, event.role, Kind.MISSING, 0.95, *self.refs(place.pair, place, event.slot_a, event.slot_b),
            event.metrics, math.nan, (f"the {what} needs a gradient on {'A' if side == 'B' else 'B'} only",),
            f"{side} cuts the graph here: look for detach(), no_grad() or .data",
        ))  # fmt: skip

    def _learns(self, event: Event) -> tuple[bool, bool]:
        """Return requires_grad of both sides."""
        a, b = self.pairs.a.columns["requires_grad"], self.pairs.b.columns["requires_grad"]
        return bool(a[event.row_a]), bool(b[event.row_b])

    def _module_a(self, node: Node) -> int:
        return self.pairs.matching.pairs[node.pair].a

    def _judge_forward_event(self, node: Node, event: Event) -> None:
        metrics = event.metrics
        assert metrics is not None
        is_input = event.role is Role.INPUT
        context = self._context(node.parent if is_input else node)
        if not metrics.is_known:
            self.settle(event, math.nan, False)
            if is_input:
                self._unknown.setdefault(id(node), set()).add(event.slot_a)
            self._leave_open(node, event, context)
            return
        u = max(self.u(event), context.u, unit_roundoff(node.autocast) if node.autocast else 0.0)
        sources = context.error if not (is_input and node.parent is None) else 0.0
        limit = self._forward_limit(event, u, sources)
        wrong = self.settle(event, limit, metrics.rel_l2 > limit and not context.tainted, sources)
        if wrong:
            if is_input:
                self._charge_input(node, event, tolerance.FORWARD)
            else:
                self._charge_output(node, event)
        error = metrics.rel_l2 if u else math.sqrt(metrics.rel_l2)
        own_u = self.u(event)
        if is_input:
            self._context(node).add(error, own_u)
            self._with_inputs.add(node)
            if error and not own_u and not self.findings and not self._context(node).tainted:
                self._taint(node, event)
            if wrong:
                context.add(error, own_u)
            else:
                self._last_good[node.parent] = node.begin
        else:
            self._context(node).add(error, own_u)
            self._context(node.parent).add(error, own_u)
            if not wrong:
                self._last_good[node.parent] = node.end

    def _leave_open(self, node: Node, event: Event, context: Level) -> None:
        """Two tensors cannot be compared: a wrong size is a finding, what may be permuted is a doubt, both hide the rest."""
        assert event.metrics is not None
        is_input = event.role is Role.INPUT
        place = node.parent if is_input else node
        same_code = place is not None and self._same_code(node) and self._same_code(place)
        if event.metrics.status is Status.PERMUTED:
            if not context.tainted:
                self.doubts.append(
                    f"step {event.step}: the {event.role.label} {event.slot_a} of {self._path_a(node.pair)} differs, but only as "
                    f"it would if its axes or elements were in another order: {event.metrics.reason}"
                )
        elif same_code and not context.tainted and not self._other_batch and not self._same_size(event):
            assert place is not None
            what = f"the {event.role.label} {event.slot_a} of {self._path_a(node.pair)}"
            self._add(Phase.FORWARD, Kind.SHAPE, event, place.pair, tolerance.FORWARD, (f"{what}: {event.metrics.reason}",),
                      node=place, hint="look at sizes, padding and strides there")  # fmt: skip
        else:
            return
        for level in (
            (self._context(node), self._context(node.parent)) if not is_input else (self._context(node), context)
        ):
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

    def _forward_limit(self, event: Event, u: float, sources: float) -> float:
        if self.u(event) == 0.0:
            return tolerance.INTEGER_GAIN * sources
        if self._is_loss(event):
            return tolerance.LOSS.limit(u, sources)
        return tolerance.FORWARD.limit(u, sources)

    def _is_loss(self, event: Event) -> bool:
        row = event.row_a
        node_path = self.pairs.a.reader.modules[self.pairs.matching.pairs[event.pair].a].path
        return event.role is Role.OUTPUT and not squeezed(self.pairs.a.shapes[row]) and node_path == self._root_path()

    def _root_path(self) -> str:
        tops = [self.pairs.matching.pairs[n.pair].a for n in self.pairs.nodes.values() if n.parent is None]
        return self.pairs.a.reader.modules[tops[0]].path if tops else ""

    def _context(self, node: Node | None) -> Level:
        level = self._forward.get(node)
        if level is None:
            level = self._forward[node] = Level()
            assert node is not None
            level.merge(self.state.parameters.get(node.pair, Level()))
            level.tainted = self._context(node.parent).tainted
            if any(self._has_parameters(loose) for loose in node.loose_a):
                level.merge(self.state.worst)
        return level

    def _has_parameters(self, loose: Loose) -> bool:
        return self.pairs.a.reader.modules[loose.module].n_params > 0

    def _charge_input(self, node: Node, event: Event, rule: Rule) -> None:
        """An input is wrong though what it was made from is right: the caller's own code made it so."""
        assert event.metrics is not None
        if node.parent is None:
            what = event.metrics.reason or "the model is given different inputs"
            self._add(Phase.FORWARD, Kind.INPUTS, event, node.pair, rule, (what,), node=node,
                      hint="feed both sides the same batch before looking at anything else")  # fmt: skip
            return
        given = self._given_to_the_model(node, event)
        if given is not None:
            top, slots = given
            facts = (f"{self._path_a(node.pair)} is handed what the model was given, and that differs",)
            self._append(Divergence(Phase.FORWARD, event.role, Kind.INPUTS, 0.95, *self.refs(top.pair, top, *slots),
                                    event.metrics, rule.limit(self.u(event), 0.0), facts,
                                    "feed both sides the same batch before looking at anything else"))  # fmt: skip
            return
        if self._charge_loose(node.parent, event, node.begin, node.begin_b, rule):
            return
        name_a = self._path_a(node.pair)
        place = self._place_of(node)
        if place is None:
            facts = [f"the input {event.slot_a} of {name_a} differs already, and nothing before it was compared"]
            self._add(Phase.FORWARD, Kind.INPUTS, event, node.pair, rule, tuple(facts), node=node,
                      hint="record the modules before it too: what is wrong lies there, or in the batch")  # fmt: skip
            return
        between = self._between(node.parent, node.begin)
        facts = [f"the input {event.slot_a} of {name_a} differs, what was there before it agrees"]
        if between:
            facts.append(f"not compared on the way: {self._names(between)}")
        self._add(Phase.FORWARD, kind_of_finding(event.metrics), event, place.pair, rule, tuple(facts), node=place,
                  hint="look at the code of this module itself: what it does between the modules that it calls")  # fmt: skip

    def _given_to_the_model(self, node: Node, event: Event) -> tuple[Node, tuple[str, str]] | None:
        """Return the model and its slots when an input is, on both sides, one of the model's own inputs."""
        top = list(node.ancestors())[-1]
        pair = self.pairs.matching.pairs[top.pair]
        sides = (
            (self.pairs.a, self.pairs.rows_a.get((top.micro, pair.a, top.call), Role.INPUT), event.row_a),
            (self.pairs.b, self.pairs.rows_b.get((top.micro, pair.b, top.call), Role.INPUT), event.row_b),
        )
        slots = []
        for side, rows, row in sides:
            same = [slot for slot, found in rows.items() if side.digest(found[0]) == side.digest(row) is not None]
            slots += same[:1]
        return (top, (slots[0], slots[1])) if len(slots) == 2 else None

    def _place_of(self, node: Node) -> Node | None:
        """Return the innermost caller of which it is known that it began right, by its inputs or by what ran inside."""
        good = max(self._last_good.values(), default=-1)
        for place in node.ancestors():
            module = self._module_a(place)
            has_none = not self.pairs.rows_a.get((place.micro, module, place.call), Role.INPUT)
            if place in self._with_inputs or good >= place.begin:
                return place
            if has_none and self.pairs.a.watches(Phase.FORWARD, module):
                return place
        return None

    def _charge_output(self, node: Node, event: Event) -> None:
        assert event.metrics is not None
        if self._is_loss(event):
            self._add(Phase.LOSS, Kind.INTRODUCED, event, node.pair, tolerance.LOSS,
                      ("the loss differs, what it is computed from agrees",), node=node,
                      hint="look at the loss function: reduction, label smoothing, ignored index, weights")  # fmt: skip
            return
        if node.pair in self._missing and not node.loose_a:
            slot, side = self._missing[node.pair]
            facts = (f"the parameter {slot} exists on {side} only and is not zero", "the module's output differs")
            self._add(Phase.INIT, Kind.MISSING, event, node.pair, tolerance.FORWARD, facts, node=node, slot=slot,
                      hint=f"{slot} is missing on {'B' if side == 'A' else 'A'}")  # fmt: skip
            return
        if self._charge_loose(node, event, node.end, node.end_b, tolerance.FORWARD):
            return
        facts = [self._agreement(node)]
        unknown = sorted(self._unknown.get(id(node), ()))
        if unknown:
            facts.append(f"not known to agree: {', '.join(unknown)} (on one side only, or of another kind)")
        classes = self._classes(node.pair)
        hint = scale_hint(event.metrics)
        inside = self._between(node, node.end)
        if inside:
            facts.append(f"not compared inside: {self._names(inside)}")
        if node.training[0] != node.training[1]:
            facts.append(f"it runs in {_mode(node.training[0])} mode in A and in {_mode(node.training[1])} mode in B")
            hint = "call train() or eval() on both models alike"
        if classes[0] != classes[1] and self.pairs.matching.pairs[node.pair].reason is not Reason.MAPPED:
            facts.append(f"the classes differ: {classes[0]} against {classes[1]}")
        self._add(Phase.FORWARD, kind_of_finding(event.metrics), event, node.pair, tolerance.FORWARD, tuple(facts), node=node,
                  hint=hint or "look at what this module computes and with which settings")  # fmt: skip

    def _agreement(self, node: Node) -> str:
        """Say what the output of a call was made from."""
        parameters = self.state.parameters.get(node.pair)
        weights = "" if parameters is None else "parameters equal" if not parameters.error else "parameters agree"
        error = self._context(node).error
        return ", ".join(part for part in (f"inputs agree (rel {error:.1e})", weights, "output differs") if part)

    def _between(self, caller: Node, before: int) -> list[Loose]:
        since = self._last_good.get(caller, caller.begin)
        return [loose for loose in caller.loose_a if since <= loose.begin < before and not self._is_noop(loose)]

    def _names(self, calls: list[Loose]) -> str:
        paths = [self.pairs.a.reader.modules[loose.module].path for loose in calls]
        return ", ".join(paths[:4]) + (f" and {len(paths) - 4} more" if len(paths) > 4 else "")

    def _charge_loose(self, caller: Node, event: Event, before: int, before_b: int, rule: Rule) -> bool:
        """Blame the only unmatched module that was called since the last good event, if there is just one."""
        mine = self._between(caller, before)
        theirs = [loose for loose in caller.loose_b if loose.begin < before_b and not self._is_noop_b(loose)]
        if len(mine) == 1 and not theirs:
            side, loose, missing = "A", mine[0], "B"
        elif not mine and len(theirs) == 1:
            side, loose, missing = "B", theirs[0], "A"
        else:
            return False
        reader = (self.pairs.a if side == "A" else self.pairs.b).reader
        module = reader.modules[loose.module]
        ref = NodeRef(event.step, event.micro, module.path, module.class_name, loose.call, "")
        limit = rule.limit(self.u(event), 0.0)
        self._append(Divergence(
            Phase.FORWARD, event.role, Kind.MISSING, self._confidence(event, None),
            (ref,) if side == "A" else (), (ref,) if side == "B" else (), event.metrics, limit,
            (f"{module.path} is called on {side} and has no counterpart on {missing}",
             f"what comes next, {self._path_a(event.pair)}, gets another {event.slot_a}"),
            f"{missing} lacks this module, or runs it under a name that the mapping does not give",
        ))  # fmt: skip
        return True

    def _is_noop(self, loose: Loose) -> bool:
        return _is_noop(self.pairs.a, self.pairs.rows_a, loose)

    def _is_noop_b(self, loose: Loose) -> bool:
        return _is_noop(self.pairs.b, self.pairs.rows_b, loose)

    def judge_buffers(self) -> None:
        """Judge what the step made of the buffers: running statistics whose inputs agree must agree."""
        before = {(e.pair, e.slot_a): e for e in self.pairs.parameter_events(Phase.INIT, Role.BUFFER)}
        for event in self.pairs.parameter_events(Phase.UPDATE, Role.BUFFER):
            metrics = event.metrics
            if event.is_one_sided or metrics is None:
                continue
            sources = Level(self.state.buffers.get((event.pair, event.slot_a), 0.0))
            old = before.get((event.pair, event.slot_a))
            if old is not None and old.metrics is not None and old.metrics.is_known:
                sources.add(old.metrics.rel_l2, self.u(event))
                if old.metrics.rel_l2 > tolerance.FORWARD.limit(self.u(event), 0.0):
                    name = f"{event.slot_a} of {self._path_a(event.pair)}"
                    self.warnings.append(
                        f"the buffer {name} differs before the first step (rel {old.metrics.rel_l2:.1e})"
                    )
            for node, level in self._forward.items():
                if node is not None and node.pair == event.pair:
                    sources.merge(level)
            limit = tolerance.FORWARD.limit(max(self.u(event), sources.u), sources.error)
            wrong = metrics.is_known and self.u(event) > 0 and metrics.rel_l2 > limit
            if self.settle(event, limit, wrong, sources.error):
                facts = (f"the buffer {event.slot_a} differs after the step, before it and at the inputs both agree",)
                self._add(Phase.FORWARD, Kind.INTRODUCED, event, event.pair, tolerance.FORWARD, facts,
                          hint="look at how this module updates its running statistics: momentum, biased variance")  # fmt: skip
            if metrics.is_known:
                self.state.buffers[event.pair, event.slot_a] = metrics.rel_l2

    def charge_batches(self, text: str) -> None:
        """The micro-batches of the two sides are not the same data."""
        tops = [node for node in self.pairs.nodes.values() if node.parent is None]
        if tops:
            self._append(Divergence(
                Phase.FORWARD, Role.INPUT, Kind.INPUTS, 0.9, *self.refs(tops[0].pair, tops[0], "", ""), None,
                evidence=(text,), hint="feed both sides the same batch before looking at anything else",
            ))  # fmt: skip
        else:
            self.doubts.append(text)

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
        limit = tolerance.LOSS.limit(max(outputs.u, 2.0**-24), outputs.error)
        larger = max(abs(x), abs(y))
        error = abs(x - y) / larger if larger and math.isfinite(x) and math.isfinite(y) else 0.0
        if math.isfinite(x) != math.isfinite(y):
            error = math.inf
        if error <= limit or not nodes or any(f.phase is Phase.LOSS for f in self.findings):
            return
        if not self._last_outputs_known(nodes):
            self.doubts.append(
                f"step {self.pairs.step}: the loss differs ({x:.9g} against {y:.9g}), and the outputs that it is computed "
                "from were not compared: record the phase forward of all modules"
            )
            return
        metrics = Metrics(Status.COMPARED, error, norm_a=abs(x), norm_b=abs(y), max_abs=abs(x - y))
        times = f" (B is {y / x:.6g} times A)" if x and math.isfinite(y / x) else ""
        facts = (
            f"the loss differs: {x:.9g} against {y:.9g}{times}",
            f"what it is computed from agrees (rel {outputs.error:.1e})",
        )
        self._append(Divergence(
            Phase.LOSS, Role.VALUE, Kind.INTRODUCED if math.isfinite(error) else Kind.NONFINITE, 0.95,
            *self.refs(nodes[0].pair, nodes[0], "loss", "loss"), metrics, limit, facts,
            "look at the loss function: reduction, label smoothing, ignored index, weights",
        ))  # fmt: skip

    def _last_outputs_known(self, tops: list[Node]) -> bool:
        """Tell whether the model's outputs were compared, or those of the module that it called last."""
        micro = max((node.micro for node in tops), default=0)
        inner = [node for node in self.pairs.nodes.values() if node.micro == micro and node.parent is not None]
        last = {(node.pair, node.call) for node in (*tops, *sorted(inner, key=lambda node: node.end)[-1:])}
        return any(
            event.role is Role.OUTPUT and event.micro == micro and (event.pair, event.call) in last
            and event.metrics is not None and event.metrics.is_known
            for event, _, _ in self.events
        )  # fmt: skip


def _is_noop(side: Side, rows: Rows, loose: Loose) -> bool:
    """Tell whether a call returned what it was given (Identity, an inactive Dropout), or nothing at all."""
    key = (loose.micro, loose.module, loose.call)
    given = {side.digest(found[0]) for found in rows.get(key, Role.INPUT).values()}
    outputs = rows.get(key, Role.OUTPUT)
    if not outputs:
        return side.reader.modules[loose.module].n_params == 0
    return all(side.digest(found[0]) in given for found in outputs.values())


def _mode(training: bool) -> str:
    return "training" if training else "evaluation"
