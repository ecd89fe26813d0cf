"""What modules make and keep inside: tensors that they return or use, of which nothing was seen, and running statistics."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

import probe
from probe.answer.result import Verdict
from probe.records import Phase, Role
from tests.toy import nn
from tests.toy.tensor import Tensor, softmax
from tests.toys import GPT, MLP, WIDTH, batch, gpt, loss_of, module, record, replaced, scaled_gradient
from tests.verdict.planted import Clean, Model, Recorder, said, step_of

# ---- What a module's code makes inside: tensors that it returns or uses, or of which nothing was seen.

# ---- Logits of routers, which the whole model returns beside its own: whose code passes another gradient back to them.

WIDTH_RETURNED = 16


class Routed(nn.Module):
    """An MLP of which the output is weighed by a softmax over what a router returns."""

    def __init__(self, mlp: MLP, factor: float = 1.0) -> None:
        super().__init__(router=nn.Linear(WIDTH_RETURNED, WIDTH_RETURNED, bias=False), mlp=mlp, factor=factor)

    def forward(self, x: Tensor) -> Tensor:
        self.logits = self.router(x)
        return self.mlp(x) * softmax(scaled_gradient(self.logits, self.factor)) * 4.0


class Returning(GPT):
    """It returns what the routers returned, too."""

    def forward(self, ids: Tensor) -> Any:
        logits = super().forward(ids)
        return logits, tuple(layer.mlp.logits for layer in self.layers)


def model(wrong: int | None = None) -> Model:
    made = gpt()
    made.__class__ = Returning
    nn.manual_seed(3)
    for n in range(3):
        block = module(made, f"layers.{n}")
        block.mlp = Routed(block.mlp, 0.5 if n == wrong else 1.0)
    return made


def with_loss(factor: float) -> Any:
    """Add the routers' squares to the loss; its gradient may have a factor that the number does not show."""

    def change(made: Model, ids: Tensor, number: int) -> Tensor:
        logits, routers = made(ids)
        loss = loss_of(logits, ids)
        for each in routers:
            loss = loss + (scaled_gradient(each, factor) ** 2).mean() * 0.1
        loss.backward()
        return loss

    return step_of(change)


@pytest.mark.xfail(
    strict=True,
    reason="what a call returns beside its output is not known to come from inside, so that the loss is named",
)
@pytest.mark.parametrize("wrong", [0, 1])
def test_the_caller_of_the_router_where_those_behind_agree(run: Recorder, wrong: int) -> None:
    files = [run(made, step=with_loss(1.0)) for made in (model(), model(wrong))]
    first = probe.compare(*files).first_divergence
    assert first is not None and (first.phase, first.path) == (Phase.BACKWARD, f"layers.{wrong}.mlp")
    assert first.evidence[0] == f"the gradient of the root's output 1.{wrong} differs"


def test_what_uses_all_of_them_otherwise_is_not_a_layers(run: Recorder) -> None:
    files = [run(model(), step=with_loss(factor)) for factor in (1.0, 3.0)]
    first = probe.compare(*files).first_divergence
    assert first is not None and first.path == ""
    assert np.isfinite(first.error)


def test_one_of_them_that_the_loss_weighs_otherwise_is_not_a_layers(run: Recorder) -> None:
    """All of its gradient has a factor: nothing shows that its layer used it."""

    def unused(wrong: int) -> Any:
        def change(made: Model, ids: Tensor, number: int) -> Tensor:
            logits, routers = made(ids)
            loss = loss_of(logits, ids)
            for n, each in enumerate(routers):
                loss = loss + (scaled_gradient(each, 3.0 if n == wrong else 1.0) ** 2).mean() * 0.1
            loss.backward()
            return loss

        return step_of(change)

    def alone(router: nn.Module, x: Tensor) -> Tensor:
        router.logits = router.router(x)
        return router.mlp(x)

    made = [model(), model()]
    for each in made:
        for n in range(3):
            module(each, f"layers.{n}.mlp").__class__ = type("Routed", (Routed,), {"forward": alone})
    first = probe.compare(
        *(run(each, step=unused(wrong)) for each, wrong in zip(made, (-1, 0), strict=True))
    ).first_divergence
    assert first is not None and (first.phase, first.path) == (Phase.LOSS, "")


# ---- What a model returns may be used inside too, as a router's logits are: its gradient then comes from both.


class Gated(nn.Module):
    """Its own code weighs what the layers return by a gate, which is returned for a loss of its own."""

    def __init__(self) -> None:
        nn.manual_seed(0)
        super().__init__(gpt=gpt(), gate=nn.Linear(gpt().head.weight.shape[0], 1), last=Last())

    def forward(self, ids: Tensor) -> Any:
        logits = self.gpt(ids)
        gate = self.gate(logits)
        return self.last((logits + 50.0) * gate), gate


