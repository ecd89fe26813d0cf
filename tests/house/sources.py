"""The modules of probe, as syntax trees that are made when they are first looked at."""

from __future__ import annotations

import ast
import functools
from pathlib import Path

PACKAGE = Path(__file__).parents[2] / "probe"


@functools.cache
def trees() -> dict[str, ast.Module]:
    """Return every file's tree by its path in the package, without the ending."""
    return {
        path.relative_to(PACKAGE).with_suffix("").as_posix(): ast.parse(path.read_text(encoding="utf-8"))
        for path in sorted(PACKAGE.rglob("*.py"))
    }


@functools.cache
def modules() -> dict[str, ast.Module]:
    """Return every module's tree by its name without ``probe.``; a folder's docstring is none."""
    return {
        ".".join(part for part in path.split("/") if part != "__init__"): tree
        for path, tree in trees().items()
        if len(tree.body) > 1 or not path.endswith("__init__")
    }
