"""docs/reference/hints.md is made from the table of hints."""

from __future__ import annotations

import os
from pathlib import Path

from probe.diagnosis.table import HINTS

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "hints.md"
HEAD = """# Hints

A hint says what an error looks like, and what to check. probe tests each finding against the hints below and gives those that its numbers
support, the best first: in the report behind `→`, in JSON as `hints`.

| grade | what it rests on |
|---|---|
| verified | probe computed the hypothesis from recorded tensors, and it gives what was recorded, up to noise that is clearly less than the error |
| strong | the error has this form; its cause was not computed |
| weak | only sketches or statistics say so |

- Most hints need values on both sides (`task="tensor"`). Statistics alone suffice for multiples (from sketches), one shift of all elements, relu against gelu or silu,
  dropout, tensors of one number, clipping, learning rate and weight decay.
- If the numbers support no hint, none is given: random errors of every size have none (`tests/torch/test_hints_torch.py`).
- If several fit equally well, the first in the table comes first. At most three are kept, for the first eight findings of a step.
- Of tensors with more than 4,194,304 elements only the leading part is read; hints about a whole tensor (places, orders) are then skipped.
- What the comparison itself found out, such as different settings or training modes, stays the text of the finding; hints stand beside it
  in JSON.
- If a hint fails, a warning names it and the error, and the comparison goes on without it.

In JSON each entry of `hints` has `name`, `grade`, `verified`, `code` (of what was found), `found` (in words), `from` (what it was verified from), `check` and
`numbers` (the same as data, `{"eps_a": 1e-06, "eps_b": 1e-05}`).

The table is `probe/diagnosis/table.py`; this page is made from it and from the tests' docstrings
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
    assert page() == PAGE.read_text(encoding="utf-8"), "OVERWRITE_GOLDEN=1 writes docs/reference/hints.md anew"


def test_names_are_unique_and_words_are_there() -> None:
    names = [hint.name for hint in HINTS]
    assert len(set(names)) == len(names)
    assert all(
        hint.roles and hint.looks_like and hint.check and "|" not in hint.looks_like + hint.check for hint in HINTS
    )
