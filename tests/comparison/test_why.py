"""Why a module was judged as it was: verdicts with their reasons, and the table of exemptions behind them."""

from __future__ import annotations

import ast
import json
from pathlib import Path

import pytest
from click.testing import CliRunner

import probe
from benchmarks import verdict_page
from probe.adapters.numpy import nn
from probe.commands.cli import main
from probe.comparison.blame.gradients import GRADIENT
from probe.comparison.blame.table import INPUT, OUTPUT
from probe.comparison.exemptions.table import EXEMPTIONS, REFITS
from probe.errors import NotRecordedError
from probe.records import Phase, Role
from probe.report.why import styled
from tests.comparison.planted import Recorder, module
from tests.toys import gpt

COMPARISON = Path(probe.__file__).parent / "comparison"


def with_other_eps() -> nn.Module:
    model = gpt()
    module(model, "layers.1.norm2").eps = 1e-2  # type: ignore[attr-defined]
    return model


def test_where_it_is_born_and_what_inherits(run: Recorder) -> None:
    found = probe.compare(run(gpt()), run(with_other_eps()))
    why = found.why("layers.1.norm2")
    (born,) = [each for each in why.slots if (each.phase, each.role) == (Phase.FORWARD, Role.OUTPUT)]
    assert (born.verdict, born.exemption) == ("introduced", "") and born.error > born.limit > born.sources
    assert born.tried == tuple(REFITS)  # nothing of it excused the error
    assert "introduced\n    tried: padding, moved-factor" in str(why)
    behind = [each for each in found.why("layers.1.mlp").slots if each.phase is Phase.FORWARD]
    assert {each.verdict for each in behind} == {"inherited"} and all(each.sources > 1e-3 for each in behind)


def test_what_is_exempt_says_why(run: Recorder) -> None:
    def with_table(scale: float) -> nn.Module:
        model = gpt()
        model.table = nn.Buffer(model.embed.weight.data * scale)
        return model

    why = probe.compare(run(with_table(1)), run(with_table(2))).why("")
    (table,) = [each for each in why.slots if each.slot_a == "table" and each.phase is Phase.INIT]
    assert (table.verdict, table.exemption) == ("not judged", "other-buffer")
    assert f"other-buffer: {EXEMPTIONS['other-buffer']}"[:60] in str(why)
    assert why.as_json()["rules"]["other-buffer"] == EXEMPTIONS["other-buffer"]


def test_a_module_that_is_not_there(run: Recorder) -> None:
    path = run(gpt())
    with pytest.raises(NotRecordedError, match="layers.9"):
        probe.compare(path, run(with_other_eps())).why("layers.9")


def test_the_command(run: Recorder) -> None:
    files = [str(run(gpt())), str(run(with_other_eps()))]
    done = CliRunner().invoke(main, ["compare", *files, "--why", "layers.1.norm2"])
    assert done.exit_code == 1 and done.output.startswith("A  layers.1.norm2 (")
    done = CliRunner().invoke(main, ["compare", *files, "--why", "layers.1.norm2", "--format", "json"])
    found = json.loads(done.output)
    assert [row["verdict"] for row in found["tensors"] if row["role"] == "output"][0] == "introduced"
    assert set(found["rules"]) == {*REFITS, "module"}
    refused = CliRunner().invoke(main, ["compare", *files, "--why", "layers.1.norm2", "--format", "csv"])
    assert refused.exit_code == 3 and "--format json" in refused.output


def given_codes() -> set[str]:
    """Return the codes that the comparison exempts tensors with."""
    found = set()
    for path in COMPARISON.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call):
                named = [keyword.value for keyword in node.keywords if keyword.arg == "exempt"]
                called = node.args if isinstance(node.func, ast.Attribute) and node.func.attr == "exempt" else []
                found |= {each.value for each in (*named, *called) if isinstance(each, ast.Constant)}
    return found


def test_every_exemption_has_a_row_and_every_row_is_used() -> None:
    assert given_codes() | {"no-limit", "other-buffer"} == set(EXEMPTIONS)


def test_the_row_that_answers_stands_at_the_finding_and_at_its_tensor(run: Recorder) -> None:
    answer = probe.compare(run(gpt()), run(with_other_eps()))
    first = answer.first_divergence
    assert first is not None and first.blame == "module" and first.as_json()["blame"] == "module"
    assert [slot.blame for slot in answer.why(first.path).slots if slot.verdict == "introduced"] == ["module"]


def test_every_table_of_blame_ends_with_a_row_that_always_answers() -> None:
    """Else a tensor could be wrong by itself, and no finding."""
    for rows in (INPUT, OUTPUT, GRADIENT):
        assert len({row.code for row in rows}) == len(rows)
    assert [rows[-1].code for rows in (INPUT, OUTPUT, GRADIENT)] == ["caller", "module", "code-behind"]


def test_the_page_lists_the_table() -> None:
    assert verdict_page.made(verdict_page.PAGE.read_text(encoding="utf-8")) == verdict_page.PAGE.read_text(
        encoding="utf-8"
    )


def test_a_terminal_shows_verdicts_in_colour(run: Recorder) -> None:
    """The words are the same; what is wrong by itself is red, as in the report."""
    found = probe.compare(run(gpt()), run(with_other_eps()))
    why = str(found.why("layers.1.norm2"))
    coloured = styled(why)
    assert coloured.plain == why
    red = {why[span.start : span.end] for span in coloured.spans if "red" in str(span.style)}
    yellow = {why[span.start : span.end] for span in coloured.spans if str(span.style) == "yellow"}
    assert red == {"introduced"} and yellow == {"inherited"}
