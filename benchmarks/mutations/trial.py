"""Applying mutations to a copy of the tree, and running the test that must notice."""

from __future__ import annotations

import functools
import os
import shutil
import subprocess
import sys
from pathlib import Path

from benchmarks.mutations.catalogue import Mutation

ROOT = Path(__file__).parents[2]
_LEFT_OUT = shutil.ignore_patterns(".git", ".venv*", "build", "dist", "*.h5", "__pycache__", ".*_cache", ".hypothesis")
_LIMIT = 180
"""seconds that a test may take; one that hangs has noticed too"""


class StaleMutation(Exception):
    """The text that a mutation replaces does not occur exactly once."""


def patched(root: Path, mutation: Mutation) -> str:
    """Return the file's text with the mutation in it. Raises StaleMutation."""
    text = (root / mutation.path).read_text(encoding="utf-8")
    count = text.count(mutation.old)
    if count != 1:
        raise StaleMutation(f"{mutation.name}: its old text occurs {count} times in {mutation.path}, expected once")
    return text.replace(mutation.old, mutation.new)


def copy_tree(folder: Path) -> Path:
    """Copy the tree, with the compiled loop; return where it is."""
    return Path(shutil.copytree(ROOT, folder / "tree", ignore=_LEFT_OUT))


def try_out(tree: Path, mutation: Mutation) -> str:
    """Return ``caught``, or in words what went otherwise."""
    text = patched(tree, mutation)
    if _status_unbroken(tree, mutation.test):
        return "fails without the mutation"
    path = tree / mutation.path
    original = path.read_text(encoding="utf-8")
    path.write_text(text, encoding="utf-8")
    try:
        status = _status(tree, mutation.test)
    finally:
        path.write_text(original, encoding="utf-8")
    if status is None or status < 0:  # it hung, or the process crashed
        return "caught"
    return {0: "NOT CAUGHT", 1: "caught"}.get(status, f"pytest ended with {status}")


@functools.cache
def _status_unbroken(tree: Path, test: str) -> int | None:
    return _status(tree, test)


def _status(tree: Path, test: str) -> int | None:
    """Run one test in the tree; return pytest's exit status, None when it hung."""
    command = [sys.executable, "-B", "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", test]
    environment = {**os.environ, "PYTHONPATH": str(tree), "OMP_NUM_THREADS": "1"}
    try:
        done = subprocess.run(command, cwd=tree, env=environment, capture_output=True, timeout=_LIMIT, check=False)
    except subprocess.TimeoutExpired:
        return None
    return done.returncode
