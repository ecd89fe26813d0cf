"""The list of mutations fits the tree: every text is there once, every test exists. Running them takes minutes."""

from __future__ import annotations

import importlib.util
import subprocess
import sys

import pytest

from benchmarks.mutations.catalogue import MUTATIONS, Mutation
from benchmarks.mutations.trial import ROOT, StaleMutation, patched
from tests.limits import HANGS

FRAMEWORKS = ("torch", "mindspore", "paddle")
"""each in a process of its own"""


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda mutation: mutation.name)
def test_the_text_that_is_replaced_occurs_once(mutation: Mutation) -> None:
    compile(patched(ROOT, mutation), mutation.path, "exec")


def test_a_text_that_is_gone_is_an_error() -> None:
    stale = Mutation("gone", "", "probe/errors.py", "no such text", "", "")
    with pytest.raises(StaleMutation) as caught:
        patched(ROOT, stale)
    assert str(caught.value) == "gone: its old text occurs 0 times in probe/errors.py, expected once"


def framework_of(mutation: Mutation) -> str:
    folder = mutation.test.split("/")[1]
    return folder if folder in FRAMEWORKS else ""


@pytest.mark.thorough
@pytest.mark.parametrize("framework", ["", *FRAMEWORKS])
def test_every_test_exists(framework: str) -> None:
    spec = importlib.util.find_spec(framework) if framework else None
    if framework and (
        spec is None or spec.origin is None
    ):  # the folder tests/torch looks like a package without a file
        pytest.skip(f"needs {framework}")
    wanted = {m.test for m in MUTATIONS if framework_of(m) == framework}
    files = sorted({test.partition("::")[0] for test in wanted})
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-p", "no:cacheprovider", *files]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=HANGS, check=False)
    assert wanted <= set(done.stdout.splitlines()), wanted - set(done.stdout.splitlines())
