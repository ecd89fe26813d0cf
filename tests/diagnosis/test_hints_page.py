"""docs/reference/hints.md is made from the table of hints."""

from __future__ import annotations

import os
from pathlib import Path

from probe.diagnosis.hint import ACTIVATIONS, GRADIENTS, Hint
from probe.diagnosis.table import HINTS

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "hints.md"
HEAD = """# Hints

A hint says what an error looks like, and what to check. probe tests each finding against this table and gives the hints that its numbers
support, the best first: in the report behind `→`, in JSON as `hints`.

| grade | what it rests on |
|---|---|
| verified | probe computed the hypothesis from recorded tensors, and it gives what was recorded, up to noise that is clearly less than the error |
| strong | the error has this form; its cause was not computed |
| weak | only sketches or statistics say so, or only one side is explained |

- Most hints need values on both sides (`task="tensor"`). Statistics suffice for multiples (from sketches), one shift of all elements, relu against gelu or silu,
  dropout, tensors of one number, clipping, learning rate and weight decay.
- Random errors have no hint.
- Of hints that fit equally well, the first in the table comes first. A finding has at most three, a step those of its first eight findings.
- Only the first 4,194,304 elements of a tensor are read; of larger ones, hints about the whole (places, orders) are skipped.
- A hint that fails is left out; a warning names it and its error.

An entry of `hints` has `name`, `grade`, `verified`, `code` and `found` (what was found, as code and in words), `from` (what it was verified from), `check`, and
`numbers` (`{"eps_a": 1e-06, "eps_b": 1e-05}`).

This page is made from `probe/diagnosis/hints.yaml` and the docstrings of its tests
(`OVERWRITE_GOLDEN=1 python -m pytest tests/diagnosis/test_hints_page.py`). `tests/torch/hint_faults_*.py` plants a fault for each row.

*Activations* are input, output and value; *gradients* grad_output, grad_input, grad_total and param_grad. ″ repeats the cell above.

| name | for | looks like | look at |
|---|---|---|---|
"""
GROUPS = {"activations": ACTIVATIONS, "gradients": GRADIENTS}


def roles_of(hint: Hint) -> str:
    """Return the roles that a hint is for; groups of them by their names."""
    left, said = list(hint.roles), []
    for name, group in GROUPS.items():
        if set(group) <= set(left):
            said.append(name)
            left = [role for role in left if role not in group]
    return ", ".join([*said, *(role.label for role in left)])


def page() -> str:
    """Return the page."""
    rows, above = [], ""
    for hint in HINTS:
        look = "″" if hint.looks_like == above else hint.looks_like
        rows.append(f"| {hint.name} | {roles_of(hint)} | {look} | {hint.check} |")
        above = hint.looks_like
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
