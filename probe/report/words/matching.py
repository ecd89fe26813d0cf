"""Which modules are pairs: lines of a mapping, what was guessed, what one model has otherwise (`Matching.notes`, `Change.note`)."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from probe.comparison.coverage.guards import grouped
from probe.comparison.notes import Note
from probe.mapping import TOP
from probe.report.words.notes import in_root, some

_MOST_NAMED = 4
_MOST_BLOCKS = 12
_UNSURE = {
    "same-weights": "they have the same weights",
    "no-same-weights": "no initial weights are the same on both sides",
    "no-weights": "no initial weights are known",
}
"""why nothing tells which layers one side alone has"""

Members = Sequence[tuple[str, int]]
"""of a list: paths and numbers"""


# Lines of a mapping


def _meant(near: str) -> str:
    return f"; did you mean {near}?" if near else ""


def _leads_to_nothing(
    rule: str, path: str | None, count: int, near: str, target: str, elsewhere: str, outside: str
) -> str:
    which = f" ({target})" if target else ""
    of = f" for {path}" if path is not None else ""
    more = f" and {count - 1} more" if of and count > 1 else ""
    there = f"; {elsewhere} is there, outside of {in_root(outside)}" if elsewhere else ""
    return f"the mapping's {rule} leads to nothing on the other side{which}{of}{more}{_meant(near)}{there}"


def _alone(key: str) -> str:
    return f"; {key}: …, below params in {TOP}, would compare the weight alone" if key else ""


def _without_counterpart(
    path: str, class_name: str, since: str | None, keys: Sequence[str], section: str, alone: str
) -> str:
    why = "" if since is None else f", since {since} has none"
    lines = " or ".join(f"{key}: …" for key in keys)
    return (
        f"is not used: {path} ({class_name}) has no counterpart{why}; a line {lines} in section {section} would say where it is"
        f"{_alone(alone)}"
    )


def _part_of_whole(line: str, part: str, whole: str) -> str:
    return f"{f'{line}: ' if line else ''}{part} is one of several parts of {whole}"


def _completed(line: str, part: str, whole: str, parts: Sequence[str], better: str) -> str:
    what = f"{', '.join(parts)} together are compared with it"
    return f"{_part_of_whole(line, part, whole)}: {what}{f'; write {better}' if better else ''}"


# How rows lie


def _groups(count: int) -> str:
    return "one after the other" if count == 1 else f"in {count} groups"


def _like_it(count: int) -> str:
    return f" and {count - 1} more like it" if count > 1 else ""


def _order(order: Sequence[int]) -> str:
    shown = ", ".join(map(str, order[:_MOST_BLOCKS])) + (", …" if len(order) > _MOST_BLOCKS else "")
    return f"{len(order)} blocks, B's {shown}" if order else "they lie alike"


def _number_not_known(number: str, paths: Sequence[str]) -> str:
    more = f" and {len(paths) - 1} more are" if len(paths) > 1 else " is"
    return f"{number}, nor do the weights say it: {paths[0]}{more} not compared; write the number, or another key"


def _rows(a: str, b: str, count: int, order: Note) -> str:
    return (
        f"A's {a} and B's {b}{_like_it(count)} hold the same rows in another order ({order}), and what their callers return agrees: it is a "
        "layout, and they are compared row by row; a mapping says it with split"
    )


def _parts(side: str, path: str, count: int, parts: Sequence[str], groups: int) -> str:
    names = ", ".join(parts)
    each = f" in each of {groups} groups" if groups > 1 else ""
    return (
        f"{side}'s {path}{_like_it(count)} hold {names} in this order{each}, and what is made of them agrees: it is a layout; a mapping "
        f"says it with [{names}]"
    )


# What one model has, or does, otherwise


def _layers(members: Members) -> str:
    """Write members as ``model.layers.3–5, 7``."""
    runs: list[list[int]] = []
    for at, (_, number) in enumerate(members):
        if runs and number == members[at - 1][1] + 1:
            runs[-1][1] = at
        else:
            runs.append([at, at])
    texts = [members[0][0] if not low else str(members[low][1]) for low, _ in runs]
    ends = ["" if low == high else f"–{members[high][1]}" for low, high in runs]
    return some([f"{text}{end}" for text, end in zip(texts, ends, strict=True)])


def _on_one_side(
    side: str, layers: Members, classes: Sequence[str], among: Members, why: str, moved: Sequence[Note]
) -> str:
    is_one = len(layers) == 1
    how_many = "one layer" if is_one else f"{len(layers)} layers"
    more, whose = ("more", "") if side == "B" else ("less", "A's ")
    which = f"{whose}{_layers(layers)} ({', '.join(classes)}) {'has' if is_one else 'have'} no counterpart"
    unsure = (
        f"; which of {_layers(among)} {'it is' if is_one else 'they are'} cannot be told: {_UNSURE[why]}" if why else ""
    )
    return f"B has {how_many} {more}: {which}{unsure}{f'; {some(list(map(str, moved)))}' if moved else ''}"


def _reordered(a: Members, b: Members) -> str:
    mine, theirs = (", ".join([each[0][0], *(str(number) for _, number in each[1:])]) for each in (a, b))
    return f"another order in B: A's {mine} are B's {theirs}"


def _swapped(a: Sequence[str], b: Sequence[str], classes: Sequence[str]) -> str:
    what = " and ".join(dict.fromkeys(classes))
    if list(a) == list(b)[::-1]:
        return f"{a[0]} and {a[1]} ({what}) are swapped: what A has at the one, B has at the other"
    return f"A's {a[0]} and {a[1]} ({what}) are swapped: they are B's {b[0]} and {b[1]}"


def _holds(
    side: str, path: str, class_name: str, inner: str, inner_class: str, other: str, of_other: str
) -> str:  # fmt: skip
    there = f"{other}'s {of_other}" if of_other else f"the whole of {other}"
    return f"{side}'s {path or 'root'} ({class_name}) only holds {inner} ({inner_class}), which is {there}: it is stepped over"


def _number_of_calls(
    side: str, path: str, class_name: str, step: int, calls: Sequence[int], total: int, place: Note
) -> str:
    is_one = len(calls) == 1
    times = "one time" if is_one else f"{len(calls)} times"
    listed = ", ".join(map(str, calls[:_MOST_NAMED])) + (" …" if len(calls) > _MOST_NAMED else "")
    which = f"call{'' if is_one else 's'} {listed} of {total}, {'' if is_one else 'the first '}{place}"
    less, whose = ("less", "A's ") if side == "A" else ("more", "")
    return f"B calls {path} ({class_name}) {times} {less} in step {step}: {whose}{which}, {'has' if is_one else 'have'} no counterpart"


def _place(before: Note | None, after: Note | None) -> str:
    if before is not None and after is not None:
        return f"between {before} and {after}"
    if before is not None:
        return f"after {before}"
    return f"before {after}" if after is not None else "alone in what calls it"


WORDS: dict[str, str | Callable[..., str]] = {
    # lines of a mapping
    "mapping-fits-both-sides": (
        "the mapping fits both sides equally well; it is read as written from A: --map-direction decides"
    ),
    "ignore-fits-nothing": "the mapping's {line} fits nothing on either side",
    "section-of-no-module": "the mapping's line {line}: {section}: {why}",
    "modules-of-the-other-side": "only {other} has such modules, and the mapping is read from {side}",
    "no-module-of-the-class": lambda near: f"no module is of this class{_meant(near)}",
    "no-module-at-the-path": "no module is at such a path",
    "line-lacks-a-part": lambda rule, path, name, near: (
        f"the mapping's {rule} is not used for {in_root(path)}: there is no {name}{_meant(near)}"
    ),
    "line-unused": "the mapping's {rule} {why}",
    "line-behind-others": "is never used: lines with longer keys, or for the path, go before it",
    "line-names-nothing": lambda near: f"names nothing that is there{_meant(near)}",
    "line-names-no-parameter": lambda near: f"names no parameter that is there{_meant(near)}",
    "line-leads-to-nothing": _leads_to_nothing,
    "line-leads-to-no-parameter": lambda rule, path, name: (
        f"the mapping's {rule} leads to nothing on the other side for {in_root(path)}: there is no {name}"
    ),
    "module-without-counterpart": _without_counterpart,
    "module-in-a-list-without-counterpart": lambda path, class_name, models, alone: (
        f"is not used: {path} ({class_name}) has no counterpart; {models}{_alone(alone)}"
    ),
    "several-models-in-a-list": lambda count, key: (
        f"the {count} models in the list at the top are parts of the other side's one: below {TOP}, say of each where its parts are, such "
        f"as 0.{key}: layers.{{i}} and 1.{key}: layers.{{i+8}} if the first has 8 of the layers"
    ),
    "weight-without-module": lambda name, of, names, side: (
        f"{name} of {of} is not compared with {', '.join(names)} of {side}: its module has no counterpart"
    ),
    "part-of-whole-not-compared": lambda line, part, whole: (
        f"{_part_of_whole(line, part, whole)}: only what they are given is compared; name all parts in a list"
    ),
    "parts-of-whole-completed": _completed,
    # how rows lie
    "parts-lie-otherwise": lambda side, name, groups, others, of_others: (
        f"the parts of {side}'s {name} lie {_groups(groups)}, those of {others} others of its class {_groups(of_others)}: it is compared "
        "as if they lay as in the others"
    ),
    "number-read-from-weights": "{number}; the weights say {value}",
    "number-not-known": _number_not_known,
    "parts-in-groups": "{parts} parts in {groups} groups in {grouped}, one after the other in {other}",
    "order-of-blocks": _order,
    "rows-in-another-order": _rows,
    "parts-in-another-order": _parts,
    # what one model has, or does, otherwise
    "layers-on-one-side": _on_one_side,
    "layers-moved": lambda a, b: f"A's {_layers(a)} {'is' if len(a) == 1 else 'are'} B's {_layers(b)}",
    "layers-reordered": _reordered,
    "layers-swapped": _swapped,
    "module-only-holds": _holds,
    "calls-in-another-order": lambda step, paths: (
        f"B calls in another order than A in step {step}, told by what they are given and return: {grouped(paths, _MOST_NAMED)}"
    ),
    "other-number-of-calls": _number_of_calls,
    "place-among-calls": _place,
    "call-of-module": lambda path, call: path if call is None else f"call {call} of {path}",
    "recomputed-on-one-side": lambda side, other, paths: (
        f"{side} runs {grouped(paths, _MOST_NAMED)} again in backward (recomputed, activation checkpointing), {other} does not; what runs "
        "again is not compared"
    ),
}
