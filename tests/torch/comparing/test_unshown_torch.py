"""What a recording cannot show is said of it, and of no other; under an answer that is aligned, never under a divergence."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import probe
from probe.contents.unshown import CHECKS, cannot_show
from probe.report.inspect import summary
from probe.report.text import render
from probe.store.reading.reader import Reader
from tests.torch.hint_runs import Of

WIDTH, WORDS = 8, 20


class Small(nn.Module):
    """ids → embedding → the module that is tested → logits."""

    def __init__(self, tested: nn.Module | None = None, **config: Any) -> None:
        super().__init__()
        self.config = config
        self.embed, self.head = nn.Embedding(WORDS, WIDTH), nn.Linear(WIDTH, WORDS)
        self.tested = nn.Linear(WIDTH, WIDTH) if tested is None else tested

    def forward(self, input_ids: Tensor, labels: Tensor, **beside: Tensor) -> Tensor:
        logits = self.head(self.tested(self.embed(input_ids)))
        return F.cross_entropy(logits.reshape(-1, WORDS), labels.reshape(-1))


def drawn(samples: int = 2, tokens: int = 12) -> Tensor:
    return torch.randint(1, WORDS, (samples, tokens), generator=torch.Generator().manual_seed(1))


def labels(*ignored: slice, samples: int = 2, tokens: int = 12) -> Tensor:
    made = drawn(samples, tokens)
    for part in ignored:
        made[0, part] = -100
    return made


def experts(*used: int) -> nn.Module:
    """Return four experts of which some are called, as modules of a list."""
    each = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(4))
    return Of(lambda self, x: sum((self.each[k](x) for k in used), x), each=each)


def packed(*used: int) -> nn.Module:
    """Return four experts of which some are used, as one weight."""
    weight = nn.Parameter(torch.randn(4, WIDTH, WIDTH))
    return Of(lambda self, x: sum((x @ self.weight[k] for k in used), x), weight=weight)


def switched(is_on: bool) -> nn.Module:
    return nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Dropout(0.1)).train(is_on)


def lora(first: float) -> nn.Module:
    """Return a layer with an adapter of which the second matrix begins as this."""
    inner = {"a": nn.Linear(WIDTH, 2, bias=False), "b": nn.Linear(2, WIDTH, bias=False)}
    nn.init.constant_(inner["b"].weight, first)
    return Of(lambda self, x: x + self.b(self.a(x)), **inner)


def record(path: Path, tested: nn.Module | None = None, *, steps: int = 2, task: str = "tensor", config: Any = None,
           change: Callable[[Small], object] = lambda model: None, **given: Tensor) -> Path:  # fmt: skip
    """Record training of a small model; given is what it is given instead of, or beside, ordinary data."""
    torch.manual_seed(0)
    model = Small(tested, **(config or {}))
    change(model)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    with probe.capture(model, path, task=task, overwrite=True):
        for _ in range(steps):
            loss = model(**{"input_ids": drawn(), "labels": drawn(), **given})
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            probe.step(loss=loss)
    return path


def codes(path: Path) -> list[str]:
    with Reader(path) as reader:
        return [each.code for each in cannot_show(reader)]


BORDERS = torch.cat([torch.arange(5), torch.arange(7)]).expand(2, 12)
ONES = torch.ones(2, 12, dtype=torch.long)
ALL, SECOND, LAST = slice(None), slice(5, None), slice(6, None)
SITUATIONS: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "labels": ("no-label-at-all", {"labels": ONES * -100, "task": "statistics"}, {"labels": labels(SECOND)}),
    "labels of a sample": ("documents-without-label", {"labels": labels(ALL)}, {"labels": labels(SECOND)}),
    "labels of a document": (
        "documents-without-label",
        {"labels": labels(SECOND), "position_ids": BORDERS}, {"labels": labels(LAST), "position_ids": BORDERS},
    ),
    "zero weights": ("zero-weights-unshown", {"tested": lora(0.0)}, {"tested": lora(0.1)}),
    "even inputs": ("input-is-one-number", {"input_ids": ONES, "task": "statistics"}, {"input_ids": drawn()}),
    "even positions": ("input-is-one-number", {"position_ids": ONES * 0}, {"position_ids": BORDERS}),
    "few tokens": ("few-tokens", {"input_ids": drawn(2, 3), "labels": drawn(2, 3)}, {"input_ids": drawn()}),
    "window": ("window-not-reached", {"config": {"sliding_window": 64}}, {"config": {"sliding_window": 8}}),
    "experts": ("experts-without-token", {"tested": experts(0, 2)}, {"tested": experts(0, 1, 2, 3)}),
    "packed experts": (
        "experts-without-token",
        {"tested": packed(0, 2), "config": {"num_experts": 4}, "task": "statistics"},
        {"tested": packed(0, 1, 2, 3), "config": {"num_experts": 4}, "task": "statistics"},
    ),
    "one expert": (
        "one-expert-for-each-token",
        {"config": {"num_experts": 4, "num_experts_per_tok": 1}}, {"config": {"num_experts": 4, "num_experts_per_tok": 2}},
    ),
    "one sample": ("one-sample", {"input_ids": drawn(1), "labels": drawn(1)}, {}),
    "samples alike": ("samples-are-alike", {"input_ids": drawn(1).expand(2, 12)}, {}),
    "masks": ("mask-hides-nothing", {"attention_mask": ONES, "task": "statistics"}, {"attention_mask": (drawn() > 3).long()}),
    "added masks": ("mask-hides-nothing", {"mask": torch.zeros(2, 12)}, {"mask": torch.zeros(2, 12).fill_(-1e9).tril()}),
    "switched off": ("switched-off", {"tested": switched(False)}, {"tested": switched(True)}),
    "one step": ("one-step", {"steps": 1, "task": "statistics"}, {"steps": 2}),
}  # fmt: skip
"""by name: the code, the situation, and one beside it in which nothing is said"""


@pytest.mark.parametrize("name", SITUATIONS)
def test_a_situation_is_said_and_its_neighbour_is_not(name: str, tmp_path: Path) -> None:
    code, there, beside = SITUATIONS[name]
    assert codes(record(tmp_path / "there.h5", **there)) == [code]
    assert codes(record(tmp_path / "beside.h5", **beside)) == []


def test_damaged_ids_are_as_if_they_were_not_recorded(tmp_path: Path) -> None:
    ids, path = drawn(2, 4096), tmp_path / "a.h5"
    raw = bytearray(record(path, input_ids=ids, labels=ids, steps=1).read_bytes())
    raw[raw.index(ids.numpy().tobytes()[:64])] ^= 255
    path.write_bytes(raw)
    assert codes(path) == ["one-step"]


def test_each_check_has_a_situation() -> None:
    assert set(CHECKS) <= set(SITUATIONS)


def test_it_stands_under_an_aligned_answer_in_text_and_json_and_in_info(tmp_path: Path) -> None:
    given = {"input_ids": drawn(1, 3), "labels": drawn(1, 3), "attention_mask": ONES[:1, :3], "steps": 1}
    paths = [record(tmp_path / name, **given) for name in ("a.h5", "b.h5")]
    found = probe.compare(*paths)
    wanted = ["few-tokens", "one-sample", "mask-hides-nothing", "one-step"]
    assert [each["code"] for each in json.loads(json.dumps(found.as_json()))["cannot_show"]] == wanted
    assert str(found).count("cannot show: ") == 3, "the weightiest three"
    assert render(found, verbose=True).plain.count("cannot show: ") == 4
    lines = [text for text in map(str, summary(paths[0]).renderables) if text.startswith("cannot show: ")]
    assert len(lines) == 4


def test_it_stands_under_no_divergence(tmp_path: Path) -> None:
    a = record(tmp_path / "a.h5", steps=1)
    b = record(tmp_path / "b.h5", steps=1, change=lambda model: model.embed.weight.data.mul_(2))
    found = probe.compare(a, b)
    assert found.verdict == "diverged" and found.cannot_show == () and "cannot show" not in str(found)


def test_a_check_that_fails_costs_its_lines_and_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(seen: object) -> None:
        raise ValueError("planted")

    monkeypatch.setitem(CHECKS, "labels", fails)
    found = probe.compare(*(record(tmp_path / name) for name in ("a.h5", "b.h5")))
    assert found.verdict == "aligned" and [each.code for each in found.notes if each.code == "hint-failed"]
