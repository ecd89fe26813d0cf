"""The noise rule, the reasons for more noise, in rules and in whole answers; errors that are known from below; what sticks out below it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import probe
from probe.answer.comparison import Comparison
from probe.answer.result import Verdict
from probe.records import Phase, Role
from probe.report.text import render
from probe.verdict.noise import limits, model, terms
from probe.verdict.steps.events import Event
from tests.store.files import Tensor as Tensors
from tests.store.files import write_tensors
from tests.toy import nn
from tests.toy.tensor import Tensor, no_grad, softmax
from tests.toys import MLP, VOCABULARY, WIDTH, gpt, module, record, replaced
from tests.verdict.planted import Recorder, changed
from tests.verdict.tensors import drawn, tensor_of

# ---- The noise rule, the reasons for more noise, errors that are known from below, and what sticks out below it.

# ---- The noise rule and the reasons for more noise.

U32, U16 = 2.0**-24, 2.0**-8


def event_of(a, b, role=Role.OUTPUT) -> Event:
    return Event(Phase.FORWARD, role, None, None, "0", "0", a, b, 0)


def test_a_limit_is_a_floor_or_a_multiple_of_the_sources():
    assert model.FORWARD.limit(U32, 0) == 16 * U32
    assert model.FORWARD.limit(U16, 0) == 8 * U16
    assert model.FORWARD.limit(U32, 1e-3) == 8e-3


def test_choices_from_equal_scores_are_exact():
    assert terms.routing_limit(128, 0.0) == 0
    assert 0 < terms.routing_limit(128, 1e-3) < 0.2


def test_what_a_router_returns_beside_its_scores_is_no_product_of_its_matrix():
    given, matrix = tensor_of(drawn(64, 16)), tensor_of(drawn(8, 16))
    node: Any = SimpleNamespace(inner=(), a=SimpleNamespace(module=0, of=lambda role: {"0": given}))
    weights = {(Phase.INIT, Role.PARAM): {(0, "weight"): matrix}}
    step: Any = SimpleNamespace(a=SimpleNamespace(params=weights, weights_of=lambda module: [(0, "weight")]))

    def condition(columns: int) -> float:
        made = tensor_of(1e-3 * drawn(64, columns))
        return terms.product_condition(step, Event(Phase.FORWARD, Role.OUTPUT, node, None, "0", "0", made, made, 0))

    assert condition(8) > 100 and condition(2) == 1


def test_few_elements_as_large_as_the_largest_are_no_mean_of_many():
    plain, peaked = drawn(64, 64), drawn(64, 64)
    peaked[0, 0] = 1e4
    assert terms.peaks_of(tensor_of(plain)) > model.FEW
    assert terms.peaks_of(tensor_of(peaked)) < model.FEW


def test_numbers_below_the_range_of_a_dtype_may_vanish():
    small = tensor_of(1e-7 * drawn(8, 8), "float16")
    large = tensor_of(drawn(8, 8), "float16")
    assert terms.subnormal_limit(event_of(small, small)) > 0.1 > 1e-5 > terms.subnormal_limit(event_of(large, large))


def condition_of(x, y, *weights, is_first=True) -> float:
    """Return how much larger the error of what a call without inner ones returns may be, of what it is given."""
    known = {number: tensor_of(weight) for number, weight in enumerate(weights)}
    call = SimpleNamespace(module=0, of=lambda role: {"0": tensor_of(x)})
    params = {(Phase.INIT, Role.PARAM): known} if is_first else {}
    a = SimpleNamespace(params=params, weights_of=lambda module: list(known), zeros=known.__getitem__)
    event = Event(Phase.FORWARD, Role.OUTPUT, SimpleNamespace(a=call, inner=[]), None, "0", "0", *[tensor_of(y)] * 2, 0)
    return terms.centring_condition(SimpleNamespace(a=a), event)


GAMMA, BETA = 1 + 0.3 * drawn(64, seed=1), 0.3 * drawn(64, seed=2)


@pytest.mark.parametrize("mean", [0, 30, -3000])
def test_the_error_of_a_mean_is_one_of_what_is_left_without_it(mean):
    x = mean + drawn(32, 64)
    y = (x - x.mean(-1, keepdims=True)) / x.std(-1, keepdims=True) * GAMMA + BETA
    assert condition_of(x, y, GAMMA, BETA) == pytest.approx(max(1, abs(mean)), rel=0.05)
    assert condition_of(x, y - BETA) == pytest.approx(max(1, abs(mean)), rel=0.05)


@pytest.mark.parametrize("gamma", [GAMMA, 0.5 + GAMMA, drawn(64)], ids=["about 1", "larger", "of both signs"])
def test_a_norm_that_leaves_the_mean_makes_no_error_larger(gamma):
    x = 30 + drawn(32, 64)
    y = x / np.sqrt((x**2).mean(-1, keepdims=True)) * gamma
    assert condition_of(x, y, gamma) == 1


def test_a_mean_of_which_no_more_than_rounding_is_left_and_one_that_a_matrix_takes_away_count_elsewhere():
    x, matrix = 30 + drawn(32, 64), drawn(64, 64)
    assert condition_of(0.9 + drawn(32, 64), drawn(32, 64)) == 1
    assert condition_of(np.full((32, 64), 30.0), drawn(32, 64)) == 1
    for is_first in (True, False):  # a later step does not have the weights
        assert condition_of(x, x @ matrix + 1, matrix, np.ones(64), is_first=is_first) == 1
    assert condition_of(x, np.maximum(x, 0)) == 1


@pytest.mark.parametrize("gradient", [0.0, 1e-6, 1e-3])
def test_an_update_is_as_noisy_as_the_root_of_its_gradient(gradient):
    noise, limit = limits.update_limit(gradient, U32, 1.0, 1e-2, 10_000)
    assert noise >= gradient**0.5
    assert limit > 4 * noise


# ---- Errors that are known from below only: one side flattens the batch, so the two sketches cannot be compared.


def _flat(self: Any, x: Tensor) -> Tensor:
    return MLP.forward(self, x.reshape(-1, x.shape[-1])).reshape(*x.shape)


def _noisy(error: float, base: type[nn.Module]) -> Callable[..., Tensor]:
    """Return a forward whose result has an error that no statistic shows."""

    def forward(self: Any, x: Tensor) -> Tensor:
        y = base.forward(self, x)
        noise = np.random.default_rng(3).standard_normal(y.shape) * (abs(y.data) < abs(y.data).max() / 2)
        y.data += (noise * error * np.linalg.norm(y.data) / np.linalg.norm(noise)).astype(np.float32)
        return y

    return forward


def _doubled(self: Any, x: Tensor) -> Tensor:
    return nn.Linear.forward(self, x) * 2.0


def _pair(run: Recorder, made: float) -> probe.Comparison:
    """A flattens the batch of one MLP; in B its input has an error of 9e-7, and what its gate makes of it one of ``made``."""
    flat = changed(lambda model: replaced(model, "layers.1.mlp", forward=_flat))

    def disturb(model: nn.Module) -> None:
        replaced(model, "layers.1.norm2", forward=_noisy(8e-7, nn.RMSNorm))
        replaced(model, "layers.1.mlp.gate", forward=_noisy(made, nn.Linear))

    return probe.compare(run(flat), run(changed(disturb)))


def test_an_input_known_from_below_explains_as_much_as_what_it_was_made_from(run: Recorder) -> None:
    result = _pair(run, 4e-6)
    given = next(slot for slot in result["layers.1.mlp.gate"] if slot.role is Role.INPUT)
    assert given.metrics.is_lower_bound
    assert given.metrics.rel_l2 < 4e-7
    assert result.verdict is Verdict.ALIGNED, result.divergences


def test_a_larger_error_behind_it_is_still_found(run: Recorder) -> None:
    first = _pair(run, 1e-3).first_divergence
    assert first is not None
    assert first.path == "layers.1.mlp.gate"


@pytest.mark.parametrize("option", ["reference", "noise"])
def test_a_bound_is_held_against_no_measured_floor(run: Recorder, option: str) -> None:
    """B's norm is as far off as A's, its gate has one element off by 2e-3, which is 4e-4 of the norm: a bound, and no error of that size everywhere."""

    def loudest(self: Any, x: Tensor) -> Tensor:
        y = nn.Linear.forward(self, x)
        y.data.reshape(-1)[abs(y.data).argmax()] *= np.float32(1 + 2e-3)
        return y

    def noise(model: nn.Module) -> None:
        replaced(model, "layers.1.norm2", forward=_noisy(1e-4, nn.RMSNorm))

    def disturb(model: nn.Module) -> None:
        replaced(model, "layers.1.norm2", forward=_noisy(-1e-4, nn.RMSNorm))
        replaced(model, "layers.1.mlp", forward=_flat)
        replaced(model, "layers.1.mlp.gate", forward=loudest)

    other, b = run(changed(noise)), run(changed(disturb))
    a, further = (other, run()) if option == "reference" else (run(), other)
    result = probe.compare(a, b, **{option: further})
    gate = next(slot for slot in result["layers.1.mlp.gate"] if slot.role is Role.OUTPUT)
    assert gate.metrics.is_lower_bound and 3e-4 < gate.metrics.rel_l2 < 7e-4
    assert [found.path for found in result.divergences if found.phase.label == "forward"] == []
    text = next(text for text in result.warnings if "sketches tell only a bound" in text)
    assert text.startswith(f"{option}: of ") and text.endswith(
        " pairs of tensors sketches tell only a bound of the error (other shapes, or several in the place of one): the "
        "built-in model judges there; values would tell more (task='tensor')"
    )


def test_the_text_says_that_the_error_may_be_larger(run: Recorder) -> None:
    flat = changed(lambda model: replaced(model, "layers.1.mlp", forward=_flat))
    result = probe.compare(
        run(flat), run(changed(lambda model: replaced(model, "layers.1.mlp.gate", forward=_doubled)))
    )
    assert result.first_divergence is not None
    assert result.first_divergence.path == "layers.1.mlp.gate"
    assert "  rel ≥5.0e-01 (up to " in render(result).plain


def test_sketches_of_one_shape_say_how_large_an_error_is(run: Recorder) -> None:
    result = probe.compare(run(), run(changed(lambda m: replaced(m, "norm", forward=_noisy(1e-5, nn.RMSNorm)))))
    assert result.first_divergence is not None
    assert not result.first_divergence.metrics.is_lower_bound
    assert result.first_divergence.metrics.rel_l2 == pytest.approx(1e-5, rel=0.5)


def test_what_overflows_is_not_taken_for_equal(tmp_path: Path) -> None:
    x = np.full((2, 4, 3), 1e200)
    a = write_tensors(tmp_path / "a.h5", [Tensors(x)], values=False)
    b = write_tensors(tmp_path / "b.h5", [Tensors(2 * x.reshape(8, 3))], values=False)
    (slot,) = [each for each in probe.compare(a, b).slots if each.role is Role.OUTPUT]
    assert slot.verdict not in ("equal", "noise"), slot


# ---- What sticks out though it is no more than noise may be.

USUAL, LARGE = 5e-8, 8e-7
"""relative errors that a Linear makes in all layers, and that one of them makes"""


def _recorded(path: Path, errors: dict[str, float], task: str = "statistics", layers: int = 4) -> Path:
    model = gpt(layers=layers)
    for name, error in errors.items():
        replaced(model, name, forward=lambda m, x, e=error: _noisy_conspicuous(nn.Linear.forward(m, x), e))
    return record(path, model, task=task)


def _noisy_conspicuous(x: Tensor, error: float) -> Tensor:
    noise = np.random.default_rng(0).normal(size=x.data.shape).astype(np.float32)
    return x * Tensor(1 + np.float32(error) * noise)


def _notes(found: Comparison) -> list[str]:
    return [text for text in found.warnings if "sticks out" in text]


@pytest.mark.xfail(
    strict=True, reason="not said: of equal layers one that is further off than the others, by less than the limit"
)
@pytest.mark.parametrize("task", ["statistics", "tensor"])
def test_a_module_that_is_further_off_than_in_other_layers_is_named(tmp_path: Path, task: str) -> None:
    usual = {f"layers.{k}.mlp.up": USUAL for k in range(4)}
    a = _recorded(tmp_path / "a.h5", {}, task)
    found = probe.compare(a, _recorded(tmp_path / "b.h5", {**usual, "layers.2.mlp.up": LARGE}, task))
    assert found.verdict is Verdict.ALIGNED
    (text,) = _notes(found)
    assert text.startswith(
        "nothing exceeds noise, but the forward output 0 of layers.2.mlp.up sticks out: it is off by "
    )
    assert " in 3 other layers " in text and text.endswith("if the runs part, look there first")
    assert not _notes(probe.compare(a, _recorded(tmp_path / "all.h5", usual, task)))


# ---- What trained models have and fresh ones lack: elements that are most of a tensor, and scores that are large.

TASKS = pytest.mark.parametrize("task", ["statistics", "tensor"])
NOISE, GROWN, FAULT = 8e-7, 5e-6, 1e-3
"""relative errors: of rounding, of what has grown out of it, and of a fault"""


class Large(nn.Module):
    """Makes one element so large that all others are nothing beside it, as the first token of trained models has some."""

    def forward(self, x: Tensor) -> Tensor:
        large = np.zeros(x.data.shape, np.float32)
        large[0, 0, 0] = 1e4
        return x + Tensor(large)


class Stream(nn.Module):
    """What a layer adds to a stream, an element that becomes large there, and a norm."""

    def __init__(self) -> None:
        super().__init__(embed=nn.Embedding(VOCABULARY, 2 * WIDTH), mlp=MLP(2 * WIDTH), large=Large(),
                         norm=nn.RMSNorm(2 * WIDTH), head=nn.Linear(2 * WIDTH, VOCABULARY))  # fmt: skip

    def forward(self, ids: Tensor) -> Tensor:
        x = self.embed(ids)
        return self.head(self.norm(self.large(x + self.mlp(x))))


class Attending(nn.Module):
    """A norm, and attention whose queries and keys are large, and so are its scores."""

    def __init__(self) -> None:
        super().__init__(embed=nn.Embedding(VOCABULARY, WIDTH), norm=nn.RMSNorm(WIDTH), attn=nn.Attention(WIDTH, 2),
                         head=nn.Linear(WIDTH, VOCABULARY))  # fmt: skip
        for name in ("attn.q", "attn.k"):  # as the biases of some have it
            replaced(self, name, forward=lambda layer, x: nn.Linear.forward(layer, x) + Tensor(np.float32(16)))

    def forward(self, ids: Tensor) -> Tensor:
        return self.head(self.attn(self.norm(self.embed(ids))))


def _noisy_conditioning(x: Tensor, error: float) -> Tensor:
    noise = np.random.default_rng(0).normal(size=x.data.shape).astype(np.float32)
    return x * Tensor(1 + np.float32(error) * noise)


def _recorded_conditioning(
    path: Path, kind: type[nn.Module], task: str, scaled: tuple[str, float] | None = None, **errors: float
) -> Path:
    """Record a model, of which some modules return something with an error, and one a multiple of it."""
    nn.manual_seed(3)
    model = kind()
    if scaled is not None:
        replaced(model, scaled[0], forward=lambda m, x: nn.RMSNorm.forward(m, x) * Tensor(np.float32(scaled[1])))
    for name, error in errors.items():
        found = module(model, name.replace("_", "."))
        forward = type(found).forward
        replaced(
            model, name.replace("_", "."), forward=lambda m, x, f=forward, e=error: _noisy_conditioning(f(m, x), e)
        )
    return record(path, model, task=task)


@TASKS
def test_an_error_is_still_there_though_a_large_element_hides_it(tmp_path: Path, task: str) -> None:
    a = _recorded_conditioning(tmp_path / "a.h5", Stream, task)
    right = probe.compare(a, _recorded_conditioning(tmp_path / "noisy.h5", Stream, task, mlp_up=NOISE, mlp_down=GROWN))
    assert right.verdict is Verdict.ALIGNED
    assert _error(right, "large") < 1e-7 and _error(right, "norm") > 1e-6  # the norm brings back what was hidden
    b = _recorded_conditioning(tmp_path / "b.h5", Stream, task, mlp_up=NOISE, mlp_down=GROWN, norm=FAULT)
    wrong = probe.compare(a, b).first_divergence
    assert wrong is not None and wrong.path == "norm"


@pytest.mark.xfail(strict=True, reason="the norm of few elements averages nothing: named where it is computed with")
@TASKS
def test_a_scale_is_nothing_that_a_large_element_has_hidden(tmp_path: Path, task: str) -> None:
    a = _recorded_conditioning(tmp_path / "a.h5", Stream, task)
    b = _recorded_conditioning(
        tmp_path / "b.h5", Stream, task, mlp_up=NOISE, mlp_down=GROWN, scaled=("norm", 1 + 3 * GROWN)
    )
    first = probe.compare(a, b).first_divergence
    assert first is not None and first.path == "norm"


@TASKS
def test_large_scores_make_errors_larger(tmp_path: Path, task: str) -> None:
    a = _recorded_conditioning(tmp_path / "a.h5", Attending, task)
    right = probe.compare(a, _recorded_conditioning(tmp_path / "noisy.h5", Attending, task, attn_q=NOISE, attn_k=NOISE))
    assert right.verdict is Verdict.ALIGNED
    assert _error(right, "attn.o") > 8 * max(_error(right, "attn.q"), _error(right, "attn.k"))
    b = _recorded_conditioning(
        tmp_path / "b.h5", Attending, task, attn_q=NOISE, attn_k=NOISE, attn_v=NOISE, attn_o=FAULT
    )
    wrong = probe.compare(a, b).first_divergence
    assert wrong is not None and wrong.path == "attn.o"


class Centred(nn.Module):
    """Small numbers beside one that all have in common, and a norm that takes it away."""

    def __init__(self) -> None:
        super().__init__(embed=nn.Embedding(VOCABULARY, WIDTH), up=nn.Linear(WIDTH, 2 * WIDTH),
                         norm=nn.LayerNorm(2 * WIDTH), head=nn.Linear(2 * WIDTH, VOCABULARY))  # fmt: skip
        self.up.bias.data += np.float32(100)

    def forward(self, ids: Tensor) -> Tensor:
        return self.head(self.norm(self.up(self.embed(ids))))


@TASKS
def test_what_a_norm_leaves_has_the_error_of_the_mean_that_it_takes_away(tmp_path: Path, task: str) -> None:
    a = _recorded_conditioning(tmp_path / "a.h5", Centred, task)
    right = probe.compare(a, _recorded_conditioning(tmp_path / "noisy.h5", Centred, task, up=NOISE / 10))
    assert right.verdict is Verdict.ALIGNED
    assert _error(right, "norm") > 16 * 2.0**-24 > _error(right, "up")
    b = _recorded_conditioning(tmp_path / "b.h5", Centred, task, up=NOISE / 10, norm=FAULT)
    wrong = probe.compare(a, b).first_divergence
    assert wrong is not None and wrong.path == "norm"


def _error(found: Comparison, path: str) -> float:
    """Return the error of what a module returned."""
    return next(slot.error for slot in found[path] if slot.role.label == "output")


class CoreAttention(nn.Module):
    """What is given queries, keys, values and a mask."""

    scale = 1.0

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        return softmax(x @ x.swapaxes(-1, -2) * np.float32(self.scale) + mask) @ x


class Masked(nn.Module):
    """Attention whose mask is filled with the smallest number there is."""

    def __init__(self) -> None:
        super().__init__(embed=nn.Embedding(VOCABULARY, WIDTH), attn=CoreAttention(), head=nn.Linear(WIDTH, VOCABULARY))

    def forward(self, ids: Tensor) -> Tensor:
        length = ids.shape[-1]
        mask = np.triu(np.full((length, length), np.finfo(np.float32).min, np.float32), 1)
        return self.head(self.attn(self.embed(ids), Tensor(mask)))


@TASKS
def test_a_mask_is_no_score(tmp_path: Path, task: str) -> None:
    a = _recorded_conditioning(tmp_path / "a.h5", Masked, task)
    nn.manual_seed(3)
    model = Masked()
    replaced(model, "attn", scale=np.float32(1.5))
    first = probe.compare(a, record(tmp_path / "b.h5", model, task=task)).first_divergence
    assert first is not None and first.path == "attn"


class Stepping(nn.Module):
    """Time steps, made into sines and cosines by the model's own code."""

    largest = 999
    off = 0.0
    """by how much its frequencies are off, relatively"""

    def __init__(self) -> None:
        super().__init__(time=nn.Linear(2 * WIDTH, WIDTH), head=nn.Linear(WIDTH, VOCABULARY))

    def forward(self, steps: Tensor) -> Tensor:
        frequencies = np.exp(-np.log(1e4) * np.arange(WIDTH) / WIDTH) * (1 + self.off * np.cos(np.arange(WIDTH)))
        angles = (steps.data[:, None] * frequencies).astype(np.float64)
        return self.head(self.time(Tensor(np.concatenate([np.sin(angles), np.cos(angles)], -1).astype(np.float32))))