class Last(nn.Module):
    factor: Any = 1.0

    def forward(self, x: Tensor) -> Tensor:
        return scaled_gradient(x, self.factor) * 2.0


def run(path: Path, factor: Any = 1.0, auxiliary: float = 0.1) -> Path:
    model = Gated()
    model.last.factor = factor

    def step(model: nn.Module, optimizer: nn.Optimizer, number: int) -> Tensor:
        ids = batch(number)
        logits, gate = model(ids)
        loss = loss_of(logits, ids) + (gate * gate).sum() * auxiliary
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss

    return record(path, model, steps=1, step=step)


_SOME = np.where(np.arange(gpt().head.weight.shape[0]) % 2, 1.001, 0.999)
"""other factors for one half of the features than for the other: in the gate's gradient, a sum over all, it shows more"""


@pytest.mark.parametrize("factor", [1.5, _SOME], ids=["all", "some"])
def test_a_fault_inside_is_not_the_loss_too(tmp_path: Path, factor: Any) -> None:
    found = probe.compare(run(tmp_path / "a.h5"), run(tmp_path / "b.h5", factor=factor))
    assert [(each.phase, each.path) for each in found.divergences] == [(Phase.BACKWARD, "last")]


def test_another_weight_of_the_auxiliary_loss_is_the_loss(tmp_path: Path) -> None:
    first = probe.compare(run(tmp_path / "a.h5"), run(tmp_path / "b.h5", auxiliary=0.2)).first_divergence
    assert first is not None and first.phase is Phase.LOSS


def test_the_same_is_aligned(tmp_path: Path) -> None:
    assert probe.compare(run(tmp_path / "a.h5"), run(tmp_path / "b.h5")).verdict is Verdict.ALIGNED


# ---- Models of which nothing inside was seen, wrappers, and runs that were ended early.


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


# ---- Running statistics under other names, and variances that are divided by n or by n − 1.

# ---- Running statistics that the two sides call by other names.

USUAL = ("running_mean", "running_var")


class Norm(nn.Module):
    """Keeps running statistics, and does nothing else."""

    def __init__(
        self, names: tuple[str, ...], keeps: float, *, shape: tuple[int, ...] = (4,), backwards: bool = False
    ) -> None:
        start = (np.zeros(shape, np.float32), np.ones(shape, np.float32))
        buffers = [(name, nn.Buffer(each)) for name, each in zip(names, start, strict=False)]
        super().__init__(**dict(reversed(buffers) if backwards else buffers))
        self.names, self.keeps = names, keeps

    def forward(self, x: Tensor) -> Tensor:
        for name, new in zip(self.names, (x.data.mean(0), x.data.var(0)), strict=False):
            buffer = getattr(self, name)
            old = buffer.data
            buffer.data = (self.keeps * old + (1 - self.keeps) * new.reshape(old.shape)).astype(np.float32)
        return x * 1.0


class OwnNorm(Norm):
    """The same in somebody's own code."""


def record_running(path: Path, norms: list[Norm]) -> Path:
    nn.manual_seed(0)
    model = nn.Sequential(*(layer for norm in norms for layer in (nn.Linear(4, 4), norm)))
    optimizer = nn.SGD(model.parameters(), lr=0.01)
    with probe.capture(model, path):
        for step in range(2):
            x = np.random.default_rng(step).normal(size=(8, 4)).astype(np.float32)
            (model(Tensor(x)) ** 2.0).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
            probe.step()
    return path


@pytest.fixture
def usual(tmp_path: Path) -> Path:
    return record_running(tmp_path / "a.h5", [Norm(USUAL, 0.9), Norm(USUAL, 0.9)])


@pytest.mark.parametrize("names", [("mean", "var"), ("m", "v"), ("ema", "ema_of_squares")], ids=str)
@pytest.mark.parametrize("keeps", [0.9, 0.1])
def test_they_are_paired_by_what_they_hold_and_a_wrong_momentum_is_found(
    names: tuple[str, str], keeps: float, usual: Path, tmp_path: Path
) -> None:
    b = record_running(tmp_path / "b.h5", [OwnNorm(names, keeps), OwnNorm(names, 0.9)])
    for path, other, place in ((usual, b, "b"), (b, usual, "a")):
        found = probe.compare(path, other)
        assert any(f"{names[0]} of OwnNorm with running_mean (×2, 98 % sure)" in text for text in found.warnings)
        if keeps == 0.9:
            assert found.verdict is Verdict.ALIGNED, found.first_divergence
            continue
        first = found.first_divergence
        assert first is not None and first.a[0].path == "1"
        at = ("running_mean", "running_var").index(first.a[0].slot if place == "b" else first.b[0].slot)
        assert getattr(first, place)[0].slot == names[at]


