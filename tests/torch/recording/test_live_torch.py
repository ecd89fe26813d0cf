"""What is recorded of a PyTorch program that runs: chosen requests, chosen tokens."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

import probe
from probe.errors import NotRecordedError
from probe.testing import Recording


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)


class Model(nn.Module):
    """An embedding, a block that mixes tokens causally, a head."""

    def __init__(self, scale: float = 1.0, wrong_from: int = 99) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embed, self.block, self.head = nn.Embedding(32, 8), nn.Linear(8, 8), nn.Linear(8, 32)
        self.scale, self.wrong_from = scale, wrong_from

    def forward(self, input_ids, bias=None):
        h = self.block(self.embed(input_ids)).cumsum(-2)
        later = torch.arange(h.shape[-2])[:, None] >= self.wrong_from
        return self.head(torch.where(later, h * self.scale, h))


def ids(count: int = 12, first: int = 1) -> torch.Tensor:
    return (torch.arange(count) * 5 + first) % 32


def record(model: Model, path: str, given: torch.Tensor, trains: bool = True, **options) -> Recording:
    probe.start(model, path, task="tensor", **options)
    with torch.set_grad_enabled(trains):
        output = model(given)
    if trains:
        output.sum().backward()
    probe.step()
    probe.stop()
    return Recording(Path(path))


def shapes(run: Recording, **wanted) -> set[tuple[int, ...]]:
    return {tuple(each.shape) for each in run.find(**wanted)}


def test_requests_are_chosen_by_what_the_model_is_given() -> None:
    model, seen = Model(), []
    armed = probe.arm(
        model,
        "a.h5",
        when=lambda input_ids, bias=None: len(input_ids) == 1 or int(input_ids[0]) == 7,
        forwards=3,
        task="tensor",
    )
    with torch.no_grad():
        for given in (ids(), ids(first=7), ids(), ids(1, 4), ids(1, 9), ids(1, 2)):
            model(given, bias=None)
            seen.append(len(list(Path().glob("*.h5"))))
    armed.remove()
    assert seen == [0, 1, 1, 1, 1, 1] and not model._forward_pre_hooks and not model._forward_hooks
    run = Recording(Path("a.h5"))
    assert [int(each.values[0]) for each in run.find(path="", role="input")] == [7, 4, 9]
    assert len(run.find(path="", role="output")) == 3  # the first one, too, from its beginning to its end


@pytest.mark.parametrize("given", [ids(), ids().reshape(1, -1)])
def test_a_range_of_tokens_is_recorded_and_weights_are_whole(given) -> None:
    model = Model()
    with torch.no_grad():
        expected = model(given)[..., 4:7, :]
    run = record(model, "a.h5", given, tokens="4:7")
    lead = tuple(given.shape[:-1])
    assert shapes(run, path="", role="input") == {(*lead, 3)}
    assert shapes(run, path="block", role="output") == {(*lead, 3, 8)} == shapes(run, path="block", role="grad_output")
    assert shapes(run, path="block", role="param") == {(8, 8), (8,)} == shapes(run, path="block", role="param_grad")
    assert torch.equal(torch.tensor(probe.open("a.h5")["head"].output[0].values()), expected)
    assert probe.open("a.h5").info.config["tokens"] == "4:7"


def test_a_training_is_the_same_with_chosen_tokens() -> None:
    found = []
    for tokens in ("", "2:5"):
        model = Model()
        if tokens:
            probe.start(model, "a.h5", tokens=tokens)
        (model(ids()) ** 2).mean().backward()
        probe.step()
        probe.stop()
        found.append([parameter.grad.clone() for parameter in model.parameters()])
    assert all(map(torch.equal, *found))


def test_only_recordings_of_the_same_tokens_are_compared() -> None:
    right, wrong = Model(), Model(1.5, wrong_from=8)
    record(right, "whole.h5", ids(), trains=False)
    for path, model, tokens in (
        ("a.h5", right, ":6"),
        ("b.h5", wrong, ":6"),
        ("c.h5", wrong, "6:"),
        ("d.h5", right, "6:"),
    ):
        record(model, path, ids(), trains=False, tokens=tokens)
    other = probe.compare("whole.h5", "a.h5")
    assert other.verdict == "undecided" and "other-tokens" in {each.code for each in other.reasons}
    before, behind = probe.compare("a.h5", "b.h5"), probe.compare("d.h5", "c.h5")
    assert before.verdict == "aligned" and behind.verdict == "diverged"
    assert ("these-tokens", False) in {(each.code, each.facts.get("late")) for each in before.notes}
    assert ("these-tokens", True) in {(each.code, each.facts.get("late")) for each in behind.notes}
    with pytest.raises(NotRecordedError, match="tokens 0:6 alone"):
        probe.replay(Model(), "a.h5")


def test_forwards_that_have_none_of_them_are_said() -> None:
    model = Model()
    with pytest.warns(match="fewer than 9 tokens are not recorded"):
        run = record(model, "a.h5", ids(3), tokens="8:")
    assert not run.find(role="output") and run.find(role="param")
