"""One layer of a framework at a time: the program of the processes that `test_class_pairs` starts.

    python layers.py torch OUT.npz           make every layer, run it forward and backward
    python layers.py paddle OUT.npz IN.npz   the same with the weights and inputs of IN.npz

Arrays are named ``<case>/weight/<name>``, ``…/input/<n>``, ``…/output``, ``…/grad/<name>``, ``…/grad_input/<n>``; what could
not run has ``<case>/error``.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import numpy as np

Arrays = dict[str, np.ndarray]


def image(*sizes: int) -> Callable[[np.random.Generator], list[np.ndarray]]:
    """Return what draws one input of a shape."""
    return lambda rng: [rng.standard_normal(sizes).astype(np.float32)]


def ids(rng: np.random.Generator) -> list[np.ndarray]:
    return [rng.integers(0, 7, (2, 5)).astype(np.int32)]


def two(rng: np.random.Generator) -> list[np.ndarray]:
    return image(4, 2)(rng) + image(4, 3)(rng)


def attention(rng: np.random.Generator) -> list[np.ndarray]:
    return image(2, 5, 8)(rng) * 3


def target_and_memory(rng: np.random.Generator) -> list[np.ndarray]:
    return image(2, 5, 8)(rng) + image(2, 4, 8)(rng)


INPUTS: dict[str, Callable[[np.random.Generator], list[np.ndarray]]] = {
    "Linear": image(4, 6), "square Linear": image(4, 6), "Conv1D": image(4, 6), "Embedding": ids, "Bilinear": two,
    "Conv1d": image(2, 4, 9), "Conv2d": image(2, 4, 7, 6), "Conv3d": image(2, 2, 4, 5, 6), "grouped Conv2d": image(2, 4, 7, 6),
    "ConvTranspose1d": image(2, 4, 5), "ConvTranspose2d": image(2, 4, 5, 6), "ConvTranspose3d": image(1, 2, 3, 4, 5),
    "grouped ConvTranspose2d": image(2, 4, 5, 6),
    "BatchNorm1d": image(6, 4), "BatchNorm2d": image(3, 4, 5, 6), "BatchNorm3d": image(2, 4, 2, 3, 4),
    "BatchNorm2d in evaluation": image(3, 4, 5, 6),
    "LayerNorm": image(2, 5, 8), "GroupNorm": image(2, 4, 5, 6), "InstanceNorm1d": image(2, 4, 9),
    "InstanceNorm2d": image(2, 4, 5, 6), "InstanceNorm3d": image(2, 4, 2, 3, 4),
    "PReLU": image(2, 4, 5, 6),
    "LSTM": image(2, 5, 6), "LSTM of 2 layers": image(2, 5, 6), "bidirectional LSTM of 2 layers": image(2, 5, 6),
    "GRU": image(2, 5, 6), "bidirectional GRU": image(2, 5, 6), "RNN": image(2, 5, 6),
    "LSTMCell": image(3, 6), "GRUCell": image(3, 6), "RNNCell": image(3, 6),
    "MultiheadAttention": attention, "TransformerEncoderLayer": image(2, 5, 8),
    "TransformerDecoderLayer": target_and_memory,
}  # fmt: skip
EVALUATED = {"BatchNorm2d in evaluation"}


def _as_in_torch(nn: Any) -> dict[str, Callable[[], Any]]:
    """Return layers that MindSpore calls as PyTorch does."""
    return {
        "LSTM": lambda: nn.LSTM(6, 4, batch_first=True), "LSTM of 2 layers": lambda: nn.LSTM(6, 4, 2, batch_first=True),
        "bidirectional LSTM of 2 layers": lambda: nn.LSTM(6, 4, 2, batch_first=True, bidirectional=True),
        "GRU": lambda: nn.GRU(6, 4, batch_first=True),
        "bidirectional GRU": lambda: nn.GRU(6, 4, batch_first=True, bidirectional=True),
        "RNN": lambda: nn.RNN(6, 4, batch_first=True),
        "LSTMCell": lambda: nn.LSTMCell(6, 4), "GRUCell": lambda: nn.GRUCell(6, 4), "RNNCell": lambda: nn.RNNCell(6, 4),
        "MultiheadAttention": lambda: nn.MultiheadAttention(8, 2, batch_first=True),
        "TransformerEncoderLayer": lambda: nn.TransformerEncoderLayer(8, 2, 16, 0.0, batch_first=True),
        "TransformerDecoderLayer": lambda: nn.TransformerDecoderLayer(8, 2, 16, 0.0, batch_first=True),
    }  # fmt: skip


def torch_layers() -> dict[str, Callable[[], Any]]:
    from torch import nn
    from transformers.pytorch_utils import Conv1D

    return {
        "Conv1D": lambda: Conv1D(5, 6),
        "Linear": lambda: nn.Linear(6, 5), "square Linear": lambda: nn.Linear(6, 6),
        "Embedding": lambda: nn.Embedding(7, 4), "Bilinear": lambda: nn.Bilinear(2, 3, 4),
        "Conv1d": lambda: nn.Conv1d(4, 6, 3), "Conv2d": lambda: nn.Conv2d(4, 6, (3, 2)),
        "Conv3d": lambda: nn.Conv3d(2, 3, (2, 3, 2)), "grouped Conv2d": lambda: nn.Conv2d(4, 6, 3, groups=2),
        "ConvTranspose1d": lambda: nn.ConvTranspose1d(4, 6, 3), "ConvTranspose2d": lambda: nn.ConvTranspose2d(4, 6, (3, 2)),
        "ConvTranspose3d": lambda: nn.ConvTranspose3d(2, 3, (2, 3, 2)),
        "grouped ConvTranspose2d": lambda: nn.ConvTranspose2d(4, 6, 3, groups=2),
        "BatchNorm1d": lambda: nn.BatchNorm1d(4), "BatchNorm2d": lambda: nn.BatchNorm2d(4),
        "BatchNorm3d": lambda: nn.BatchNorm3d(4), "BatchNorm2d in evaluation": lambda: nn.BatchNorm2d(4),
        "LayerNorm": lambda: nn.LayerNorm(8), "GroupNorm": lambda: nn.GroupNorm(2, 4),
        "InstanceNorm1d": lambda: nn.InstanceNorm1d(4, affine=True), "InstanceNorm2d": lambda: nn.InstanceNorm2d(4, affine=True),
        "InstanceNorm3d": lambda: nn.InstanceNorm3d(4, affine=True),
        "PReLU": lambda: nn.PReLU(4),
        **_as_in_torch(nn),
    }  # fmt: skip


def paddle_layers() -> dict[str, Callable[[], Any]]:
    from paddle import nn

    return {
        "Conv1D": lambda: nn.Linear(6, 5),
        "Linear": lambda: nn.Linear(6, 5), "square Linear": lambda: nn.Linear(6, 6),
        "Embedding": lambda: nn.Embedding(7, 4), "Bilinear": lambda: nn.Bilinear(2, 3, 4),
        "Conv1d": lambda: nn.Conv1D(4, 6, 3), "Conv2d": lambda: nn.Conv2D(4, 6, (3, 2)),
        "Conv3d": lambda: nn.Conv3D(2, 3, (2, 3, 2)), "grouped Conv2d": lambda: nn.Conv2D(4, 6, 3, groups=2),
        "ConvTranspose1d": lambda: nn.Conv1DTranspose(4, 6, 3), "ConvTranspose2d": lambda: nn.Conv2DTranspose(4, 6, (3, 2)),
        "ConvTranspose3d": lambda: nn.Conv3DTranspose(2, 3, (2, 3, 2)),
        "grouped ConvTranspose2d": lambda: nn.Conv2DTranspose(4, 6, 3, groups=2),
        "BatchNorm1d": lambda: nn.BatchNorm1D(4), "BatchNorm2d": lambda: nn.BatchNorm2D(4),
        "BatchNorm3d": lambda: nn.BatchNorm3D(4), "BatchNorm2d in evaluation": lambda: nn.BatchNorm2D(4),
        "LayerNorm": lambda: nn.LayerNorm(8), "GroupNorm": lambda: nn.GroupNorm(2, 4),
        "InstanceNorm1d": lambda: nn.InstanceNorm1D(4), "InstanceNorm2d": lambda: nn.InstanceNorm2D(4),
        "InstanceNorm3d": lambda: nn.InstanceNorm3D(4),
        "PReLU": lambda: nn.PReLU(4),
        "LSTM": lambda: nn.LSTM(6, 4), "LSTM of 2 layers": lambda: nn.LSTM(6, 4, 2),
        "bidirectional LSTM of 2 layers": lambda: nn.LSTM(6, 4, 2, direction="bidirect"),
        "GRU": lambda: nn.GRU(6, 4), "bidirectional GRU": lambda: nn.GRU(6, 4, direction="bidirect"),
        "RNN": lambda: nn.SimpleRNN(6, 4),
        "LSTMCell": lambda: nn.LSTMCell(6, 4), "GRUCell": lambda: nn.GRUCell(6, 4), "RNNCell": lambda: nn.SimpleRNNCell(6, 4),
        "MultiheadAttention": lambda: nn.MultiHeadAttention(8, 2),
        "TransformerEncoderLayer": lambda: nn.TransformerEncoderLayer(8, 2, 16, 0.0),
        "TransformerDecoderLayer": lambda: nn.TransformerDecoderLayer(8, 2, 16, 0.0),
    }  # fmt: skip


def mindspore_layers() -> dict[str, Callable[[], Any]]:
    from mindspore import nn

    valid = {"pad_mode": "valid", "has_bias": True}
    return {
        "Conv1D": lambda: nn.Dense(6, 5),
        "Linear": lambda: nn.Dense(6, 5), "square Linear": lambda: nn.Dense(6, 6),
        "Embedding": lambda: nn.Embedding(7, 4), "Bilinear": lambda: nn.BiDense(2, 3, 4),
        "Conv1d": lambda: nn.Conv1d(4, 6, 3, **valid), "Conv2d": lambda: nn.Conv2d(4, 6, (3, 2), **valid),
        "Conv3d": lambda: nn.Conv3d(2, 3, (2, 3, 2), **valid), "grouped Conv2d": lambda: nn.Conv2d(4, 6, 3, group=2, **valid),
        "ConvTranspose1d": lambda: nn.Conv1dTranspose(4, 6, 3, **valid),
        "ConvTranspose2d": lambda: nn.Conv2dTranspose(4, 6, (3, 2), **valid),
        "ConvTranspose3d": lambda: nn.Conv3dTranspose(2, 3, (2, 3, 2), **valid),
        "grouped ConvTranspose2d": lambda: nn.Conv2dTranspose(4, 6, 3, group=2, **valid),
        "BatchNorm1d": lambda: nn.BatchNorm1d(4), "BatchNorm2d": lambda: nn.BatchNorm2d(4),
        "BatchNorm3d": lambda: nn.BatchNorm3d(4), "BatchNorm2d in evaluation": lambda: nn.BatchNorm2d(4),
        "LayerNorm": lambda: nn.LayerNorm((8,), epsilon=1e-5), "GroupNorm": lambda: nn.GroupNorm(2, 4, eps=1e-5),
        "InstanceNorm1d": lambda: nn.InstanceNorm1d(4), "InstanceNorm2d": lambda: nn.InstanceNorm2d(4),
        "InstanceNorm3d": lambda: nn.InstanceNorm3d(4),
        "PReLU": lambda: nn.PReLU(4),
        **_as_in_torch(nn),
    }  # fmt: skip


def first(output: Any) -> Any:
    """Return the output of a layer, without states and attention weights."""
    return output[0] if isinstance(output, (tuple, list)) else output


def cotangent(shape: tuple[int, ...]) -> np.ndarray:
    """Return what every element of an output counts in the loss."""
    return np.random.default_rng(9).standard_normal(shape).astype(np.float32)


def run_torch(case: str, make: Callable[[], Any], given: Arrays) -> Arrays:
    import torch

    model = torch.nn.Sequential(make())
    rng = np.random.default_rng(len(case))
    for name, tensor in model.state_dict().items():
        if tensor.is_floating_point():
            low = 0.5 if name.endswith("running_var") else -1
            tensor.copy_(torch.from_numpy(rng.uniform(low, 1, tensor.shape).astype(np.float32)))
    found = {f"weight/{name}": tensor.numpy().copy() for name, tensor in model.state_dict().items()}
    inputs = INPUTS[case](rng)
    model.train(case not in EVALUATED)
    tensors = [torch.from_numpy(x).requires_grad_(x.dtype == np.float32) for x in inputs]
    output = first(model[0](*tensors))
    (output * torch.from_numpy(cotangent(tuple(output.shape)))).sum().backward()
    found["output"] = output.detach().numpy()
    found |= {f"grad/{name}": p.grad.numpy() for name, p in model.named_parameters() if p.grad is not None}
    for i, (x, tensor) in enumerate(zip(inputs, tensors, strict=True)):
        found[f"input/{i}"] = x
        if tensor.grad is not None:
            found[f"grad_input/{i}"] = tensor.grad.numpy()
    return found


def run_paddle(case: str, make: Callable[[], Any], given: Arrays) -> Arrays:
    import paddle

    model = paddle.nn.Sequential(make())
    weights = {name.removeprefix("weight/"): x for name, x in given.items() if name.startswith("weight/")}
    missing, unexpected = model.set_state_dict(weights)
    aliases = [name for name in missing if ".cell" not in name]  # recurrent layers list their weights twice
    assert not aliases and not unexpected, (missing, unexpected)
    model.train() if case not in EVALUATED else model.eval()
    inputs = [x for name, x in sorted(given.items()) if name.startswith("input/")]
    tensors = [paddle.to_tensor(x, stop_gradient=x.dtype != np.float32) for x in inputs]
    output = first(model[0](*tensors))
    (output * paddle.to_tensor(cotangent(tuple(output.shape)))).sum().backward()
    found = {f"grad/{name}": p.grad.numpy() for name, p in model.named_parameters() if p.grad is not None}
    found |= {f"grad_input/{i}": x.grad.numpy() for i, x in enumerate(tensors) if x.grad is not None}
    return {**found, "output": output.numpy()}


def run_mindspore(case: str, make: Callable[[], Any], given: Arrays) -> Arrays:
    import mindspore as ms

    model = ms.nn.SequentialCell(make())
    weights = {name.removeprefix("weight/"): x for name, x in given.items() if name.startswith("weight/")}
    for name, p in model.parameters_and_names():
        if ".moving_" in name and name not in weights:
            continue  # InstanceNorm keeps statistics that torch's does not
        assert weights[name].shape == p.shape, name
        p.set_data(ms.Tensor(weights.pop(name)))
    assert not weights, list(weights)
    model.set_train(case not in EVALUATED)
    tensors = [ms.Tensor(x) for name, x in sorted(given.items()) if name.startswith("input/")]
    zeros = ms.Tensor(np.zeros((3, 4), np.float32))
    states = {"LSTMCell": ((zeros, zeros),), "GRUCell": (zeros,), "RNNCell": (zeros,)}.get(case, ())
    ones = ms.Tensor(cotangent(tuple(first(model[0](*tensors, *states)).shape)))
    places = tuple(i for i, x in enumerate(tensors) if x.dtype == ms.float32) or None
    parameters = model.trainable_params()

    def loss(*inputs: Any) -> Any:
        output = first(model[0](*inputs, *states))
        return (output * ones).sum(), output

    back = ms.value_and_grad(loss, places, ms.ParameterTuple(parameters), has_aux=True)
    (_, output), grads = back(*tensors)
    of_inputs, of_weights = grads if places is not None else ((), grads)
    of_inputs = of_inputs if isinstance(of_inputs, tuple) else (of_inputs,)
    names = {id(p): name for name, p in model.parameters_and_names()}
    found = {f"grad/{names[id(p)]}": g.asnumpy() for p, g in zip(parameters, of_weights, strict=True)}
    found |= {f"grad_input/{i}": g.asnumpy() for i, g in zip(places or (), of_inputs, strict=True)}
    return {**found, "output": output.asnumpy()}


def main(framework: str, out: str, given: str = "") -> None:
    """Run every case."""
    arrays = dict(np.load(given)) if given else {}
    layers, run = {
        "torch": (torch_layers, run_torch), "paddle": (paddle_layers, run_paddle),
        "mindspore": (mindspore_layers, run_mindspore),
    }[framework]  # fmt: skip
    found: Arrays = {}
    for case, make in layers().items():
        mine = {name.partition("/")[2]: x for name, x in arrays.items() if name.partition("/")[0] == case}
        try:
            made = run(case, make, mine)
        except Exception as error:  # noqa: BLE001  the test says which must run
            made = {"error": np.array(f"{type(error).__name__}: {error}"[:500])}
        found.update((f"{case}/{name}", x) for name, x in made.items())
    np.savez(out, **found)


if __name__ == "__main__":
    main(*sys.argv[1:])
