"""A process that judges: once with a trace of what fires, then with functions left out.

Reads lines of JSON: ``{"trace": cases}`` or ``{"without": [name, …], "cases": cases}``, a case being ``[name, file A, file B, mapping]``; writes
a line for each: ``{case: [answer, [names of what fired]]}`` or ``{case: answer}``.
"""

from __future__ import annotations

import json
import sys
import warnings
from contextlib import ExitStack
from inspect import CO_GENERATOR
from typing import Any

import probe
from benchmarks.ablation.neutral import fires, functions, left_out

_ALL = functions()
_BY_NAME = {name: function for name, function in _ALL.values()}
_PROCEDURES = {name for name, function in _BY_NAME.items() if function.__annotations__["return"] == "None"}
"""these fire when they are called"""


def main() -> None:
    """Answer until there is nothing more to read."""
    warnings.simplefilter("ignore")
    for line in sys.stdin:
        asked = json.loads(line)
        if "trace" in asked:
            found: dict[str, Any] = {case[0]: _traced(*case[1:]) for case in asked["trace"]}
        else:
            with ExitStack() as stack:
                for name in asked["without"]:
                    stack.enter_context(left_out(_BY_NAME[name]))
                found = {case[0]: _answer(*case[1:]) for case in asked["cases"]}
        print(json.dumps(found), flush=True)


def _traced(a: str, b: str, mapping: Any) -> tuple[Any, list[str]]:
    fired = set()

    def look(frame: Any, event: str, answer: Any) -> None:
        if event == "return" and (known := _ALL.get(frame.f_code)) is not None and known[0] not in fired:
            if frame.f_code.co_flags & CO_GENERATOR or known[0] in _PROCEDURES or fires(answer):
                fired.add(known[0])

    sys.setprofile(look)
    try:
        answer = _answer(a, b, mapping)
    finally:
        sys.setprofile(None)
    return answer, sorted(fired)


def _answer(a: str, b: str, mapping: Any) -> list[Any]:
    """Return the verdict, and the step, phase and paths of the first three places; an error is an answer too."""
    try:
        found = probe.compare(a, b, mapping=mapping)
    except Exception as error:
        return [f"error: {error!r}", []]
    places = [[each.step, each.phase.label, [ref.path for ref in each.a or each.b]] for each in found.divergences[:3]]
    return [found.verdict.value, places]


if __name__ == "__main__":
    main()
