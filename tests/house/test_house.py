"""How large and how deep things may be: what a reader can keep in mind.

What was larger before these rules is listed by name; the lists may become shorter only.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from tests.house.sources import PACKAGE, trees

LONGEST_FUNCTION = 60
"""lines, without the docstring"""
MOST_METHODS = 20
MOST_FILES = 16
DEEPEST = 2
"""an interface, and what implements it"""
HIERARCHIES = {"errors"}
"""exceptions"""
LONG: set[str] = set()
LARGE = {
    "adapters/base:Adapter",
    "adapters/mindspore/adapter:MindSporeAdapter",
    "adapters/paddle/adapter:PaddleAdapter",
    "adapters/torch/adapter:TorchAdapter",
    "mapping/parsing:_Parser",
    "ranks/reader:RanksReader",
    "recorder/recorder:Recorder",
    "recorder/updates:Updates",
    "store/reading/reader:Reader",
    "store/writing/disk:Disk",
    "store/writing/writer:Writer",
    "verdict/steps/step:Step",
}
FULL: set[str] = set()
DEEP = {"testing/contract:AdapterContract", "testing/observations:ObservationContract"}


def classes() -> Iterator[tuple[str, ast.ClassDef]]:
    for name, tree in trees().items():
        yield from ((name, node) for node in ast.walk(tree) if isinstance(node, ast.ClassDef))


def lines_of(function: ast.FunctionDef) -> int:
    """Return the lines of a function behind its docstring."""
    body = function.body
    if isinstance(body[0], ast.Expr) and isinstance(body[0].value, ast.Constant):
        body = body[1:]
    return (body[-1].end_lineno or 0) - body[0].lineno + 1 if body else 0


def test_no_function_is_longer_than_a_screen() -> None:
    found = {
        f"{name}:{node.name}"
        for name, tree in trees().items()
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef) and lines_of(node) > LONGEST_FUNCTION
    }
    assert found == LONG


def test_no_class_has_more_methods_than_one_remembers() -> None:
    found = {
        f"{name}:{node.name}"
        for name, node in classes()
        if sum(isinstance(each, ast.FunctionDef) for each in node.body) > MOST_METHODS
    }
    assert found == LARGE


def test_no_class_is_an_implementation_of_an_implementation() -> None:
    bases = {node.name: {ast.unparse(base).partition("[")[0] for base in node.bases} for _, node in classes()}

    def depth(name: str) -> int:
        return 1 + max((depth(base) for base in bases[name] if base in bases and base != name), default=0)

    assert {
        f"{name}:{node.name}" for name, node in classes() if name not in HIERARCHIES and depth(node.name) > DEEPEST
    } == DEEP


def test_no_folder_has_more_files_than_one_looks_through() -> None:
    folders = {path.parent for path in PACKAGE.rglob("*.py")}
    count = {folder: sum(each.name != "__init__.py" for each in folder.glob("*.py")) for folder in folders}
    assert {folder.relative_to(PACKAGE).as_posix() for folder, files in count.items() if files > MOST_FILES} == FULL
