"""Judge pairs of recordings: a process of its own, that knows of `probe` alone, so that any version of it can be asked.

Reads tasks from standard input, a JSON list of ``[name, file A, file B, mapping]``, and writes a line of JSON for each: ``[name, answer]``.
"""

from __future__ import annotations

import json
import sys
import warnings
from typing import Any

import probe


def answer(found: Any) -> dict[str, Any]:
    """Return all that a comparison says, without the tables of what it compared."""
    said = found.as_json()
    return {
        "verdict": said["verdict"],
        "findings": [_finding(each) for each in said["divergences"]],
        "doubts": list(found.doubts),
        "notes": list(found.warnings),
        "left_out": said.get("left_out", []),
        "coverage": said["coverage"],
    }


def _finding(said: dict[str, Any]) -> dict[str, Any]:
    sides = {side: [[ref["path"], ref["call"], ref["slot"]] for ref in said[side]] for side in "ab"}
    step = (said["a"] or said["b"])[0]["step"]
    rest = {key: said[key] for key in ("phase", "role", "kind", "confidence", "limit", "evidence", "hint")}
    hints = [{key: value for key, value in hint.items() if key != "text"} for hint in said["hints"]]
    return {"step": step, **sides, **rest, "hints": hints}


def main() -> None:
    """Answer every task; an exception is an answer too."""
    warnings.simplefilter("ignore")
    for name, a, b, mapping in json.load(sys.stdin):
        try:
            found = answer(probe.compare(a, b, mapping=mapping))
        except Exception as error:
            found = {"verdict": "error", "findings": [], "doubts": [repr(error)], "notes": [], "left_out": [], "coverage": {}}  # fmt: skip
        print(json.dumps([name, found], ensure_ascii=False), flush=True)


if __name__ == "__main__":
    main()
