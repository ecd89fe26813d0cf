"""Who answers for a wrong value of the forward pass where one side alone makes a call."""

from __future__ import annotations

from dataclasses import replace

from probe.comparison import causes
from probe.comparison.changes import OF_NUMBER, change_at, more_calls
from probe.comparison.events import Event, Loose, Node
from probe.comparison.ledger import kind_of_finding
from probe.comparison.loose import is_noop, lies
from probe.comparison.order import OrderCharger
from probe.comparison.parts import unseen_order
from probe.comparison.result import Divergence, Kind
from probe.comparison.tolerance import Rule
from probe.comparison.uncalled import about, called_alone, callers, listed, pairs_inside, partner
from probe.matching import Reason
from probe.matching.changes import Change
from probe.records import Phase, Role

_UNCOMPARED = 0.9
"""by which confidence falls where a call on the way has no partner"""


class LooseCharger(OrderCharger):
    """Charges a wrong value of the forward pass to calls without a partner."""

    def _between(self, caller: Node, before: int) -> list[Loose]:
        """Return A's calls without a partner that began and ended inside a call since the last good event there."""
        since = self._last_good.get(caller, caller.begin)
        stepped = self.pairs.matching.stepped_a
        return [each for each in caller.loose_a if lies(each, since, before, stepped) and not self._is_noop(each)]

    def _between_b(self, caller: Node, before: int) -> list[Loose]:
        since = self._last_good_b.get(caller, caller.begin_b)
        stepped = self.pairs.matching.stepped_b
        return [each for each in caller.loose_b if lies(each, since, before, stepped) and not self._is_noop_b(each)]

    def _finished(self, caller: Node, before: int, name: str = "A") -> list[Loose]:
        """Return one side's calls without a partner, however deep, that began and ended since the last good event."""
        pairs = self.pairs
        if name == "A":
            side, since, paired = pairs.calls_a, self._last_good.get(caller, caller.begin), set(pairs.nodes)
        else:
            side, since = pairs.calls_b, self._last_good_b.get(caller, caller.begin_b)
            paired = {(node.micro, pairs.matching.pairs[node.pair].b, node.call_b) for node in pairs.nodes.values()}
        calls = {
            call.row: call for call in side
            if call.micro == caller.micro and since <= call.begin and call.end < before
            and (call.micro, call.module, call.number) not in paired
        }  # fmt: skip
        outermost = [call for call in calls.values() if call.caller not in calls]
        found = [Loose(call.micro, call.module, call.number, call.begin, call.end) for call in outermost]
        is_noop = self._is_noop if name == "A" else self._is_noop_b
        return [loose for loose in found if not is_noop(loose)]

    def _has_part(self, name: str, loose: Loose, event: Event) -> bool:
        """Tell whether a wrong input may be made of what a call without a partner returned.

        Not if that has no weights, and all that it returned is handed as it is, by other arguments, to what gets the wrong one.
        """
        side, rows, partner_of, slot = (
            (self.pairs.a, self.pairs.rows_a, 0, event.slot_a)
            if name == "A"
            else (self.pairs.b, self.pairs.rows_b, 1, event.slot_b)
        )
        node = self.pairs.nodes.get((event.micro, self.pairs.matching.pairs[event.pair].a, event.call))
        if node is None or event.role is not Role.INPUT or side.reader.modules[loose.module].n_params:
            return True
        pair = self.pairs.matching.pairs[node.pair]
        key = (node.micro, *((pair.a, node.call) if partner_of == 0 else (pair.b, node.call_b)))
        made = {
            side.digest(found[0]) for found in rows.get((loose.micro, loose.module, loose.call), Role.OUTPUT).values()
        }
        given = rows.get(key, Role.INPUT)
        others = {side.digest(found[0]) for other, found in given.items() if other != slot}
        return not made or not made <= others

    def _names(self, calls: list[Loose]) -> str:
        return listed([self.pairs.a.reader.modules[loose.module].path for loose in calls])

    def _charge_uncalled(self, caller: Node, event: Event, before: int, before_b: int, rule: Rule) -> bool:
        """Blame modules that both sides have and one alone called since the last good event."""
        since = self._last_good.get(caller, caller.begin), self._last_good_b.get(caller, caller.begin_b)
        for name, start, end in zip("AB", since, (before, before_b), strict=True):
            side, other = (self.pairs.a, self.pairs.b) if name == "A" else (self.pairs.b, self.pairs.a)
            calls = called_alone(self.pairs, name, caller.micro, start, end)
            if not calls:
                continue
            told = [about(self.pairs, name, call) for call in calls]
            own = tuple(self._ref(side, event.micro, call.module, call.number) for call in calls)
            theirs = tuple(self._ref(other, event.micro, partner(self.pairs, name, call.module)) for call in calls)
            refs = (own, theirs) if name == "A" else (theirs, own)
            in_calls = callers(self.pairs, name, calls)
            if in_calls:  # to call a module is up to the caller's code
                at = [self.refs(node.pair, node, "", "") for node in in_calls]
                refs = tuple(ref for a, _ in at for ref in a), tuple(ref for _, b in at for ref in b)
            verb = "gets" if event.role is Role.INPUT else "returns"
            share, guess = self._guessed(event, None)
            next_text = (
                f"what comes next, A's {self._path_a(event.pair)}, {verb} another {event.role.label} {event.slot_a}"
            )
            self._append(Divergence(
                Phase.FORWARD, event.role, Kind.MISSING, share * self._confidence(event, None),
                *refs, event.metrics, rule.limit(self.u(event), 0.0),
                (*causes.returns_input(self.pairs, event, "B" if name == "A" else "A"), *(text for text, _ in told),
                 next_text, *guess), told[0][1], is_independent=self._is_apart(event, rule),
                uncalled=theirs if in_calls else (), uncalled_on="B" if name == "A" else "A",
            ), event)  # fmt: skip
            self.uncalled |= {pair for call in calls for pair in pairs_inside(self.pairs, name, call.module)}
            return True
        return False

    def _charge_loose(self, caller: Node, event: Event, before: int, before_b: int, rule: Rule) -> bool:
        """Blame the only unmatched module that was called since the last good event, or layers that one side has more."""
        if self._charge_uncalled(caller, event, before, before_b, rule):
            return True
        matching = self.pairs.matching
        mine = [each for each in self._between(caller, before)
                if each.module not in matching.ignored_a and self._has_part("A", each, event)]  # fmt: skip
        theirs = [each for each in self._between_b(caller, before_b)
                  if each.module not in matching.ignored_b and self._has_part("B", each, event)]  # fmt: skip
        if not mine and not theirs:
            mine, theirs = self._finished_layers(caller, before, "A"), self._finished_layers(caller, before_b, "B")
        if len(mine) + len(theirs) == 1:
            name, only = ("A", mine[0]) if mine else ("B", theirs[0])
            if self._computes_alone(name, only) and not self._began_right(name, only):
                self._charge_around(caller, event, name, only, rule)
                return True
        refs, facts, hints, kind = [], [], [], Kind.MISSING
        for name, side, calls in (("A", self.pairs.a, mine), ("B", self.pairs.b, theirs)):
            modules = list(dict.fromkeys(loose.module for loose in calls))
            paths = [side.reader.modules[module].path for module in modules]
            change = change_at(self.pairs.changes, OF_NUMBER, name, paths) if paths else None
            if calls and change is None and len(calls) + len(mine if name == "B" else theirs) > 1:
                return False
            refs.append(tuple(self._ref(side, event.micro, loose.module, loose.call) for loose in calls))
            if calls:
                text, hint = self._about_loose(name, calls[0], change)
                facts.append(text)
                hints.append(hint)
                if change is None and self._computes_alone(name, calls[0]):
                    kind = kind_of_finding(event.metrics)
        if not facts:
            return False
        verb = "gets" if event.role is Role.INPUT else "returns"
        limit = rule.limit(self.u(event), 0.0)
        share, guess = self._guessed(event, None)
        self._append(Divergence(
            Phase.FORWARD, event.role, kind, share * self._confidence(event, None), refs[0], refs[1],
            event.metrics, limit,
            (*facts, f"what comes next, A's {self._path_a(event.pair)}, {verb} another {event.role.label} {event.slot_a}",
             *unseen_order(self.pairs, caller), *guess), hints[0], is_independent=self._is_apart(event, rule),
        ), event)  # fmt: skip
        return True

    def _finished_layers(self, caller: Node, before: int, name: str) -> list[Loose]:
        """Return the layers that one side has more and ran, however deep, since the last good event."""
        found = self._finished(caller, before, name)
        side = self.pairs.a if name == "A" else self.pairs.b
        paths = [side.reader.modules[loose.module].path for loose in found]
        return found if paths and change_at(self.pairs.changes, OF_NUMBER, name, paths) else []

    def _began_right(self, name: str, loose: Loose) -> bool:
        """Tell whether a call without a partner was given nothing but tensors that were compared elsewhere, and agree."""
        side, rows = (self.pairs.a, self.pairs.rows_a) if name == "A" else (self.pairs.b, self.pairs.rows_b)
        given = rows.get((loose.micro, loose.module, loose.call), Role.INPUT).values()
        wanted = {side.digest(found[0]) for found in given if side.roundoffs[found[0]]}
        compared = (
            judged.event.row_a if name == "A" else judged.event.row_b
            for judged in self.events
            if judged.verdict in ("equal", "noise") and judged.event.micro == loose.micro
            and judged.event.role in (Role.INPUT, Role.OUTPUT)
        )  # fmt: skip
        right = {digest for row in compared for digest in side.digests(row)}
        return bool(wanted) and wanted <= right

    def _charge_around(self, caller: Node, event: Event, name: str, loose: Loose, rule: Rule) -> None:
        """Charge a wrong value to the code around a call without a partner, of which it is not known whether it began right."""
        side = self.pairs.a if name == "A" else self.pairs.b
        modules = side.reader.modules
        before, after = self._last_module(caller, name), self._module_of(event.pair, name)
        named = {loose.module: None, **dict.fromkeys(self._handed_by(caller, name))}
        uncompared = listed([modules[module].path for module in named])
        start = "its input" if before is None else modules[before].path.rpartition(".")[2]
        end = "what it returns" if event.pair == caller.pair else modules[after].path.rpartition(".")[2]
        facts = (
            f"the {event.role.label} {event.slot_a} of {self._path_a(event.pair)} differs, what was there before it agrees",
            f"it is made between {start} and {end}; not compared there: {uncompared} (in {name} only)",
            *unseen_order(self.pairs, caller),
        )
        hint = f"look at what both sides compute between {start} and {end}, {modules[loose.module].class_name} and what it is given"
        self._add(
            Phase.FORWARD, kind_of_finding(event.metrics), event, caller.pair, rule, facts, node=caller, hint=hint
        )
        found = self.findings[-1]
        self.findings[-1] = replace(found, confidence=_UNCOMPARED * found.confidence)

    def _last_module(self, caller: Node, name: str) -> int | None:
        """Return the module of a side that returned last of what is known to be right in a call."""
        good = self._last_good.get(caller)
        found = (node.pair for node in self.pairs.nodes.values() if node.parent is caller and node.end == good)
        pair = next(found, None)
        return None if pair is None else self._module_of(pair, name)

    def _module_of(self, pair: int, name: str) -> int:
        modules = self.pairs.matching.pairs[pair]
        return modules.a if name == "A" else modules.b

    def _handed_by(self, caller: Node, name: str) -> list[int]:
        """Return the modules without a partner of which a call is given what they returned."""
        side, rows, calls, index = (
            (self.pairs.a, self.pairs.rows_a, self.pairs.calls_a, self.pairs.pair_of_a)
            if name == "A"
            else (self.pairs.b, self.pairs.rows_b, self.pairs.calls_b, self.pairs.pair_of_b)
        )
        key = (caller.micro, self._module_of(caller.pair, name), caller.call if name == "A" else caller.call_b)
        given = {side.digest(found[0]) for found in rows.get(key, Role.INPUT).values()}
        return [
            call.module for call in calls if call.micro == caller.micro and call.module not in index
            and any(side.digest(found[0]) in given
                    for found in rows.get((call.micro, call.module, call.number), Role.OUTPUT).values())
        ]  # fmt: skip

    @property
    def _why_not_found(self) -> str:
        """Why a module has no counterpart."""
        is_mapped = any(pair.reason is Reason.MAPPED for pair in self.pairs.matching.pairs)
        return "the mapping does not give" if is_mapped else "was not found: a layer mapping (-lm) can give it"

    def _about_loose(self, name: str, loose: Loose, change: Change | None) -> tuple[str, str]:
        """Say of a call without a partner what it is, and what to look at."""
        missing = "B" if name == "A" else "A"
        lacks = f"{missing} lacks this module, or runs it under a name that {self._why_not_found}"
        if change is not None:
            return change.text, "look at the number of layers of both models, and at what is built between them"
        side = self.pairs.a if name == "A" else self.pairs.b
        path = side.reader.modules[loose.module].path
        stepped = self.pairs.matching.stepped_a if name == "A" else self.pairs.matching.stepped_b
        if loose.module in stepped:
            inner = side.reader.modules[stepped[loose.module]].path
            text = f"{path} does something of its own with what {inner}, the only module in it, is given or returns"
            return text, f"{missing} has {inner} without it: look at what it does before and after"
        partners = self.pairs.pair_of_a if name == "A" else self.pairs.pair_of_b
        if loose.module in partners:
            text = more_calls(self.pairs, name, loose.module, [loose.call]).text
            return text, f"look at the code that calls {path}: {missing} does not make this call"
        if self._computes_alone(name, loose):
            kind = side.reader.modules[loose.module].class_name
            text = f"{path} is called on {name}; {missing} computes it in code of its own, or not at all"
            return (
                text,
                f"what {missing} computes in the place of this {kind} is not the same: look at it, and at its settings",
            )
        return f"{path} is called on {name} and has no counterpart on {missing}", lacks

    def _computes_alone(self, name: str, loose: Loose) -> bool:
        """Tell whether the other side's own code computes what a call without a partner does, as in other places.

        It has no weights, and others of its class have no partner either.
        """
        matching = self.pairs.matching
        side, stepped, partners = (
            (self.pairs.a, matching.stepped_a, self.pairs.pair_of_a)
            if name == "A"
            else (self.pairs.b, matching.stepped_b, self.pairs.pair_of_b)
        )
        modules = side.reader.modules
        if loose.module in stepped or loose.module in partners or modules[loose.module].n_params:
            return False
        kind = modules[loose.module].class_name
        alike = [index for index, module in enumerate(modules) if module.class_name == kind]
        return len(alike) > 1 and not any(index in partners for index in alike)

    def _is_noop(self, loose: Loose) -> bool:
        return is_noop(self.pairs.a, self.pairs.rows_a, loose, self.pairs.matching.stepped_a)

    def _is_noop_b(self, loose: Loose) -> bool:
        return is_noop(self.pairs.b, self.pairs.rows_b, loose, self.pairs.matching.stepped_b)
