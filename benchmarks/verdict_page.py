"""`python -m benchmarks.verdict_page`: the tables of the verdict, as docs/reference/verdict.md lists them; `--check` writes nothing."""

from __future__ import annotations

import ast
import inspect
import re
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from types import ModuleType

import probe.verdict
from probe.answer.why import ANSWERS, LEFT
from probe.verdict.distance import views
from probe.verdict.noise import model, terms

PAGE = Path(__file__).parent.parent / "docs" / "reference" / "verdict.md"
_PART = re.compile(r"(<!-- begin: (\w+), by python -m benchmarks\.verdict_page -->\n).*?(<!-- end -->)", re.DOTALL)
_ROWS = ("WEIGHTS", "FORWARD", "LOSS", "BACKWARD", "NORMS")
_CONSTANT = re.compile(r"_?[A-Z][A-Z0-9_]*")


def made(page: str) -> str:
    """Return the page with its generated parts as the tables are now."""
    return _PART.sub(lambda part: f"{part[1]}\n{_PARTS[part[2]]()}\n{part[3]}", page)


def _noise() -> str:
    rows = ((name, getattr(model, name)) for name in _ROWS)
    return _table(
        ("row", "k", "k of 16 bits", "gain"), ((f"`{n}`", f"{r.k:g}", f"{r.k16:g}", f"{r.gain:g}") for n, r in rows)
    )


def _functions(*modules: ModuleType) -> str:
    found = (
        (name, inspect.getdoc(each) or "")
        for module in modules
        for name, each in inspect.getmembers(module, inspect.isfunction)
        if each.__module__ == module.__name__ and not name.startswith("_") and name != "peaks_of"
    )
    return _table(
        ("function", "what it returns"), ((f"`{name}`", _first(text).removeprefix("Return ")) for name, text in found)
    )


def _codes() -> str:
    return _table(("code", "what it says"), ((f"`{code}`", text) for code, text in {**LEFT, **ANSWERS}.items()))


def _constants() -> str:
    rows = [(name, value, re.split("[:;] ", said)[0], "._" in name) for name, value, said in sorted(constants())]
    shared = _table(
        ("constant", "what it is"), ((f"{name} = {value}", said) for name, value, said, is_own in rows if not is_own)
    )
    own = ", ".join(f"{name} = {value}" for name, value, _, is_own in rows if is_own)
    return f"{shared}\nOf one module, explained there: {own}.\n"


def constants() -> Iterable[tuple[str, str, str]]:
    """Yield name, value and docstring of the numbers that the verdict rests on, but those of the noise rule's rows."""
    folder = Path(probe.verdict.__file__).parent
    for path in folder.rglob("*.py"):
        body = ast.parse(path.read_text(encoding="utf-8")).body
        for node, behind in zip(body, [*body[1:], None], strict=True):
            if not isinstance(node, ast.Assign) or not re.search(r"\d", value := ast.unparse(node.value)):
                continue
            name = ast.unparse(node.targets[0]).strip("()")
            is_number = isinstance(node.value, (ast.Constant, ast.UnaryOp, ast.BinOp, ast.Tuple))
            if is_number and all(map(_CONSTANT.fullmatch, name.split(", "))):
                is_said = isinstance(behind, ast.Expr) and isinstance(behind.value, ast.Constant)
                said = str(behind.value.value) if is_said else ""  # type: ignore[union-attr]
                yield f"`{path.relative_to(folder).with_suffix('')}.{name}`", value.strip("()"), _first(said)


def _first(text: str) -> str:
    return " ".join(text.split("\n\n")[0].split())


def _table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    lines = (head, ("---",) * len(head), *rows)
    return "".join(f"{' | '.join(line)}\n" for line in lines)


_PARTS: dict[str, Callable[[], str]] = {
    "noise": _noise,
    "terms": lambda: _functions(terms),
    "views": lambda: _functions(views),
    "codes": _codes,
    "constants": _constants,
}

if __name__ == "__main__":
    text = PAGE.read_text(encoding="utf-8")
    if sys.argv[1:] == ["--check"]:
        raise SystemExit(made(text) != text and "python -m benchmarks.verdict_page writes its tables anew")
    PAGE.write_text(made(text), encoding="utf-8")
