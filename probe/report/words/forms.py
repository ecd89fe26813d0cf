"""How a sentence of `english.ini` writes its facts: fields of `str.format`, with forms and choices of their own.

``{count:many pair}``
    a form of `FORMS`, here ``1 pair`` or ``2 pairs``; what stands behind its name is told to it
``{a,b:in-each}``
    a form of two facts
``{why:?: {why}|.}``
    what stands before the ``|`` where the fact is given (neither None, False nor empty), else what stands behind it
``{count:1?is|are}``, ``{side:A?less|more}``, ``{a:=b?{a} on both sides|{a} in A, {b} in B}``
    what stands before the ``|`` where the fact, or how many it holds, is that, or is the other fact
``{pairs:each {0} for {1}}``
    a list, of which each has several parts
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from configparser import ConfigParser
from numbers import Real
from pathlib import Path
from string import Formatter
from typing import Any

from probe.answer.guards import grouped

_CHOICE = re.compile(r"(=?[\w-]*)\?(.*)", re.DOTALL)
_FIELDS = Formatter()
MOST_NAMED = 4
"""names in a sentence"""
METRICS = {
    "max_abs": "max |Δ|", "mean_abs": "mean |Δ|", "max_rel": "max |Δ|/|a|", "rel_l2": "rel", "cosine": "1 − cos",
    "allclose": "|Δ|",
}  # fmt: skip
"""what an error is measured by, in a few characters"""


def _read() -> dict[str, dict[str, str]]:
    found = ConfigParser(delimiters=("=",), comment_prefixes=("#",), interpolation=None, default_section="")
    found.optionxform = str  # type: ignore[assignment, method-assign]
    found.read(Path(__file__).with_name("english.ini"), encoding="utf-8")
    return {name: {key: text.replace("\n", " ") for key, text in found[name].items()} for name in found.sections()}


_SECTIONS = _read()
SENTENCES = {name: table for name, table in _SECTIONS.items() if not name.startswith("parts ")}
"""by code"""
PARTS = {name.removeprefix("parts "): table for name, table in _SECTIONS.items() if name not in SENTENCES}
"""of sentences: what to look at by the name of a hint, where NaN begins by its origin"""


def filled(template: str, facts: Mapping[str, Any]) -> str:
    """Return a sentence with its facts."""
    parts = []
    for text, name, spec, conversion in _FIELDS.parse(template):
        parts.append(text)
        if name is not None:
            found = [_FIELDS.get_field(each, (), facts)[0] for each in name.split(",")]
            fact = _FIELDS.convert_field(found[0] if len(found) == 1 else found, conversion)  # type: ignore[arg-type]
            choice = _CHOICE.fullmatch(spec or "")
            parts.append(
                filled(_chosen(fact, choice[1], choice[2], facts), facts) if choice else _written(fact, spec or "")
            )
    return "".join(parts)


def _written(fact: Any, spec: str) -> str:
    name, _, told = spec.partition(" ")
    form = FORMS.get(name)
    return form(fact, told) if form is not None else format(fact, spec)


def _chosen(fact: Any, wanted: str, choices: str, facts: Mapping[str, Any]) -> str:
    then, _, otherwise = _split(choices)
    if not wanted:
        return then if _is_given(fact) else otherwise
    if wanted.startswith("="):
        return then if fact == facts[wanted[1:]] else otherwise
    if not isinstance(fact, (str, Real)):
        fact = len(fact)
    return then if (str(fact) if isinstance(fact, str) else f"{float(fact):.17g}") == wanted else otherwise


def _is_given(fact: Any) -> bool:
    """Return True if a fact is known; a number always is."""
    return bool(fact) or (isinstance(fact, Real) and not isinstance(fact, bool))


def _split(choices: str) -> tuple[str, str, str]:
    """Part choices at the first ``|`` outside of braces."""
    depth = 0
    for at, sign in enumerate(choices):
        depth += (sign == "{") - (sign == "}")
        if sign == "|" and not depth:
            return choices[:at], sign, choices[at + 1 :]
    return choices, "", ""


def counted(number: int, noun: str) -> str:
    """Return a number of things in words, as ``1 step`` and ``2 steps``."""
    return f"{number} {noun}" + ("" if number == 1 else "s")


def in_model(path: str) -> str:
    """Name a module, where the root is the model."""
    return path or "the model"


def listed(texts: Sequence[object], separator: str = ",") -> str:
    """List the first texts, and how many more there are."""
    more = f" and {len(texts) - MOST_NAMED} more" if len(texts) > MOST_NAMED else ""
    return f"{f'{separator} '.join(map(str, texts[:MOST_NAMED]))}{more}"


def joined(names: Sequence[str]) -> str:
    """Return names as a list that ends with “and”, the first where they are many."""
    if len(names) > MOST_NAMED:
        return listed(names)
    return " and ".join(filter(None, [", ".join(names[:-1]), names[-1]]))


def in_each(sides: Sequence[Sequence[str]]) -> str:
    """Name what each side alone has."""
    return "; ".join(
        f"{grouped(names, MOST_NAMED)} in {side}" for side, names in zip("AB", sides, strict=True) if names
    )


def first(numbers: Sequence[object], most: int) -> str:
    """Return the first of many, with a sign that there are more."""
    return ", ".join(map(str, numbers[:most])) + (" …" if len(numbers) > most else "")


def written(factor: float) -> str:
    """Return a factor in words; one over a whole number as such where six digits do not tell it."""
    inverse = 1 / factor if factor else 0.0
    is_whole = abs(inverse) >= 1.5 and math.isclose(inverse, round(inverse), rel_tol=1e-6)
    if is_whole and float(f"{factor:.6g}") != 1 / round(inverse):
        return f"{'-' if inverse < 0 else ''}1/{abs(round(inverse))}"
    return f"{factor:.6g}"


def sure(confidence: float) -> str:
    """Write how sure a guess is: ``98 % sure``."""
    return f"{min(round(100 * confidence), 99)} % sure"


def percent(share: float, digits: object = 1) -> str:
    """Write a share with so many digits that count."""
    return f"{float(f'{100 * share:.{digits or 1}g}'):g} %"


def lines(names: Sequence[str]) -> str:
    """Write ``line 2 of m.yaml``, ``line 3 of m.yaml`` as ``line 2, line 3 of m.yaml``."""
    parts = [name.rpartition(" of ") for name in names]
    return f"{listed([part[0] for part in parts])} of {parts[0][2]}"


def layers(members: Sequence[tuple[str, int]]) -> str:
    """Write members of a list as ``model.layers.3–5, 7``."""
    runs: list[list[int]] = []
    for at, (_, number) in enumerate(members):
        if runs and number == members[at - 1][1] + 1:
            runs[-1][1] = at
        else:
            runs.append([at, at])
    texts = [members[0][0] if not low else str(members[low][1]) for low, _ in runs]
    ends = ["" if low == high else f"–{members[high][1]}" for low, high in runs]
    return listed([f"{text}{end}" for text, end in zip(texts, ends, strict=True)])


def ranks(numbers: Sequence[int]) -> str:
    """Name ranks: ``rank 3``, ``ranks 0, 1``."""
    more = f" … ({len(numbers)} ranks)" if len(numbers) > _MOST_RANKS else ""
    return f"{'rank' if len(numbers) == 1 else 'ranks'} {', '.join(map(str, numbers[:_MOST_RANKS]))}{more}"


_MOST_RANKS = 8


def _argument(slot: str) -> str:
    return f"argument {slot}" if slot[:1].isdigit() else slot


def _value(value: object) -> str:
    """Write a setting as it was recorded: several numbers are a list."""
    return f"[{', '.join(map(_value, value))}]" if isinstance(value, tuple) else str(value)


def _multiple(factor_and_count: Sequence[float]) -> str:
    factor, count = factor_and_count
    return f"{count:g}" if factor > 1 else f"1/{count:g}"


def _number(fact: Any) -> int:
    return fact if isinstance(fact, Real) else len(fact)  # type: ignore[return-value]


FORMS: Mapping[str, Callable[[Any, str], str]] = {
    # how many
    "many": lambda count, noun: counted(count, noun),
    "many-more": lambda count, noun: counted(count - 1, f"more {noun}"),
    "number": lambda names, _: str(len(names)),
    "less-one": lambda fact, _: str(_number(fact) - 1),
    # lists
    "commas": lambda facts, _: ", ".join(map(str, facts)),
    "semicolons": lambda facts, _: "; ".join(map(str, facts)),
    "join": lambda facts, word: f" {word} ".join(map(str, facts)),
    "each": lambda facts, template: ", ".join(template.format(*parts) for parts in facts),
    "and": lambda names, _: joined(names),
    "listed": lambda names, separator: listed(names, separator or ","),
    "grouped": lambda names, most: grouped(names, int(most or MOST_NAMED)),
    "in-each": lambda sides, _: in_each(sides),
    "first": lambda numbers, most: first(numbers, int(most)),
    "more": lambda both, _: f" and {both[0] - len(both[1])} more" if both[0] > len(both[1]) else "",
    "cut": lambda facts, most: ", ".join(map(str, facts[: int(most)])),
    "list": lambda sizes, _: str(list(sizes)),
    "lines": lambda names, _: lines(names),
    "keys": lambda keys, _: " or ".join(f"{key}: …" for key in keys),
    "layers": lambda members, _: layers(members),
    "numbered": lambda members, _: ", ".join([members[0][0], *(str(number) for _, number in members[1:])]),
    "runs": lambda runs, _: ", ".join(str(low) if low == high else f"{low}–{high}" for low, high in runs),
    "ranks": lambda numbers, _: ranks(numbers),
    "arguments": lambda slots, _: ", ".join(map(_argument, slots)),
    # names
    "part": lambda name, section: PARTS[section][name],
    "parts": lambda names, section: "; ".join(dict.fromkeys(PARTS[section][name] for name in names)),
    "basis": lambda by, _: by.removeprefix("same "),
    "root": lambda path, _: path or "the root",
    "model": lambda path, _: in_model(path),
    "in-model": lambda path, _: "" if path is None else f" in {in_model(path)}",
    "metric": lambda metric, _: METRICS[metric],
    "argument": lambda slot, _: _argument(slot),
    "file": lambda path, _: path.replace("\\", "/").rpartition("/")[2],
    "line": lambda text, _: text.replace("\n", " "),
    # numbers
    "value": lambda value, _: _value(value),
    "figure": lambda value, _: f"{value:.6g}" if isinstance(value, float) else str(value),
    "sure": lambda confidence, _: sure(confidence),
    "percent": percent,
    "percent-of": lambda parts, _: percent(parts[0] / parts[1], 2),
    "ratio": lambda parts, _: f"{parts[0] / parts[1]:.3g}",
    "sum": lambda parts, _: str(sum(parts)),
    "larger": lambda sides, _: "A" if sides[0] > sides[1] else "B",
    "bound": lambda both, _: f"{both[0]:.2g} times the tolerance" if both[1] == "allclose" else f"{both[0]:.1e}",
    "share": lambda share, _: f"{share:.1%}" if share < 1 else "all",
    "factor": lambda factor, _: written(factor),
    "multiple": lambda both, _: _multiple(both),
    "signed": lambda shift, _: f"{'+' if shift > 0 else '−'} {abs(shift):.5g}",
}
"""by the name that stands in a field: how a fact is written, given what stands behind the name"""
