"""PaddlePaddle: seeds, determinism, and tensors from arrays. Tested against 3.3.1."""

from __future__ import annotations

import os

import numpy as np
import paddle

from probe.adapters.paddle.environment import PREFIX, unread

_FLAGS = {"FLAGS_cudnn_deterministic": True, "FLAGS_embedding_deterministic": 1, "FLAGS_cudnn_exhaustive_search": False}
_WORKSPACE = "CUBLAS_WORKSPACE_CONFIG"


def seed(seed: int, deterministic: bool) -> tuple[list[str], list[str]]:
    """Seed PaddlePaddle on all devices; return what was set, and what is not deterministic."""
    paddle.seed(seed)
    done, missing = ["paddle.seed"], []
    if not deterministic:
        return done, missing
    for name, value in _FLAGS.items():
        try:
            paddle.set_flags({name: value})
            done.append(f"{name}={value}")
        except ValueError:
            missing.append(f"{name}: this build of paddlepaddle {paddle.__version__} does not read it")
    missing += _without_effect()
    if paddle.is_compiled_with_cuda():
        if _WORKSPACE not in os.environ:
            missing.append(f"cuBLAS, if the GPU is in use already: set {_WORKSPACE}=:4096:8 before paddle is imported")
        done.append(f"{_WORKSPACE}={os.environ.setdefault(_WORKSPACE, ':4096:8')}")
    return done, missing


def _without_effect() -> list[str]:
    """Name variables of the environment that are meant for PaddlePaddle, and that it does not read."""
    found = []
    for name in unread():
        if not name.startswith(PREFIX):
            found.append(f"{name}, set in the environment: PaddlePaddle reads only names that begin with {PREFIX}")
        elif name not in _FLAGS:
            found.append(
                f"{name}, set in the environment: no flag of this build of paddlepaddle {paddle.__version__} has this name"
            )
    return found


def remove_dropout() -> tuple[list[str], list[str]]:
    """Leave dropout as it is; return what was set, and what is left."""
    return [], ["PaddlePaddle's dropout: set p=0 in the model's configuration"]


def to_tensor(array: np.ndarray, model: paddle.nn.Layer | None = None) -> paddle.Tensor:
    """Return a tensor with the bits of an array, at the place of a model's first parameter.

    Raises TypeError where PaddlePaddle has no such dtype.
    """
    name = array.dtype.name
    if name in ("uint16", "uint32", "uint64"):  # 16 bits without a sign are taken for bfloat16
        raise TypeError(f"PaddlePaddle has no {name}")
    plain = np.array(array, order="C")
    first = None if model is None else next(iter(model.parameters()), None)
    place = None if first is None else first.place
    if name == "bfloat16":
        return paddle.to_tensor(plain.view(np.uint16), place=place)
    if name in ("float8_e4m3fn", "float8_e5m2"):
        return paddle.to_tensor(plain.view(np.int8), place=place).view(name)
    try:
        return paddle.to_tensor(plain, place=place)
    except ValueError:
        raise TypeError(f"PaddlePaddle has no {name}") from None
