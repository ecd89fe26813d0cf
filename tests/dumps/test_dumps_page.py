"""docs/guide/dumps.md: its commands run as they stand there and print what it shows, its table is made from `probe.dumps.table`."""

from __future__ import annotations

import os
import re
import shlex
from pathlib import Path

import numpy as np
import pytest

from probe.dumps.table import KINDS
from tests.cli.running import run
from tests.dumps.making import FAULTS, as_msprobe, trained
from tests.dumps.test_exported import side
from tests.golden_files import NOT_PART_OF_IT

PAGE = Path(__file__).parents[2] / "docs" / "guide" / "dumps.md"
HEADINGS = ("tool", "told_by", "values", "statistics", "backward", "parameters", "order", "tree")
WIDTH = 100


def accept(text: str) -> str:
    if os.environ.get("OVERWRITE_GOLDEN"):
        PAGE.write_text(text, encoding="utf-8")
    return PAGE.read_text(encoding="utf-8")


def comparable(text: str) -> str:
    """Return a text without what differs by machine: how it is broken, and numbers."""
    return re.sub(r"\d[\d.,]*(e[-+]\d+)?", "#", " ".join(text.split()))


def test_the_table_has_every_tool() -> None:
    rows = [" | ".join(getattr(kind, name) for name in HEADINGS) for kind in KINDS]
    page = PAGE.read_text(encoding="utf-8")
    table = re.sub(
        r"(\| tool .*\n\|[-|]*\n)(\|.*\n)*", lambda found: found[1] + "".join(f"| {row} |\n" for row in rows), page
    )
    assert table == accept(table)


def test_its_commands_print_what_it_shows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name, task in (("dump", "tensor"), ("statistics", "statistics")):
        as_msprobe(Path(f"torch_{name}"), trained(steps=2), task)
        as_msprobe(Path(f"npu_{name}"), trained({"block.norm": FAULTS["block.norm"]}, steps=2), task)
    as_msprobe(Path("torch_again"), trained(steps=2), "statistics")
    Path("tensors").mkdir()
    for at, name in enumerate(("layers.0.mlp.0.input.0", "layers.0.mlp.0.output.0", "head.0.output.0")):
        np.save(f"tensors/{name}.npy", np.full((2, 3), at, np.float32))
        os.utime(f"tensors/{name}.npy", ns=(at, at))
    side(Path("torch.h5"), acc=0.9)
    side(Path("paddle.h5"), acc=0.9)
    page = PAGE.read_text(encoding="utf-8")
    commands = re.findall(r"^```console\n\$ (probe .*)\n((?:(?!```).*\n)*)```", page, re.MULTILINE)
    assert len(commands) > 4
    for command, shown in commands:
        done = run(*shlex.split(command)[1:], width=WIDTH)
        assert done.exit_code < 3, done.stderr
        printed = "".join(f"{line.rstrip()}\n" for line in done.stdout.rstrip().splitlines())
        for pattern, put in NOT_PART_OF_IT:
            printed = re.sub(pattern, put, printed)
        page = page.replace(f"$ {command}\n{shown}```", f"$ {command}\n{printed}```")
    assert comparable(page) == comparable(accept(page))
