"""Situations of two models in one call: each with a fault that is to be named, and a clean twin that passes.

A model is written once for both frameworks, whose layers are called alike or in `Dialect`; B is often built otherwise than A.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

WIDTH, HEADS, WORDS = 16, 4, 11


@dataclass(frozen=True)
class Dialect:
    """What is called otherwise in a framework."""

    nn: Any
    functional: Any
    module: type
    lstm: Callable[[int, int], Any]
    attention: Callable[[int, int], Any]
    allowed: Callable[[int], Any]
    """of a length: a mask for attention, by which each position sees itself and those before it"""
    adamw: Callable[..., Any]
    """of a model, and ``lr``, ``beta2`` and ``decay``"""


Wrong = bool
Build = Callable[[Dialect, Wrong], Any]


@dataclass(frozen=True)
class Situation:
    """Two models, and where B is wrong."""

    a: Build
    b: Build
    named: str
    """path in B"""
    phase: str = "forward"
    step: int = 0
    inputs: Callable[[], Any] = lambda: {"x": rows(0)}
    options: Mapping[str, Any] = field(default_factory=dict)
    pairs: tuple[tuple[str, str], ...] = ()
    """paths of modules of A and of B that are handed over as ``layer_map``"""
    optimizers: Callable[[Dialect, Any, Wrong], Any] | None = None
    """of a dialect, a model, and whether it is to be wrong"""
    losses: Callable[[Dialect, Wrong], Any] | None = None


def check(situation: Situation, mine: Dialect, theirs: Dialect, wrong: bool) -> None:
    """Run both models in one call, and expect the fault, or none."""
    import probe

    a, b = situation.a(mine, False), situation.b(theirs, wrong)
    options = dict(situation.options)
    if situation.pairs:
        inside = [dict(_named(model)) for model in (a, b)]
        options["layer_map"] = [(inside[0][one], inside[1][other]) for one, other in situation.pairs]
    for name, make in (("optimizers", situation.optimizers), ("loss_fns", situation.losses)):
        if make is not None and name == "optimizers":
            options[name] = (make(mine, a, False), make(theirs, b, wrong))
        elif make is not None:
            options[name] = (make(mine, False), make(theirs, wrong))
    found = probe.auto_diff(a, b, situation.inputs(), **options)
    assert found.replayed is None or found.replayed.left == ()
    named = [(each.b[0].path, each.phase.label, each.step) for each in found.divergences]
    assert (found.verdict, named[:1]) == (
        ("diverged", [(situation.named, situation.phase, situation.step)]) if wrong else ("aligned", [])
    )


def _named(model: Any) -> Any:
    return model.named_modules() if hasattr(model, "named_modules") else model.named_sublayers()


def rows(seed: int, *shape: int) -> np.ndarray:
    """Return a batch of rows."""
    return np.random.default_rng(seed).standard_normal(shape or (8, WIDTH)).astype(np.float32)


def _sequences() -> dict[str, np.ndarray]:
    return {"x": rows(0, 4, 6, WIDTH)}


# ---- models: MAKERS of A and of B; what differs between the two stands in their arguments ----------------------


def chain(d: Dialect, *stages: Any) -> Any:
    """Return a model of named stages between two Linears: `first`, `middle`, `norm`, `last`."""

    class Chain(d.module):  # type: ignore[name-defined,misc]
        def __init__(self, middle: Any) -> None:
            super().__init__()
            self.first, self.middle = d.nn.Linear(WIDTH, WIDTH), middle
            self.norm, self.last = d.nn.LayerNorm(WIDTH), d.nn.Linear(WIDTH, 4)

        def forward(self, x: Any) -> Any:
            return self.last(self.norm(self.middle(self.first(x))))

    return Chain(*stages)


def _function(d: Dialect, of: Callable[[Any], Any], *inner: Any) -> Any:
    """Return a module of a function, which may have modules within."""

    class Function(d.module):  # type: ignore[name-defined,misc]
        def __init__(self) -> None:
            super().__init__()
            for number, module in enumerate(inner):
                setattr(self, f"inner{number}", module)

        def forward(self, x: Any) -> Any:
            return of(x)

    return Function()


def _bent(y: Any) -> Any:
    """Return what no norm behind it takes back."""
    return y + 0.02 * y * y


def called_twice(d: Dialect, wrong: Wrong) -> Any:
    """The same Linear twice; wrong: what it returns is scaled in its second call."""

    class Twice(d.module):  # type: ignore[name-defined,misc]
        def __init__(self) -> None:
            super().__init__()
            self.linear, self.calls = d.nn.Linear(WIDTH, WIDTH), 0

        def forward(self, x: Any) -> Any:
            self.calls += 1
            y = self.linear(x)
            return 1.01 * y if wrong and self.calls == 2 else y

    class Model(d.module):  # type: ignore[name-defined,misc]
        def __init__(self) -> None:
            super().__init__()
            self.shared, self.last = Twice(), d.nn.Linear(WIDTH, 4)

        def forward(self, x: Any) -> Any:
            self.shared.calls = 0
            return self.last(self.shared(d.functional.relu(self.shared(x))))

    return Model()


def branches(reverse: bool) -> Build:
    """Two branches that are added; called in one order or in the other; wrong: `right` is scaled."""

    def build(d: Dialect, wrong: Wrong) -> Any:
        class Model(d.module):  # type: ignore[name-defined,misc]
            def __init__(self) -> None:
                super().__init__()
                self.left = d.nn.Linear(WIDTH, WIDTH)
                linear = d.nn.Linear(WIDTH, WIDTH)
                self.right = _function(d, lambda x: linear(x) * (1.01 if wrong else 1), linear)
                self.last = d.nn.Linear(WIDTH, 4)

            def forward(self, x: Any) -> Any:
                if reverse:
                    right = self.right(x)
                    left = self.left(x)
                else:
                    left = self.left(x)
                    right = self.right(x)
                return self.last(d.functional.relu(left) + right)

        return Model()

    return build


def in_place(written: bool) -> Build:
    """A module that changes what it is given, or makes something new; wrong: by other numbers, not the same for all."""

    def build(d: Dialect, wrong: Wrong) -> Any:
        def added(x: Any) -> Any:
            amount = d.functional.ones_like(x) * 0.5 + (0.02 if wrong else 0) * x.detach() * x.detach()
            return x.add_(amount) if written else x + amount

        return chain(d, _function(d, added))

    return build


def doubled_gradient(d: Dialect, wrong: Wrong) -> Any:
    """Wrong: a module whose output is right and whose gradient is not."""

    def gated(x: Any) -> Any:
        y = d.functional.tanh(x)
        return y + 0.1 * (y - y.detach()) if wrong else y

    return chain(d, _function(d, gated))


def recurrent(name: str, inner: bool) -> Build:
    """An LSTM under some name, perhaps in a module of its own; wrong: it begins elsewhere than with zeros."""

    def build(d: Dialect, wrong: Wrong) -> Any:
        class Began(d.module):  # type: ignore[name-defined,misc]
            def __init__(self) -> None:
                super().__init__()
                self.cell = d.lstm(WIDTH, WIDTH)

            def forward(self, x: Any) -> Any:
                begun = d.functional.zeros([1, x.shape[0], WIDTH]) + (0.05 if wrong else 0)
                return self.cell(x, (begun, begun))[0]

        class Model(d.module):  # type: ignore[name-defined,misc]
            def __init__(self) -> None:
                super().__init__()
                self.first = d.nn.Linear(WIDTH, WIDTH)
                setattr(self, name, Began() if inner else d.lstm(WIDTH, WIDTH))
                self.last = d.nn.Linear(WIDTH, 4)

            def forward(self, x: Any) -> Any:
                found = getattr(self, name)(self.first(x))
                return self.last(found if inner else found[0])

        return Model()

    return build


def attending(name: str) -> Build:
    """Attention under some name; wrong: without its mask."""

    def build(d: Dialect, wrong: Wrong) -> Any:
        class Model(d.module):  # type: ignore[name-defined,misc]
            def __init__(self) -> None:
                super().__init__()
                self.norm = d.nn.LayerNorm(WIDTH)
                setattr(self, name, d.attention(WIDTH, HEADS))
                self.last = d.nn.Linear(WIDTH, 4)

            def forward(self, x: Any) -> Any:
                h = self.norm(x)
                found = getattr(self, name)(h, h, h, attn_mask=None if wrong else d.allowed(x.shape[1]))
                return self.last(x + (found[0] if isinstance(found, tuple) else found))

        return Model()

    return build


def sequential(d: Dialect, wrong: Wrong) -> Any:
    """Layers in a Sequential."""
    return d.nn.Sequential(d.nn.Linear(WIDTH, WIDTH), d.nn.GELU(), d.nn.LayerNorm(WIDTH), d.nn.Linear(WIDTH, 4))


def members(d: Dialect, wrong: Wrong) -> Any:
    """The same layers as named members; wrong: another eps."""

    class Model(d.module):  # type: ignore[name-defined,misc]
        def __init__(self) -> None:
            super().__init__()
            self.embed, self.act = d.nn.Linear(WIDTH, WIDTH), d.nn.GELU()
            self.norm = d.nn.LayerNorm(WIDTH, 1e-3 if wrong else 1e-5)
            self.head = d.nn.Linear(WIDTH, 4)

        def forward(self, x: Any) -> Any:
            return self.head(self.norm(self.act(self.embed(x))))

    return Model()


def plain(d: Dialect, wrong: Wrong) -> Any:
    """A Linear in the middle."""
    return chain(d, d.nn.Linear(WIDTH, WIDTH))


def wrapped(d: Dialect, wrong: Wrong) -> Any:
    """The Linear in a module that passes on what it returns; wrong: not quite."""
    linear = d.nn.Linear(WIDTH, WIDTH)
    return chain(d, _function(d, lambda x: _bent(linear(x)) if wrong else linear(x), linear))


def scaled_norm(d: Dialect, wrong: Wrong) -> Any:
    """Wrong: the norm behind the middle has another eps."""
    model = plain(d, False)
    model.norm = d.nn.LayerNorm(WIDTH, 1e-3 if wrong else 1e-5)
    return model


def written_otherwise(d: Dialect, wrong: Wrong) -> Any:
    """A middle of other modules that returns the same; wrong: the norm behind it."""
    model = scaled_norm(d, wrong)
    model.middle = _function(d, lambda x: d.functional.relu(x) * 2 - d.functional.relu(x), d.nn.ReLU())
    return model


def rectified(d: Dialect, wrong: Wrong) -> Any:
    """A ReLU in the middle."""
    return chain(d, d.nn.ReLU())


def late(d: Dialect, wrong: Wrong) -> Any:
    """Wrong: from its third call on."""
    linear, calls = d.nn.Linear(WIDTH, WIDTH), []

    def middle(x: Any) -> Any:
        calls.append(None)
        return _bent(linear(x)) if wrong and len(calls) > 2 else linear(x)

    return chain(d, _function(d, middle, linear))


def _adamw(**wrongly: Any) -> Callable[[Dialect, Any, Wrong], Any]:
    return lambda d, model, wrong: d.adamw(
        model, **{"lr": 1e-2, "beta2": 0.99, "decay": 0.1, **(wrongly if wrong else {})}
    )


def _squared(d: Dialect, wrong: Wrong) -> Any:
    return lambda output: (output * output).mean() * (1.02 if wrong else 1)


SITUATIONS = {
    "a module called twice": Situation(called_twice, called_twice, "shared"),
    "called in another order": Situation(branches(False), branches(True), "right"),
    "in place, and not": Situation(in_place(True), in_place(False), "middle"),
    "in place in both": Situation(in_place(True), in_place(True), "middle"),
    "accumulation": Situation(late, late, "middle", inputs=lambda: [{"x": rows(number)} for number in range(4)]),
    "a gradient alone": Situation(doubled_gradient, doubled_gradient, "middle", "backward"),
    "an LSTM under another name": Situation(
        recurrent("lstm", True), recurrent("rnn", True), "rnn", pairs=(("lstm", "rnn"),), inputs=_sequences
    ),
    "an LSTM in a module of its own": Situation(
        recurrent("lstm", False), recurrent("rnn", True), "rnn.cell", pairs=(("lstm", "rnn.cell"),), inputs=_sequences
    ),
    "attention under another name": Situation(
        attending("attn"), attending("self_attention"), "self_attention", pairs=(("attn", "self_attention"),), inputs=_sequences
    ),
    "Sequential against members": Situation(sequential, members, "norm", inputs=lambda: ({"input": rows(0)}, {"x": rows(0)})),
    "a wrapper": Situation(plain, wrapped, ""),  # A has no code around the Linear but the model's own
    "a wrapper, with the map of it": Situation(plain, wrapped, "", pairs=(("middle", "middle.inner0"),)),
    "two optimizers: decay": Situation(plain, plain, "", "update", options={"steps": 2}, optimizers=_adamw(decay=0.2)),
    "two optimizers: beta2": Situation(plain, plain, "", "update", options={"steps": 3}, optimizers=_adamw(beta2=0.9)),
    "several steps": Situation(late, late, "middle", "forward", 2, options={"steps": 4}, optimizers=_adamw()),
    "loss functions": Situation(plain, plain, "", "loss", losses=_squared),
    "forward alone": Situation(plain, scaled_norm, "norm", options={"phases": "forward"}),
    "a black list": Situation(rectified, written_otherwise, "norm", options={"black_list": ["middle"]}),
    "a white list": Situation(plain, scaled_norm, "norm", options={"white_list": ["first", "norm", "last"]}),
    "a fixed tolerance": Situation(plain, scaled_norm, "norm", options={"atol": 1e-4, "rtol": 1e-4}),
    "a fixed tolerance of means": Situation(plain, scaled_norm, "norm", options={"atol": 1e-4, "compare_mode": "mean"}),
    "single step": Situation(plain, scaled_norm, "norm", options={"single_step": True}),
}  # fmt: skip
