"""A training loop of PaddlePaddle, with accumulation, clipping in the optimizer, and evaluation between steps."""

import sys

import numpy as np
import paddle
from paddle import nn


class Block(nn.Layer):
    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(16, epsilon=1e-5)
        self.up, self.act, self.down = nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 16)

    def forward(self, x):
        return x + self.down(self.act(self.up(self.norm(x))))


class Model(nn.Layer):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(16, 16)
        self.blocks = nn.LayerList([Block(), Block()])
        self.last = nn.Linear(16, 4)

    def forward(self, x):
        x = self.first(x)
        for block in self.blocks:
            x = block(x)
        return self.last(x)


def batch(index):
    rng = np.random.default_rng(index)
    return paddle.to_tensor(rng.standard_normal((4, 16), "float32")), paddle.to_tensor(rng.integers(0, 4, (4,)))


paddle.seed(0)
model = Model()
criterion = nn.CrossEntropyLoss()
schedule = paddle.optimizer.lr.StepDecay(0.01, step_size=1)
clip = nn.ClipGradByGlobalNorm(1.0)
optimizer = paddle.optimizer.AdamW(schedule, parameters=model.parameters(), grad_clip=clip)
for step in range(3):
    for micro in range(2):
        x, labels = batch(2 * step + micro)
        (criterion(model(x), labels) / 2).backward()
    optimizer.step()
    schedule.step()
    optimizer.clear_grad()
    model.eval()
    with paddle.no_grad():
        x, labels = batch(99)
        criterion(model(x), labels)
    model.train()
np.savez(sys.argv[1], **{k: v.numpy() for k, v in model.state_dict().items()})
