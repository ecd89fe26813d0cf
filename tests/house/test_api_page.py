"""docs/reference/api.md lists every public name; its second columns are made from the docstrings (``OVERWRITE_GOLDEN=1`` writes them)."""

from __future__ import annotations

import inspect
import os
import pkgutil
import re
from pathlib import Path

import probe
from probe import errors

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "api.md"
ROW = re.compile(r"^\| `(probe\.[\w.]+)` \|.*$", re.MULTILINE)
LISTED = ROW.findall(PAGE.read_text(encoding="utf-8"))


def row(match: re.Match[str]) -> str:
    """Return the row of a name as its docstring has it."""
    first = (inspect.getdoc(pkgutil.resolve_name(match[1])) or "").partition("\n")[0]
    return f"| `{match[1]}` | {first.replace('``', '`').replace('|', chr(92) + '|')} |"


def returned() -> set[str]:
    """Return the names of the classes of probe that its public functions return or give to a ``with`` block."""
    functions = [getattr(probe, name) for name in probe.__all__ if name != "__version__"]
    annotations = [str(inspect.signature(function).return_annotation) for function in functions]
    return {name for each in annotations for name in re.findall(r"\b[A-Z]\w+", each)} - {
        "Any",
        "Iterator",
        "None",
        "Path",
    }


def test_every_public_name_is_listed_once() -> None:
    public = {f"probe.{name}" for name in probe.__all__ if name != "__version__"}
    assert {name for name in LISTED if name.count(".") == 1} == public
    assert len(LISTED) == len(set(LISTED))


def test_what_public_functions_return_and_raise_is_listed() -> None:
    classes = {name.rpartition(".")[2] for name in LISTED}
    assert "Comparison" in returned()
    assert returned() - classes == set()
    raised = {name for name, each in vars(errors).items() if inspect.isclass(each)}
    assert raised - classes == set()


def test_the_rows_are_the_first_lines_of_the_docstrings() -> None:
    text = PAGE.read_text(encoding="utf-8")
    made = ROW.sub(row, text)
    if os.environ.get("OVERWRITE_GOLDEN"):
        PAGE.write_text(made, encoding="utf-8")
    assert made == PAGE.read_text(encoding="utf-8"), "OVERWRITE_GOLDEN=1 writes docs/reference/api.md anew"
