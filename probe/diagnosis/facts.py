"""Facts of a finding, and what to look at, by its code: words for what the judge knows. None of it moves a place."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator

from probe.notes import Note, note, sides
from probe.records import Phase, Role
from probe.verdict.distance.error import View
from probe.verdict.judge.blame import taken_away
from probe.verdict.judge.settings import CLASS, Setting
from probe.verdict.judge.verdicts import Finding
from probe.verdict.noise.model import UPDATE_NORM
from probe.verdict.rows import form_note, why_not
from probe.verdict.side import Call
from probe.verdict.steps.events import Event, Node
from probe.verdict.steps.step import Step
from probe.verdict.tensors import Tensor

Said = tuple[list[Note], Note | None]
_NAMES = ("NaN", "+Inf", "-Inf")


def said_of(step: Step, finding: Finding) -> Said:
    """Return what was found, most telling first, and what to look at."""
    facts, advice = _FACTS.get(finding.code, _nothing)(step, finding)
    check = finding.check
    behind = [note("behind-what-differs", times=check.share)] if finding.is_behind and check is not None else []
    return [*facts, *_not_finite(step, finding), *behind], advice


def _nothing(step: Step, finding: Finding) -> Said:
    return [], None


def _not_finite(step: Step, finding: Finding) -> Iterator[Note]:
    """Say where NaN or infinity is born."""
    event, error = finding.event, finding.error
    if event is None or event.a is None or event.b is None or error is None or error.view is not View.NON_FINITE:
        return
    side, tensor = ("A", event.a) if sum(event.a.bad) > sum(event.b.bad) else ("B", event.b)
    counts = tuple((count, name) for count, name in zip(tensor.bad, _NAMES, strict=True) if count)
    made_of = step.tensors(event.node, side, Role.INPUT).values() if event.node is not None else ()
    is_of_finite = not any(sum(each.bad) for each in made_of)
    yield note("not-finite-from-here", counts=counts, size=tensor.size, side=side, of_finite=is_of_finite)


# The forward pass


def _code_of(step: Step, node: Node | None) -> Note:
    """Return the advice to look at the code of a call; with what to record, where its operations are not known yet."""
    if node is not None and node.a.is_operation:
        return note("code-of-operation")
    infos = [half.reader.info for half in (step.a, step.b)]
    are_seen = all(
        info.framework in ("torch", "paddle") and info.config.get("level", "module") == "module" for info in infos
    )
    return note("code-of-module", path=node.a.path if node is not None and are_seen else "")


def _own_code(step: Step, finding: Finding) -> Said:
    event = finding.event
    if event is None or event.node is None:
        return [], _code_of(step, None)
    node = event.node
    errors = [error for each in node.inputs if (error := step.error(each)) is not None]
    weights = step.parameters.events(Phase.INIT, Role.PARAM)
    own = [each for each in weights if each.place and each.place[0] == node.a.module]
    lone = [each for each in own if not each.is_paired]
    known = [step.error(each) for each in own if each.is_paired] if not step.a.step else []
    are_equal = bool(known) and not lone and all(each is not None and not each.is_bound for each in known)
    equal = note("parameters-equal") if are_equal else None
    size, is_bound = max((error.size for error in errors), default=0.0), any(error.is_bound for error in errors)
    code = "output-alone-differs-as-summaries-tell" if is_bound else "output-alone-differs"
    are_told = errors or (not node.inputs and Role.INPUT in step.a.roles)
    alone = note(code, error=size, weights=equal) if are_told else note("inputs-not-compared")
    facts, sides = [] if finding.is_behind else [alone], [(each, "A" if each.a else "B") for each in lone]
    facts += [note("parameter-on-one-side", slot=each.slot_a or each.slot_b, side=side) for each, side in sides]
    advice = note("settings-of-norm" if "norm" in node.a.class_name.casefold() else "settings-of-module")
    advice = _code_of(step, node) if node.inner or node.a.is_operation else advice
    if len({each.a is None for each in lone}) == 1:
        advice = note("parameter-is-missing", slot=lone[0].slot_a or lone[0].slot_b, side="B" if lone[0].a else "A")
    facts += _unknown(step, node)
    if in_parts := tuple(each.slot_a for each in own if step.is_part(each)):
        facts, advice = [*facts, note("part-of-weight", slots=in_parts)], note("split-of-layer")
    names = node.a.class_name, node.b.class_name
    if names[0] != names[1]:
        facts.append(note("other-classes", a=names[0], b=names[1]))
    if event.a is not None and event.b is not None and event.a.dtype != event.b.dtype and _is_dtype_alone(event):
        facts.append(note("returns-another-dtype", a=event.a.dtype, b=event.b.dtype))
        advice = note("precision-of-module")
    shares = [taken_away(step.tensors(node, side, Role.INPUT), step.tensors(node, side, Role.OUTPUT)) for side in "AB"]
    is_active = [share > 0 for share in shares]
    if all("dropout" in name.casefold() for name in names) and any(is_active):
        if all(is_active):
            facts.append(note("dropout-active-on-both-sides", a=shares[0], b=shares[1]))
            advice = note("dropout-on-both-sides")
        else:
            facts.append(note("dropout-active-on-one-side", side="AB"[is_active.index(True)], share=max(shares)))
            advice = note("same-dropout-rate")
    if node.a.is_training != node.b.is_training:
        modes = ["training" if call.is_training else "evaluation" for call in (node.a, node.b)]
        facts.append(note("other-mode", a=modes[0], b=modes[1]))
        advice = note("same-mode")
    return facts, advice


def _is_dtype_alone(event: Event) -> bool:
    assert event.node is not None
    given = [each for each in event.node.inputs if each.a is not None and each.b is not None]
    return bool(given) and all(each.a.dtype == each.b.dtype for each in given if each.a and each.b)


def _caller(step: Step, finding: Finding) -> Said:
    event = finding.event
    if event is None or event.node is None:
        return [], _code_of(step, None)
    place = {"role": event.role.label, "slot": event.slot_a or event.slot_b, "path": event.node.a.path or "the model"}
    around = event.node.parent if event.role is Role.INPUT else event.node
    left = [] if finding.code == "unpaired-call" else _on_the_way(step, around, event, event.node)
    paths = tuple(dict.fromkeys(call.path for _, call in left))
    told = [note("not-compared-on-the-way", paths=paths)] if left else []
    facts = [note("differs-first", **place), *told, *_unknown(step, around)]
    ignored = {"A": step.matching.ignored_a, "B": step.matching.ignored_b}
    if any(call.module in ignored[side] for side, call in left):
        return facts, note("modules-left-out-by-mapping", paths=paths)
    if len(left) == 1:
        (side, call), *_ = left
        return facts, note("computed-in-its-place", class_name=call.class_name, other=sides(side == "A")["other"])
    return facts, _code_of(step, event.node if event.node.a.is_operation else around)


def _on_the_way(step: Step, around: Node | None, event: Event, node: Node) -> list[tuple[str, Call]]:
    """Return, with their sides, the calls that nothing is compared with and that ran before a tensor was made.

    They ran inside the same call, behind the last one that both sides make, and return something as large.
    """
    found: list[tuple[str, Call]] = []
    sizes = {each.size for each in event.both if each is not None}
    halves = ("A", step.a, step.matching.ignored_a), ("B", step.b, step.matching.ignored_b)
    for at, (side, half, left) in enumerate(halves):
        paired = {call for each in step.nodes for call in each.calls[at]}
        call, scope = node.calls[at][0], around.calls[at][0] if around is not None else None
        until = call.end if node is around else call.begin
        before = [each.calls[at][0] for each in (around.inner if around is not None else []) if each is not node]
        since = max((each.end for each in before if each.end <= until), default=-1 if scope is None else scope.begin)
        for each in half.calls:
            is_inside = since <= each.begin and each.end <= until and (scope is None or scope in each.callers())
            is_as_large = not each.inner and any(made.size in sizes for made in each.of(Role.OUTPUT).values())
            is_told = (each.module in left or is_as_large) and not any(outer.module in left for outer in each.callers())
            if is_inside and is_told and each not in paired:
                found.append((side, each))
    return found


def _unknown(step: Step, node: Node | None) -> list[Note]:
    """Say which inputs of a call were not compared, or one side alone was given."""
    unknown = [each.slot_a or each.slot_b for each in node.inputs if step.error(each) is None] if node else []
    return [note("not-known-to-agree", slots=tuple(unknown))] if unknown else []


def is_call_of_a_alone(step: Step, path: str) -> bool:
    """Return True if A made a call of a module that B made none for."""
    return any(call.path == path and call not in step.of_a for call in step.a.calls)


def _unpaired(step: Step, finding: Finding) -> Said:
    facts, path = _caller(step, finding)[0], finding.paths[0]
    is_a = is_call_of_a_alone(step, path)
    side, other = sides(is_a).values()
    half, there = (step.a, step.b) if is_a else (step.b, step.a)
    calls = [call for call in half.calls if call.path == path]
    share = taken_away(calls[0].of(Role.INPUT), calls[0].of(Role.OUTPUT)) if calls else 0.0
    if calls and "dropout" in calls[0].class_name.casefold() and share > 0:
        said = note("dropout-called-on-one-side", path=path, side=side, share=share)
        return [said, *facts], note("same-dropout-rate")
    module = calls[0].module if calls else -1
    partner = step.pair_of[module].b if is_a and module in step.pair_of else None if is_a else step.a_of.get(module)
    if partner is None:
        advice = note("lacks-module", side=other, is_mapped=bool(step.matching.lines))
    elif any(call.module == partner for call in there.calls):
        advice = note("code-that-makes-call", path=path, other=other)
    else:
        advice = note("code-that-calls-module", path=path, other=other, there=there.reader.modules[partner].path)
    return [note("computed-by-code-of-other-side", side=side, path=path, other=other), *facts], advice


# Backward


def _backward(step: Step, finding: Finding) -> Said:
    event = finding.event
    if event is None or event.node is None:
        return [], note("backward-of-module")
    path = event.node.a.path or "the whole model"
    if not event.is_paired:
        side = "A" if event.a is None else "B"
        return [note("passes-nothing-back", path=path, side=side)], note("cuts-graph-in-module", side=side)
    if finding.code == "own-backward":
        facts = [note("gradient-of-output-agrees"), note("passed-back-differs", slot=event.slot_a)]
    else:
        role = Role.OUTPUT if event.role is Role.GRAD_OUTPUT else Role.INPUT
        facts = [note("gradient-differs", path=path, role=role.label, slot=event.slot_a)]
        facts.append(note("passed-back-before-agrees"))
    is_of_loss = finding.phase is Phase.LOSS
    return facts, note("loss-function-and-scale", slot="") if is_of_loss else note("backward-of-module")


def _gradient(step: Step, finding: Finding) -> Said:
    event = finding.event
    if event is not None and not event.is_paired:
        (side, other), slot = sides(event.b is None).values(), event.slot_a or event.slot_b
        advice = note("does-not-learn", slot=slot, side=other, is_there=True)
        return [note("gradient-on-one-side", slot=slot, side=side)], advice
    if finding.code == "all-gradients":
        count, judged, factor, _ = finding.facts
        facts = [note("gradients-differ", count=count, judged=judged), *_by_one_factor(factor)]
    else:
        module = event.place[0] if event is not None and event.place is not None else -1
        arrived = any(node.a.module == module and node.a.of(Role.GRAD_OUTPUT) for node in step.nodes)
        facts = [note("gradient-of-parameter-differs", has_arrived=arrived)]
    return facts, _zero_rows(step, event) or note("accumulation-and-reduction")


def _zero_rows(step: Step, event: Event | None) -> Note | None:
    """Say so if one side gives whole rows of an embedding no gradient."""
    if event is None or event.a is None or event.b is None or event.place is None or len(event.a.shape) != 2:
        return None
    more, rest = divmod(abs(event.a.zeros - event.b.zeros), event.a.shape[1])
    is_embedding = "embed" in step.a.reader.modules[event.place[0]].class_name.casefold()
    if not is_embedding or rest or not 0 < more < event.a.shape[0]:
        return None
    return note("zero-rows-of-embedding", rows=int(more), side="A" if event.a.zeros > event.b.zeros else "B")


def _by_one_factor(factor: float = 0.0) -> list[Note]:
    return [note("all-by-one-factor", factor=factor)] if factor else []


# Weights, the loss


def _weight(step: Step, finding: Finding) -> Said:
    number = step.a.step
    when = note("before-step", step=number) if number else note("before-first-step")
    before = note("record-steps-before", step=number) if number else None
    if finding.code == "all-weights":
        count, judged, *_ = finding.facts
        told = note("parameters-differ", count=count, judged=judged, when=when)
        return [told], before or note("start-from-the-same-weights")
    advice = _moved(step, finding.event) or before or note("loading-of-weight")
    return [note("weights-differ", when=when)], advice


def _form(step: Step, finding: Finding) -> Said:
    assert finding.event is not None
    advice = "built-with-other-sizes" if finding.code == "weight-shape" else "other-kind-of-numbers"
    return [why_not(finding.event)], note(advice)


def _model_input(step: Step, finding: Finding) -> Said:
    event = finding.event
    is_open = event is not None and event.is_paired and step.error(event) is None
    told = why_not(event) if is_open and event is not None else note("model-is-given-other-inputs")
    if event is not None and finding.error is not None:
        told = form_note(event, finding.error) or told
    if event is not None and event.role is Role.VALUE and not is_open:
        told = note("logged-input-differs", slot=event.slot_a)
    return [*finding.facts, told][:1], note("same-batch")


def _moved(step: Step, event: Event | None) -> Note | None:
    """Say so if B has the values of a weight elsewhere, or in another order."""
    if event is None or event.a is None or event.b is None or event.place is None:
        return None
    others = step.b.params.get((Phase.INIT, Role.PARAM), {})
    if event.a.hash is not None:
        found = [place for place, each in others.items() if each.hash == event.a.hash and each is not event.b]
        if any(module == step.pair_of[event.place[0]].b for module, _ in found):
            paths = step.path(event.place[0]), step.b.reader.modules[step.pair_of[event.place[0]].b].path
            return note("rows-stand-in-another-order", path=paths[0], there=paths[1])
        if len(found) == 1 and event.a.low < event.a.high:
            module, _ = found[0]
            return note("weights-of-another-layer", a=step.path(event.place[0]), b=step.b.reader.modules[module].path)
    a, b = ((each.low, each.high, each.zeros, each.size) for each in (event.a, event.b))
    is_same = a == b and math.isclose(event.a.norm, event.b.norm, rel_tol=1e-6) and event.a.size > 1
    return note("same-numbers-in-another-order") if is_same else None


def _mapping(step: Step, finding: Finding) -> Said:
    event = finding.event
    assert event is not None and event.place is not None
    pair = step.pair_of[event.place[0]]
    paths = step.path(pair.a), step.b.reader.modules[pair.b].path
    return [note("mapping-says-pair", a=paths[0], b=paths[1], line=finding.facts[0])], note("loading-of-weight")


def _buffer(step: Step, finding: Finding) -> Said:
    event = finding.event
    slot = event.slot_a if event is not None else ""
    if finding.phase is not Phase.INIT:
        return [note("buffer-differs-after-step", slot=slot)], note("update-of-running-statistics")
    if slot.startswith("running"):
        said = note("running-statistics-differ", when=note("before-first-step"))
        return [said, note("output-of-module-differs")], note("loading-of-running-statistics")
    said = note("differs-first", role="buffer", slot=slot, path=finding.paths[0])
    return [said, note("output-of-module-differs")], note("settings-of-module")


def _loss(step: Step, finding: Finding) -> Said:
    error = finding.error
    if error is None:
        return [note("loss-alone-differs")], note("loss-function", behind="")
    facts, errors = [note("losses-differ", a=error.norm_a, b=error.norm_b)], _errors_of_outputs(step)
    facts += [note("sources-of-loss-agree", of_model=True, error=max(errors))] if errors else []
    return facts, note("loss-function", behind="")


def _loss_scale(step: Step, finding: Finding) -> Said:
    facts = [note("outputs-agree")] if _errors_of_outputs(step) else []
    return [*facts, note("gradients-scaled", factor=finding.facts[0])], note("loss-scale-or-reduction")


def _errors_of_outputs(step: Step) -> list[float]:
    """Return the errors of what the model itself returns."""
    outputs = [event for node in step.nodes if node.a.path == "" for event in node.outputs]
    return [each.size for each in map(step.error, outputs) if each is not None]


# The optimizer


def _update(step: Step, finding: Finding) -> Said:
    event, error, (count, judged, factor, _) = finding.event, finding.error, finding.facts
    assert event is not None and error is not None
    what, said, advice = _about_update(finding, event)
    if event.role is Role.DELTA and event.place not in step.a.params.get((Phase.UPDATE, Role.DELTA), {}):
        advice = note("writes-behind-step")
    if finding.paths != ("",):
        return [said], advice
    facts = [note("parameters-differ-in", what=Note(what), count=count, judged=judged)]
    return [*facts, *_by_one_factor(factor), note("first-of-them", said=said)], advice


def _about_update(finding: Finding, event: Event) -> tuple[str, Note, Note]:
    """Return the kind of tensors, what is wrong with one, and what to look at."""
    error = finding.error
    assert error is not None
    ratio = error.norm_b / error.norm_a if error.norm_a else math.inf
    if event.role is Role.PARAM_GRAD:
        zeros = "" if error.norm_a and error.norm_b else "B" if error.norm_a else "A"
        return "gradients-used", note("used-gradient-differs", zeros=zeros), note("clipping-and-unscaling")
    if event.role is Role.STATE:
        slot = event.slot_a.partition(".")[2]
        if event.a is not None and event.b is not None and slot.endswith("step"):
            said = note("other-count-of-steps", a=_count(event.a), b=_count(event.b))
            return "optimizer-states", said, note("loaded-state-and-skipped-steps")
        said = note("state-differs", name=slot, ratio=float(f"{ratio:.4g}"))
        return "optimizer-states", said, note("betas-and-first-state")
    if not event.is_paired:
        side, other = sides(event.b is None).values()
        return "updates", note("updated-on-one-side", side=side), note("not-given-to-optimizer", side=other)
    if error.view is View.NON_FINITE:
        return "updates", note("update-not-finite"), note("what-optimizer-divides-by")
    if not error.norm_a or not error.norm_b:
        side = "A" if not error.norm_a else "B"
        return "updates", note("not-changed-at-all", side=side), note("settings-of-parameter")
    if finding.code == "length-of-update" or (finding.code == "settings" and error.off > UPDATE_NORM):
        return "updates", note("update-is-longer", ratio=float(f"{ratio:.4g}")), note("learning-rate-and-schedule")
    if finding.code == "update-of-same-bits":
        return "updates", note("update-of-same-bits-differs"), note("learning-rate-and-correction")
    advice = "decay-of-group" if finding.code == "along-weight" else "settings-of-parameter"
    return "updates", note("update-differs", is_seen=event.role is not Role.PARAM), note(advice)


def _longer(step: Step, finding: Finding) -> Said:
    share, count, typical = finding.facts
    said = {"is_longer": typical > 0, "by": abs(math.expm1(typical))}
    facts = [note("updates-of-another-length", share=share, count=count, **said)]
    return facts, note("learning-rate-and-schedule")


def _behind(step: Step, finding: Finding) -> Said:
    return list(finding.facts[:2]), finding.facts[2]


def _settings(step: Step, finding: Finding) -> Said:
    """Say which settings differ; `Finding.facts` has them of each parameter concerned."""
    said = settings_note(setting for _, setting in finding.facts)
    names = tuple(f"{step.path(place[0])}.{place[1]}".lstrip(".") for place, _ in finding.facts)
    if not finding.is_shown:
        total = sum(len(group.parameters) for group in step.a.groups)
        which = [note("set-otherwise", names=", ".join(names), total=total)] if finding.paths != ("",) else []
        return [note("settings-not-shown", count=len(names), settings=said), *which], note("same-settings")
    facts = [_about_update(finding, finding.event)[1]] if finding.event is not None else []
    if finding.paths != ("",) and len(names) > 1:
        facts.append(
            note("updates-of-group-differ", names=names, total=len(names), group=str(finding.facts[0][1].group))
        )
    return facts, note("settings-differ", settings=said)


def settings_note(settings: Iterable[Setting]) -> Note:
    """Return which settings differ, by groups of A's optimizer."""
    groups: dict[tuple[Note, ...], dict[str, None]] = {}
    for each in settings:
        notes = tuple(
            note("other-optimizers", a=a, b=b)
            if name == CLASS
            else note("other-setting", name=name, a=_fact(a), b=_fact(b))
            for name, a, b in each.differing
        )
        groups.setdefault(notes, {})[str(each.group)] = None
    return note("settings", differing=tuple((notes, tuple(names)) for notes, names in groups.items()))


def _fact(value: object) -> object:
    """Return a setting as a fact: lists as tuples, which are equal if they are."""
    return tuple(map(_fact, value)) if isinstance(value, list | tuple) else value


_CODES: dict[Callable[[Step, Finding], Said], str] = {
    _own_code: "module",
    _caller: "caller maker-of-inputs",
    _unpaired: "unpaired-call",
    _model_input: "model-input",
    _weight: "weight all-weights",
    _form: "weight-shape weight-kind",
    _buffer: "buffer",
    _mapping: "mapping",
    _loss: "loss",
    _loss_scale: "loss-scale",
    _backward: "loss-behind own-backward code-behind",
    _gradient: "gradient all-gradients",
    _settings: "settings",
    _update: "used-gradient update update-of-same-bits length-of-update along-weight no-update one-sided-update state",
    _longer: "longer-updates",
    _behind: "behind-optimizer",
}
"""the codes of findings, by what is said of them"""
_FACTS = {code: said for said, codes in _CODES.items() for code in codes.split()}


def _count(counter: Tensor) -> int | float:
    return int(counter.mean) if math.isfinite(counter.mean) else counter.mean
