"""Both models in one call and one process: A in PyTorch, B in PaddlePaddle."""

from __future__ import annotations

import pytest

paddle = pytest.importorskip("paddle")
torch = pytest.importorskip("torch")
from paddle import nn  # noqa: E402

from tests.torch.dialect import TORCH  # noqa: E402
from tests.two_models import SITUATIONS, Dialect, check  # noqa: E402


class Functional:
    """Functions of tensors, by the names that `tests.two_models` has."""

    relu, tanh, zeros, ones_like = nn.functional.relu, paddle.tanh, paddle.zeros, paddle.ones_like


PADDLE = Dialect(
    nn,
    Functional,
    nn.Layer,
    nn.LSTM,
    nn.MultiHeadAttention,
    lambda length: paddle.tril(paddle.ones([length, length], dtype="bool")),
    lambda model, lr, beta2, decay: paddle.optimizer.AdamW(
        lr, beta2=beta2, weight_decay=decay, parameters=model.parameters()
    ),
)


@pytest.mark.parametrize("wrong", [False, True], ids=["clean", "fault"])
@pytest.mark.parametrize("name", SITUATIONS)
def test_a_model_of_paddle_against_one_of_pytorch(name: str, wrong: bool) -> None:
    torch.manual_seed(0)
    check(SITUATIONS[name], TORCH, PADDLE, wrong)
