"""A training by MindSpore's Model.train, in PyNative mode."""

import sys

import mindspore as ms
import numpy as np
from mindspore import nn
from mindspore.dataset import GeneratorDataset
from mindspore.train import LossMonitor, Model


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


def rows():
    rng = np.random.default_rng(0)
    for _ in range(12):
        yield rng.standard_normal(16, "float32"), rng.standard_normal(4, "float32")


ms.set_context(mode=ms.PYNATIVE_MODE, device_target="CPU")
ms.set_seed(0)
net = Net()
optimizer = nn.Adam(net.trainable_params(), learning_rate=nn.exponential_decay_lr(0.01, 0.5, 3, 1, 1))
model = Model(net, nn.MSELoss(), optimizer)
data = GeneratorDataset(rows, ["x", "y"], shuffle=False).batch(4)
callbacks = [LossMonitor()]
model.train(1, data, callbacks=callbacks, dataset_sink_mode=False)
np.savez(sys.argv[1], **{p.name: p.asnumpy() for p in net.get_parameters()})
