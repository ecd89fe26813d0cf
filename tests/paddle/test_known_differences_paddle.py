"""What PaddlePaddle does, row by row of the table of known differences, by experiment."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

paddle = pytest.importorskip("paddle")
from paddle import nn  # noqa: E402
from paddle import optimizer as optim  # noqa: E402

from probe.diagnosis.table_of_known_differences import KNOWN_DIFFERENCES  # noqa: E402
from tests import habits  # noqa: E402

ROWS = {row.name: row for row in KNOWN_DIFFERENCES if "paddle" in row.habits}


def run(layer: Callable[..., paddle.Tensor]) -> habits.Run:
    return lambda *arrays: layer(*map(paddle.to_tensor, arrays)).numpy()


def batchnorm(momentum: float) -> nn.BatchNorm2D:
    layer = nn.BatchNorm2D(3, momentum=momentum)
    layer(paddle.to_tensor(habits.BATCH))
    return layer


def trained(make: Callable[..., optim.Optimizer], gradient: float, **options: object) -> list[float]:
    parameter = _parameter()
    optimizer = make(parameters=[parameter], **options)
    values = []
    for _ in range(3):
        (parameter * gradient).sum().backward()
        optimizer.step()
        optimizer.clear_grad()
        values.append(float(parameter))
    return values


def names(layer: nn.Layer) -> list[str]:
    return [name for name, _ in layer.named_parameters()]


def embedding() -> str:
    layer = nn.Embedding(4, 3, padding_idx=1)
    layer.weight.set_value(np.ones((4, 3), "float32"))
    output = layer(paddle.to_tensor([1, 2]))
    output.sum().backward()
    return habits.padding_idx(output[0].numpy(), layer.weight.grad[1].numpy())


def ctc() -> str:
    loss = nn.CTCLoss()

    def both(*arrays: np.ndarray) -> list[float]:
        rest = paddle.to_tensor([[1, 2]], "int32"), paddle.to_tensor([5]), paddle.to_tensor([2])
        return [float(loss(paddle.to_tensor(a), *rest)) for a in arrays]

    return habits.ctc(both)


def _parameter() -> paddle.Tensor:
    return paddle.create_parameter([1], "float32", default_initializer=nn.initializer.Constant(1.0))


def unused() -> str:
    used, unused = _parameter(), _parameter()
    optimizer = optim.SGD(0.1, parameters=[used, unused])
    (used * unused).sum().backward()
    optimizer.step()
    optimizer.clear_grad()
    used.sum().backward()
    return habits.unused_parameter(unused.grad)


def clipping() -> str:
    parameter = _parameter()
    optimizer = optim.SGD(0.1, parameters=[parameter], grad_clip=nn.ClipGradByGlobalNorm(1.0))
    (parameter * 10.0).sum().backward()
    optimizer.step()
    return "inside the step, by grad_clip" if abs(float(parameter) - 0.9) < 1e-5 else "nowhere"


def momentum() -> str:
    with pytest.raises(TypeError, match="momentum"):
        optim.SGD(0.1, parameters=[_parameter()], momentum=0.9)
    by_default = habits.momentum_of_sgd(lambda g: trained(optim.Momentum, g, learning_rate=0.1))
    return f"a class of its own, Momentum, {by_default}"


X, Y = paddle.rand([4, 3]), paddle.rand([4, 3])
Adam, AdamW, RMSProp = optim.Adam, optim.AdamW, optim.RMSProp
FIRST = nn.Linear(64, 96)
CONV = nn.Conv2D(32, 64, 3)

EXPERIMENTS: dict[str, Callable[[], str]] = {
    "batchnorm-momentum": lambda: habits.momentum(lambda m: batchnorm(m)._mean.numpy()),
    "batchnorm-variance": lambda: habits.running_variance(batchnorm(0.75)._variance.numpy()),
    "layernorm-eps": lambda: habits.eps_of_norm(run(nn.LayerNorm(8))),
    "instancenorm-affine": lambda: habits.has_weights(names(nn.InstanceNorm2D(3))),
    "avgpool-padding": lambda: habits.padding_of_average(run(nn.AvgPool2D(2, 2, 1))),
    "pool-stride": lambda: habits.stride_of_pool(run(nn.MaxPool2D(3))),
    "pool-ceil": lambda: habits.windows_of_padding(run(nn.MaxPool2D(2, 2, 1, ceil_mode=True))),
    "conv-padding": lambda: habits.padding_of_conv(run(nn.Conv2D(1, 1, 3))),
    "conv-transposed-padding": lambda: habits.padding_of_transposed(run(nn.Conv2DTranspose(1, 1, 3))),
    "conv-bias": lambda: habits.has_bias(names(nn.Conv2D(1, 1, 3))),
    "cross-entropy-axis": lambda: habits.cross_entropy_axis(run(nn.CrossEntropyLoss())),
    "softmax-axis": lambda: habits.softmax_axis(run(nn.Softmax())),
    "gelu-form": lambda: habits.gelu(run(nn.GELU())),
    "leaky-relu-slope": lambda: habits.slope(run(nn.LeakyReLU())),
    "upsample-cubic": lambda: habits.cubic(run(nn.Upsample(scale_factor=2, mode="bicubic"))),
    "smooth-l1-reduction": lambda: habits.reduction(nn.SmoothL1Loss()(X, Y).numpy()),
    "smooth-l1-threshold": lambda: habits.smooth_l1(run(nn.SmoothL1Loss(delta=0.5))),
    "ctc-input": ctc,
    "embedding-padding": embedding,
    "linear-init": lambda: habits.linear_init(FIRST.weight.numpy(), FIRST.bias.numpy(), 64, 96),
    "conv-init": lambda: habits.conv_init(CONV.weight.numpy(), CONV.bias.numpy(), 32 * 9),
    "embedding-init": lambda: habits.embedding_init(nn.Embedding(500, 64).weight.numpy()),
    "rmsprop-eps": lambda: habits.rmsprop(lambda g, eps: trained(RMSProp, g, learning_rate=0.1, rho=0.9, epsilon=eps))[
        0
    ],
    "rmsprop-start": lambda: habits.rmsprop(
        lambda g, eps: trained(RMSProp, g, learning_rate=0.1, rho=0.9, epsilon=eps)
    )[1],
    "rmsprop-decay": lambda: habits.rmsprop_default(lambda g: trained(RMSProp, g, learning_rate=0.1)),
    "adam-eps": lambda: habits.eps_of_adam(lambda g, eps: trained(Adam, g, learning_rate=0.1, epsilon=eps)),
    "adamw-correction": lambda: habits.eps_of_adam(
        lambda g, eps: trained(AdamW, g, learning_rate=0.1, epsilon=eps, weight_decay=0.0)
    ),
    "adamw-decay": lambda: habits.decay_of_adamw(lambda g: trained(AdamW, g, learning_rate=0.1)),
    "adamw-eps": lambda: habits.default_eps_of_adam(
        lambda g: trained(AdamW, g, learning_rate=0.1, weight_decay=0.0), habits.ADAM[0]
    ),
    "adagrad-start": lambda: habits.start_of_adagrad(lambda g: trained(optim.Adagrad, g, learning_rate=0.1)),
    "adagrad-eps": lambda: habits.default_eps_of_adagrad(lambda g: trained(optim.Adagrad, g, learning_rate=0.1)),
    "adadelta-defaults": lambda: habits.default_of_adadelta(lambda g: trained(optim.Adadelta, g)),
    "sgd-momentum": momentum,
    "clipping": clipping,
    "cleared-gradients": unused,
}


def test_every_row_is_tried() -> None:
    assert EXPERIMENTS.keys() == ROWS.keys()


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_paddle_does_what_the_table_says(name: str) -> None:
    assert EXPERIMENTS[name]() == ROWS[name].habits["paddle"].does
