"""A training loop of MindSpore in its functional form, in PyNative mode."""

import sys

import mindspore as ms
import numpy as np
from mindspore import nn


class Block(nn.Cell):
    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm((16,), epsilon=1e-5)
        self.up, self.act, self.down = nn.Dense(16, 32), nn.GELU(), nn.Dense(32, 16)

    def construct(self, x):
        return x + self.down(self.act(self.up(self.norm(x))))


class Net(nn.Cell):
    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Dense(16, 16), nn.Dense(16, 4)
        self.blocks = nn.CellList([Block(), Block()])

    def construct(self, x):
        x = self.first(x)
        for block in self.blocks:
            x = block(x)
        return self.last(x)


ms.set_context(mode=ms.PYNATIVE_MODE, device_target="CPU")
ms.set_seed(0)
net = Net()
criterion = nn.MSELoss()
optimizer = nn.AdamWeightDecay(net.trainable_params(), learning_rate=0.01)


def loss_of(x, y):
    return criterion(net(x), y)


differentiated = ms.value_and_grad(loss_of, None, optimizer.parameters)
rng = np.random.default_rng(0)
net(ms.Tensor(rng.standard_normal((4, 16), "float32")))  # nobody wants gradients of this one
for _ in range(3):
    x, y = (ms.Tensor(rng.standard_normal((4, width), "float32")) for width in (16, 4))
    loss, gradients = differentiated(x, y)
    optimizer(gradients)
np.savez(sys.argv[1], **{p.name: p.asnumpy() for p in net.get_parameters()})
