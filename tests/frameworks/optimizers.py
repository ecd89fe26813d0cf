"""Three steps of each optimizer with the same gradients: what `test_states` starts, `python optimizers.py FRAMEWORK OUT.npz`.

Arrays are named ``<case>/<class>/<state>``, as the framework calls them.
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

START = np.linspace(-1, 1, 6).astype(np.float32)
GRADIENTS = np.random.default_rng(4).standard_normal((3, 6)).astype(np.float32)
LR = 0.1
Arrays = dict[str, np.ndarray]


def with_torch() -> Arrays:
    import torch

    found: Arrays = {}
    optim = torch.optim
    for case, make in {
        "Adam": lambda p: optim.Adam([p], LR, amsgrad=True), "AdamW": lambda p: optim.AdamW([p], LR),
        "Momentum": lambda p: optim.SGD([p], LR, momentum=0.9), "Adamax": lambda p: optim.Adamax([p], LR),
        "Adagrad": lambda p: optim.Adagrad([p], LR), "Adadelta": lambda p: optim.Adadelta([p], LR, rho=0.95, eps=1e-6),
        "RMSProp": lambda p: optim.RMSprop([p], LR, alpha=0.9, eps=1e-10, momentum=0.9, centered=True),
    }.items():  # fmt: skip
        p = torch.nn.Parameter(torch.from_numpy(START.copy()))
        optimizer = make(p)
        for gradient in GRADIENTS:
            p.grad = torch.from_numpy(gradient.copy())
            optimizer.step()
        states = optimizer.state[p].items()
        found.update((f"{case}/{type(optimizer).__name__}/{name}", x.numpy()) for name, x in states if x.ndim)
    return found


def with_paddle() -> Arrays:
    import paddle

    found: Arrays = {}
    optim = paddle.optimizer
    for case, make in {
        "Adam": lambda p: optim.Adam(LR, parameters=p, amsgrad=True), "AdamW": lambda p: optim.AdamW(LR, parameters=p),
        "Momentum": lambda p: optim.Momentum(LR, 0.9, parameters=p), "Adamax": lambda p: optim.Adamax(LR, parameters=p),
        "Adagrad": lambda p: optim.Adagrad(LR, parameters=p), "Adadelta": lambda p: optim.Adadelta(LR, 1e-6, 0.95, parameters=p),
        "RMSProp": lambda p: optim.RMSProp(LR, 0.9, 1e-10, 0.9, centered=True, parameters=p),
    }.items():  # fmt: skip
        p = paddle.create_parameter([6], "float32")
        p.set_value(START)
        optimizer = make([p])
        for gradient in GRADIENTS:
            (p * paddle.to_tensor(gradient)).sum().backward()
            optimizer.step()
            optimizer.clear_grad()
        for name, by_parameter in optimizer._accumulators.items():
            found.update((f"{case}/{type(optimizer).__name__}/{name}", x.numpy()) for x in by_parameter.values())
    return found


def with_mindspore() -> Arrays:
    import mindspore as ms
    from mindspore import nn

    found: Arrays = {}
    for case, make in {
        "Adam": lambda p: nn.Adam(p, LR), "AdamW": lambda p: nn.AdamWeightDecay(p, LR),
        "Momentum": lambda p: nn.Momentum(p, LR, 0.9), "Adamax": lambda p: nn.AdaMax(p, LR),
        "Adagrad": lambda p: nn.Adagrad(p, 0.0, LR), "Adadelta": lambda p: nn.Adadelta(p, LR, 0.95, 1e-6),
        "SGD": lambda p: nn.SGD(p, LR, 0.9),
    }.items():  # fmt: skip
        p = ms.Parameter(ms.Tensor(START), name="p")
        optimizer = make([p])
        try:
            for gradient in GRADIENTS:
                optimizer((ms.Tensor(gradient),))
        except RuntimeError as error:
            found[f"{case}/error"] = np.array(str(error)[:300])
            continue
        for x in optimizer.get_parameters():
            prefix, _, own = x.name.partition(".")
            if own == "p":
                found[f"{case}/{type(optimizer).__name__}/{prefix}"] = x.asnumpy()
    return found


if __name__ == "__main__":
    states: Any = {"torch": with_torch, "paddle": with_paddle, "mindspore": with_mindspore}[sys.argv[1]]
    np.savez(sys.argv[2], **states())
