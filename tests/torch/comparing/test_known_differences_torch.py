"""What PyTorch does, row by row of the table of known differences, by experiment."""

from __future__ import annotations

import warnings
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import nn

from probe.diagnosis.table_of_known_differences import KNOWN_DIFFERENCES
from tests import habits

ROWS = {row.name: row for row in KNOWN_DIFFERENCES if "torch" in row.habits}


def run(layer: Callable[..., torch.Tensor]) -> habits.Run:
    def computed(*arrays: np.ndarray) -> np.ndarray:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Softmax warns of its own default axis
            return layer(*map(torch.from_numpy, arrays)).detach().numpy()

    return computed


def batchnorm(momentum: float) -> nn.BatchNorm2d:
    layer = nn.BatchNorm2d(3, momentum=momentum)
    layer(torch.from_numpy(habits.BATCH))
    return layer


def trained(make: Callable[..., torch.optim.Optimizer], gradient: float, **options: object) -> list[float]:
    parameter = nn.Parameter(torch.ones(1))
    optimizer = make([parameter], **options)
    values = []
    for _ in range(3):
        parameter.grad = torch.full((1,), gradient)
        optimizer.step()
        values.append(parameter.item())
    return values


def names(layer: nn.Module) -> list[str]:
    return [name for name, _ in layer.named_parameters()]


def embedding() -> str:
    layer = nn.Embedding(4, 3, padding_idx=1)
    layer.weight.data[1] = 1
    output = layer(torch.tensor([1, 2]))
    output.sum().backward()
    return habits.padding_idx(output[0].detach().numpy(), layer.weight.grad[1].numpy())


def ctc() -> str:
    loss = nn.CTCLoss()

    def both(*arrays: np.ndarray) -> list[float]:
        lengths = torch.tensor([5]), torch.tensor([2])
        return [float(loss(torch.from_numpy(a), torch.tensor([[1, 2]]), *lengths)) for a in arrays]

    return habits.ctc(both)


def unused() -> str:
    used, unused = nn.Parameter(torch.ones(1)), nn.Parameter(torch.ones(1))
    optimizer = torch.optim.SGD([used, unused], 0.1)
    (used * unused).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    used.sum().backward()
    return habits.unused_parameter(unused.grad)


def clipping() -> str:
    parameter = nn.Parameter(torch.ones(1))
    parameter.grad = torch.full((1,), 10.0)
    torch.nn.utils.clip_grad_norm_([parameter], 1.0)
    return "before the step, by its own call" if parameter.grad.item() < 1.01 else "nowhere"


X, Y = torch.rand(4, 3), torch.rand(4, 3)
AdamW, Adam, RMSprop = torch.optim.AdamW, torch.optim.Adam, torch.optim.RMSprop
Adagrad, Adadelta, SGD = torch.optim.Adagrad, torch.optim.Adadelta, torch.optim.SGD
FIRST = nn.Linear(64, 96)
CONV = nn.Conv2d(32, 64, 3)

EXPERIMENTS: dict[str, Callable[[], str]] = {
    "batchnorm-momentum": lambda: habits.momentum(lambda m: batchnorm(m).running_mean.numpy()),
    "batchnorm-variance": lambda: habits.running_variance(batchnorm(0.25).running_var.numpy()),
    "layernorm-eps": lambda: habits.eps_of_norm(run(nn.LayerNorm(8))),
    "instancenorm-affine": lambda: habits.has_weights(names(nn.InstanceNorm2d(3))),
    "avgpool-padding": lambda: habits.padding_of_average(run(nn.AvgPool2d(2, 2, 1))),
    "pool-stride": lambda: habits.stride_of_pool(run(nn.MaxPool2d(3))),
    "pool-ceil": lambda: habits.windows_of_padding(run(nn.MaxPool2d(2, 2, 1, ceil_mode=True))),
    "conv-padding": lambda: habits.padding_of_conv(run(nn.Conv2d(1, 1, 3))),
    "conv-transposed-padding": lambda: habits.padding_of_transposed(run(nn.ConvTranspose2d(1, 1, 3))),
    "conv-bias": lambda: habits.has_bias(names(nn.Conv2d(1, 1, 3))),
    "cross-entropy-axis": lambda: habits.cross_entropy_axis(run(nn.CrossEntropyLoss())),
    "softmax-axis": lambda: habits.softmax_axis(run(nn.Softmax())),
    "gelu-form": lambda: habits.gelu(run(nn.GELU())),
    "leaky-relu-slope": lambda: habits.slope(run(nn.LeakyReLU())),
    "upsample-cubic": lambda: habits.cubic(run(nn.Upsample(scale_factor=2, mode="bicubic"))),
    "smooth-l1-reduction": lambda: habits.reduction(nn.SmoothL1Loss()(X, Y).numpy()),
    "smooth-l1-threshold": lambda: habits.smooth_l1(run(nn.SmoothL1Loss(beta=0.5))),
    "ctc-input": ctc,
    "embedding-padding": embedding,
    "linear-init": lambda: habits.linear_init(FIRST.weight.detach().numpy(), FIRST.bias.detach().numpy(), 64, 96),
    "conv-init": lambda: habits.conv_init(CONV.weight.detach().numpy(), CONV.bias.detach().numpy(), 32 * 9),
    "embedding-init": lambda: habits.embedding_init(nn.Embedding(500, 64).weight.detach().numpy()),
    "rmsprop-eps": lambda: habits.rmsprop(lambda g, eps: trained(RMSprop, g, lr=0.1, alpha=0.9, eps=eps))[0],
    "rmsprop-start": lambda: habits.rmsprop(lambda g, eps: trained(RMSprop, g, lr=0.1, alpha=0.9, eps=eps))[1],
    "rmsprop-decay": lambda: habits.rmsprop_default(lambda g: trained(RMSprop, g, lr=0.1)),
    "adam-eps": lambda: habits.eps_of_adam(lambda g, eps: trained(Adam, g, lr=0.1, eps=eps)),
    "adamw-correction": lambda: habits.eps_of_adam(lambda g, eps: trained(AdamW, g, lr=0.1, eps=eps, weight_decay=0)),
    "adamw-decay": lambda: habits.decay_of_adamw(lambda g: trained(AdamW, g, lr=0.1)),
    "adamw-eps": lambda: habits.default_eps_of_adam(
        lambda g: trained(AdamW, g, lr=0.1, weight_decay=0), habits.ADAM[0]
    ),
    "adagrad-start": lambda: habits.start_of_adagrad(lambda g: trained(Adagrad, g, lr=0.1)),
    "adagrad-eps": lambda: habits.default_eps_of_adagrad(lambda g: trained(Adagrad, g, lr=0.1)),
    "adadelta-defaults": lambda: habits.default_of_adadelta(lambda g: trained(Adadelta, g)),
    "sgd-momentum": lambda: "an option of SGD, " + habits.momentum_of_sgd(lambda g: trained(SGD, g, lr=0.1)),
    "clipping": clipping,
    "cleared-gradients": unused,
}


def test_every_row_is_tried() -> None:
    assert EXPERIMENTS.keys() == ROWS.keys()


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_pytorch_does_what_the_table_says(name: str) -> None:
    assert EXPERIMENTS[name]() == ROWS[name].habits["torch"].does
