"""What the report advises to record next, to learn more of the place it names."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import probe
from probe.adapters.numpy import nn
from probe.comparison.result import Divergence, Kind, NodeRef
from probe.records import Phase, Role
from probe.report.text import _with_values, render
from tests.toys import batch, gpt, loss_of, module, record


def found(a: tuple[NodeRef, ...], b: tuple[NodeRef, ...], **options: Any) -> Divergence:
    return Divergence(Phase.FORWARD, Role.OUTPUT, Kind.INTRODUCED, 0.9, a, b, None, **options)


def place(path: str, slot: str = "0") -> tuple[NodeRef, ...]:
    return (NodeRef(0, 0, path, "Linear", 0, slot),)


@pytest.mark.parametrize(
    ("a", "b", "options"),
    [
        (place("h.1.ln"), place("h.1.ln"), 'tensors=["h.1.ln"]).'),
        (place("h.1.ln"), place("blocks.1.n"), 'tensors=["h.1.ln"]) in A, tensors=["blocks.1.n"] in B.'),
        # the module's own code is wrong: its inputs alone do not show that, what it hands to the modules inside does
        (place("h.1.attn", ""), place("h.1.attn", ""), 'tensors=["h.1.attn", "h.1.attn.*"]).'),
        # B has no module of its own for it: the values are those of the modules around
        (place("h.1.act"), (), 'task="tensor").'),
        (place(""), place(""), 'task="tensor").'),
    ],
)
def test_what_to_record_next(a: tuple[NodeRef, ...], b: tuple[NodeRef, ...], options: str) -> None:
    assert _with_values(found(a, b)) == f"To learn more, record its values: probe.start(..., {options}"


def test_only_what_is_claimed_can_be_verified() -> None:
    there = place("h.1.ln")
    assert _with_values(found(there, there)).startswith("To learn more, record")
    claim = {"name": "uniform scale", "verified": False}
    assert _with_values(found(there, there, hints=(claim,))).startswith("To verify it, record")


def test_settings_that_were_recorded_need_no_values(tmp_path: Path) -> None:
    a = record(tmp_path / "a.h5", gpt())
    model = gpt()
    b = record(tmp_path / "b.h5", model, optimizer=nn.AdamW(model.parameters(), lr=2e-3))
    said = render(probe.compare(a, b)).plain
    assert "the settings differ: lr" in said and "record its values" not in said


def test_settings_that_show_later_are_not_said_to_show_in_no_number(tmp_path: Path) -> None:
    """Another momentum shows in the updates from the second step on."""
    a, b = gpt(), gpt()
    files = (
        record(tmp_path / "a.h5", a, steps=2, optimizer=nn.SGD(a.parameters(), lr=0.1, momentum=0.9)),
        record(tmp_path / "b.h5", b, steps=2, optimizer=nn.SGD(b.parameters(), lr=0.1, momentum=0.8)),
    )
    found = probe.compare(*files)
    first = found.first_divergence
    assert first is not None and (first.step, first.hint) == (
        1,
        "the settings differ: momentum 0.9 against 0.8 (group 0)",
    )
    assert not any("does not show" in warning for warning in found.warnings)


def test_a_step_that_is_told_before_the_update_is_the_cause(tmp_path: Path) -> None:
    model = gpt()
    optimizer = nn.AdamW(model.parameters(), lr=1e-3)
    with (
        pytest.warns(probe.errors.ProbeWarning, match="comes before the optimizer's step"),
        probe.capture(model, tmp_path / "b.h5"),
    ):
        for number in range(2):
            loss = loss_of(model(batch(number)), batch(number))
            loss.backward()
            probe.step(loss=loss)
            optimizer.step()
            optimizer.zero_grad()
    first = probe.compare(record(tmp_path / "a.h5", gpt(), steps=2), tmp_path / "b.h5").first_divergence
    assert first is not None
    assert first.hint == "probe.step() comes before the optimizer's step in B: call it after that, and record again"


def test_a_bias_that_one_side_lacks_stands_beside_the_wrong_output(tmp_path: Path) -> None:
    a, b = gpt(), gpt()
    path = "layers.1.mlp.down"
    rng = np.random.default_rng(0)
    module(a, path).bias.data[...] = rng.normal(size=module(a, path).bias.data.shape)
    own = module(b, path)
    del own.bias
    own.__class__ = type("OwnLinear", (type(own),), {})  # of another class a bias is not taken for granted
    first = probe.compare(record(tmp_path / "a.h5", a), record(tmp_path / "b.h5", b)).first_divergence
    assert first is not None and first.path == path
    assert "only A has bias, not compared" in first.evidence
