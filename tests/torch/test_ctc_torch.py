"""A loss that sums over alignments rounds by its own size: CTC, as speech models are trained with."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import probe
from probe.comparison.result import Verdict
from probe.records import Phase
from probe.store.reading.reader import Reader

FRAMES, BATCH, SYMBOLS, LENGTH = 200, 4, 50, 20


class Speech(nn.Module):
    """Two linear layers."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.encoder, self.head = nn.Linear(16, 64), nn.Linear(64, SYMBOLS)

    def forward(self, x):
        return self.head(self.encoder(x).relu())


class InParts(nn.Linear):
    def forward(self, x):
        pairs = zip(x.chunk(2, -1), self.weight.chunk(2, 1), strict=True)
        return sum(F.linear(*each) for each in pairs) + self.bias


def record(path, *, split=False, factor=1.0, named=True, seed=0):
    model = Speech()
    if split:
        model.head.__class__ = InParts
    generator = torch.Generator().manual_seed(seed)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with probe.capture(model, path):
        x = torch.randn(BATCH, FRAMES, 16, generator=generator)
        targets = torch.randint(1, SYMBOLS, (BATCH, LENGTH), generator=generator)
        lengths = torch.full((BATCH,), FRAMES), torch.full((BATCH,), LENGTH)
        loss = F.ctc_loss(model(x).log_softmax(-1).transpose(0, 1), targets, *lengths)
        (factor * loss).backward()
        optimizer.step()
        probe.step(loss=loss * 1.0 if named else loss.item())
    return path


@pytest.mark.parametrize("seed", range(3))
def test_its_rounding_is_no_fault(seed, tmp_path):
    a, b = record(tmp_path / "a.h5", seed=seed), record(tmp_path / "b.h5", split=True, seed=seed)
    assert Reader(a).listed("loss_functions") == ["CtcLoss"]
    found = probe.compare(a, b)
    assert found.verdict is Verdict.ALIGNED, found.first_divergence


def test_of_numbers_alone_nothing_tells_how_they_were_made(tmp_path):
    a, b = record(tmp_path / "a.h5", named=False), record(tmp_path / "b.h5", split=True, named=False)
    assert Reader(a).listed("loss_functions") == []
    assert probe.compare(a, b).verdict is Verdict.DIVERGED


def test_another_scale_of_it_is_a_fault(tmp_path):
    a, b = record(tmp_path / "a.h5"), record(tmp_path / "b.h5", split=True, factor=1.02)
    first = probe.compare(a, b).first_divergence
    assert first is not None and first.phase is Phase.LOSS


def test_weights_and_sums_of_losses_stand_before_them(tmp_path):
    logits = torch.randn(3, 5, requires_grad=True)
    losses = (
        F.cross_entropy(logits, torch.tensor([0, 1, 2])),
        F.mse_loss(logits, torch.zeros(3, 5)),
        logits.abs().mean(),
    )
    model = nn.Linear(2, 2)
    with probe.capture(model, tmp_path / "a.h5"):
        model(torch.ones(1, 2)).sum().backward()
        probe.step(loss=0.3 * losses[0] + losses[1] / 2 + losses[2])
    assert Reader(tmp_path / "a.h5").listed("loss_functions") == ["NllLoss", "MseLoss"]


def test_part_of_a_batch_without_a_gradient_is_a_fault_also_where_losses_are_summed(tmp_path):
    files = []
    for name, kept in (("a", BATCH), ("b", BATCH - 1)):
        model = Speech()
        generator = torch.Generator().manual_seed(0)
        x = torch.randn(BATCH, FRAMES, 16, generator=generator)
        targets = torch.randint(1, SYMBOLS, (BATCH, LENGTH), generator=generator)
        lengths = torch.full((BATCH,), FRAMES), torch.full((BATCH,), LENGTH)
        with probe.capture(model, tmp_path / f"{name}.h5"):
            logits = model(x)
            used = torch.cat([logits[:kept], logits[kept:].detach()])
            loss = F.ctc_loss(used.log_softmax(-1).transpose(0, 1), targets, *lengths, reduction="sum")
            loss.backward()
            probe.step(loss=loss)
        files.append(tmp_path / f"{name}.h5")
    first = probe.compare(*files).first_divergence
    assert first is not None and first.phase is Phase.LOSS
