"""`task="norms"` with PyTorch: what it measures, and where its warnings point."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from torch import Tensor, nn  # noqa: E402
from torch.utils.checkpoint import checkpoint  # noqa: E402

import probe  # noqa: E402
from probe.adapters.torch.adapter import TorchAdapter  # noqa: E402
from probe.errors import ProbeWarning, RecordingError  # noqa: E402
from probe.numbers import kernel  # noqa: E402
from probe.numbers.packed import unpack  # noqa: E402
from probe.records import HashKind  # noqa: E402
from probe.testing import Recording, sample  # noqa: E402


@pytest.fixture(autouse=True)
def ended() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    yield
    torch.set_num_threads(threads)
    probe.stop()


def with_nonfinite() -> Tensor:
    x = torch.randn(30, 20)
    x[1, 2], x[3, 4], x[5, 6], x[7, 8] = math.nan, math.inf, -math.inf, 0
    return x


MAKERS: dict[str, Callable[[], Tensor]] = {
    "float32": lambda: torch.randn(30, 20),
    "non-finite": with_nonfinite,
    "transposed": lambda: torch.randn(30, 20).T,
    "bfloat16": lambda: torch.randn(30, 20).bfloat16(),
    "complex64": lambda: torch.randn(30, 20, dtype=torch.complex64),
    "int64": lambda: torch.arange(-5, 5),
    "float8": lambda: torch.randn(30).to(torch.float8_e4m3fn),
    "empty": lambda: torch.empty(0, 3),
    "scalar": lambda: torch.tensor(2.0),
    "large": lambda: torch.randn(600, 700),
}


@pytest.mark.parametrize("compiled", [True, False], ids=["compiled", "operations"])
@pytest.mark.parametrize("name", MAKERS)
def test_a_summary_is_what_measure_returns_but_for_the_hash(
    name: str, compiled: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if compiled and not kernel.AVAILABLE:
        pytest.skip("the compiled loop was not built")
    monkeypatch.setattr(kernel, "AVAILABLE", compiled)
    tensor, adapter = MAKERS[name](), TorchAdapter()
    whole, summary = unpack(adapter.measure(tensor, ())), unpack(adapter.summarize(tensor))
    assert (summary.hash_kind, summary.hash_lo, summary.hash_hi) == (HashKind.NONE, 0, 0)
    for field in ("min", "max", "mean", "rms", "norm", "nan", "posinf", "neginf", "zeros"):
        expected = pytest.approx(getattr(whole, field), rel=1e-12, nan_ok=True)
        assert getattr(summary, field) == expected, field


class Blocks(nn.Module):
    def __init__(self, checkpointed: bool) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(nn.Linear(4, 4) for _ in range(3))
        self.checkpointed = checkpointed

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False) if self.checkpointed else block(x)
        return x


def record(path: Path, model: nn.Module, losses: list[float], **options: object) -> Recording:
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    probe.start(model, path, **options)
    for loss in losses:
        model(torch.from_numpy(sample((5, 4)))).sum().backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        optimizer.step()
        optimizer.zero_grad()
        probe.step(loss)
    probe.stop()
    return Recording(path)


def test_norms_of_a_checkpointed_model_are_those_of_the_plain_one(tmp_path: Path) -> None:
    runs = []
    for checkpointed in (False, True):
        torch.manual_seed(0)
        runs.append(record(tmp_path / f"{checkpointed}.h5", Blocks(checkpointed), [1.0] * 2, task="norms"))
    first, second = ([(s.step, s.phase, s.path, s.slot, s.norm) for s in run.seen] for run in runs)
    assert first == second and len(first) == 2 * (4 + 6)
    gradients = [s.norm for s in runs[0].find(step=0, role="param_grad")]
    assert math.hypot(*gradients) == pytest.approx(0.1, rel=1e-4)  # as clipped


def test_a_step_in_full_among_norms(tmp_path: Path) -> None:
    with pytest.warns(ProbeWarning, match="step 1 is recorded in full: loss is inf"):
        run = record(tmp_path / "a.h5", Blocks(False), [math.inf, 1.0, 1.0], task="norms", on_nonfinite=True)
    assert {s.phase for s in run.find(step=1)} == {"init", "forward", "backward", "gradient", "update"}
    assert [len(run.find(step=step)) for step in (0, 2)] == [10, 10]
    assert len(run.find(step=1, phase="gradient")) == 6


def test_what_a_hook_says_points_at_the_line_that_called_the_model(tmp_path: Path) -> None:
    class Evil(dict):
        def items(self) -> None:
            raise ZeroDivisionError("planted")

    class Returns(nn.Module):
        def forward(self, x: Tensor) -> Evil:
            return Evil(x=x)

    model = Returns()
    probe.start(model, tmp_path / "a.h5")
    code = compile("\n\nmodel(x)\n", "users.py", "exec")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        exec(code, {"__name__": "users", "model": model, "x": torch.ones(2)})  # noqa: S102
    assert [(one.filename, one.lineno) for one in caught if one.category is ProbeWarning] == [("users.py", 3)]


@pytest.mark.parametrize("wrong", ["model", "scheduler", "list"])
def test_what_is_no_optimizer_is_named(wrong: str, tmp_path: Path) -> None:
    model = nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    value = {"model": model, "scheduler": torch.optim.lr_scheduler.StepLR(optimizer, 1), "list": [optimizer]}[wrong]
    kind = f"{type(value).__module__}.{type(value).__qualname__}"
    with pytest.raises(RecordingError) as caught:
        probe.start(model, tmp_path / "a.h5", optimizer=value)
    assert str(caught.value) == (
        f"probe.start() was given optimizer={kind}; expected an optimizer of torch: leave it out for one of another class, or for updates "
        "by hand; what the weights become is recorded all the same"
    )
    assert not list(tmp_path.iterdir()) and not model._forward_hooks
