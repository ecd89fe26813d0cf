"""Values that threads sum up before they are asked for: the answer is the same, whatever their number, and whatever they cannot read."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import probe
from probe.adapters.numpy import nn
from probe.adapters.numpy.tensor import Tensor
from probe.comparison import ahead
from probe.comparison.distance import in_threads
from probe.comparison.result import Verdict
from probe.errors import FormatError
from probe.numbers import kernel
from probe.store.reading.reader import Reader
from tests.toys import MLP, record, replaced

pytestmark = pytest.mark.skipif(not kernel.AVAILABLE, reason="without the compiled loop there are no threads")

WIDTH = 64
Given = list[set[int]]
Threads = Callable[[int], Given]


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__(first=MLP(WIDTH), second=MLP(WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        return self.second(self.first(x))


def step(model: nn.Module, optimizer: nn.Optimizer, number: int) -> Tensor:
    x = np.random.default_rng(number).standard_normal((128, WIDTH)).astype(np.float32)
    loss = (model(Tensor(x)) * 1.0).mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    return loss


def rounded(self: Any, x: Tensor) -> Tensor:
    y = nn.Linear.forward(self, x)
    y.data *= np.float32(1 + 2**-23)
    return y


def wrong(self: Any, x: Tensor) -> Tensor:
    return rounded(self, x) * 1.01


def recorded(path: Path, how: Callable[..., Tensor] | None = None, **options: Any) -> Path:
    nn.manual_seed(0)
    model = Model()
    if how is not None:
        replaced(model, "second.gate", forward=how)
    return record(path, model, steps=2, step=step, task="tensor", **options)


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Path, Path]]:
    folder = tmp_path_factory.mktemp("pairs")
    a = recorded(folder / "a.h5")
    return {how.__name__: (a, recorded(folder / f"{how.__name__}.h5", how)) for how in (rounded, wrong)}


@pytest.fixture
def threads(monkeypatch: pytest.MonkeyPatch) -> Iterator[Threads]:
    """Let so many threads sum up however little there is to read; the list that is returned gets which of B's tensors they were given."""
    given: Given = []
    begin = in_threads.Threads.begin

    def counted(self: in_threads.Threads, *args: Any) -> Any:
        found = begin(self, *args)
        given.append({there for _, _, there in found})
        return found

    def use(count: int) -> Given:
        monkeypatch.setattr(ahead, "cores", lambda: count)
        return given

    for name, value in ((ahead, "_IN_THREADS"), (ahead, "_IN_THREADS_EACH")):
        monkeypatch.setattr(name, value, 0)
    monkeypatch.setattr(in_threads, "_GROUP", 1 << 18)
    monkeypatch.setattr(in_threads.Threads, "begin", counted)
    yield use
    assert not [each for each in threading.enumerate() if each.name.startswith("probe-sums")], (
        "they end with the comparison"
    )


@pytest.mark.parametrize("how", ["rounded", "wrong"])
def test_the_answer_is_the_same_however_many_there_are(
    pairs: dict[str, tuple[Path, Path]], how: str, threads: Threads, tmp_path: Path
) -> None:
    given = threads(1)
    alone = probe.compare(*pairs[how])
    assert alone.verdict is (Verdict.ALIGNED if how == "rounded" else Verdict.DIVERGED)
    assert not given, "one core"
    for count in (2, 7):
        threads(count)
        for options in ({}, {"resume": tmp_path / f"{how}-{count}"}):
            assert json.dumps(probe.compare(*pairs[how], **options).as_json()) == json.dumps(alone.as_json())
    assert len(given) >= 4
    assert min(map(len, given)) > 10


def test_what_threads_sum_up_is_not_read_again(
    pairs: dict[str, tuple[Path, Path]], threads: Threads, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[int] = []
    parts = Reader.parts

    def counted(self: Reader, tensor: int, *args: Any) -> Iterator[np.ndarray]:
        read.append(tensor)
        return parts(self, tensor, *args)

    monkeypatch.setattr(Reader, "parts", counted)
    threads(1)
    probe.compare(*pairs["rounded"])
    alone = len(read)
    read.clear()
    given = threads(2)
    probe.compare(*pairs["rounded"])
    assert len(read) == alone - 2 * sum(map(len, given))


def test_no_more_threads_may_be_started(
    pairs: dict[str, tuple[Path, Path]], threads: Threads, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads(1)
    alone = probe.compare(*pairs["wrong"]).as_json()
    submit, groups = ThreadPoolExecutor.submit, []

    def refused(self: ThreadPoolExecutor, *args: Any) -> Any:
        groups.append(args)
        if len(groups) > 2:
            raise RuntimeError("can't start new thread")
        return submit(self, *args)

    monkeypatch.setattr(ThreadPoolExecutor, "submit", refused)
    threads(2)
    assert json.dumps(probe.compare(*pairs["wrong"]).as_json()) == json.dumps(alone)
    assert len(groups) > 2


def test_a_damaged_value_is_reported_as_it_is_without_threads(
    pairs: dict[str, tuple[Path, Path]], threads: Threads, tmp_path: Path
) -> None:
    a, b = pairs["rounded"]
    given = threads(2)
    probe.compare(a, b)
    with Reader(b) as reader:
        piece = reader.piece(max(given[0]))
    assert piece is not None
    place = piece.offset + 1000
    damaged = tmp_path / "b.h5"
    data = bytearray(b.read_bytes())
    data[place] ^= 1
    damaged.write_bytes(data)
    said = []
    for count in (1, 3):
        threads(count)
        with pytest.raises(FormatError, match="are not those that were recorded") as raised:
            probe.compare(a, damaged)
        said.append(str(raised.value))
    assert said[0] == said[1]


def test_what_lies_in_one_piece_is_what_the_reader_reads(pairs: dict[str, tuple[Path, Path]]) -> None:
    with Reader(pairs["rounded"][1]) as reader:
        tensors = {int(each) for each in reader.records["tensor"] if each >= 0}
        pieces = {each: piece for each in tensors if (piece := reader.piece(each))}
        assert 10 < len(pieces) < len(tensors), "small ones lie together in a block"
        for tensor, piece in pieces.items():
            read = np.concatenate([each.copy() for each in piece.parts(1000, np.empty(16_000, np.uint8))])
            assert np.array_equal(read, reader.values(tensor).reshape(-1))
            assert piece.digest is not None
