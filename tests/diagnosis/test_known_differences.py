"""A finding in classes between which the frameworks are known to differ says so, and only there."""

from __future__ import annotations

import dataclasses
import itertools
import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

import probe
from probe.answer.result import Divergence, Kind, NodeRef, Verdict
from probe.diagnosis.known_differences import KnownDifferences
from probe.diagnosis.table_of_known_differences import KNOWN_DIFFERENCES, VERIFIED, KnownDifference
from probe.notes import note
from probe.records import ModuleInfo, OptimizerGroup, Phase, Role, RunInfo, StepState
from probe.report.text import render
from probe.store.reading.reader import Reader
from probe.store.writing.writer import Writer
from tests.toy import nn
from tests.toy.tensor import Tensor

PAIRS = [
    pytest.param(row, a, b, id=f"{row.name}-{a}-{b}")
    for row in KNOWN_DIFFERENCES
    for a, b in itertools.permutations(row.habits, 2)
]
TITLES = {"torch": "PyTorch", "paddle": "PaddlePaddle", "mindspore": "MindSpore"}

# The table


def test_every_row_tells_frameworks_apart() -> None:
    names = [row.name for row in KNOWN_DIFFERENCES]
    assert len(set(names)) == len(names) >= 30
    for row in KNOWN_DIFFERENCES:
        assert {"torch"} < row.habits.keys() <= VERIFIED.keys(), row.name
        assert len({habit.does for habit in row.habits.values()}) > 1, row.name
        assert row.advice or any(habit.instead for habit in row.habits.values()), f"{row.name}: what is to be done?"
        assert all(habit.classes for habit in row.habits.values()), row.name


# Looking it up, row by row


def sample(pattern: str) -> str:
    """Return a class name that a glob fits."""
    return pattern.replace("?", "2").replace("*", "")


def recording(
    path: Path, framework: str, class_name: str, *, optimizer: str = "", hyper: dict[str, object] | None = None,
    file: str = "",
) -> Path:  # fmt: skip
    """Write a run of one module and two steps, in which nothing was seen."""
    writer = Writer(path, RunInfo(path.stem, framework, "0", "0", "2024-01-01T00:00:00+0000", 0, 1))
    writer.add_modules([ModuleInfo("", "Net", -1), ModuleInfo("it", class_name, 0, file)])
    groups = [OptimizerGroup(0, optimizer, 0, hyper or {}, ())] if optimizer else []
    for step in range(2):
        writer.end_step(step, calls=[], scalars=[], notes=[], groups=groups, wall_time=0.0, state=StepState.CLOSED)
    writer.close()
    return path


def finding(row: KnownDifference, classes: tuple[str, str], step: int = 1, **changes: Any) -> Divergence:
    slot = {"*": "weight", "*var*": "running_var", "*mean*": "running_mean"}.get(row.slots, row.slots)
    a, b = (NodeRef(step, 0, "" if row.is_of_optimizer else "it", name, 0, slot) for name in classes)
    plain = Divergence(
        row.phases[0],
        (*row.roles, Role.OUTPUT)[0],
        (*row.kinds, Kind.MISSING if row.is_one_sided else Kind.INTRODUCED)[0],
        0.9,
        (a,),
        (b,),
        None,
        advice=note("loss-scaling"),
    )
    return dataclasses.replace(plain, **changes)


Hint = Callable[..., str]


@pytest.fixture(scope="module")
def hint(tmp_path_factory: pytest.TempPathFactory) -> Hint:
    """Return the hint of a finding in classes that a row concerns, in runs of two frameworks."""
    folder = tmp_path_factory.mktemp("hint")
    made: dict[str, Path] = {}

    def run(framework: str, name: str, **options: Any) -> Reader:
        key = repr((framework, name, options))
        if key not in made:
            made[key] = recording(folder / f"{len(made)}.h5", framework, name, **options)
        return Reader(made[key])

    def told(
        row: KnownDifference, a: str, b: str, *, classes: tuple[str, str] | None = None,
        hypers: tuple[dict[str, object], dict[str, object]] = ({}, {}), file: str = "", **changes: Any,
    ) -> str:  # fmt: skip
        names = classes or tuple(sample(row.habits[framework].classes[0]) for framework in (a, b))
        readers = []
        for framework, name, hyper in zip((a, b), names, hypers, strict=True):
            if row.is_of_optimizer:
                readers.append(run(framework, "Net", optimizer=name or "Adam", hyper=hyper))
            else:
                readers.append(run(framework, name, file=file))
        with readers[0], readers[1]:
            found = finding(row, ("Net", "Net") if row.is_of_optimizer else names, **changes)
            return KnownDifferences(*readers).named(found).hint

    return told


