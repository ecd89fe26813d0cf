"""A training by PaddleNLP's Trainer (or what stands in for it), with accumulation and evaluation between steps."""

import sys
from types import SimpleNamespace

import numpy as np
import paddle
from paddle import nn
from paddlenlp.trainer import Trainer


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
        self.criterion = nn.CrossEntropyLoss()

    def forward(self, x, labels=None):
        x = self.first(x)
        for block in self.blocks:
            x = block(x)
        logits = self.last(x)
        return self.criterion(logits, labels), logits


def batch(index):
    rng = np.random.default_rng(index)
    return {
        "x": paddle.to_tensor(rng.standard_normal((4, 16), "float32")),
        "labels": paddle.to_tensor(rng.integers(0, 4, (4,))),
    }


paddle.seed(0)
model = Model()
schedule = paddle.optimizer.lr.StepDecay(0.01, step_size=1)
optimizer = paddle.optimizer.AdamW(schedule, parameters=model.parameters())
arguments = SimpleNamespace(gradient_accumulation_steps=2)
batches = [batch(index) for index in range(6)]
trainer = Trainer(
    model=model,
    args=arguments,
    train_dataset=batches,
    eval_dataset=[batch(99)],
    optimizers=(optimizer, schedule),
    callbacks=[],
)
trainer.train()
np.savez(sys.argv[1], **{k: v.numpy() for k, v in model.state_dict().items()})