def test_where_all_are_wrong_names_and_what_they_begin_with_tell(usual: Path, tmp_path: Path) -> None:
    b = record_running(
        tmp_path / "b.h5", [OwnNorm(("own_mean", "own_variance"), 0.1, backwards=True) for _ in range(2)]
    )
    found = probe.compare(usual, b)
    assert found.first_divergence is not None
    [text] = [text for text in found.warnings if "matched without a mapping" in text]
    assert "own_mean of OwnNorm with running_mean (×2, 85 % sure)" in text
    assert "own_variance of OwnNorm with running_var (×2, 85 % sure)" in text


def test_axes_of_size_1_are_no_other_shape(usual: Path, tmp_path: Path) -> None:
    names = ("mean", "var")
    b = record_running(tmp_path / "b.h5", [OwnNorm(names, 0.9, shape=(1, 4)), OwnNorm(names, 0.1, shape=(1, 4))])
    first = probe.compare(usual, b).first_divergence
    assert first is not None and first.a[0].path == "3" and first.b[0].slot == "mean"


def test_what_one_side_alone_keeps_is_told(usual: Path, tmp_path: Path) -> None:
    b = record_running(tmp_path / "b.h5", [Norm(USUAL, 0.9), Norm((), 0.9)])
    told = (
        "recorded, and not compared for want of a counterpart: buffer running_mean of 3, buffer running_var of 3 in {}"
    )
    assert probe.compare(usual, b).warnings.count(told.format("A")) == 1
    assert told.format("B") in probe.compare(b, usual).warnings


def test_under_a_mapping_other_names_are_told_and_lines_of_params_pair_them(usual: Path, tmp_path: Path) -> None:
    b = record_running(tmp_path / "b.h5", [OwnNorm(("mean", "var"), 0.9), OwnNorm(("mean", "var"), 0.1)])
    mapping = tmp_path / "map.yaml"
    mapping.write_text("Norm: {1: 1, 3: 3}\n".replace("Norm", "Sequential"), encoding="utf-8")
    found = probe.compare(usual, b, mapping=mapping)
    assert found.verdict is Verdict.ALIGNED
    assert (
        "recorded, and not compared for want of a counterpart: buffer running_mean of * ×2, buffer running_var of * ×2 in A; buffer "
        "mean of * ×2, buffer var of * ×2 in B; lines of params in a mapping pair what has another name (docs/reference/mapping.md)"
    ) in found.warnings
    mapping.write_text("Norm:\n  params: {running_mean: mean, running_var: var}\n", encoding="utf-8")
    first = probe.compare(usual, b, mapping=mapping).first_divergence
    assert first is not None and first.a[0].path == "3" and first.b[0].slot == "mean"


def test_buffers_that_no_step_writes_to_are_not_guessed(tmp_path: Path) -> None:
    files = [
        record_running(tmp_path / f"{which}.h5", [kind((name,), 1.0), kind((name,), 1.0)])
        for which, kind, name in (("a", Norm, "table"), ("b", OwnNorm, "cache"))
    ]
    found = probe.compare(*files)
    assert not any("guess" in text for text in found.warnings), found.warnings


def test_that_both_began_with_zeros_pairs_nothing(tmp_path: Path) -> None:
    a = record_running(tmp_path / "a.h5", [Norm(("low",), 0.9), Norm(("low",), 0.9)])
    b = record_running(tmp_path / "b.h5", [OwnNorm(("top",), 0.5), OwnNorm(("top",), 0.5)])
    found = probe.compare(a, b)
    assert found.verdict is Verdict.ALIGNED, found.first_divergence
    assert any("buffer low of * ×2 in A; buffer top of * ×2 in B" in text for text in found.warnings), found.warnings


# ---- Running variances that two frameworks divide by n and by n − 1: no fault, as long as nothing else differs.

N = 8


class BatchNorm2d(nn.Module):
    """Keeps running statistics, and does nothing else."""

    def __init__(self, keeps: float, ddof: int, factor: float) -> None:
        super().__init__(running_mean=nn.Buffer(np.zeros(4, np.float32)), running_var=nn.Buffer(np.ones(4, np.float32)))
        self.keeps, self.ddof, self.factor = keeps, ddof, np.float32(factor)
        self.kind = np.float64 if ddof else np.float32

    def forward(self, x: Tensor) -> Tensor:
        self.running_mean.data = (0.1 * x.data.astype(self.kind).mean(0)).astype(np.float32)
        new = x.data.var(0, ddof=self.ddof) * self.factor
        self.running_var.data = (self.keeps * self.running_var.data + (1 - self.keeps) * new).astype(np.float32)
        return x * 1.0


class BatchNorm2D(BatchNorm2d):
    """The same under Paddle's name."""


