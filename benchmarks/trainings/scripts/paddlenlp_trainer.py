"""A training by PaddleNLP's Trainer (or by what stands in for it), with accumulation and evaluation between steps."""

import sys
import tempfile

import numpy as np
import paddle
from paddle import nn
from paddlenlp.trainer import Trainer, TrainingArguments


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


class Rows(paddle.io.Dataset):
    def __len__(self):
        return 24

    def __getitem__(self, index):
        rng = np.random.default_rng(index)
        return {"x": rng.standard_normal(16, "float32"), "labels": rng.integers(0, 4)}


paddle.seed(0)
model = Model()
arguments = TrainingArguments(
    output_dir=tempfile.mkdtemp(), per_device_train_batch_size=4, gradient_accumulation_steps=2, max_steps=3, logging_steps=1,
    evaluation_strategy="steps", eval_steps=1, per_device_eval_batch_size=24, learning_rate=0.01, device="cpu", save_strategy="no",
    disable_tqdm=True, report_to=[],
)  # fmt: skip
trainer = Trainer(model=model, args=arguments, train_dataset=Rows(), eval_dataset=Rows(), callbacks=[])
trainer.train()
np.savez(sys.argv[1], **{k: v.numpy() for k, v in model.state_dict().items()})
