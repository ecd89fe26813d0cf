"""Telling from numbers what a layer or an optimizer does: one function per row of the table of known differences.

A function gets what a framework computed, as numpy arrays, and returns the words of the table.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import numpy as np

Run = Callable[[np.ndarray], np.ndarray]
Trained = Callable[[float], list[float]]
"""given a gradient, used three times, the values of a parameter that began as 1"""

BATCH = np.random.default_rng(0).normal(3.0, 2.0, (4, 3, 2, 2)).astype("float32")
"""shape (4, 3, 2, 2): 16 values in each of 3 channels"""
LOGITS = np.random.default_rng(1).normal(size=(2, 3, 4)).astype("float32")
LR = 0.1


def fitting(seen: object, expected: Mapping[str, object], tolerance: float = 1e-4) -> str:
    """Return the name of the only expectation that fits what was seen."""
    found = np.asarray(seen, "float64")
    names = [
        name
        for name, value in expected.items()
        if found.shape == np.shape(value) and np.allclose(found, np.asarray(value, "float64"), tolerance, 1e-12)
    ]
    assert len(names) == 1, (found, {name: np.asarray(value) for name, value in expected.items()}, names)
    return names[0]


# Layers


def momentum(running_mean: Callable[[float], np.ndarray]) -> str:
    """Of the running mean after one batch, by the momentum given."""
    mean = BATCH.mean((0, 2, 3))
    return fitting(
        running_mean(0.25), {"the weight of the new batch": 0.25 * mean, "the weight of the old value": 0.75 * mean}
    )


def running_variance(found: np.ndarray) -> str:
    """Of the running variance after one batch, the new batch weighing 0.25; it began as 1."""
    channels = BATCH.transpose(1, 0, 2, 3).reshape(3, -1).astype("float64")
    return fitting(
        found, {f"divides by {n}": 0.75 + 0.25 * channels.var(1, ddof=k) for n, k in (("n", 0), ("n − 1", 1))}
    )


def eps_of_norm(run: Run, shape: tuple[int, ...] = (2, 8)) -> str:
    """Of a normalisation of ±d, whose variance is d²."""
    d = 1e-3
    x = np.full(shape, d, "float32")
    x[..., ::2] *= -1
    y = float(np.abs(run(x)).mean())
    return f"{(d / y) ** 2 - d**2:.1e}"


def has_weights(names: list[str]) -> str:
    """Of the names of a layer's parameters."""
    return "has weight and bias" if names else "has no parameters"


def padding_of_average(run: Run) -> str:
    """Of a pooling of 2 × 2 with stride 2 and padding 1 over ones."""
    corner = run(np.ones((1, 1, 2, 2), "float32"))[0, 0, 0, 0]
    return fitting(corner, {"counts the padding": 0.25, "leaves the padding out": 1.0})


def stride_of_pool(run: Run) -> str:
    """Of a pooling of 3 × 3 with the default stride."""
    size = run(np.ones((1, 1, 6, 6), "float32")).shape[-1]
    return {2: "the kernel's size", 4: "1"}[size]


def windows_of_padding(run: Run) -> str:
    """Of a pooling of 2 × 2 with stride 2, padding 1 and ceil_mode: the fourth window of 5 + 2 begins in the padding."""
    size = run(np.ones((1, 1, 5, 5), "float32")).shape[-1]
    return {3: "drops them", 4: "keeps them"}[size]


def padding_of_conv(run: Run) -> str:
    """Of a convolution of 3 × 3 with the default padding."""
    size = run(np.ones((1, 1, 6, 6), "float32")).shape[-1]
    return {4: "none", 6: "as much as keeps the size"}[size]


def padding_of_transposed(run: Run) -> str:
    """Of a transposed convolution of 3 × 3 with the default padding."""
    size = run(np.ones((1, 1, 6, 6), "float32")).shape[-1]
    return {8: "none", 6: "as much as keeps the size"}[size]


def has_bias(names: list[str]) -> str:
    """Of the number of a convolution's parameters."""
    return {1: "has none", 2: "has one"}[len(names)]


def softmax_axis(run: Run) -> str:
    """Of the default axis for 3-dimensional input."""
    sums = [bool(np.allclose(run(LOGITS).sum(axis), 1, atol=1e-5)) for axis in range(3)]
    return ("the first", "the second", "the last")[sums.index(True)]


def cross_entropy_axis(accepts: Callable[[np.ndarray, np.ndarray], object]) -> str:
    """Of classes along axis 1 of 3-dimensional logits: the labels have the shape without the axis."""
    labels = {"the second": np.zeros((2, 4), "int64"), "the last": np.zeros((2, 3), "int64")}
    found = []
    for name, each in labels.items():
        try:
            accepts(LOGITS, each)
            found.append(name)
        except Exception:  # noqa: BLE001  each framework has its own
            continue
    assert len(found) == 1, found
    return found[0]