@pytest.mark.parametrize(("row", "a", "b"), PAIRS)
def test_a_row_is_named_where_the_frameworks_differ(hint: Hint, row: KnownDifference, a: str, b: str) -> None:
    text = hint(row, a, b, hypers=({}, {name: 0.5 for name in row.settings}))
    mine, theirs = row.habits[a], row.habits[b]
    sentence = f"{row.about} {mine.does} in {TITLES[a]} and {theirs.does} in {TITLES[b]} ("
    if mine.does == theirs.does:
        assert row.about not in text
        return
    assert text.startswith("loss scaling; known difference")
    assert sentence in text
    for habit, title in ((mine, TITLES[a]), (theirs, TITLES[b])):
        assert not habit.instead or f"{habit.instead} in {title}" in text
    assert row.advice in text


@pytest.mark.parametrize("row", KNOWN_DIFFERENCES, ids=lambda row: row.name)
def test_a_row_is_silent_where_it_explains_nothing(hint: Hint, row: KnownDifference) -> None:
    a, b = next((a, b) for a, b in itertools.permutations(row.habits, 2) if row.habits[a].does != row.habits[b].does)
    assert row.about in hint(row, a, b, hypers=({}, {name: 0.5 for name in row.settings}))
    for framework in (a, b):  # twice the same framework, and the same classes
        name = sample(row.habits[framework].classes[0])
        assert hint(row, framework, framework, classes=(name, name)) == "loss scaling"
    if row.habits[a].classes != ("*",):
        mine = sample(row.habits[a].classes[0])
        assert row.about not in hint(row, a, b, classes=(mine, "Other"))
        assert row.about not in hint(row, a, b, classes=("Other", sample(row.habits[b].classes[0])))
    assert row.about not in hint(row, a, b, phase=Phase.BACKWARD, hypers=({}, {name: 0.5 for name in row.settings}))
    if row.settings:
        same = {row.settings[0]: 0.5}
        assert row.about not in hint(row, a, b, hypers=(same, {row.settings[-1]: 0.5}))
    if row.roles:
        assert row.about not in hint(row, a, b, role=Role.GRAD_INPUT)
    if row.kinds:
        assert row.about not in hint(row, a, b, kind=Kind.SHAPE)
    if row.first_step:
        assert row.about not in hint(row, a, b, step=row.first_step - 1)
    if row.is_one_sided:
        assert row.about not in hint(row, a, b, kind=Kind.UPDATE)


def test_classes_that_a_framework_copied_from_another_do_as_that_one_does(hint: Hint) -> None:
    """``mindspore.mint.nn.GELU`` is erf, as PyTorch's."""
    row = next(row for row in KNOWN_DIFFERENCES if row.name == "gelu-form")
    assert "known difference" in hint(row, "torch", "mindspore", file="/site-packages/mindspore/nn/layer/activation.py")
    mint = "/site-packages/mindspore/mint/nn/layer/activation.py"
    assert hint(row, "torch", "mindspore", file=mint) == "loss scaling"


def test_a_setting_that_one_side_does_not_have_is_zero(hint: Hint) -> None:
    row = next(row for row in KNOWN_DIFFERENCES if row.name == "sgd-momentum")
    assert "known difference" not in hint(row, "torch", "paddle", hypers=({"momentum": 0}, {"lr": 0.1}))
    assert "known difference: momentum is an option of SGD" in hint(
        row, "torch", "paddle", hypers=({"momentum": 0.9}, {})
    )


# From two recordings to the hint


class Net(nn.Module):
    def __init__(self, it: nn.Module) -> None:
        super().__init__(first=nn.Linear(4, 4), it=it)

    def forward(self, x: Tensor) -> Tensor:
        return self.it(self.first(x))


