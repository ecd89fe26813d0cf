"""Canonical layouts: what the parameters of a framework's classes are called, and how they lie, in torch.

The weight of PaddlePaddle's Linear is stored as [in, out], that of its BatchNorm's running mean is called ``_mean``.
Comparison and conversion bring both into one *canonical* form, which is PyTorch's. What a class does is looked up
by the class, never guessed from a name or a shape: a square weight says nothing, and a Linear may be called ``conv``.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable
from dataclasses import dataclass

from probe.defaults import FRAMEWORKS
from probe.records import ModuleInfo


@dataclass(frozen=True, slots=True)
class Layout:
    """The canonical form of one parameter or buffer of a class."""

    name: str
    """what torch calls it"""
    axes: tuple[int, ...] = ()
    """order of the stored axes in the canonical form, see `probe.numbers.sketch.axes_of`; empty when it is the stored one"""
    unit: tuple[int, ...] = ()
    """stored axes of size 1 that the canonical form does not have"""


Row = tuple[tuple[str, ...], dict[str, Layout]]

_NUMBERED = ("1D", "2D", "3D"), ("1d", "2d", "3d")
_IN_OUT = {"weight": Layout("weight", (1, 0))}
_GAMMA_BETA = {"gamma": Layout("weight"), "beta": Layout("bias")}
_MOVING = {**_GAMMA_BETA, "moving_mean": Layout("running_mean"), "moving_variance": Layout("running_var")}
_TABLE_OF_ROWS = {"embedding_table": Layout("weight")}


def _of_sizes(name: str, style: int) -> tuple[str, ...]:
    return tuple(f"{name}{size}" for size in _NUMBERED[style])


_ROWS: dict[str, tuple[Row, ...]] = {
    "torch": (
        (("Conv1D",), _IN_OUT),  # transformers: GPT-2's Linear
    ),
    "paddle": (
        (
            (
                "Linear", "ColumnParallelLinear", "RowParallelLinear", "ColumnSequenceParallelLinear",
                "RowSequenceParallelLinear", "FusedLinear",
            ),
            _IN_OUT,
        ),
        (
            ("BatchNorm", "SyncBatchNorm", "_BatchNormBase", *_of_sizes("BatchNorm", 0)),
            {"_mean": Layout("running_mean"), "_variance": Layout("running_var")},
        ),
        (("_InstanceNormBase", *_of_sizes("InstanceNorm", 0)), {"scale": Layout("weight")}),
        (("PReLU",), {"_weight": Layout("weight")}),
        (("Bilinear",), {"bias": Layout("bias", unit=(0,))}),
    ),
    "mindspore": (
        (
            (
                "_BatchNorm", "_InstanceNorm", "SyncBatchNorm", "BatchNorm1d", "BatchNorm2d", *_of_sizes("InstanceNorm", 1),
            ),
            _MOVING,
        ),
        (("BatchNorm3d",), {f"bn2d.{slot}": layout for slot, layout in _MOVING.items()}),  # it holds a BatchNorm2d
        (("LayerNorm", "GroupNorm"), _GAMMA_BETA),
        (("Embedding", "EmbeddingLookup", "VocabEmbedding"), _TABLE_OF_ROWS),
        (("PReLU",), {"w": Layout("weight")}),
        (("Conv1d", "Conv1dTranspose"), {"weight": Layout("weight", unit=(2,))}),
    ),
    "numpy": (  # the toy framework of probe's own tests
        (("LinearInOut",), _IN_OUT),
        (("GammaBetaNorm",), _GAMMA_BETA),
    ),
}  # fmt: skip
"""what is not listed has the canonical name and layout: torch's own classes, ``mindspore.mint``, every Conv but these,
recurrent layers (the gates of LSTM, i f g o, and of GRU, r z n, have one order in all three), Embedding in paddle"""

_PACKAGES = {
    "torch": {"torch", "torchvision", "transformers"},
    "paddle": {"paddle", "paddlenlp", "paddleformers"},
    "mindspore": {"mindspore", "mindformers"},
    "numpy": {"tests"},
}
"""whose classes the table means: somebody else's ``Linear`` is what its bases make it"""

_LIKE_TORCH = {
    "paddle": re.compile(r"paddle\.compat\."),
    "mindspore": re.compile(r"mindspore\.(mint\.|nn\..*\b(Linear|\w+Ext)$)"),
}
"""classes that are torch's in names and layouts: PaConvert writes ``paddle.compat.nn.Linear`` for torch's; some of ``mint`` end in ``Ext``"""

_INNER = (
    "nn/",
    "mint/nn/",
    "compat/nn/",
    "incubate/nn/",
    "distributed/fleet/",
    "transformers/",
    "models/",
    "pytorch_utils",
    "toy/nn",
)
"""where in these packages the classes are"""

_LIKE_WHOLE = ("v", "orig")
"""what ``weight_norm`` and ``spectral_norm`` call a matrix that lies as the weight that they make of it: ``weight_v``, ``weight_orig``"""

