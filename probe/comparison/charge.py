"""Who answers for a wrong value of the forward pass."""

from __future__ import annotations

import math
from fnmatch import fnmatchcase

from probe.comparison import causes, parts, tolerance
from probe.comparison.charge_lacking import LackingCharger
from probe.comparison.given import is_handed, ran_before
from probe.comparison.ledger import kind_of_finding, scale_hint
from probe.comparison.metrics import squeezed
from probe.comparison.result import Divergence, Kind
from probe.comparison.sharded import side_with_parts
from probe.comparison.step_half import Event, Loose, Node
from probe.comparison.tolerance import Level, Rule
from probe.comparison.uncalled import to_look_at
from probe.matching import Reason
from probe.records import Phase, Role
from probe.statistics import unit_roundoff

SAME_BATCH = "feed both sides the same batch before looking at anything else"
_SAME_PART = "give the other side's process the batch of this rank alone, or compare with a run of as many ranks"
_OF_PARTS = "look at how this layer is split over ranks: which part each rank holds, what is added up, and what runs in parts before it"
_SETTINGS = {
    "*Dropout*": "dropout draws other numbers on each side: switch it off on both",
    "*Norm": "look at what this module computes and with which settings, eps first",
    "*Norm?[dD]": "look at what this module computes and with which settings, eps first",
}
"""by glob of the class"""


_ONE_DIRECTION = 0.98
"""cosines from which on an error is a multiple of the value"""
_FACTOR = 0.01
"""what a multiple differs from 1 by at least, to be called a factor"""