@TASKS
@pytest.mark.parametrize(("largest", "off", "verdict"), [
    pytest.param(999, 2e-7, Verdict.ALIGNED, marks=pytest.mark.xfail(strict=True, reason=(
        "no row of noise for angles: a roundoff or two of a frequency, 500 times as much of the angle"))),
    (9, 2e-5, Verdict.DIVERGED),
    (999, 2e-6, Verdict.DIVERGED),
])  # fmt: skip
def test_large_angles_are_coarse(tmp_path: Path, task: str, largest: int, off: float, verdict: Verdict) -> None:
    files = []
    for name, error in (("a.h5", 0.0), ("b.h5", off)):
        nn.manual_seed(3)
        model = Stepping()
        model.off = error
        with probe.capture(model, tmp_path / name, task=task):
            model(Tensor(np.array([largest, largest // 3])))
        files.append(tmp_path / name)
    found = probe.compare(*files)
    assert found.verdict is verdict
    assert verdict is Verdict.ALIGNED or (found.first_divergence is not None and found.first_divergence.path == "")


class Words(nn.Module):
    """An embedding of many words and small numbers, without gradients, and a layer behind it."""

    def forward(self, ids: Tensor) -> Tensor:
        return self.head(self.table(ids))


def test_what_is_looked_up_by_large_integers_is_no_angle(tmp_path: Path) -> None:
    files = []
    for name, factor in (("a", 1.0), ("b", 1.05)):
        nn.manual_seed(0)
        model = Words(table=nn.Embedding(5000, 32), head=nn.Linear(32, 4))
        model.table.weight.data *= np.float32(0.2)
        model.table.weight.data[::2] *= np.float32(factor)
        ids = np.random.default_rng(0).integers(0, 5000, (4, 16))
        with probe.capture(model, tmp_path / f"{name}.h5", phases=["forward"]), no_grad():
            model(Tensor(ids))
        files.append(tmp_path / f"{name}.h5")
    found = probe.compare(*files)
    first = found.first_divergence
    assert first is not None and first.path == "table"
