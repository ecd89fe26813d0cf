"""The commands of docs/guide/torch-to-paddle.md run as they stand there, and print what it shows."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest

from probe.diagnosis.table_of_known_differences import KNOWN_DIFFERENCES
from tests.guides import GUIDES, assert_row, copied, rows_of, run_guide, said

PAGE = GUIDES / "torch-to-paddle.md"
MAPPING = ["-lm", "transformers/bert-paddle"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder as the guide leaves it: its commands have run, and printed what it shows."""
    folder = copied("bert", tmp_path_factory.mktemp("guide"))
    run_guide(PAGE, folder)
    return folder


def test_the_port_is_aligned_and_the_fault_is_named(folder: Path) -> None:
    """The guide's listings are what is printed; here is that they say the right thing."""
    said(folder, ["probe-compare", "a.h5", "b.h5", *MAPPING, "-o", "clean.json"])
    clean = json.loads((folder / "clean.json").read_text())
    assert (clean["verdict"], clean["coverage"]["not_comparable"]) == ("aligned", 0)
    said(folder, ["probe-compare", "a.h5", "eps.h5", *MAPPING, "-o", "eps.json"], status=1)
    first = json.loads((folder / "eps.json").read_text())["first_divergence"]
    assert first["phase"] == "forward"
    assert first["a"][0]["path"] == "bert.encoder.layer.1.attention.output.LayerNorm"
    assert first["b"][0]["path"] == "bert.encoder.layers.1.norm1"


@pytest.mark.parametrize("row", rows_of(PAGE), ids=lambda row: row[0][1])
def test_what_goes_wrong_is_named_as_the_table_says(folder: Path, row: list[list[str]]) -> None:
    option = row[0][1].strip("`")
    out = option.strip("-").replace(" ", "-")
    said(folder, shlex.split(f"python train_paddle.py --weights bert.pdparams --out {out}.h5 {option}"))
    assert_row(row, said(folder, ["probe-compare", "a.h5", f"{out}.h5", *MAPPING], status=1))


def test_without_the_mapping_modules_are_paired_by_what_was_recorded(folder: Path) -> None:
    printed = said(folder, ["probe-compare", "a.h5", "b.h5"])
    assert printed[0] == "ALIGNED but for 2 buffers (only in A)  A a.h5  B b.h5"
    assert any(
        line.startswith("note: 32 of 45 pairs of modules matched without a mapping, 32 by values") for line in printed
    )


def test_where_too_little_is_paired_nothing_is_called_aligned(folder: Path) -> None:
    printed = said(folder, ["probe-compare", "a.h5", "b.h5", "--min-confidence", "1"], status=2)
    assert printed[0] == "UNDECIDED  A a.h5  B b.h5"
    assert any(line.startswith("These look like different models: ") for line in printed)
    assert not any(line.startswith("  also: ") for line in printed), "what is only noted is no reason"
    assert any(line.startswith("note: B: PaddlePaddle does not tell") for line in printed)


def test_what_the_table_says_of_batchnorm_is_what_the_hint_says() -> None:
    (line,) = (line for line in PAGE.read_text("utf-8").splitlines() if line.startswith("| BatchNorm's momentum"))
    quoted = line.strip("| ").split(" | ")[2]
    row = next(row for row in KNOWN_DIFFERENCES if row.name == "batchnorm-momentum")
    torch, paddle = row.habits["torch"].does, row.habits["paddle"].does
    assert quoted.strip('"') == f"{row.about} {torch} in PyTorch and {paddle} in PaddlePaddle"
