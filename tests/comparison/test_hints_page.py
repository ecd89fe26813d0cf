"""docs/hints.md is made from the table of hints."""

from __future__ import annotations

import os
from pathlib import Path

from probe.comparison.hints import HINTS

PAGE = Path(__file__).parents[2] / "docs" / "hints.md"
HEAD = """# Hints

What an error looks like, and what to check. Each finding of a comparison is held against the hints below; those that its numbers
support are given with it, the best first: in the report behind `→`, in JSON as `hints`.

| grade | what it rests on |
|---|---|
| verified | a hypothesis was computed from recorded tensors and gives what was recorded, up to noise that is clearly less than the error |
| strong | the error has this form; what made it so was not computed |
| weak | sketches or statistics alone say so |

- Most hints need values on both sides (`task="tensor"`). From statistics alone come multiples (from sketches), one shift of all elements, relu against gelu or silu,
  dropout, tensors of one number, clipping, learning rate and weight decay.
- Where no hint is supported by the numbers, none is given: random errors of every size have none (`tests/torch/test_hints_torch.py`).
- Where several fit as well, the first in the table is said first. At most three are kept, and those of the first eight findings of a step.
- Of tensors of more than 4,194,304 elements the leading part is read; what is about all of a tensor (places, orders) is not tried then.
- What the walk itself found out, such as settings that differ or a mode of training, stays the text of the finding; hints stand beside it
  in JSON.
- A hint that fails is left out, with a warning that names it and the error; the comparison stands.

In JSON each entry of `hints` has `name`, `grade`, `verified`, `found` (in words), `from` (what it was verified from), `check` and
`numbers` (the same as data, `{"eps_a": 1e-06, "eps_b": 1e-05}`).

The table is `computed.py` and, behind it, `looks.py` in `probe/comparison/hints/`; this page is made from both
(`OVERWRITE_GOLDEN=1 python -m pytest tests/comparison/test_hints_page.py`). `tests/torch/hint_faults_*.py` plants at least one
fault for each row, and the first hint must be the right one.

| name | for | looks like | look at |
|---|---|---|---|
"""


def page() -> str:
    """Return the page."""
    rows = []
    for hint in HINTS:
        roles = ", ".join(role.label for role in hint.roles)
        rows.append(f"| {hint.name} | {roles} | {hint.looks_like} | {hint.check} |")
    return HEAD + "\n".join(rows) + "\n"


def test_the_page_is_what_the_table_says() -> None:
    if os.environ.get("OVERWRITE_GOLDEN"):
        PAGE.write_text(page(), encoding="utf-8")
    assert page() == PAGE.read_text(encoding="utf-8"), "OVERWRITE_GOLDEN=1 writes docs/hints.md anew"


def test_names_are_unique_and_words_are_there() -> None:
    names = [hint.name for hint in HINTS]
    assert len(set(names)) == len(names)
    assert all(
        hint.roles and hint.looks_like and hint.check and "|" not in hint.looks_like + hint.check for hint in HINTS
    )
