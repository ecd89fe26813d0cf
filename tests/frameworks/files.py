"""A framework reads a file of weights that probe wrote, and writes one itself: what `test_files` starts.

python files.py paddle|mindspore GIVEN OWN OUT.npz

The file GIVEN is loaded into the model below; its weights as raw bytes go to OUT.npz, and are saved as OWN.
"""

from __future__ import annotations

import sys

import numpy as np


def paddle_net() -> object:
    from paddle import nn

    return nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1D(4), nn.PReLU(4), nn.Linear(4, 2))


def with_paddle(given: str, own: str) -> dict[str, np.ndarray]:
    import paddle

    model = paddle_net()
    model.to(dtype="bfloat16")
    state = paddle.load(given)
    missing, unexpected = model.set_state_dict(state)
    assert not unexpected and not missing, (missing, unexpected)
    paddle.save(model.state_dict(), own)
    return {name: p.numpy() for name, p in model.state_dict().items()}


def with_mindspore(given: str, own: str) -> dict[str, np.ndarray]:
    import mindspore as ms
    from mindspore import nn

    model = nn.SequentialCell(nn.Dense(4, 4), nn.BatchNorm1d(4), nn.PReLU(4), nn.Dense(4, 2))
    for p in model.get_parameters():
        p.set_dtype(ms.bfloat16)
    not_loaded, unused = ms.load_param_into_net(model, ms.load_checkpoint(given), strict_load=True)
    assert not not_loaded and not unused, (not_loaded, unused)
    ms.save_checkpoint(model, own)
    return {name: p.view(ms.int16).asnumpy() for name, p in model.parameters_and_names()}


if __name__ == "__main__":
    load = {"paddle": with_paddle, "mindspore": with_mindspore}[sys.argv[1]]
    np.savez(sys.argv[4], **load(*sys.argv[2:4]))