_PACKED_ATTENTION = "MultiheadAttention"
"""of torch, MindSpore and ``paddle.compat``; PaddlePaddle's own is ``MultiHeadAttention``"""
_PARTS = ("q_proj", "k_proj", "v_proj")
_UNPACKED = {
    "in_proj_weight": tuple(f"{part}.weight" for part in _PARTS),
    "in_proj_bias": tuple(f"{part}.bias" for part in _PARTS),
    **{f"{part}_{slot}": (f"{part}.{slot}",) for part in _PARTS for slot in ("weight", "bias")},
}
"""a parameter of attention that packs: those of the children that PaddlePaddle's own has in its place"""


def class_names(kind: type) -> tuple[str, ...]:
    """Return the qualified names of a class and its bases, in the order in which Python looks attributes up."""
    return tuple(f"{base.__module__}.{base.__qualname__}" for base in kind.__mro__ if base is not object)


def recorded_kind(framework: str, module: ModuleInfo) -> tuple[str, ...]:
    """Return the class of a recorded module as `layout_of` takes it: with its module, as far as its source file tells.

    Where the source is not known the name stays plain.
    """
    path = module.file.replace("\\", "/")
    for package in _PACKAGES.get(framework, ()):
        inside = path.rpartition(f"/{package}/")[2]
        if inside != path and inside.startswith(_INNER):
            return (f"{package}.{inside.removesuffix('.py').replace('/', '.')}.{module.class_name}",)
    return (f"else.{module.class_name}" if path else module.class_name,)


def layout_of(framework: str, names: Iterable[str], parameter: str) -> Layout:
    """Return the canonical form of a parameter or buffer.

    Parameters
    ----------
    framework
        ``torch``, ``paddle``, ``mindspore`` or ``numpy``
    names
        of the class that holds it and of its bases, as `class_names` gives them. Plain names, without a module, are
        taken for the framework's own classes
    parameter
        what the class calls it
    """
    row = _row(framework, tuple(names))
    whole, _, part = parameter.rpartition("_")
    if part in _LIKE_WHOLE and whole in row:
        return Layout(f"{row[whole].name}_{part}", row[whole].axes)
    return row.get(parameter, Layout(parameter))


def unpacked(framework: str, names: Iterable[str], parameter: str) -> tuple[str, ...]:
    """Return the canonical names, below the module, of what an attention packs into one parameter.

    Their values follow one another along axis 0, in equal parts. Empty for what is not packed.
    """
    is_attention = any(plain == _PACKED_ATTENTION for _, plain in _own(framework, names))
    return _UNPACKED.get(parameter, ()) if is_attention else ()


@functools.lru_cache(maxsize=1024)
def _row(framework: str, names: tuple[str, ...]) -> dict[str, Layout]:
    for family, name in _own(framework, names):
        for classes, row in _ROWS.get(family, ()):
            if name in classes:
                return row
    return {}


def _own(framework: str, names: Iterable[str]) -> list[tuple[str, str]]:
    """Return the plain names of the classes that are the framework's own, each with the framework whose layouts it has."""
    found, like_torch = [], _LIKE_TORCH.get(framework)
    for name in names:
        module, _, plain = name.rpartition(".")
        if like_torch is not None and like_torch.match(name):
            found.append(("torch", plain.removesuffix("Ext")))
        elif not module or module.partition(".")[0] in _PACKAGES.get(framework, ()):
            found.append((framework, plain.removeprefix("Parametrized")))  # as torch.nn.utils.parametrize calls a class
    return found


# Which class of one framework is which of another


def _sized(torch: str, paddle: str, mindspore: str) -> tuple[tuple[str, str, str], ...]:
    """Return the row of a class that comes in three sizes: ``Conv{}`` is ``Conv1d``, ``Conv2d``, ``Conv3d``."""
    return tuple((torch.format(f"{n}d"), paddle.format(f"{n}D"), mindspore.format(f"{n}d")) for n in (1, 2, 3))


CLASSES: tuple[tuple[str, str, str], ...] = (
    ("Linear", "Linear", "Dense"),
    ("NonDynamicallyQuantizableLinear", "Linear", "Dense"),
    ("Conv1D", "Linear", "Dense"),  # transformers: GPT-2's Linear
    ("Bilinear", "Bilinear", "BiDense"),
    ("Embedding", "Embedding", "Embedding"),
    *_sized("Conv{}", "Conv{}", "Conv{}"),
    *_sized("ConvTranspose{}", "Conv{}Transpose", "Conv{}Transpose"),
    *_sized("BatchNorm{}", "BatchNorm{}", "BatchNorm{}"),
    *_sized("InstanceNorm{}", "InstanceNorm{}", "InstanceNorm{}"),
    ("LayerNorm", "LayerNorm", "LayerNorm"),
    ("GroupNorm", "GroupNorm", "GroupNorm"),
    ("PReLU", "PReLU", "PReLU"),
    ("LSTM", "LSTM", "LSTM"),
    ("GRU", "GRU", "GRU"),
    ("RNN", "SimpleRNN", "RNN"),
    ("LSTMCell", "LSTMCell", "LSTMCell"),
    ("GRUCell", "GRUCell", "GRUCell"),
    ("RNNCell", "SimpleRNNCell", "RNNCell"),
    ("MultiheadAttention", "MultiHeadAttention", "MultiheadAttention"),
)
"""classes that do the same, in torch, paddle and mindspore; each row is proven in ``tests/frameworks``"""