def called(name: str, base: type[nn.Module], forward: Callable[..., Tensor] | None = None, **members: Any) -> nn.Module:
    """Make a module of a class of that name."""
    methods = {} if forward is None else {"forward": forward}
    found = type(name, (base,), methods).__new__(type(name, (base,), methods))
    nn.Module.__init__(found, **members)
    return found


def record(
    path: Path, framework: str, it: nn.Module, *, steps: int = 1, optimizer: type[nn.Optimizer] = nn.SGD,
    then: Callable[[Net], object] = lambda model: None, **settings: Any,
) -> Path:  # fmt: skip
    nn.manual_seed(0)
    model = Net(it)
    trained = optimizer(model.parameters(), **{"lr": 0.01, **settings})
    x = Tensor(np.random.default_rng(1).normal(size=(8, 4)).astype("float32"))
    with probe.capture(model, path):
        for _ in range(steps):
            loss = (model(x) ** 2.0).sum()
            loss.backward()
            then(model)
            trained.step()
            trained.zero_grad()
            probe.step(loss=loss)
    with h5py.File(path, "r+") as file:
        file.attrs["framework"] = framework
    return path


def gelu(tanh: bool) -> nn.Module:
    def forward(self: Any, x: Tensor) -> Tensor:
        y = x + x * x * x * 0.044715 if tanh else x + x * x * x * 0.0446
        return nn.SiLU.forward(self, y * 2.0)

    return called("GELU", nn.SiLU, forward)


def test_an_output(tmp_path: Path) -> None:
    a = record(tmp_path / "a.h5", "torch", gelu(False))
    b = record(tmp_path / "b.h5", "mindspore", gelu(True))
    first = probe.compare(a, b).first_divergence
    assert first is not None and first.path == "it"
    assert first.hint.endswith(
        "; known difference: GELU's form is by default erf in PyTorch and tanh in MindSpore "
        "(set approximate='tanh' in PyTorch or approximate=False in MindSpore)"
    )
    with h5py.File(b, "r+") as file:
        file.attrs["framework"] = "torch"
    first = probe.compare(a, b).first_divergence
    assert first is not None and first.path == "it" and "known" not in first.hint


def batchnorm(
    name: str, momentum: float, unbiased: bool, names: tuple[str, str], factor: float = 1.0
) -> nn.Module:  # fmt: skip
    def forward(self: Any, x: Tensor) -> Tensor:
        mean, var = (vars(self)[each] for each in names)
        mean.data = (1 - momentum) * mean.data + momentum * x.data.mean(0)
        var.data = (1 - momentum) * var.data + momentum * x.data.var(0, ddof=int(unbiased)) * factor
        return x * 1.0

    buffers = dict(zip(names, (nn.Buffer(np.zeros(4, "float32")), nn.Buffer(np.ones(4, "float32"))), strict=True))
    return called(name, nn.Module, forward, **buffers)


NAMES = ("running_mean", "running_var")


def test_buffers(tmp_path: Path) -> None:
    a = record(tmp_path / "a.h5", "torch", batchnorm("BatchNorm2d", 0.1, True, NAMES))
    b = record(tmp_path / "b.h5", "paddle", batchnorm("BatchNorm2D", 0.1, False, NAMES))
    assert probe.compare(a, b).verdict is Verdict.ALIGNED, "by n − 1 and by n"
    c = record(tmp_path / "c.h5", "paddle", batchnorm("BatchNorm2D", 0.9, True, NAMES))
    first = probe.compare(a, c).first_divergence
    assert first is not None and (first.role, first.a[0].slot) == (Role.BUFFER, "running_mean")
    assert (
        "known difference: BatchNorm's momentum is the weight of the new batch in PyTorch and the weight of the old"
        in first.hint
    )
    assert first.hint.endswith("(m on one side is 1 − m on the other: PyTorch's 0.1 is the others' 0.9)")


