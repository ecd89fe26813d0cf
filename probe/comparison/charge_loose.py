"""Who answers for a wrong value of the forward pass where one side alone makes a call."""

from __future__ import annotations

from dataclasses import replace

from probe.comparison import causes, tolerance
from probe.comparison.changes import OF_NUMBER, change_at, more_calls
from probe.comparison.given import maker_of
from probe.comparison.ledger import kind_of_finding
from probe.comparison.loose import is_noop, lies
from probe.comparison.order import OrderCharger
from probe.comparison.parts import unseen_order
from probe.comparison.result import Divergence, Kind
from probe.comparison.step_half import Call, Event, Loose, Node, StepHalf
from probe.comparison.tolerance import Rule
from probe.comparison.uncalled import about, called_alone, callers, compared_with, listed, pairs_inside, partner
from probe.matching import Reason
from probe.matching.changes import Change
from probe.records import Phase, Role

_UNCOMPARED = 0.9
"""by which confidence falls where a call on the way has no partner"""


class LooseCharger(OrderCharger):
    """Charges a wrong value of the forward pass to calls without a partner."""

    def _between(self, caller: Node, before: int, name: str = "A") -> list[Loose]:
        """Return one side's calls without a partner that began and ended inside a call since the last good event there."""
        half, since = self.pairs.half(name), self._since(caller, name)
        return [
            each for each in half.loose(caller) if lies(each, since, before, half.stepped) and not is_noop(half, each)
        ]

    def _since(self, caller: Node, name: str) -> int:
        """Return when the last good event of one side was inside a call."""
        if name == "A":
            return self._last_good.get(caller, caller.begin)
        return self._last_good_b.get(caller, caller.begin_b)

    def _finished(self, caller: Node, before: int, name: str = "A") -> list[Loose]:
        """Return one side's calls without a partner, however deep, that began and ended since the last good event."""
        half, since = self.pairs.half(name), self._since(caller, name)
        paired = {half.key(node) for node in self.pairs.nodes.values()}
        calls = {
            call.row: call for call in half.calls
            if call.micro == caller.micro and since <= call.begin and call.end < before and call.key not in paired
        }  # fmt: skip
        outermost = [call for call in calls.values() if call.caller not in calls]
        found = [Loose(call.micro, call.module, call.number, call.begin, call.end) for call in outermost]
        return [loose for loose in found if not is_noop(half, loose)]

    def _has_part(self, half: StepHalf, loose: Loose, event: Event) -> bool:
        """Tell whether a wrong input may be made of what a call without a partner returned.

        Not if that has no weights, and all that it returned is handed as it is, by other arguments, to what gets the wrong one.
        Nor if another module makes the same on the other side, as where one embedding is two modules there.
        """
        side = half.side
        if self._is_made_by_another(half, loose):
            return False
        node = self.pairs.nodes.get((event.micro, self.pairs.matching.pairs[event.pair].a, event.call))
        if node is None or event.role is not Role.INPUT or side.reader.modules[loose.module].n_params:
            return True
        made, given = set(half.hashes(loose.key, Role.OUTPUT)), half.rows.get(half.key(node), Role.INPUT)
        others = {side.digest(found[0]) for slot, found in given.items() if slot != half.slot(event)}
        return not made or not made <= others

    def _is_made_by_another(self, half: StepHalf, loose: Loose) -> bool:
        """Tell whether calls of the other side that have no partner either returned, bit for bit, all that a call did."""
        there, made = self.pairs.half(half.other), set(half.hashes(loose.key, Role.OUTPUT))
        paired = {there.key(node) for node in self.pairs.nodes.values()}
        others = (call.key for call in there.calls if call.micro == loose.micro and call.key not in paired)
        return bool(made) and made <= {digest for key in others for digest in there.hashes(key, Role.OUTPUT)}

    def _names(self, calls: list[Loose]) -> str:
        return listed([self.pairs.a.reader.modules[loose.module].path for loose in calls])

    def _charge_uncalled(
        self, caller: Node, event: Event, before: int, before_b: int, rule: Rule, *, since_its_begin: bool = False
    ) -> bool:
        """Blame modules that both sides have and one alone called since the last good event.

        Since the call's own begin, what its own code called, and where gradients tell that the other side uses the weights nowhere.
        """
        for here, end in zip(self.pairs.halves, (before, before_b), strict=True):
            there = self.pairs.half(here.other)
            since = here.span(caller)[0] if since_its_begin else self._since(caller, here.name)
            calls = called_alone(self.pairs, here, caller.micro, since, end)
            if since_its_begin and (
                callers(self.pairs, here, calls) != [caller] or not there.rows.by_module(Role.PARAM_GRAD)
            ):
                continue
            if not calls:
                continue
            self._append_uncalled(here, calls, event, rule)
            return True
        return False

    def _append_uncalled(self, here: StepHalf, calls: list[Call], event: Event, rule: Rule) -> None:
        """Blame modules that one side alone called for what comes next."""
        there = self.pairs.half(here.other)
        told = [about(self.pairs, here, call) for call in calls]
        own = tuple(self._ref(here.side, event.micro, call.module, call.number) for call in calls)
        theirs = tuple(self._ref(there.side, event.micro, partner(self.pairs, here, call.module)) for call in calls)
        refs = (own, theirs) if here.name == "A" else (theirs, own)
        in_calls = callers(self.pairs, here, calls)
        if in_calls:  # to call a module is up to the caller's code
            at = [self.refs(node.pair, node, "", "") for node in in_calls]
            refs = tuple(ref for a, _ in at for ref in a), tuple(ref for _, b in at for ref in b)
        verb = "gets" if event.role is Role.INPUT else "returns"
        share, guess = self._guessed(event, None)
        next_text = f"what comes next, A's {self._path_a(event.pair)}, {verb} another {event.role.label} {event.slot_a}"
        self._append(Divergence(
            Phase.FORWARD, event.role, Kind.MISSING, share * self._confidence(event, None),
            *refs, event.metrics, rule.limit(self.u(event), 0.0),
            (*causes.returns_input(self.pairs, event, there), *(text for text, _ in told),
             next_text, *guess), told[0][1], is_independent=self._is_apart(event, rule),
            uncalled=theirs if in_calls else (), uncalled_on=there.name,
        ), event)  # fmt: skip
        self.uncalled |= {pair for call in calls for pair in pairs_inside(here, call.module)}

    def _charge_handed(self, node: Node, event: Event, rule: Rule) -> None:
        """Blame what the program does between models, or stages, that it calls in turn: one is given what another one returned."""
        for here, end in zip(self.pairs.halves, (node.begin, node.begin_b), strict=True):
            ended = (here.span(other)[1] for other in self.pairs.nodes.values() if other.micro == node.micro)
            since = max((each for each in ended if each < end), default=0)
            calls = called_alone(self.pairs, here, node.micro, since, end)
            if calls:
                self._append_uncalled(here, calls, event, rule)
                return
        makers = [(half.name, maker_of(half, node, event)) for half in self.pairs.halves]
        said = [f"{name} hands it what {path} returned" for name, path in makers if path is not None]
        said += [f"what {name} hands it no module returned" for name, path in makers if path is None]
        facts = (
            f"the input {event.slot_a} of {self._path_a(node.pair)} differs, and is no part of the batch",
            ", ".join(said),
        )
        hint = "look at the code that hands on what one model, or stage, returns to the next"
        self._add(Phase.FORWARD, kind_of_finding(event.metrics), event, node.pair, rule, facts, node=node, hint=hint)

    def _charge_loose(self, caller: Node, event: Event, before: int, before_b: int, rule: Rule) -> bool:
        """Blame the only unmatched module that was called since the last good event, or layers that one side has more."""
        if self._charge_uncalled(caller, event, before, before_b, rule):
            return True
        ends = list(zip(self.pairs.halves, (before, before_b), strict=True))
        mine, theirs = (
            [each for each in self._between(caller, end, half.name)
             if each.module not in half.ignored and self._has_part(half, each, event)]
            for half, end in ends
        )  # fmt: skip
        if not mine and not theirs:
            mine, theirs = (self._finished_layers(caller, end, half) for half, end in ends)
        if len(mine) + len(theirs) == 1:
            half, (only,) = self.pairs.half("A" if mine else "B"), mine or theirs
            if self._is_only_on_the_way(caller, half, only, event):
                self._charge_around(caller, event, half, only, rule)
                return True
        refs, facts, hints, kind, computed = [], [], [], Kind.MISSING, False
        for half, calls in zip(self.pairs.halves, (mine, theirs), strict=True):
            paths = [half.path(loose.module) for loose in calls]
            change = change_at(self.pairs.changes, OF_NUMBER, half.name, paths) if paths else None
            if (
                calls
                and change is None
                and (len(mine) + len(theirs) > 1 or self._may_stand_there(caller, half, calls[0], ends))
            ):
                return False
            refs.append(tuple(self._ref(half.side, event.micro, loose.module, loose.call) for loose in calls))
            if calls:
                text, hint = self._about_loose(half, calls[0], change)
                facts.append(text)
                hints.append(hint)
                computed = change is None and self._computes_alone(half, calls[0])
                by_hand = self._compared_by_weights(half, calls[0]) is not None or _is_tied(half, calls[0])
                if computed or (change is None and by_hand):
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
            event=event if computed else None,
        ), event)  # fmt: skip
        return True

    def _may_stand_there(self, caller: Node, half: StepHalf, loose: Loose, ends: list[tuple[StepHalf, int]]) -> bool:
        """Tell whether the other side ran modules with weights and without a partner there too, however deep: what one lacks may be they.

        Not if that is one module with as many weights, which is its partner but for its name, and nothing else was computed before it.
        """
        there, end = next((each, end) for each, end in ends if each is not half)
        sizes = [there.side.reader.modules[each.module].n_params for each in self._finished(caller, end, there.name)]
        own, found = half.side.reader.modules[loose.module].n_params, [size for size in sizes if size]
        return bool(found) and (found != [own] or self._is_behind_unfinished(caller, half, loose))

    def _is_behind_unfinished(self, caller: Node, half: StepHalf, loose: Loose) -> bool:
        """Tell whether a call without a partner, begun before the last good event, ended between that and this one."""
        since, begin = self._since(caller, half.name), half.span(caller)[0]
        paired = {half.key(node) for node in self.pairs.nodes.values()}
        return any(
            call.micro == loose.micro
            and begin < call.begin < since <= call.end < loose.begin
            and call.key not in paired
            for call in half.calls
        )

    def _finished_layers(self, caller: Node, before: int, half: StepHalf) -> list[Loose]:
        """Return the layers that one side has more and ran, however deep, since the last good event."""
        found = self._finished(caller, before, half.name)
        paths = [half.path(loose.module) for loose in found]
        return found if paths and change_at(self.pairs.changes, OF_NUMBER, half.name, paths) else []

    def _began_right(self, half: StepHalf, loose: Loose) -> bool:
        """Tell whether a call without a partner was given nothing but tensors that were compared elsewhere, and agree."""
        side, given = half.side, half.rows.get(loose.key, Role.INPUT).values()
        wanted = {side.digest(found[0]) for found in given if side.roundoffs[found[0]]}
        compared = (
            half.row(judged.event)
            for judged in self.events
            if judged.verdict in ("equal", "noise") and judged.event.micro == loose.micro
            and judged.event.role in (Role.INPUT, Role.OUTPUT)
        )  # fmt: skip
        right = {digest for row in compared for digest in side.digests(row)}
        return bool(wanted) and wanted <= right

    def _is_only_on_the_way(self, caller: Node, half: StepHalf, loose: Loose, event: Event) -> bool:
        """Tell whether a call that the other side computes in code of its own may be right, and what lies around it wrong.

        One without weights if it is not known to have begun right; one whose weights alone are compared, or are those of another
        module (a tied head), if what comes next gets something that was made of what it returned.
        """
        if self._computes_alone(half, loose) or self._is_behind_others(caller, half, loose):
            return not self._began_right(half, loose)
        made = set(half.hashes(loose.key, Role.OUTPUT))
        is_by_hand = self._compared_by_weights(half, loose) is not None or _is_tied(half, loose)
        return is_by_hand and half.side.digest(half.row(event)) not in made

    def _is_behind_others(self, caller: Node, half: StepHalf, loose: Loose) -> bool:
        """Tell whether a call without weights stands behind calls that have some and no partner either, deeper inside."""
        if half.side.reader.modules[loose.module].n_params or causes.dropout_alone(half, loose)[0]:
            return False
        before = self._finished(caller, loose.begin, half.name)
        return any(half.side.reader.modules[each.module].n_params for each in before)

    def _charge_around(self, caller: Node, event: Event, half: StepHalf, loose: Loose, rule: Rule) -> None:
        """Charge a wrong value to the code around a call without a partner, of which it is not known whether it began right."""
        before, after = self._last_module(caller, half), half.modules[event.pair]
        named = {loose.module: None, **dict.fromkeys(self._handed_by(caller, half))}
        uncompared = listed([half.path(module) for module in named])
        start = "its input" if before is None else half.path(before).rpartition(".")[2]
        end = "what it returns" if event.pair == caller.pair else half.path(after).rpartition(".")[2]
        facts = (
            f"the {event.role.label} {event.slot_a} of {self._path_a(event.pair)} differs, what was there before it agrees",
            f"it is made between {start} and {end}; not compared there: {uncompared} (in {half.name} only)",
            *unseen_order(self.pairs, caller),
        )
        class_name = half.side.reader.modules[loose.module].class_name
        hint = f"look at what both sides compute between {start} and {end}, {class_name} and what it is given"
        self._add(
            Phase.FORWARD, kind_of_finding(event.metrics), event, caller.pair, rule, facts, node=caller, hint=hint
        )
        found = self.findings[-1]
        self.findings[-1] = replace(found, confidence=_UNCOMPARED * found.confidence)

    def _charge_maker_of_inputs(self, node: Node, event: Event) -> bool:
        """Charge the caller where its own code makes inputs of a call that are in another form on the other side, as routing is.

        They could not be compared: either may be wrong, and both are inside the caller.
        """
        caller, unknown = node.parent, self._unknown.get(id(node), set())
        alone = self._lacking.get(id(node), [])
        sides = {side for _, side in alone} | ({"A", "B"} if unknown.difference(slot for slot, _ in alone) else set())
        if self._other_number_of_ranks() or caller is None or len(sides) < 2:  # they are handed parts
            return False
        if not any(self._made(half, caller, node) for half in self.pairs.halves):
            return False
        path, names = self._path_a(node.pair), listed(sorted(unknown))
        facts = (
            f"the output {event.slot_a} of {path} differs, what was there before it agrees",
            f"not compared: its inputs {names}, which are in another form on the other side; {self._path_a(caller.pair)} makes them",
        )
        hint = f"look at what makes the inputs {names} of {path}, and at {path} itself"
        self._add(Phase.FORWARD, kind_of_finding(event.metrics), event, caller.pair, tolerance.FORWARD, facts,
                  node=caller, hint=hint)  # fmt: skip
        self.findings[-1] = replace(self.findings[-1], confidence=_UNCOMPARED * self.findings[-1].confidence)
        return True

    def _other_number_of_ranks(self) -> bool:
        return len({half.side.reader.info.world_size for half in self.pairs.halves}) > 1

    def _made(self, half: StepHalf, caller: Node, node: Node) -> bool:
        """Tell whether a side's caller makes of what it is given, in its own code, an input of a call that was not compared.

        Such inputs learn, which masks and tables of positions do not, and no call returned them.
        """
        given = half.rows.get(half.key(node), Role.INPUT)
        rows = [given[slot][0] for slot in self._unknown.get(id(node), set()) if slot in given]
        digests = {half.side.digest(row) for row in rows if half.side.columns["requires_grad"][row]} - {None}
        known = set(half.hashes(half.key(caller), Role.INPUT))
        inner = [call.key for call in half.calls if call.micro == caller.micro]
        return bool(digests - known - {digest for key in inner for digest in half.hashes(key, Role.OUTPUT)})

    def _last_module(self, caller: Node, half: StepHalf) -> int | None:
        """Return the module of a side that returned last of what is known to be right in a call."""
        good = self._last_good.get(caller)
        found = (node.pair for node in self.pairs.nodes.values() if node.parent is caller and node.end == good)
        pair = next(found, None)
        return None if pair is None else half.modules[pair]

    def _handed_by(self, caller: Node, half: StepHalf) -> list[int]:
        """Return the modules without a partner of which a call is given what they returned."""
        given = set(half.hashes(half.key(caller), Role.INPUT))
        return [
            call.module
            for call in half.calls
            if call.micro == caller.micro
            and call.module not in half.pair_of
            and not given.isdisjoint(half.hashes(call.key, Role.OUTPUT))
        ]

    @property
    def _why_not_found(self) -> str:
        """Why a module has no counterpart."""
        is_mapped = any(pair.reason is Reason.MAPPED for pair in self.pairs.matching.pairs)
        return "the mapping does not give" if is_mapped else "was not found: a layer mapping (-lm) can give it"

    def _about_loose(self, half: StepHalf, loose: Loose, change: Change | None) -> tuple[str, str]:
        """Say of a call without a partner what it is, and what to look at."""
        missing, path = half.other, half.path(loose.module)
        lacks = f"{missing} lacks this module, or runs it under a name that {self._why_not_found}"
        if change is not None:
            return change.text, "look at the number of layers of both models, and at what is built between them"
        if loose.module in half.stepped:
            inner = half.path(half.stepped[loose.module])
            text = f"{path} does something of its own with what {inner}, the only module in it, is given or returns"
            return text, f"{missing} has {inner} without it: look at what it does before and after"
        text, hint = causes.dropout_alone(half, loose)
        if text:
            return text, hint
        by_weights = self._compared_by_weights(half, loose)
        if by_weights is not None:
            there = self.pairs.half(missing).path(by_weights)
            text = f"{path} is called on {half.name}; with {there} of {missing}, the weights alone are compared"
            return text, f"look at what {missing} has in the place of {path}, of which the weights alone are compared"
        if loose.module in half.pair_of:
            text = more_calls(self.pairs, half, loose.module, [loose.call]).text
            return text, f"look at the code that calls {path}: {missing} does not make this call"
        if self._computes_alone(half, loose):
            kind = half.side.reader.modules[loose.module].class_name
            text = f"{path} is called on {half.name}; {missing} computes it in code of its own, or not at all"
            return (
                text,
                f"what {missing} computes in the place of this {kind} is not the same: look at it, and at its settings",
            )
        if _is_tied(half, loose):
            return (
                f"{path} is called on {half.name}, its weights are another module's; {missing} may use those in code of its own",
                f"look at what {missing} computes in the place of {path}, before and behind the product with its weights",
            )
        return f"{path} is called on {half.name} and has no counterpart on {missing}", lacks

    def _compared_by_weights(self, half: StepHalf, loose: Loose) -> int | None:
        """Return the other side's module that has the weights of a call's module, where its own code uses them.

        That is a partner which is called nowhere, or a module whose weights alone are this one's.
        """
        if loose.module not in half.pair_of:
            return compared_with(self.pairs, half, loose.module)
        is_called = any(node.pair == half.pair_of[loose.module] for node in self.pairs.nodes.values())
        return None if is_called else partner(self.pairs, half, loose.module)

    def _computes_alone(self, half: StepHalf, loose: Loose) -> bool:
        """Tell whether the other side's own code computes what a call without a partner does, as in other places or steps.

        It has no weights, and others of its class have no partner either; or the step before agreed, in which it had none.
        """
        modules = half.side.reader.modules
        if self._ran_before(half, loose):
            return True
        if loose.module in half.stepped or loose.module in half.pair_of or modules[loose.module].n_params:
            return False
        kind = modules[loose.module].class_name
        alike = [index for index, module in enumerate(modules) if module.class_name == kind]
        return len(alike) > 1 and not any(index in half.pair_of for index in alike)

    def _ran_before(self, half: StepHalf, loose: Loose) -> bool:
        """Tell whether a module that has no partner ran in the step before, too: no step is judged behind one with a finding."""
        earlier = half.side.earlier
        if earlier is None or loose.module in half.pair_of or loose.module in half.stepped:
            return False
        return loose.module in earlier.calls["module"] and compared_with(self.pairs, half, loose.module) is None


def _is_tied(half: StepHalf, loose: Loose) -> bool:
    """Tell whether all weights of a call's module are those of other modules, too."""
    path = half.path(loose.module)
    own = [each for each in half.side.reader.parameters if any(name.rpartition(".")[0] == path for name in each.names)]
    return bool(own) and all(len(each.names) > 1 for each in own)
