"""Recordings of which each row may be, and the whole is not: no answer is made of them."""

from __future__ import annotations

import h5py
import pytest

import probe
from probe.errors import FormatError
from probe.records import Phase
from tests.comparison.planted import Recorder
from tests.toys import gpt


@pytest.mark.parametrize("phase", [Phase.FORWARD, Phase.BACKWARD])
def test_a_tensor_of_a_micro_without_calls_is_damage(phase: Phase, run: Recorder) -> None:
    """Compared with itself nothing of such a tensor would be looked at, and it would be called aligned."""
    path = run(gpt())
    with h5py.File(path, "r+") as file:
        rows = file["records"][:]
        rows["micro"][rows["phase"] == phase] = 5
        file["records"][:] = rows
    with pytest.raises(
        FormatError, match="step 0 of it cannot be read .it has a tensor of micro 5, in which no module was called"
    ):
        probe.compare(path, run(gpt()))