def record_variance(
    path: Path, framework: str, *, keeps: float = 0.9, factor: float = 1.0, micros: int = 1,
    begins: tuple[float, float] = (0.0, 1.0), **options: Any,
) -> Path:  # fmt: skip
    nn.manual_seed(0)
    kind, ddof = (BatchNorm2d, 1) if framework == "torch" else (BatchNorm2D, 0)
    model = nn.Sequential(nn.Linear(4, 4), kind(keeps, ddof, factor), nn.Linear(4, 2))
    norm: Any = dict(model.children())["1"]
    norm.running_mean.data[...], norm.running_var.data[...] = begins
    optimizer = nn.SGD(model.parameters(), lr=0.01)
    with probe.capture(model, path, **options):
        for step in range(3):
            for micro in range(micros):
                x = np.random.default_rng(10 * step + micro).normal(size=(N, 4)).astype(np.float32)
                (model(Tensor(x)) ** 2.0).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
            probe.step()
    with h5py.File(path, "r+") as file:
        file.attrs["framework"] = framework
    return path


@pytest.mark.parametrize("options", [{}, {"task": "tensor"}, {"micros": 2}], ids=str)
def test_what_they_divide_by_is_no_fault(options: dict[str, Any], tmp_path: Path) -> None:
    found = probe.compare(
        record_variance(tmp_path / "a.h5", "torch", **options), record_variance(tmp_path / "b.h5", "paddle", **options)
    )
    assert found.verdict is Verdict.ALIGNED, found.first_divergence


def test_what_steps_that_were_not_recorded_left_is_no_fault_either(tmp_path: Path) -> None:
    options = {"steps": [1, 2]}
    found = probe.compare(
        record_variance(tmp_path / "a.h5", "torch", **options), record_variance(tmp_path / "b.h5", "paddle", **options)
    )
    assert found.verdict is Verdict.ALIGNED, found.first_divergence


@pytest.mark.parametrize("begins", [(1.0, 0.0), (0.0, 1.01)], ids=["swapped", "scaled"])
def test_what_they_begin_with_is_judged_like_a_weight(tmp_path: Path, begins: tuple[float, float]) -> None:
    first = probe.compare(
        record_variance(tmp_path / "a.h5", "torch"), record_variance(tmp_path / "b.h5", "torch", begins=begins)
    ).first_divergence
    assert first is not None and (first.phase, first.path, first.role) == (Phase.INIT, "1", Role.BUFFER)
    assert first.evidence[0] == "the running statistics differ before the first step"


@pytest.mark.parametrize(
    ("framework", "options"),
    [
        ("paddle", {"keeps": 0.8}),
        ("paddle", {"keeps": 0.1}),
        ("paddle", {"factor": 1.01}),
        ("paddle", {"factor": 1 + 1 / N}),
        ("torch", {"factor": 1 - 1 / N}),  # the same framework has no reason to divide otherwise
    ],
    ids=str,
)
@pytest.mark.parametrize("task", ["statistics", "tensor"])
def test_whatever_else_differs_is_found(framework: str, options: dict[str, Any], task: str, tmp_path: Path) -> None:
    a = record_variance(tmp_path / "a.h5", "torch", task=task)
    b = record_variance(tmp_path / "b.h5", framework, task=task, **options)
    found = probe.compare(a, b)
    first = found.first_divergence
    assert first is not None and (first.step, first.role, first.path) == (0, Role.BUFFER, "1")
    assert not any("divide by" in text for text in found.warnings)


def test_where_the_inputs_were_not_recorded_no_buffer_is_a_finding(tmp_path: Path) -> None:
    options = {"phases": ["init", "update"]}
    found = probe.compare(
        record_variance(tmp_path / "a.h5", "torch", **options), record_variance(tmp_path / "b.h5", "paddle", **options)
    )
    assert found.first_divergence is None


@pytest.mark.parametrize(("shift", "verdict"), [(0.0, Verdict.ALIGNED), (1e-4, Verdict.DIVERGED)])
def test_a_mean_that_vanishes_is_rounding(shift: float, verdict: Verdict, tmp_path: Path) -> None:
    x = np.random.default_rng(3).normal(size=(64, 4)).astype(np.float32)
    x -= x.astype(np.float64).mean(0).astype(np.float32)
    for name, extra in (("a.h5", 0.0), ("b.h5", shift)):
        module = BatchNorm2d(0.9, 1, 1.0)
        module.kind = np.float64 if name == "a.h5" else np.float32
        model = nn.Sequential(module)
        with probe.capture(model, tmp_path / name):
            model(Tensor(x))
            module.running_mean.data = module.running_mean.data + np.float32(extra)
            probe.step()
    found = probe.compare(tmp_path / "a.h5", tmp_path / "b.h5")
    assert found.verdict is verdict, found.first_divergence
