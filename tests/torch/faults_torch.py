"""What the tests of odd trainings in PyTorch share."""

from __future__ import annotations

import warnings
from collections.abc import Iterator

import pytest

torch = pytest.importorskip("torch")

from torch import Tensor  # noqa: E402

import probe  # noqa: E402
from probe.errors import ProbeWarning  # noqa: E402
from probe.testing import sample  # noqa: E402


@pytest.fixture(autouse=True)
def ended() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    yield
    torch.set_num_threads(threads)
    probe.stop()


def batch(seed: int = 0) -> Tensor:
    return torch.from_numpy(sample((5, 4), seed))


def said(caught: list[warnings.WarningMessage]) -> list[str]:
    texts = [str(one.message) for one in caught if issubclass(one.category, ProbeWarning)]
    return [text.removeprefix("probe: ") for text in texts]
