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

    def __init__(self, wrong_from: int = 99) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embed, self.block, self.head = nn.Embedding(32, 8), nn.Linear(8, 8), nn.Linear(8, 32)
        self.wrong_from = wrong_from

    def forward(self, input_ids, bias=None):
        h = self.block(self.embed(input_ids)).cumsum(-2)
        later = torch.arange(h.shape[-2])[:, None] >= self.wrong_from
        return self.head(torch.where(later, h * 1.5, h))


def ids(count: int = 12, first: int = 1) -> torch.Tensor:
    return (torch.arange(count) * 5 + first) % 32


def record(model: Model, path: str, given: torch.Tensor, trains: bool = True, **options) -> Recording:
    probe.start(model, path, task="tensor", **options)
    with torch.set_grad_enabled(trains):
        loss = (model(given) ** 2).mean()
    if trains:
        loss.backward()
    probe.step()
    probe.stop()
    return Recording(Path(path))


def test_requests_are_chosen_by_what_the_model_is_given() -> None:
    model, seen = Model(), []
    wanted = lambda input_ids, bias=None: len(input_ids) == 1 or int(input_ids[0]) == 7  # noqa: E731
    armed = probe.arm(model, "a.h5", when=wanted, forwards=3, task="tensor")
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
    plain, model = Model(), Model()
    expected = plain(given)
    (expected**2).mean().backward()
    run = record(model, "a.h5", given, tokens="4:7")
    lead = given.shape[:-1]
    shapes = {(s.path, s.role): s.shape for s in run.seen if s.slot != "bias" and s.phase != "update"}
    assert shapes["", "input"] == (*lead, 3) and shapes["block", "param"] == shapes["block", "param_grad"] == (8, 8)
    assert shapes["block", "output"] == shapes["block", "grad_output"] == (*lead, 3, 8)
    assert torch.equal(torch.tensor(probe.open("a.h5")["head"].output[0].values()), expected[..., 4:7, :])
    assert run.info.config["tokens"] == "4:7"
    assert all(torch.equal(a.grad, b.grad) for a, b in zip(plain.parameters(), model.parameters(), strict=True))


def test_only_recordings_of_the_same_tokens_are_compared() -> None:
    right, wrong = Model(), Model(wrong_from=8)
    record(right, "whole.h5", ids(), trains=False)
    for side, model in (("a", right), ("b", wrong)):
        for tokens in (":6", "6:"):
            record(model, f"{side}{tokens.strip(':')}{tokens[0] == ':'}.h5", ids(), trains=False, tokens=tokens)
    other = probe.compare("whole.h5", "a6True.h5")
    assert other.verdict == "undecided" and "other-tokens" in {each.code for each in other.reasons}
    for is_first, verdict in ((True, "aligned"), (False, "diverged")):
        found = probe.compare(f"a6{is_first}.h5", f"b6{is_first}.h5")
        assert found.verdict == verdict
        assert [each.facts["late"] for each in found.notes if each.code == "these-tokens"] == [not is_first]
    with pytest.raises(NotRecordedError, match="tokens 0:6 alone"):
        probe.replay(Model(), "a6True.h5")


def test_forwards_that_have_none_of_them_are_said() -> None:
    with pytest.warns(match="fewer than 9 tokens are not recorded"):
        run = record(Model(), "a.h5", ids(3), tokens="8:")
    assert not run.find(role="output") and run.find(role="param")


@pytest.mark.parametrize("shape, cut", [((2, 8), (2, 8)), ((2, 8), (2, 3, 8)), ((4, 4), (4, 4, 8))])
def test_neither_features_nor_samples_are_taken_for_tokens(shape, cut) -> None:
    model = Model()
    model.embed.register_forward_hook(lambda module, args, out: out.mean(1) if len(cut) < 3 else out)
    run = record(model, "a.h5", ids(16).reshape(shape), trains=False, tokens=":3")
    assert run.one(path="embed", role="output").shape == cut