def gelu(run: Run) -> str:
    """Of GELU without arguments."""
    x = np.linspace(-3, 3, 25).astype("float32")
    exact = np.array([v / 2 * (1 + math.erf(v / math.sqrt(2))) for v in x.tolist()])
    tanh = x / 2 * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))
    return "tanh" if np.abs(run(x) - tanh).max() < np.abs(run(x) - exact).max() else "erf"


def slope(run: Run) -> str:
    """Of what becomes of −1."""
    return f"{-float(run(np.array([[-1.0, 1.0]], 'float32'))[0, 0]):.2g}"


def reduction(found: np.ndarray) -> str:
    """Of a loss over several elements."""
    return "mean" if np.size(found) == 1 else "none"


def smooth_l1(run: Callable[[np.ndarray, np.ndarray], np.ndarray]) -> str:
    """Of the loss with the threshold 0.5 for a difference of 2, averaged over one element."""
    found = run(np.array([[2.0]], "float32"), np.array([[0.0]], "float32")).sum()
    return fitting(found, {"divides by it": 1.75, "is Huber's": 0.875})


def ctc(run: Callable[[np.ndarray, np.ndarray], list[float]]) -> str:
    """Of the loss for logits, and for their log-softmax, where they are no log-probabilities yet."""
    logits = np.random.default_rng(2).normal(size=(5, 1, 4)).astype("float32") * 3
    log_p = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    found = run(logits, log_p)
    return "logits" if math.isclose(*found, rel_tol=1e-4) else "log-probabilities"


def cubic(run: Run) -> str:
    """Of a bicubic Upsample to twice the size: the first value of 0, 1, 2, 3."""
    first = run(np.arange(4, dtype="float32").reshape(1, 1, 2, 2))[0, 0, 0, 0]
    return fitting(first, {"−0.75": -0.31640625, "−0.5": -0.26470590})


def padding_idx(output: np.ndarray, gradient: np.ndarray) -> str:
    """Of the row of padding_idx, which was set to ones: its output, and its gradient when the sum is the loss."""
    return ("gives zeros" if not output.any() else "gives its row") + (
        ", no gradient" if not gradient.any() else ", learns"
    )


def linear_init(weight: np.ndarray, bias: np.ndarray | None, fan_in: int, fan_out: int) -> str:
    """Of a large layer's initial weights."""
    bound = float(np.abs(weight).max())
    name = fitting(
        bound,
        {"U(±1/√in)": 1 / math.sqrt(fan_in), "Xavier's U(±√(6/(in+out)))": math.sqrt(6 / (fan_in + fan_out))},
        0.01,
    )
    return name + (", bias 0" if bias is not None and not bias.any() else ", bias drawn")


def embedding_init(weight: np.ndarray) -> str:
    """Of a large table's initial weights."""
    if np.abs(weight).max() > 3 * weight.std():
        width = fitting(weight.std(), {f"{each:.2f}": each for each in (0.01, 0.02, 0.05, 0.1, 1.0)}, 0.03)
        return f"N(0, {width})"
    bound = math.sqrt(6 / sum(weight.shape))
    return fitting(np.abs(weight).max(), {"Xavier's U(±√(6/(in+out)))": bound}, 0.01)


def conv_init(weight: np.ndarray, bias: np.ndarray | None, fan_in: int) -> str:
    """Of a large convolution's initial weights."""
    uniform = math.isclose(float(np.abs(weight).max()), 1 / math.sqrt(fan_in), rel_tol=0.02)
    name = "U(±1/√in)" if uniform else fitting(weight.std(), {"N(0, √(2/in))": math.sqrt(2 / fan_in)}, 0.03)
    return name + ("" if bias is None else ", bias 0" if not bias.any() else ", bias drawn")


# Optimizers: three steps with the same gradient


def _steps(one: Callable[[int, dict[str, float]], float]) -> list[float]:
    value, state, values = 1.0, {}, []
    for step in range(1, 4):
        value -= one(step, state)
        values.append(value)
    return values


def _rmsprop(g: float, rho: float, eps: float, inside: bool, start: float) -> list[float]:
    def one(step: int, state: dict[str, float]) -> float:
        v = state["v"] = rho * state.get("v", start) + (1 - rho) * g * g
        return LR * g / (math.sqrt(v + eps) if inside else math.sqrt(v) + eps)

    return _steps(one)


