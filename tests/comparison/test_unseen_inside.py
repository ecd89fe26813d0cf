"""Models of which nothing inside was seen, wrappers, and runs that were ended early."""

from __future__ import annotations

from typing import Any

import h5py
import numpy as np

import probe
from probe.adapters.numpy import nn
from probe.adapters.numpy.tensor import Tensor, softmax
from probe.comparison.result import Verdict
from probe.records import Role
from tests.comparison.planted import Clean, Model, Recorder, said
from tests.toys import GPT, WIDTH, gpt, replaced


class OptimizedModule(nn.Module):
    """Runs what it holds without calling its hooks, as a compiled model does."""

    def __init__(self, model: Model) -> None:
        super().__init__(_orig_mod=model)

    def forward(self, ids: Tensor) -> Tensor:
        hooks = [(m, m.pre_hooks, m.post_hooks) for _, m in self._orig_mod.modules()]
        for module_, _, _ in hooks:
            module_.pre_hooks, module_.post_hooks = type(module_.pre_hooks)(), type(module_.post_hooks)()
        try:
            return self._orig_mod(ids)
        finally:
            for module_, before, after in hooks:
                module_.pre_hooks, module_.post_hooks = before, after


class DistributedDataParallel(nn.Module):
    def __init__(self, model: Model) -> None:
        super().__init__(module=model)

    def forward(self, ids: Tensor) -> Tensor:
        return self.module(ids)


def test_a_model_of_which_nothing_inside_was_seen_is_not_aligned(clean: Clean, run: Recorder) -> None:
    compiled = run(OptimizedModule(gpt()), steps=2)
    for pair, names in (((compiled, run(OptimizedModule(gpt()), steps=2)), "AB"), ((clean(), compiled), "B")):
        found = probe.compare(*pair)
        assert found.verdict is Verdict.UNDECIDED
        for name in names:
            assert said(
                found,
                f"{name}: nothing that runs inside _orig_mod was recorded: it is compiled, or calls none of its modules",
            )
        outputs = [slot for slot in found.slots if slot.role is Role.OUTPUT]
        assert len(outputs) == 2, "the wrapper stands for what it holds"


def test_wrappers_are_not_among_what_one_side_lacks(clean: Clean, run: Recorder) -> None:
    wrapped = run(DistributedDataParallel(gpt()), steps=2)
    for pair in ((clean(), wrapped), (wrapped, clean())):
        found = probe.compare(*pair)
        assert found.verdict is Verdict.ALIGNED
        assert (found.only_a, found.only_b, found.coverage.paired) == ((), (), 2 * 43)


def test_a_model_that_was_never_called(run: Recorder) -> None:
    def idle(model: Model, optimizer: nn.Optimizer, number: int) -> float:
        for parameter in model.parameters():
            parameter.grad = Tensor(np.ones_like(parameter.data))
        optimizer.step()
        return 1.0

    found = probe.compare(run(step=idle), run(step=idle))
    assert found.verdict is Verdict.UNDECIDED
    assert said(found, "A: no call of a module was recorded") and said(found, "B: no call of a module was recorded")


def test_a_run_that_was_ended_early_is_said(run: Recorder) -> None:
    a, b = run(steps=3), run(steps=1)
    with h5py.File(b, "r+") as file:
        file.attrs["closed"] = False
    found = probe.compare(a, b)
    assert found.verdict is Verdict.ALIGNED
    text = "steps not compared: 1, 2 only in A (the other was not closed: its process was ended, or is still running)"
    assert said(found, text)


def test_weights_that_stand_in_another_form_on_the_other_side_are_said(clean: Clean, run: Recorder) -> None:
    def fused(self: Any, x: Tensor) -> Tensor:
        y = self.qkv(x)
        q, k, v = (y[:, :, n * WIDTH : (n + 1) * WIDTH] for n in range(3))
        count, length, _ = x.shape
        q, k, v = (z.reshape(count, length, self.heads, -1).swapaxes(1, 2) for z in (q, k, v))
        scores = q @ k.swapaxes(-1, -2) * (WIDTH / self.heads) ** -0.5
        mixed = softmax(scores + np.triu(np.full((length, length), -np.inf), 1)) @ v
        return self.o(mixed.swapaxes(1, 2).reshape(count, length, WIDTH))

    def model() -> GPT:
        made = gpt()
        for number in range(3):
            attention = replaced(made, f"layers.{number}.attn", forward=fused)
            attention.qkv = nn.Linear(WIDTH, 3 * WIDTH, bias=False)
            parts = [vars(attention).pop(name).weight.data for name in ("q", "k", "v")]
            attention.qkv.weight = nn.Parameter(np.concatenate(parts))
        return made

    files = clean(), run(model(), steps=2)
    found = probe.compare(*files)
    assert found.verdict is Verdict.ALIGNED
    assert not said(found, "weights that were not compared"), "the three are found in the one"
    found = probe.compare(*files, min_confidence=1)
    assert found.verdict is Verdict.ALIGNED
    assert said(
        found, "weights that were not compared, for want of a counterpart: layers.*.attn.q.weight ×3, "
        "layers.*.attn.k.weight ×3, layers.*.attn.v.weight ×3 in A; layers.*.attn.qkv.weight ×3 in B"
    )  # fmt: skip