class Adapting(nn.Optimizer):
    """RMSProp, with eps inside or outside of the root."""

    inside = False

    def update(self, p: np.ndarray, g: np.ndarray, group: dict[str, Any], state: dict[str, Any]) -> None:
        square = state.setdefault("square_avg", Tensor(np.zeros_like(p))).data
        square[...] = 0.9 * square + 0.1 * g * g
        p -= group["lr"] * g / (np.sqrt(square + group["eps"]) if self.inside else np.sqrt(square) + group["eps"])


def test_an_update(tmp_path: Path) -> None:
    a = record(tmp_path / "a.h5", "torch", gelu(False), optimizer=type("RMSprop", (Adapting,), {}), eps=1e-2)
    kind = type("RMSProp", (Adapting,), {"inside": True})
    b = record(tmp_path / "b.h5", "paddle", gelu(False), optimizer=kind, eps=1e-2)
    first = probe.compare(a, b).first_divergence
    assert first is not None and (first.phase, first.role) == (Phase.UPDATE, Role.DELTA)
    assert (
        "known difference: RMSProp adds eps outside the root in PyTorch and inside the root in PaddlePaddle"
        in first.hint
    )


def test_settings_that_are_the_same_are_no_difference(tmp_path: Path) -> None:
    a = record(tmp_path / "a.h5", "torch", gelu(False), optimizer=nn.AdamW, weight_decay=0.01)
    kind = type("AdamWeightDecay", (nn.AdamW,), {})
    b = record(tmp_path / "b.h5", "mindspore", gelu(False), optimizer=kind, weight_decay=0.0)
    first = probe.compare(a, b).first_divergence
    assert first is not None and first.phase is Phase.UPDATE
    assert "AdamW's weight decay is by default 0.01 in PyTorch and 0 in MindSpore" in first.hint
    assert "AdamW's eps is by default" not in first.hint  # it was 1e-8 on both sides


def test_clipped_gradients(tmp_path: Path) -> None:
    def clip(model: Net) -> None:
        for parameter in model.parameters():
            parameter.grad = Tensor(parameter.grad.data * np.float32(0.5))

    a = record(tmp_path / "a.h5", "torch", gelu(False), then=clip)
    b = record(tmp_path / "b.h5", "paddle", gelu(False))
    first = probe.compare(a, b).first_divergence
    assert first is not None and first.role is Role.PARAM_GRAD
    assert re.search(
        "gradients are clipped before the step, by its own call in PyTorch and inside the step", first.hint
    )


def names_of(hints: Iterable[str]) -> list[str]:
    return [row.name for row in KNOWN_DIFFERENCES if any(row.about in text for text in hints)]


def test_gradients_that_were_cleared_to_zero(tmp_path: Path) -> None:
    """A parameter that the second step does not use: zeros on one side, nothing on the other."""

    def zeros(model: Net) -> None:
        spare = model.it.spare
        if spare.grad is None:
            spare.grad = Tensor(np.zeros(4, "float32"))

    def forward(self: Any, x: Tensor) -> Tensor:
        self.count += 1
        return x + self.spare if self.count == 1 else x * 1.0

    def spare() -> nn.Module:
        return called("Adding", nn.Module, forward, spare=nn.Parameter(np.ones(4, "float32")), count=0)

    options: dict[str, Any] = {"steps": 2, "momentum": 0.9}
    a = record(tmp_path / "a.h5", "torch", spare(), **options)
    b = record(tmp_path / "b.h5", "paddle", spare(), then=zeros, **options)
    found = probe.compare(a, b)
    assert found.first_divergence is not None and found.first_divergence.step == 1
    assert names_of([found.first_divergence.hint]) == ["cleared-gradients"]


def test_the_report_shows_all_of_it(tmp_path: Path) -> None:
    a = record(tmp_path / "a.h5", "torch", batchnorm("BatchNorm2d", 0.1, True, NAMES))
    b = record(tmp_path / "b.h5", "paddle", batchnorm("BatchNorm2D", 0.9, False, NAMES))
    comparison = probe.compare(a, b)
    first = comparison.first_divergence
    assert first is not None and len(first.hint) > 200
    assert "running variance" not in first.hint  # the mean comes first, and tells which of both it is
    shown = " ".join(render(comparison).plain.split())  # however it is wrapped
    assert f"→ {first.hint} " in shown