def rmsprop(train: Callable[[float, float], list[float]]) -> tuple[str, str]:
    """Of RMSProp with decay 0.9, eps 1e-2, given the gradient and the eps: where eps is added, what the mean square starts with."""
    ways = {
        f"{where} the root,{start}": _rmsprop(0.1, 0.9, 1e-2, where == "inside", start)
        for where in ("inside", "outside")
        for start in (0, 1)
    }
    where, _, start = fitting(train(0.1, 1e-2), ways).partition(",")
    return where, start


def rmsprop_default(train: Trained, start: float = 0.0) -> str:
    """Of RMSProp's decay by default."""
    moved = 1 - np.array(train(2.0))
    known = {str(rho): 1 - np.array(_rmsprop(2.0, rho, 0.0, True, start)) for rho in (0.9, 0.95, 0.99)}
    return fitting(moved, known, 1e-3)


def _adam(g: float, eps: float, how: str, decay: float = 0.0) -> list[float]:
    def one(step: int, state: dict[str, float]) -> float:
        m = state["m"] = 0.9 * state.get("m", 0.0) + 0.1 * g
        v = state["v"] = 0.999 * state.get("v", 0.0) + 0.001 * g * g
        fix_m, fix_v = 1 - 0.9**step, 1 - 0.999**step
        if how == "added to √v, corrected":
            return LR * (m / fix_m) / (math.sqrt(v / fix_v) + eps)
        if how == "added to √v, not corrected":
            return LR * math.sqrt(fix_v) / fix_m * m / (math.sqrt(v) + eps)
        return LR * m / (math.sqrt(v) + eps)

    return _steps(one)


ADAM = ("added to √v, corrected", "added to √v, not corrected", "no correction of the moments")


def eps_of_adam(train: Callable[[float, float], list[float]]) -> str:
    """Of Adam with eps 1e-3; given the gradient and the eps."""
    return fitting(train(1e-2, 1e-3), {how: _adam(1e-2, 1e-3, how) for how in ADAM})


def default_eps_of_adam(train: Trained, how: str) -> str:
    """Of Adam's eps by default, from a gradient as small as it."""
    return fitting(train(3e-7), {f"{eps:.0e}": _adam(3e-7, eps, how) for eps in (1e-6, 1e-8, 1e-10)}, 1e-3)


def decay_of_adamw(train: Trained) -> str:
    """Of AdamW's weight decay by default, from a gradient of 0 and a learning rate of 0.1: 1 → 1 − 0.1·decay."""
    return f"{(1 - train(0.0)[0]) / LR:.2g}"


def _adagrad(g: float, eps: float, start: float) -> list[float]:
    def one(step: int, state: dict[str, float]) -> float:
        s = state["s"] = state.get("s", start) + g * g
        return LR * g / (math.sqrt(s) + eps)

    return _steps(one)


def start_of_adagrad(train: Trained) -> str:
    """Of what the sum of squares begins with by default."""
    return fitting(train(0.1), {f"{start:g}": _adagrad(0.1, 0.0, start) for start in (0.0, 0.1)}, 1e-3)


def default_eps_of_adagrad(train: Trained) -> str:
    """Of Adagrad's eps by default, from a gradient of its size."""
    return fitting(train(1e-6), {f"{eps:.0e}": _adagrad(1e-6, eps, 0.0) for eps in (1e-6, 1e-7, 1e-10)}, 1e-3)


def _adadelta(g: float, rho: float, eps: float, lr: float) -> list[float]:
    def one(step: int, state: dict[str, float]) -> float:
        s = state["s"] = rho * state.get("s", 0.0) + (1 - rho) * g * g
        move = math.sqrt(state.get("u", 0.0) + eps) / math.sqrt(s + eps) * g
        state["u"] = rho * state.get("u", 0.0) + (1 - rho) * move * move
        return lr * move

    return _steps(one)


def default_of_adadelta(train: Trained) -> str:
    """Of Adadelta with all defaults."""
    known = {(rho, lr): f"rho {rho}, lr {lr}" for rho in (0.9, 0.95) for lr in (1.0, 0.001)}
    moved = 1 - np.array(train(0.1))
    return fitting(
        moved, {text: 1 - np.array(_adadelta(0.1, *key[:1], 1e-6, key[1])) for key, text in known.items()}, 5e-2
    )


def momentum_of_sgd(train: Trained) -> str:
    """Of SGD or Momentum with all defaults but the learning rate."""
    plain, heavy = [1 - LR * 0.5 * n for n in (1, 2, 3)], [1 - LR * 0.5 * n for n in (1, 2.9, 5.61)]
    return fitting(train(0.5), {"by default 0": plain, "by default 0.9": heavy})


def unused_parameter(gradient: object) -> str:
    """Of the gradient of a parameter that the second step does not use."""
    return "None: the optimizer passes it over" if gradient is None else "zeros: the optimizer goes on moving it"