_BY_PACONVERT = {"Linear": "paddle.compat.nn.Linear", "MultiHeadAttention": "paddle.compat.nn.MultiheadAttention"}
"""what PaConvert 3.3 writes for a class of torch in the place of PaddlePaddle's own counterpart"""

RECURRENT = ("LSTM", "GRU", "RNN", "SimpleRNN")


def counterpart(framework: str, names: Iterable[str], other: str, by_paconvert: bool = False) -> str:
    """Return what another framework calls a class; ``""`` when nothing is known of it or its bases.

    ``by_paconvert``: what PaConvert writes for it, where that is another class than PaddlePaddle's own.
    """
    if framework == other:
        return next(iter(names))
    if framework in FRAMEWORKS and other in FRAMEWORKS:
        for family, name in _own(framework, names):
            for row in CLASSES:
                if row[FRAMEWORKS.index(family)] == name:
                    found = row[FRAMEWORKS.index(other)]
                    return _BY_PACONVERT.get(found, found) if by_paconvert else found
    return ""


def stored_as(framework: str, class_name: str, canonical: str) -> tuple[str, Layout]:
    """Return what a framework's own class calls the parameter that torch calls ``canonical``, and its layout."""
    found = [(slot, layout) for slot, layout in _row(framework, (class_name,)).items() if layout.name == canonical]
    return found[0] if found else (canonical, layout_of(framework, (class_name,), canonical))


# Optimizer states

_ADAM = {"moment1": "exp_avg", "moment2": "exp_avg_sq", "moment2_max": "max_exp_avg_sq"}
_ADADELTA = {"avg_squared_grad": "square_avg", "avg_squared_update": "acc_delta"}
_SQUARES = {"mean_square": "square_avg", "mean_grad": "grad_avg"}

# that one name means one thing is proven in tests/frameworks/test_states.py
_STATES: dict[str, tuple[tuple[tuple[str, ...], dict[str, str]], ...]] = {
    "paddle": (
        (("Adam", "AdamW", "Lamb", "NAdam", "RAdam"), _ADAM),
        (("Momentum",), {"velocity": "momentum_buffer"}),
        (("Adamax",), {"moment": "exp_avg", "inf_norm": "exp_inf"}),
        (("Adagrad",), {"moment": "sum"}),
        (("Adadelta",), _ADADELTA),
        (("RMSProp",), {**_SQUARES, "momentum": "momentum_buffer_times_lr"}),
        (("Rprop",), {"prevs": "prev", "learning_rates": "step_size"}),
    ),
    "mindspore": (
        (("AdaMax",), {"moment1": "exp_avg", "moment2": "exp_inf"}),
        (
            ("Adam", "AdamWeightDecay", "AdamOffload", "LazyAdam", "Lamb"),
            {
                **_ADAM, "moments1": "exp_avg", "moments2": "exp_avg_sq", "adam_m": "exp_avg", "adam_v": "exp_avg_sq",
                "lamb_m": "exp_avg", "lamb_v": "exp_avg_sq", "vhat": "max_exp_avg_sq",
            },
        ),
        (
            ("SGD", "Momentum"),
            {"moments": "momentum_buffer", "accum": "momentum_buffer", "momentum_buf": "momentum_buffer"},
        ),
        (("Adagrad", "ProximalAdagrad"), {"accum": "sum"}),
        (("Adadelta",), {"accum": "square_avg", "accum_update": "acc_delta"}),
        (
            ("RMSProp", "RMSprop"),
            {
                **_SQUARES, "ms": "square_avg", "mg": "grad_avg", "moment": "momentum_buffer_times_lr",
            },
        ),
        (("ASGD",), {"ax_": "ax"}),
    ),
}  # fmt: skip
"""``momentum_buffer_times_lr``: RMSProp keeps lr · g / √v there, torch's keeps g / √v: not the same thing"""

_COUNT = re.compile(r"_\d+$")


@functools.cache
def state_name(framework: str, optimizer_class: str, state: str) -> str:
    """Return what torch calls a state of an optimizer, or its own name where torch has nothing that means the same.

    Parameters
    ----------
    framework
        see `layout_of`
    optimizer_class
        its plain or its qualified name
    state
        as the optimizer calls it: ``moment1``, ``moment1_0``, ``_avg_squared_grad``, ``adam_m`` …
    """
    plain = optimizer_class.rpartition(".")[2]
    for classes, names in _STATES.get(framework, ()):
        if plain in classes:
            return names.get(_COUNT.sub("", state).lstrip("_"), names.get(state, state))
    return state
