"""Optimizers that are set differently."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import h5py
import numpy as np
import pytest

import probe
from probe.answer.result import Kind, Verdict
from probe.records import Phase
from tests import fusing
from tests.toy import nn
from tests.toy.tensor import Tensor
from tests.toys import gpt, loss_of, module, plain_step
from tests.verdict.planted import Clean, Model, Recorder, said, step_of


class Adam(nn.AdamW):
    """The same under another name: what it does differs only with weight decay."""


EPS = "eps 1e-08 against 1e-10 (group 0); that does not show in the numbers yet"


@pytest.mark.parametrize(
    ("make", "count", "path", "which"),
    [
        (lambda m: nn.AdamW(m.parameters(), lr=1e-3, eps=1e-10), 39, "", ()),
        (lambda m: nn.AdamW([{"params": m.parameters()[:9]}, {"params": m.parameters()[9:], "eps": 1e-10}], lr=1e-3), 30, "", ()),
        (lambda m: nn.AdamW([{"params": m.parameters()[:-3]}, {"params": m.parameters()[-3:], "eps": 1e-10}], lr=1e-3), 3, "layers.2.mlp.down",
         ("set otherwise: layers.2.mlp.down.bias, norm.weight, head.weight (of 39)",)),
        (lambda m: nn.AdamW([{"params": m.parameters()[:-1]}, {"params": m.parameters()[-1:], "eps": 1e-10}], lr=1e-3), 1, "head",
         ("set otherwise: head.weight (of 39)",)),
    ],
)  # fmt: skip
def test_settings_that_differ_and_do_not_show_are_a_fact_between_equal_optimizers(
    clean: Clean, run: Recorder, make: Callable[[Model], nn.Optimizer], count: int, path: str, which: tuple[str, ...]
) -> None:
    model = gpt()
    found = probe.compare(clean(), run(model, steps=2, optimizer=make(model)))
    (first,) = found.divergences
    assert (found.verdict, first.phase, first.kind, first.step) == (Verdict.DIVERGED, Phase.UPDATE, Kind.UPDATE, 0)
    assert (first.path, first.confidence) == (path, 0.6)
    counted = "1 parameter" if count == 1 else f"{count} parameters"
    assert first.evidence == (f"the optimizers are set differently for {counted}: {EPS}", *which)


def test_another_class_that_does_not_show_is_a_doubt(clean: Clean, run: Recorder) -> None:
    """What its settings mean is not known to be the same."""
    model = gpt()
    found = probe.compare(clean(), run(model, steps=2, optimizer=Adam(model.parameters(), lr=1e-3)))
    assert (found.verdict, found.divergences) == (Verdict.UNDECIDED, ())
    (warning,) = found.warnings
    assert warning == (
        "the optimizers are set differently for 39 parameters: AdamW against Adam (group 0); that does not show in the "
        "numbers yet"
    )


def test_another_framework_is_a_doubt(clean: Clean, run: Recorder) -> None:
    """It may count eps otherwise."""
    model = gpt()
    there = run(model, steps=2, optimizer=nn.AdamW(model.parameters(), lr=1e-3, eps=1e-10))
    with h5py.File(there, "r+") as file:
        file.attrs["framework"] = "other"
    found = probe.compare(clean(), there)
    assert (found.verdict, found.divergences) == (Verdict.UNDECIDED, ())
    assert said(found, EPS)


def test_what_is_found_in_a_later_step_stays_first(clean: Clean, run: Recorder) -> None:
    """The settings are said beside it."""

    def step(model: Model, optimizer: nn.Optimizer, number: int) -> Tensor:
        if number == 1:
            module(model, "layers.1.norm2").eps = 1e-2
        return plain_step(model, optimizer, number)

    model = gpt()
    there = run(model, steps=2, step=step, optimizer=nn.AdamW(model.parameters(), lr=1e-3, eps=1e-10))
    found = probe.compare(clean(), there)
    assert [(each.step, each.path) for each in found.divergences] == [(1, "layers.1.norm2")]
    assert said(found, f"the optimizers are set differently for 39 parameters: {EPS}")


class _Own(nn.AdamW):
    """Has a rate of its own."""

    def update(self, data: Any, gradient: Any, group: dict[str, Any], state: dict[str, Any]) -> None:
        super().update(data, gradient, {**group, "lr": 1e-3}, state)


@pytest.mark.parametrize("rates", [(1e-3, 2e-3), (0.0, 1e-3)])
def test_a_rate_that_is_not_used_is_a_doubt(run: Recorder, rates: tuple[float, float]) -> None:
    models = gpt(), gpt()
    files = [run(m, optimizer=_Own(m.parameters(), lr=lr)) for m, lr in zip(models, rates, strict=True)]
    found = probe.compare(*files)
    assert (found.verdict, found.divergences) == (Verdict.UNDECIDED, ())
    assert said(found, f"lr {rates[0]} against {rates[1]} (group 0); that does not show in the numbers yet")


def test_a_weight_decay_that_rounding_hides_is_told_by_the_settings(clean: Clean, run: Recorder) -> None:
    model = gpt()
    found = probe.compare(clean(), run(model, optimizer=nn.AdamW(model.parameters(), lr=1e-3, weight_decay=0.01005)))
    first = found.first_divergence
    assert first is not None and (first.phase, found.verdict) == (Phase.UPDATE, Verdict.DIVERGED)
    assert first.evidence == (
        "the optimizers are set differently for 39 parameters: weight_decay 0.01 against 0.01005 (group 0); that does not "
        "show in the numbers yet",
    )


def test_settings_that_are_blamed_are_not_said_to_leave_no_trace(clean: Clean, run: Recorder) -> None:
    model = gpt()
    found = probe.compare(clean(), run(model, optimizer=nn.AdamW(model.parameters(), lr=1.1e-3)))
    assert found.verdict is Verdict.DIVERGED
    assert not said(found, "set differently")


def test_another_class_of_optimizer_is_named_where_the_updates_differ(clean: Clean, run: Recorder) -> None:
    model = gpt()
    first = probe.compare(clean(), run(model, optimizer=nn.SGD(model.parameters(), lr=1e-3))).first_divergence
    assert first is not None and first.phase is Phase.UPDATE
    assert first.hint == "the settings differ: AdamW against SGD, weight_decay 0.01 against 0.0 (group 0)"


@pytest.mark.parametrize("turned", [False, True])
def test_what_differs_for_all_that_lie_in_one_is_said_once(run: Recorder, turned: bool) -> None:
    apart, together = fusing.apart(), fusing.together()
    files = [
        run(apart, optimizer=nn.AdamW(apart.parameters(), lr=1e-3)),
        run(together, optimizer=nn.AdamW(together.parameters(), lr=1.1e-3)),
    ]
    first = probe.compare(*(files[::-1] if turned else files), mapping=fusing.mapping()).first_divergence
    rates = "0.0011 against 0.001" if turned else "0.001 against 0.0011"
    assert first is not None and first.hint == f"the settings differ: lr {rates} (group 0)"


def test_what_differs_for_some_that_lie_in_one_names_them(run: Recorder) -> None:
    apart, together = fusing.apart(), fusing.together()
    keys = [module(apart, f"layers.{number}.attn.k").weight for number in range(3)]
    others = [each for each in apart.parameters() if not any(each is key for key in keys)]
    groups = [{"params": others}, {"params": keys, "lr": 2e-3}]
    files = [
        run(apart, optimizer=nn.AdamW(groups, lr=1e-3)),
        run(together, optimizer=nn.AdamW(together.parameters(), lr=1e-3)),
    ]
    first = probe.compare(*files, mapping=fusing.mapping()).first_divergence
    assert first is not None and "lr 0.002 against 0.001" in first.hint


@pytest.mark.parametrize("task", ["statistics", "tensor"])
def test_one_group_that_is_set_otherwise_is_one_finding(clean: Clean, run: Recorder, task: str) -> None:
    model = gpt()
    named = {path: parameter for path, parameter, _ in model.named_tensors(nn.Parameter)}
    norms = [parameter for path, parameter in named.items() if "norm" in path]
    others = [parameter for path, parameter in named.items() if "norm" not in path]
    groups = [{"params": others}, {"params": norms, "weight_decay": 0.0}]
    found = probe.compare(clean(task), run(model, optimizer=nn.AdamW(groups, lr=1e-3), task=task))
    (first,) = found.divergences
    assert first.hint == "the settings differ: weight_decay 0.01 against 0.0 (group 0)"
    assert (
        f"the updates of {len(norms)} of the {len(norms)} parameters of A's group 0 that are set so differ: layers.0.norm1.weight, "
        f"layers.0.norm2.weight, layers.1.norm1.weight, layers.1.norm2.weight and {len(norms) - 4} more"
    ) in first.evidence


def test_a_rate_that_is_that_of_all_biases_is_the_optimizers(clean: Clean, run: Recorder) -> None:
    """They are in one module of each kind: none of those has anything wrong in it."""
    model = gpt()
    named = {path: parameter for path, parameter, _ in model.named_tensors(nn.Parameter)}
    biases = [parameter for path, parameter in named.items() if path.endswith("bias")]
    others = [parameter for path, parameter in named.items() if not path.endswith("bias")]
    groups = [{"params": others}, {"params": biases, "lr": 2e-3}]
    found = probe.compare(clean(), run(model, optimizer=nn.AdamW(groups, lr=1e-3)))
    (first,) = found.divergences
    assert (first.phase, len(first.a)) == (Phase.UPDATE, 9), "all of them are named"
    assert first.hint == "the settings differ: lr 0.001 against 0.002 (group 0)"
    assert (
        "the updates of 9 of the 9 parameters of A's group 0 that are set so differ: layers.0.mlp.gate.bias, "
        "layers.0.mlp.up.bias, layers.0.mlp.down.bias, layers.1.mlp.gate.bias and 5 more"
    ) in first.evidence


class _Hasty(nn.AdamW):
    """Moves what has one dimension by twice as much; no setting says so."""

    def update(self, data: Any, gradient: Any, group: dict[str, Any], state: dict[str, Any]) -> None:
        super().update(data, gradient, {**group, "lr": group["lr"] * (1 + (data.ndim == 1))}, state)


def test_what_an_optimizer_does_to_all_of_one_dimension_is_the_optimizers(clean: Clean, run: Recorder) -> None:
    model = gpt()
    found = probe.compare(clean(), run(model, optimizer=_Hasty(model.parameters(), lr=1e-3)))
    (first,) = found.divergences
    assert (first.phase, first.path) == (Phase.UPDATE, "")
    assert first.evidence[0].startswith(
        "the updates of 16 of the 16 parameters of one dimension differ: layers.0.norm1.weight, "
    )


def test_all_that_modules_of_one_class_have_is_theirs(clean: Clean, run: Recorder) -> None:
    class Norms(nn.AdamW):
        def update(self, data: Any, gradient: Any, group: dict[str, Any], state: dict[str, Any]) -> None:
            is_norm = any(data is norm.data for norm in norms)
            super().update(data, gradient, {**group, "lr": group["lr"] * (1 + is_norm)}, state)

    model = gpt()
    norms = [each for path, each, _ in model.named_tensors(nn.Parameter) if "norm" in path]
    found = probe.compare(clean(), run(model, optimizer=Norms(model.parameters(), lr=1e-3)))
    assert found.first_divergence is not None and "norm" in found.first_divergence.path


@pytest.mark.parametrize("task", ["statistics", "tensor"])
def test_how_gradients_of_one_group_are_used_is_no_modules(run: Recorder, task: str) -> None:
    """Clipping by group: backward leaves them alike, so no norm's code can be it, though all of the group are norms."""

    def clipped(model: Model, ids: Tensor, number: int) -> Tensor:
        loss = loss_of(model(ids), ids)
        loss.backward()
        for path, parameter, _ in model.named_tensors(nn.Parameter):
            if "norm" in path:
                parameter.grad.data *= np.float32(0.25)
        return loss

    def recorded(**options: Any) -> Any:
        model = gpt()
        named = [(path, parameter) for path, parameter, _ in model.named_tensors(nn.Parameter)]
        groups = [{"params": [p for path, p in named if ("norm" in path) is is_norm]} for is_norm in (False, True)]
        return run(model, optimizer=nn.AdamW(groups, lr=1e-3), task=task, **options)

    first = probe.compare(recorded(), recorded(step=step_of(clipped))).first_divergence
    assert first is not None and (first.phase, first.path) == (Phase.UPDATE, "")
    assert first.evidence[0].startswith(
        "the gradients as the optimizer used them of 7 of the 7 parameters of A's group 1 differ: layers.0.norm1.weight, "
    )


@pytest.mark.parametrize(
    ("a", "b", "said"),
    [
        ({"trust": 1.0, "mode": "x"}, {"trust": 2.0, "mode": "y"}, "mode x against y, trust 1.0 against 2.0"),
        ({"trust": [1, 2]}, {"trust": [1, 3]}, "trust [1, 2] against [1, 3]"),
        ({"trust": 1.0}, {"trust": 1.0}, ""),
        ({"fused": True, "call": "<f at 0x1>"}, {"fused": False, "call": "<f at 0x2>"}, ""),
        ({"trust": 1.0}, {}, ""),
    ],
)
def test_settings_of_which_it_is_not_known_what_they_do(
    run: Recorder, a: dict[str, Any], b: dict[str, Any], said: str
) -> None:
    def recorded(more: dict[str, Any]) -> Any:
        model = gpt()
        return run(model, optimizer=nn.AdamW([{"params": model.parameters(), **more}], lr=1e-3), steps=2)

    found = probe.compare(recorded(a), recorded(b))
    assert found.verdict is Verdict.ALIGNED
    text = f"the optimizers have other settings of which it is not known what they do: {said}; the updates agree"
    assert found.warnings == ((text,) if said else ())
