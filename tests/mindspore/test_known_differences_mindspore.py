"""What MindSpore does, row by row of the table of known differences, by experiment."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

mindspore = pytest.importorskip("mindspore")
from mindspore import Parameter, Tensor, nn  # noqa: E402

from probe.diagnosis.table_of_known_differences import KNOWN_DIFFERENCES  # noqa: E402
from tests import habits  # noqa: E402

ROWS = {row.name: row for row in KNOWN_DIFFERENCES if "mindspore" in row.habits}


def run(layer: Callable[..., Tensor]) -> habits.Run:
    return lambda *arrays: layer(*map(Tensor, arrays)).asnumpy()


def batchnorm(momentum: float) -> nn.BatchNorm2d:
    layer = nn.BatchNorm2d(3, momentum=momentum)
    layer.set_train(True)
    layer(Tensor(habits.BATCH))
    return layer


def trained(make: Callable[..., nn.Optimizer], gradient: float, **options: object) -> list[float]:
    parameter = Parameter(Tensor(np.ones(1, "float32")), name="p")
    optimizer = make([parameter], **options)
    values = []
    for _ in range(3):
        optimizer((Tensor(np.full(1, gradient, "float32")),))
        values.append(float(parameter.asnumpy()[0]))
    return values


def names(layer: nn.Cell) -> list[str]:
    return [each.name for each in layer.trainable_params()]


def embedding() -> str:
    layer = nn.Embedding(4, 3, padding_idx=1)
    layer.embedding_table.set_data(Tensor(np.ones((4, 3), "float32")))
    ids = Tensor(np.array([1, 2], "int32"))
    output = layer(ids)
    gradient = mindspore.grad(lambda i: layer(i).sum(), None, layer.trainable_params())(ids)
    gradient = gradient[0] if isinstance(gradient, tuple) else gradient
    return habits.padding_idx(output[0].asnumpy(), gradient.asnumpy()[1])


def ctc() -> str:
    loss, rest = nn.CTCLoss(), [Tensor(np.array(each, "int32")) for each in ([[1, 2]], [5], [2])]
    return habits.ctc(lambda *arrays: [float(loss(Tensor(a), *rest)) for a in arrays])


X, Y = Tensor(np.random.rand(4, 3).astype("float32")), Tensor(np.random.rand(4, 3).astype("float32"))
FIRST = nn.Dense(64, 96)
CONV = nn.Conv2d(32, 64, 3, has_bias=True)

EXPERIMENTS: dict[str, Callable[[], str]] = {
    "batchnorm-momentum": lambda: habits.momentum(lambda m: batchnorm(m).moving_mean.asnumpy()),
    "batchnorm-variance": lambda: habits.running_variance(batchnorm(0.75).moving_variance.asnumpy()),
    "layernorm-eps": lambda: habits.eps_of_norm(run(nn.LayerNorm((8,)))),
    "instancenorm-affine": lambda: habits.has_weights(names(nn.InstanceNorm2d(3))),
    "avgpool-padding": lambda: habits.padding_of_average(run(nn.AvgPool2d(2, 2, "pad", 1))),
    "pool-stride": lambda: habits.stride_of_pool(run(nn.MaxPool2d(3))),
    "pool-ceil": lambda: habits.windows_of_padding(run(nn.MaxPool2d(2, 2, "pad", 1, ceil_mode=True))),
    "conv-padding": lambda: habits.padding_of_conv(run(nn.Conv2d(1, 1, 3))),
    "conv-transposed-padding": lambda: habits.padding_of_transposed(run(nn.Conv2dTranspose(1, 1, 3))),
    "conv-bias": lambda: habits.has_bias(names(nn.Conv2d(1, 1, 3))),
    "cross-entropy-axis": lambda: habits.cross_entropy_axis(
        lambda a, b: nn.CrossEntropyLoss()(Tensor(a), Tensor(b.astype("int32"))).asnumpy()
    ),
    "softmax-axis": lambda: habits.softmax_axis(run(nn.Softmax())),
    "gelu-form": lambda: habits.gelu(run(nn.GELU())),
    "leaky-relu-slope": lambda: habits.slope(run(nn.LeakyReLU())),
    "upsample-cubic": lambda: habits.cubic(
        run(nn.Upsample(scale_factor=(2.0, 2.0), mode="bicubic", recompute_scale_factor=True))
    ),
    "smooth-l1-reduction": lambda: habits.reduction(nn.SmoothL1Loss()(X, Y).asnumpy()),
    "smooth-l1-threshold": lambda: habits.smooth_l1(run(nn.SmoothL1Loss(beta=0.5))),
    "ctc-input": ctc,
    "embedding-padding": embedding,
    "linear-init": lambda: habits.linear_init(FIRST.weight.asnumpy(), FIRST.bias.asnumpy(), 64, 96),
    "conv-init": lambda: habits.conv_init(CONV.weight.asnumpy(), CONV.bias.asnumpy(), 32 * 9),
    "embedding-init": lambda: habits.embedding_init(nn.Embedding(500, 64).embedding_table.asnumpy()),
    "rmsprop-eps": lambda: habits.rmsprop(
        lambda g, eps: trained(nn.RMSProp, g, learning_rate=0.1, decay=0.9, epsilon=eps)
    )[0],
    "rmsprop-start": lambda: habits.rmsprop(
        lambda g, eps: trained(nn.RMSProp, g, learning_rate=0.1, decay=0.9, epsilon=eps)
    )[1],
    "rmsprop-decay": lambda: habits.rmsprop_default(lambda g: trained(nn.RMSProp, g, learning_rate=0.1), 1.0),
    "adam-eps": lambda: habits.eps_of_adam(lambda g, eps: trained(nn.Adam, g, learning_rate=0.1, eps=eps)),
    "adamw-correction": lambda: habits.eps_of_adam(
        lambda g, eps: trained(nn.AdamWeightDecay, g, learning_rate=0.1, eps=eps)
    ),
    "adamw-decay": lambda: habits.decay_of_adamw(lambda g: trained(nn.AdamWeightDecay, g, learning_rate=0.1)),
    "adamw-eps": lambda: habits.default_eps_of_adam(
        lambda g: trained(nn.AdamWeightDecay, g, learning_rate=0.1), habits.ADAM[2]
    ),
    "adagrad-start": lambda: habits.start_of_adagrad(lambda g: trained(nn.Adagrad, g, learning_rate=0.1)),
    "adadelta-defaults": lambda: habits.default_of_adadelta(lambda g: trained(nn.Adadelta, g)),
    "sgd-momentum": lambda: (
        "an option of SGD, " + habits.momentum_of_sgd(lambda g: trained(nn.SGD, g, learning_rate=0.1))
    ),
}


def test_every_row_is_tried() -> None:
    assert EXPERIMENTS.keys() == ROWS.keys()


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_mindspore_does_what_the_table_says(name: str) -> None:
    assert EXPERIMENTS[name]() == ROWS[name].habits["mindspore"].does
