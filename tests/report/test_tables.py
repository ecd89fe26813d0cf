"""All rows of a comparison as CSV and Parquet: nothing is lost, nothing is run."""

from __future__ import annotations

import csv
import io
import math
import re
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import probe
from probe.errors import ConfigError
from probe.report.layout import harmless
from probe.report.table import COLUMNS, TEXTS, as_csv, frame, rows, safe_text, write_parquet
from tests.cli.running import run
from tests.toy import nn
from tests.toy.tensor import Tensor

NAMES = [
    "=1+1",
    "'=1+1",
    "+x",
    "-x",
    "@x",
    "\t=x",
    "＝x",
    'a,b;"c"\nd\re',
    "NA",
    "None",
    "1",
    " x ",
    "🔥\u202ex",
    "\\x0a",
]
DOCUMENT = Path(__file__).parents[2] / "docs" / "reference" / "output.md"


@pytest.fixture(scope="module")
def compared(tmp_path_factory: pytest.TempPathFactory) -> probe.Comparison:
    folder = tmp_path_factory.mktemp("tables")
    for file, factor in (("a.h5", 1.0), ("b.h5", 0.5)):
        model = nn.Sequential()
        vars(model).update({name: nn.Linear(2, 2) for name in NAMES})
        for layer in vars(model).values():
            if isinstance(layer, nn.Linear):
                layer.weight.data[:], layer.bias.data[:] = np.eye(2), 0
        getattr(model, NAMES[3]).weight.data *= np.float32(factor)
        with probe.capture(model, folder / file, task="tensor"):
            model(Tensor(np.array([[1.0, -2.0]], np.float32))).sum().backward()
            probe.step()
    return probe.compare(folder / "a.h5", folder / "b.h5")


def test_every_column_is_said_with_its_unit() -> None:
    tables = DOCUMENT.read_text(encoding="utf-8").partition("\n## Tables\n")[2]
    said = re.findall(r"^\| (`.*?`) \|", tables, re.MULTILINE)
    assert [name for cell in said for name in re.findall(r"`(\w+)`", cell) if name in COLUMNS] == COLUMNS
    assert set(TEXTS) < set(COLUMNS)


def test_no_text_of_a_csv_is_a_formula(compared: Any) -> None:
    found = list(csv.DictReader(io.StringIO(as_csv(compared))))
    assert len(found) == len(compared.slots) > len(NAMES)
    texts = {row[name] for row in found for name in TEXTS}
    assert not [text for text in texts if re.match(r"[=+\-@\t\r\n＝＋－＠]", text)]
    assert {"'=1+1", "''=1+1", "'-x", "'＝x", 'a,b;"c"\\x0ad\\x0de'} <= {row["path_a"] for row in found}
    assert any(row["norm_ratio"].startswith("-") or row["coherence"].startswith("-") for row in found), "numbers stay"


@pytest.mark.thorough
def test_a_csv_reads_back_as_the_document_says(compared: Any) -> None:
    """The lines of docs/reference/output.md are run as they stand there."""
    pandas = pytest.importorskip("pandas")
    lines = re.search(r"```python\n(.*?)```", DOCUMENT.read_text(encoding="utf-8"), re.DOTALL)
    assert lines is not None
    (code,) = [lines[1].replace('"table.csv"', "text")]
    known: dict[str, Any] = {"text": io.StringIO(as_csv(compared))}
    exec(code, known)
    read, wanted = known["table"], frame(compared)
    for name in TEXTS:
        wanted[name] = wanted[name].map(harmless)
    pandas.testing.assert_frame_equal(read, wanted, check_dtype=False, check_exact=True)


def test_parquet_has_every_row_and_name_as_it_is(compared: Any, tmp_path: Path) -> None:
    pandas = pytest.importorskip("pandas")
    pytest.importorskip("pyarrow")
    write_parquet(compared, tmp_path / "t.parquet")
    read = pandas.read_parquet(tmp_path / "t.parquet")
    pandas.testing.assert_frame_equal(read, frame(compared), check_exact=True)
    assert set(read["path_a"]) == {"", *NAMES}
    assert [row["step"] for row in rows(compared)] == read["step"].tolist()


def test_parquet_at_the_command_line(compared: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pandas = pytest.importorskip("pandas")
    pytest.importorskip("pyarrow")
    monkeypatch.chdir(tmp_path)
    pair = [compared.path_a, compared.path_b]
    result = run("compare", *pair, "-o", "t.parquet")
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr == "diverged; the report is in t.parquet\n"
    assert len(pandas.read_parquet("t.parquet")) == len(compared.slots)
    result = run("compare", *pair, "-o", "none/t.parquet")
    assert result.exit_code == 3 and result.stderr.startswith("Error: cannot write none/t.parquet: ")
    assert "None" not in result.stderr


def test_parquet_goes_to_no_terminal(compared: Any) -> None:
    result = run("compare", compared.path_a, compared.path_b, "--format", "parquet")
    message = "Error: Parquet is no text: say with -o to which file it goes\n"
    assert (result.exit_code, result.stdout, result.stderr) == (3, "", message)


@pytest.mark.parametrize("missing", ["pyarrow", "pandas"])
def test_what_parquet_needs_is_named(
    compared: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, missing: str
) -> None:
    if missing == "pyarrow":
        pytest.importorskip("pandas")  # which is looked for first
    monkeypatch.setitem(sys.modules, missing, None)
    with pytest.raises(ConfigError) as caught:
        write_parquet(compared, tmp_path / "t.parquet")
    text = f"a Parquet file needs pandas and pyarrow: pip install 'probe-align[table]' (import of {missing} halted; "
    assert str(caught.value).startswith(text)
    result = run("compare", compared.path_a, compared.path_b, "-o", tmp_path / "t.parquet")
    assert result.exit_code == 3 and result.stderr == f"Error: {caught.value}\n"
    assert not (tmp_path / "t.parquet").exists()


@pytest.mark.parametrize("text", [*NAMES, "", "''", "x=1"])
def test_a_guard_is_taken_away_again(text: str) -> None:
    safe = safe_text(text)
    assert safe.removeprefix("'") == harmless(text) and not safe.startswith(("=", "+", "-", "@", "\t"))
    assert safe.startswith("'") is bool(text and text[0] in "=+-@\t\r\n＝＋－＠'")


def test_numbers_of_a_csv_are_as_exact_as_they_were(compared: Any) -> None:
    for row, slot in zip(csv.DictReader(io.StringIO(as_csv(compared))), compared.slots, strict=True):
        assert math.isnan(slot.metrics.rel_l2) if not row["rel_l2"] else float(row["rel_l2"]) == slot.metrics.rel_l2
