"""How many lines of Python each folder may have, and the tests. The numbers may fall, never rise.

What issues 37 to 39 add has its own numbers, in `BROUGHT`.
"""

from __future__ import annotations

import re

import pytest

from tests.house.sources import PACKAGE

TESTS = PACKAGE.parent / "tests"
MOST_OF_TESTS = 76_200
MOST_FILES = 25
"""of Python, in a folder of tests"""

AT_MOST = {
    "": 74_955,
    "verdict": 7_720,
    "answer": 2_060,
    "diagnosis": 5_945,
    "matching": 6_758,
    "adapters": 6_489,
    "report": 8_264,
    "curve_comparison": 3_500,
    "replaying": 3_625,
    "ranks": 3_463,
    "store": 3_711,
    "settings": 2_427,
    "checks": 4_121,
    "checks/logprobs": 989,
    "dumps": 1_560,
}
"""by folder of the package; the first is all of it, without what is in `BROUGHT`"""
BROUGHT = {
    "ports that write blocks otherwise; ranks whose operations are recorded": (0, 270),
    "points inside of code": (412, 340),
    "a trainer against its rollout engine": (1_100, 524),
    "lines of source, of calls of modules too; bisect on eleven faults": (266, 319),
    "dumps of other tools": (1_324, 920),
    "dumps of SGLang, transformers and ptdbg_ascend; imports that read ahead": (300, 303),
    "recordings for other tools; reprod_log's functions": (553, 400),
    "guides by stage, framework and field; requirements": (0, 400),
    "recordings while a program runs, and where people work": (440, 652),
    "what a recording cannot show; causes that are derived": (659, 465),
    "routing replay": (357, 475),
    "load and entropy of experts": (230, 150),
    "tokens that both sides route alike": (130, 140),
    "forms of log-probabilities, from what prescribes them": (157, 126),
    "caches of keys and values: replayed, and prefixes lined up": (226, 150),
}
"""by what was added since: lines of the package, and of tests"""
MOST_CONSTANTS = 50
"""numbers that the verdict rests on; 40 is the aim"""


def lines_of(folder: str) -> int:
    return sum(len(path.read_text(encoding="utf-8").splitlines()) for path in (PACKAGE / folder).rglob("*.py"))


@pytest.mark.parametrize("folder", AT_MOST)
def test_no_folder_grows(folder):
    brought = sum(package for package, _ in BROUGHT.values())
    assert lines_of(folder) <= AT_MOST[folder] + (0 if folder else brought)


def test_the_verdict_rests_on_few_numbers():
    constant = re.compile(r"^_?[A-Z][A-Z0-9_, ]* = .*\d", re.MULTILINE)
    found = [name for path in (PACKAGE / "verdict").rglob("*.py") for name in constant.findall(path.read_text("utf-8"))]
    assert len(found) <= MOST_CONSTANTS, found


def test_lines_of_the_verdict_end_at_120_columns():
    long = [
        f"{path.relative_to(PACKAGE)}:{number}"
        for path in (PACKAGE / "verdict").rglob("*.py")
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        if len(line) > 120 or "fmt: skip" in line
    ]
    assert not long


def test_the_tests_do_not_grow():
    lines = sum(len(path.read_text(encoding="utf-8").splitlines()) for path in TESTS.rglob("*.py"))
    assert lines <= MOST_OF_TESTS + sum(tests for _, tests in BROUGHT.values())


def test_folders_of_tests_are_small_and_import_no_benchmark():
    files = [*TESTS.rglob("*.py")]
    assert [folder for folder in {path.parent for path in files} if len([*folder.glob("*.py")]) > MOST_FILES] == []
    imports = re.compile(r"^ *(from|import) benchmarks\b", re.MULTILINE)
    assert [path for path in files if imports.search(path.read_text(encoding="utf-8"))] == []