class Charger(LackingCharger):
    """Charges a wrong value of the forward pass to the code that made it."""

    def _context(self, node: Node | None) -> Level:
        """Return the errors of all that a call has been given and its children have returned so far."""
        level = self._forward.get(node)
        if level is None:
            level = self._forward[node] = Level()
            assert node is not None
            level.merge(self.parameters_of(node) or Level())
            level.tainted = self._context(node.parent).tainted
            alone = [loose for loose in node.loose_a if loose.module not in self.pairs.matching.stepped_a]
            if any(map(self._has_parameters, alone)):
                level.merge(self.state.worst)
            for module in (self._module_a(node), *(loose.module for loose in alone)):
                self._merge_drift(level, module, is_own=module == self._module_a(node))
        return level

    def _merge_drift(self, level: Level, module: int, *, is_own: bool) -> None:
        """Add what parameters that were not compared may have of error: a module's own, or all below one without a partner."""
        level.merge_known(
            self.state.drifted, (module,) if is_own or not self.state.drifted else self._tree_a.subtree(module)
        )

    def _has_parameters(self, loose: Loose) -> bool:
        return self.pairs.a.reader.modules[loose.module].n_params > 0

    def _is_loss(self, event: Event) -> bool:
        if event.role is not Role.OUTPUT or squeezed(self.pairs.a.shapes[event.row_a]):
            return False
        return self.pairs.a.reader.modules[self.pairs.matching.pairs[event.pair].a].path == self._root_path()

    def _root_path(self) -> str:
        tops = [self.pairs.matching.pairs[n.pair].a for n in self.pairs.nodes.values() if n.parent is None]
        return self.pairs.a.reader.modules[tops[0]].path if tops else ""

    # Inputs

    def _charge_input(self, node: Node, event: Event, rule: Rule) -> None:
        """An input is wrong though what it was made from is right: the caller's own code made it so."""
        assert event.metrics is not None
        if is_handed(self.pairs, node, event) and not self._side_with_part(event):
            self._charge_handed(node, event, rule)
            return
        if node.parent is None:
            what = event.metrics.reason or "the model is given different inputs"
            side = self._side_with_part(event)
            half = self.pairs.half(side or "A")
            facts = (
                (f"{side} is rank {half.side.reader.info.rank} of {half.side.reader.info.world_size}",) if side else ()
            )
            hint = _SAME_PART if side else SAME_BATCH
            self._add(Phase.FORWARD, Kind.INPUTS, event, node.pair, rule, (what, *facts), node=node, hint=hint)
            return
        if self._charge_model_input(node, event, rule):
            return
        if self._charge_change(node, event, rule):
            return
        name = self._path_a(node.pair)
        between = self._finished(node.parent, node.begin) or self._between(node.parent, node.begin)
        between = [loose for loose in between if self._has_part(self.pairs.half("A"), loose, event)]
        what = f"the input {event.slot_a} of {name} differs first"
        factor, of_what = self._factor_before(node, event)
        if (
            not between
            and not factor
            and self._charge_lacking_input(node.parent, event, what, (node.begin, node.begin_b))
        ):
            return  # what ran right before it and was not compared is nearer than what the whole model is not given
        place = self._place_of(node)
        if place is None:
            facts = (f"the input {event.slot_a} of {name} differs already, and nothing before it was compared",)
            facts += (event.metrics.reason,) if event.metrics.reason else ()
            self._add(Phase.FORWARD, Kind.INPUTS, event, node.pair, rule, facts, node=node,
                      hint="record the modules before it too: what is wrong lies there, or in the batch")  # fmt: skip
            return
        if self._charge_uncalled(place, event, node.begin, node.begin_b, rule, since_its_begin=True):
            return
        facts = (f"the input {event.slot_a} of {name} differs, what was there before it agrees",)
        if between:
            facts += (f"not compared on the way: {self._names(between)}",)
        facts += (*factor, *parts.unseen_order(self.pairs, node.parent))
        self._add(
            Phase.FORWARD,
            kind_of_finding(event.metrics),
            event,
            place.pair,
            rule,
            facts,
            node=place,
            hint=of_what or self._code_hint(between),
        )

    def _factor_before(self, node: Node, event: Event) -> tuple[tuple[str, ...], str]:
        """Return a fact and a hint where a wrong input is a multiple of A's: a factor that one side alone applies, or another one."""
        metrics, a = event.metrics, self.pairs.half("A")
        last = None if node.parent is None else self._last_module(node.parent, a)
        if last is None or metrics is None or not min(abs(metrics.coherence), abs(metrics.cosine)) > _ONE_DIRECTION:
            return (), ""
        ratio, source = metrics.norm_ratio, a.path(last)
        if metrics.cosine < 0 or abs(ratio - 1) < _FACTOR or not 0 < ratio < math.inf:
            return (), ""
        whole = round(max(ratio, 1 / ratio))
        is_whole = math.isclose(max(ratio, 1 / ratio), whole, rel_tol=1e-5)
        short = f" (1/{whole})" if is_whole and ratio < 1 else ""
        fact = f"it is {ratio:.6g}{short} times A's, in one direction: a factor behind {source}"
        return (fact,), f"look for a factor that one side alone applies to what {source} returns, or that differs"

    def _side_with_part(self, event: Event) -> str:
        """Return the side of which a rank may have a part of what the other side has; empty if none may."""
        shapes = [half.side.shapes[half.row(event)] for half in self.pairs.halves]
        return side_with_parts(self.pairs.a.reader, self.pairs.b.reader, *shapes)

    def _charge_change(self, node: Node, event: Event, rule: Rule) -> bool:
        """Charge a wrong input to layers in another order, or to what one side alone has before it."""
        if node.parent is None:
            return False
        return self._charge_order(node, event) or self._charge_loose(node.parent, event, node.begin, node.begin_b, rule)

    def _judge_given(self, node: Node, event: Event) -> None:
        """Judge a part of the batch that was logged beside the model: it is an input, and no source of anything."""
        metrics = event.metrics
        assert metrics is not None
        u, context = self.u(event), self._context(node)
        sources = 0.0 if ran_before(self.pairs, node, event) else context.error
        limit = tolerance.FORWARD.limit(u, sources) if u else tolerance.INTEGER_GAIN * sources
        sizes = {math.prod(half.side.shapes[half.row(event)]) for half in self.pairs.halves}
        held = self.noise.start(event, limit) if u else self.noise.exact(event, limit)
        wrong = held.is_wrong if metrics.is_known else len(sizes) > 1
        if self.settle(event, held.limit, wrong and not context.tainted, sources, error=held.error, held=held):
            what = metrics.reason or f"{event.slot_a}, which the program logged beside the model, differs"
            self._add(
                Phase.FORWARD, Kind.INPUTS, event, node.pair, tolerance.FORWARD, (what,), node=node, hint=SAME_BATCH
            )

    def lacking_inputs(self) -> list[tuple[str, str]]:
        """Return (slot, side) of the model's inputs that one side alone has."""
        tops = (node for node in self.pairs.nodes.values() if node.parent is None)
        return [each for node in tops for each in self._lacking.get(id(node), ())]

    def charge_batches(self, text: str) -> None:
        """The micro-batches of the two sides are not the same data."""
        tops = [node for node in self.pairs.nodes.values() if node.parent is None]
        if tops:
            self._append(Divergence(
                Phase.FORWARD, Role.INPUT, Kind.INPUTS, 0.9, *self.refs(tops[0].pair, tops[0], "", ""), None,
                evidence=(text,), hint=SAME_BATCH,
            ))  # fmt: skip
        else:
            self.doubts.append(text)

    def _charge_model_input(self, node: Node, event: Event, rule: Rule) -> bool:
        """Charge an input to the batch when it is, on both sides, one of the model's own inputs."""
        given = self._given_to_the_model(node, event)
        if given is None:
            return False
        top, slots = given
        facts = (f"{self._path_a(node.pair)} is handed what the model was given, and that differs",)
        self._append(Divergence(Phase.FORWARD, event.role, Kind.INPUTS, 0.95, *self.refs(top.pair, top, *slots),
                                event.metrics, rule.limit(self.u(event), 0.0), facts, SAME_BATCH, event=event), event)  # fmt: skip
        return True

    def _given_to_the_model(self, node: Node, event: Event) -> tuple[Node, tuple[str, str]] | None:
        """Return the model and its slots when an input is, on both sides, one of the model's own inputs."""
        top = list(node.ancestors())[-1]
        slots = []
        for half in self.pairs.halves:
            side, digest = half.side, half.side.digest(half.row(event))
            rows = half.rows.get(half.key(top), Role.INPUT) if digest is not None else {}
            same = [slot for slot, found in rows.items() if side.digest(found[0]) == digest]
            slots += same[:1]
        return (top, (slots[0], slots[1])) if len(slots) == 2 else None

    def _place_of(self, node: Node) -> Node | None:
        """Return the innermost caller of which it is known that it began right, by its inputs or by what ran inside."""
        good = max(self._last_good.values(), default=-1)
        moved = set(node.callers_from_parent()) - {node.shared} if node.shared is not node.parent else ()
        for place in node.ancestors():
            if place in moved:
                continue
            module = self._module_a(place)
            has_none = not self.pairs.rows_a.get((place.micro, module, place.call), Role.INPUT)
            if place in self._with_inputs or good >= place.begin:
                return place
            if has_none and self.pairs.a.watches(Phase.FORWARD, module):
                return place
        return None

    # Outputs

    def _charge_output(self, node: Node, event: Event) -> None:
        assert event.metrics is not None
        if self._is_loss(event):
            self._add(Phase.LOSS, Kind.INTRODUCED, event, node.pair, tolerance.LOSS,
                      ("the loss differs, what it is computed from agrees", *self._unseen_before_loss(node)), node=node,
                      hint=self._loss_hint(node))  # fmt: skip
            return
        if node.pair in self._missing and not node.loose_a:
            slot, side = self._missing[node.pair]
            facts = (f"the parameter {slot} exists on {side} only and is not zero", "the module's output differs")
            self._add(Phase.INIT, Kind.MISSING, event, node.pair, tolerance.FORWARD, facts, node=node, slot=slot,
                      hint=self._tied(node.pair, slot, side) or f"{slot} is missing on {'B' if side == 'A' else 'A'}")  # fmt: skip
            return
        what = f"the output {event.slot_a} of {self._path_a(node.pair)} differs first"
        if node.parent is not None and self._charge_lacking_input(node, event, what, (node.end, node.end_b)):
            return
        if self._charge_maker_of_inputs(node, event):
            return
        if self._charge_loose(node, event, node.end, node.end_b, tolerance.FORWARD):
            return
        if self._charge_uncalled(node, event, node.end, node.end_b, tolerance.FORWARD, since_its_begin=True):
            return
        facts, hint = self._about_output(node, event)
        dropout, dtype = causes.dropout(self.pairs, node), causes.changed_dtype(self.pairs, node, event)
        kind = Kind.DTYPE if dtype else kind_of_finding(event.metrics)
        told = tuple(text for text in (dropout, dtype, causes.born(self.pairs, node, event)) if text)
        self._add(Phase.FORWARD, kind, event, node.pair, tolerance.FORWARD, (*facts, *told), node=node,
                  hint=hint or causes.hint_of_dropout(dropout) or _settings_hint(self._class_a(self._module_a(node))),
                  is_apart=bool(dropout))  # fmt: skip

    def _loss_hint(self, node: Node) -> str:
        """Return what to look at where the loss differs."""
        a, unseen = self.pairs.half("A"), self._unseen_before_loss(node)
        last = self._last_module(node, a)
        path = "" if last is None else a.path(last)
        start = f"what is done to the output of {path} before the loss, and at " if unseen else ""
        return f"look at {start}the loss function: reduction, label smoothing, ignored index, weights"

    def _unseen_before_loss(self, node: Node) -> tuple[str, ...]:
        """Say so where the model's own code may do something to what its last module returned, and only the loss shows it."""
        a = self.pairs.half("A")
        last = self._last_module(node, a)
        returned = [judged.event for judged in self.events if judged.event.role is Role.OUTPUT]
        own = [e for e in returned if (e.micro, e.pair, e.call) == (node.micro, node.pair, node.call)]
        if last is None or any(e.metrics is not None and e.metrics.is_known and not self._is_loss(e) for e in own):
            return ()
        made = [e for e in returned if e.micro == node.micro and a.modules[e.pair] == last]
        if not made or any(not squeezed(self.pairs.a.shapes[e.row_a]) for e in made):
            return ()  # a module that computes the loss
        path = a.path(last)
        return (
            f"what the model's own code makes of the output of {path} before that was not compared: a factor or a cap, say",
        )

    def _charge_dtype(self, node: Node, event: Event, sources: float) -> None:
        """Charge a call that returns another dtype of the same, where that is more than the finer dtype would round."""
        a, b = self.pairs.a.dtypes[event.row_a], self.pairs.b.dtypes[event.row_b]
        assert event.metrics is not None
        if a == b or event.metrics.rel_l2 <= tolerance.FORWARD.limit(min(unit_roundoff(a), unit_roundoff(b)), sources):
            return
        text = causes.changed_dtype(self.pairs, node, event)
        if text:
            self._add(Phase.FORWARD, Kind.DTYPE, event, node.pair, tolerance.FORWARD, (self._agreement(node), text),
                      node=node, hint="look at casts, autocast and the precision that this module is set to")  # fmt: skip

    def _code_hint(self, between: list[Loose]) -> str:
        """Return what to look at where a module's own code is blamed, with the calls in it that were not compared."""
        code = "look at the code of this module itself: what it does between the modules that it calls"
        classes = [self._class_a(loose.module) for loose in between]
        if any("dropout" in name.casefold() for name in classes):
            return _SETTINGS["*Dropout*"]
        return "; or ".join([*to_look_at(self.pairs, between), code])

    def _tied(self, pair: int, slot: str, side: str) -> str:
        """Say so when a parameter that is not on the other side is another name of a tied one there."""
        other = self.pairs.half(self.pairs.half(side).other)
        full = f"{other.path(other.modules[pair])}.{slot}"
        tied = (p.names[0] for p in other.side.reader.parameters if full in p.names[1:])
        first = next(tied, None)
        return "" if first is None else f"{slot} is tied to {first} on {other.name}, not on {side}"

    def _about_output(self, node: Node, event: Event) -> tuple[tuple[str, ...], str]:
        """Return what is known of a call whose output is wrong, and a hint if there is one."""
        about = parts.unrecorded_weights, parts.unseen_order_of_weights, parts.unseen_elements
        facts = [self._agreement(node), *(text for each in about for text in each(self.pairs, node))]
        lacking = self._unpaired(node.pair)
        if any(lacking):
            facts.append(f"not compared: its parameters {lacking[0]} in A and {lacking[1]} in B, whose names differ")
        unknown = sorted(self._unknown.get(id(node), ()))
        if unknown:
            facts.append(f"not known to agree: {', '.join(unknown)} (on one side only, or of another kind)")
        classes = self._classes(node.pair)
        in_parts = [each.slot_a for each in self._in_parts if each.pair == node.pair]
        if in_parts:
            facts.append(f"not compared: its {', '.join(in_parts)}, of which a rank of one side holds a part")
        hint = _OF_PARTS if in_parts else scale_hint(event.metrics)
        inside = self._between(node, node.end)
        if inside:
            facts.append(f"not compared inside: {self._names(inside)}")
        if node.training[0] != node.training[1]:
            facts.append(
                f"it runs in {mode_name(node.training[0])} mode in A and in {mode_name(node.training[1])} mode in B"
            )
            hint = "call train() or eval() on both models alike"
        if not self._are_alike(node.pair) and self.pairs.matching.pairs[node.pair].reason is not Reason.MAPPED:
            facts.append(f"the classes differ: {classes[0]} against {classes[1]}")
        return tuple(facts), hint

    def _agreement(self, node: Node) -> str:
        """Say what the output of a call was made from."""
        parameters = None if any(each.pair == node.pair for each in self._in_parts) else self.parameters_of(node)
        if self._unknown.get(id(node)) and node not in self._with_inputs:
            return "its inputs were not compared, its output differs"
        weights = "" if parameters is None else "parameters equal" if not parameters.error else "parameters agree"
        if weights and parts.differently_laid(self.pairs, node):
            weights = "parameters agree in their statistics"
        error = self._context(node).error
        return ", ".join(part for part in (f"inputs agree (rel {error:.1e})", weights, "output differs") if part)


def _settings_hint(class_name: str) -> str:
    """Return what to look at where a module makes something else of the same."""
    for pattern, hint in _SETTINGS.items():
        if fnmatchcase(class_name, pattern):
            return hint
    return "look at what this module computes and with which settings"


def mode_name(training: bool) -> str:
    """Return the name of a module's mode."""
    return "training" if training else "evaluation"
