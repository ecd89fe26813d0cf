"""The commands of docs/guide/moe.md run as they stand there, and print what it shows."""

from __future__ import annotations

import re
import shlex
import shutil
from pathlib import Path

import pytest

from tests.guides import EXAMPLES, GUIDES, assert_shown, said

PAGE = (GUIDES / "moe.md").read_text(encoding="utf-8")
STATUS = {"UNDECIDED": 2, "DIVERGED": 1}
COUNTS = re.compile(r"\d+(?= of 168 tensors)|(?<=: )[\d.]+(?= % of 1,024)|(?<=\[)\d+, \d+(?=\])|(?<=norm B/A )[\d.]+")
"""those that another machine's rounding changes"""


def test_its_commands_print_what_it_shows(tmp_path: Path) -> None:
    pytest.importorskip("transformers", minversion="5.0")
    shutil.copy(EXAMPLES / "train_moe.py", tmp_path)
    blocks = re.findall(r"^```console\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    assert len(blocks) == 4
    for block in blocks:
        lines = block.splitlines()
        *commands, last = [line[2:] for line in lines if line.startswith("$ ")]
        shown = [COUNTS.sub("#", line) for line in lines if not line.startswith("$ ")]
        for command in commands:
            said(tmp_path, shlex.split(command))
        printed = said(tmp_path, shlex.split(last), STATUS.get(shown[0].split()[0], 0))
        assert_shown([*shown, ""], [COUNTS.sub("#", line) for line in printed])
