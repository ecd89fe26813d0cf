"""Train the same classifier in MindSpore from converted weights, and record it.

python train_mindspore.py --weights mindspore.ckpt --out b.h5
"""

from __future__ import annotations

import argparse

import mindspore as ms
from inputs import BATCH, CLASSES, STEPS
from mindspore import Tensor, nn, ops
from mindspore.experimental import optim

import probe

DEFAULTS = {
    "pad": "a convolution that pads as MindSpore's default, 'same'",
    "momentum": "BatchNorm's momentum as in PyTorch",
    "gelu": "MindSpore's default of GELU, by tanh",
    "eps": "LayerNorm with MindSpore's default eps",
    "adam": "nn.AdamWeightDecay, which does not correct the bias of its moments",
}


class Classifier(nn.Cell):
    def __init__(self, fault: str | None = None) -> None:
        super().__init__()
        first = {"pad_mode": "same"} if fault == "pad" else {"pad_mode": "pad", "padding": 1}
        self.conv1 = nn.Conv2d(3, 8, 3, stride=2, has_bias=True, **first)
        self.bn1 = nn.BatchNorm2d(8, momentum=0.1 if fault == "momentum" else 0.9)  # 0.1 in PyTorch
        self.conv2 = nn.Conv2d(8, 16, 3, pad_mode="pad", padding=1, has_bias=True)
        self.bn2 = nn.BatchNorm2d(16, momentum=0.9)
        self.act = nn.GELU() if fault == "gelu" else nn.GELU(approximate=False)
        self.pool = nn.AvgPool2d(2, stride=2)
        self.norm = nn.LayerNorm((256,)) if fault == "eps" else nn.LayerNorm((256,), epsilon=1e-5)
        self.head = nn.Dense(256, CLASSES)

    def construct(self, x: Tensor) -> Tensor:
        x = self.act(self.bn1(self.conv1(x)))
        x = self.pool(self.act(self.bn2(self.conv2(x))))
        return self.head(self.norm(x.reshape(x.shape[0], -1)))


def main() -> None:
    options = argparse.ArgumentParser(description="Train MindSpore's side.")
    options.add_argument("--weights", required=True, help="what probe convert has written")
    options.add_argument("--out", required=True, help="the recording to write")
    options.add_argument("--fault", choices=DEFAULTS, help="; ".join(f"{k}: {v}" for k, v in DEFAULTS.items()))
    given = options.parse_args()

    ms.set_context(mode=ms.PYNATIVE_MODE)  # in graph mode no hook runs
    model = Classifier(given.fault).set_train()
    missing, unexpected = ms.load_param_into_net(model, ms.load_checkpoint(given.weights))
    assert not missing and not unexpected, (missing, unexpected)
    kind = nn.AdamWeightDecay if given.fault == "adam" else optim.AdamW
    optimizer = kind(model.trainable_params(), 1e-3, weight_decay=0.01)

    def loss_of(x: Tensor, labels: Tensor) -> Tensor:
        return ops.cross_entropy(model(x), labels.astype(ms.int32))

    gradients_of = ms.value_and_grad(loss_of, None, model.trainable_params())
    probe.start(model, given.out, task="tensor", optimizer=optimizer)
    for step in range(STEPS):
        batch = probe.make_inputs(BATCH, seed=step, to="mindspore")
        probe.log("labels", batch["labels"])
        loss, gradients = gradients_of(batch["x"], batch["labels"])
        optimizer(gradients)
        probe.step(loss=loss)
        print(f"step {step}  loss {float(loss.asnumpy()):.6f}")
    probe.stop()


if __name__ == "__main__":
    main()
