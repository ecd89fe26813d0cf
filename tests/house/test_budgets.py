"""How many lines of Python each folder may have. The numbers may fall, never rise."""

from __future__ import annotations

import re

import pytest

from tests.house.sources import PACKAGE

AT_MOST = {
    "": 92_300,
    "verdict": 8_000,
    "comparison": 23_200,
    "diagnosis": 4_000,
    "matching": 7_300,
    "adapters": 7_700,
    "report": 10_300,
    "curve_comparison": 4_500,
    "replaying": 4_100,
    "ranks": 3_900,
    "store": 4_100,
    "settings": 3_800,
    "checks": 3_200,
}
"""by folder of the package; the first is all of it but `verdict`, which stands beside `comparison` until it replaces it"""
MOST_CONSTANTS = 50
"""numbers that the verdict rests on; 40 is the aim"""


def lines_of(folder: str) -> int:
    paths = [
        path for path in (PACKAGE / folder).rglob("*.py") if folder or path.relative_to(PACKAGE).parts[0] != "verdict"
    ]
    return sum(len(path.read_text(encoding="utf-8").splitlines()) for path in paths)


@pytest.mark.parametrize("folder", AT_MOST)
def test_no_folder_grows(folder):
    assert lines_of(folder) <= AT_MOST[folder]


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
