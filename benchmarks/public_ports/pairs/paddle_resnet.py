"""paddle.vision's ResNet against torchvision's: another framework, buffers of other names, a Linear that lies [in, out]."""

from __future__ import annotations

from collections.abc import Callable
from fnmatch import fnmatchcase
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

import benchmarks.public_ports.torchvision_operators  # noqa: F401  before anything imports torchvision
from benchmarks.public_ports import planting as plant
from benchmarks.public_ports.pair import Batch, Fault, Pair, Side
from benchmarks.public_ports.training import DECAY

WIDTHS, CLASSES = (8, 12, 16, 24), 10


def _torchvision() -> Any:
    from torchvision.models.resnet import BasicBlock, ResNet

    class Narrow(ResNet):
        """ResNet with two blocks a stage, as ResNet-18, and fewer channels."""

        def _make_layer(self, block: Any, planes: int, blocks: int, *args: Any, **kwargs: Any) -> Any:
            return super()._make_layer(block, _narrow(planes), blocks, *args, **kwargs)

    model = Narrow(BasicBlock, [2, 2, 2, 2], num_classes=CLASSES)
    model.fc = torch.nn.Linear(WIDTHS[-1], CLASSES)
    return model


def _paddle() -> Any:
    import paddle
    from paddle.vision.models.resnet import BasicBlock, ResNet

    class Narrow(ResNet):
        """The same."""

        def _make_layer(self, block: Any, planes: int, blocks: int, *args: Any, **kwargs: Any) -> Any:
            return super()._make_layer(block, _narrow(planes), blocks, *args, **kwargs)

    model = Narrow(BasicBlock, 18, num_classes=CLASSES)
    model.fc = paddle.nn.Linear(WIDTHS[-1], CLASSES)
    return model


def _narrow(planes: int) -> int:
    return WIDTHS[(64, 128, 256, 512).index(planes)]


def _batch(index: int) -> Batch:
    generator = np.random.default_rng(index)
    images = generator.standard_normal((4, 3, 64, 64), dtype=np.float32)
    return {"images": images, "labels": generator.integers(CLASSES, size=4)}


def _loss_a(model: Any, batch: Batch) -> Any:
    return F.cross_entropy(model(torch.from_numpy(batch["images"])), torch.from_numpy(batch["labels"]))


def _loss_b(model: Any, batch: Batch) -> Any:
    import paddle

    return paddle.nn.functional.cross_entropy(
        model(paddle.to_tensor(batch["images"])), paddle.to_tensor(batch["labels"])
    )


def _convert(model_a: Any, model_b: Any) -> None:
    state = {name: tensor.detach().numpy() for name, tensor in model_a.state_dict().items()}
    names = {"_mean": "running_mean", "_variance": "running_var"}
    for name, tensor in model_b.state_dict().items():
        path, _, own = name.rpartition(".")
        array = state[f"{path}.{names.get(own, own)}"]
        tensor.set_value(array.T if path == "fc" and own == "weight" else array)


class PaddleTraining:
    """What `training.Training` is, in PaddlePaddle."""

    def __init__(self, side: Side, model: Any, batch: Callable[[int], Batch], learning_rate: float) -> None:
        self.model, self.batch, self.loss, self.loss_factor = model, batch, side.loss, 1.0
        self.before_update: list[Callable[[], Any]] = []
        self.options: dict[str, Any] = {"learning_rate": learning_rate, "beta1": 0.9, "beta2": 0.95, "epsilon": 1e-8, "weight_decay": DECAY}  # fmt: skip
        self.decayed = {p.name for p in model.parameters() if len(p.shape) > 1}
        self._optimizer: Any = None

    @property
    def optimizer(self) -> Any:
        """AdamW, made at the first step: faults change its options."""
        import paddle

        if self._optimizer is None:
            self._optimizer = paddle.optimizer.AdamW(
                parameters=self.model.parameters(),
                apply_decay_param_fun=lambda name: name in self.decayed,
                **self.options,
            )
        return self._optimizer

    def module(self, path: str) -> Any:
        """Return the layer of a path."""
        return dict(self.model.named_sublayers(include_self=True))[path]

    def step(self, index: int) -> Any:
        """Train a step; returns its loss, detached."""
        import paddle

        paddle.seed(index)
        optimizer = self.optimizer
        loss = self.loss(self.model, self.batch(index)) * self.loss_factor
        loss.backward()
        for change in self.before_update:
            change()
        optimizer.step()
        optimizer.clear_grad()
        return loss.detach()

    def state(self) -> dict[str, Any]:
        """Return copies of all parameters and buffers."""
        return {name: tensor.numpy().copy() for name, tensor in self.model.state_dict().items()}

    def gradients(self) -> dict[str, Any]:
        """Return copies of all gradients that there are."""
        named = self.model.named_parameters()
        return {name: tensor.grad.numpy().copy() for name, tensor in named if tensor.grad is not None}


def _attribute(path: str, **values: Any) -> plant.Plant:
    """Set attributes of a layer."""

    def set_all(training: Any) -> None:
        for name, value in values.items():
            setattr(training.module(path), name, value)

    return set_all


def _weight(path: str, change: Callable[[np.ndarray], np.ndarray], name: str = "weight") -> plant.Plant:
    def set_value(training: Any) -> None:
        tensor = getattr(training.module(path), name)
        tensor.set_value(np.ascontiguousarray(change(tensor.numpy())))

    return set_value


def _options(**values: Any) -> plant.Plant:
    return lambda training: training.options.update(values)


def _not_decayed(glob: str) -> plant.Plant:
    def change(training: Any) -> None:
        training.decayed -= {p.name for name, p in training.model.named_parameters() if fnmatchcase(name, glob)}

    return change


def _replaced(path: str, make: Callable[[Any], Any]) -> plant.Plant:
    def change(training: Any) -> None:
        parent, _, name = path.rpartition(".")
        setattr(training.module(parent), name, make(training.module(path)))

    return change


def _mean_pool(old: Any) -> Any:
    import paddle

    return paddle.nn.AvgPool2D(3, 2, 1)


def _smoothed(old: Any, model: Any, batch: Batch) -> Any:
    import paddle

    logits = model(paddle.to_tensor(batch["images"]))
    labels = paddle.nn.functional.one_hot(paddle.to_tensor(batch["labels"]), CLASSES)
    return paddle.nn.functional.cross_entropy(logits, labels * 0.9 + 0.1 / CLASSES, soft_label=True)


_BLOCK = "layer2.0"
PAIR = Pair(
    name="paddle_resnet",
    a=Side(("torchvision 0.28.0",), _torchvision, _loss_a),
    b=Side(("paddlepaddle 3.3.1",), _paddle, _loss_b),
    batch=_batch,
    convert=_convert,
    training_b=PaddleTraining,
    faults=(
        Fault("norm_eps", _attribute(f"{_BLOCK}.bn1", _epsilon=1e-3), (f"{_BLOCK}.bn1",), ("forward",)),
        Fault("norm_momentum", _attribute("layer1.1.bn2", _momentum=0.1), ("layer1.1.bn2",), ("forward", "update")),
        Fault("norm_eval", lambda training: training.module("layer3.0.bn1").eval(), ("layer3.0.bn1",), ("forward",)),
        Fault("mean_pooling", _replaced("maxpool", _mean_pool), ("maxpool",), ("forward",)),
        Fault("padding", _attribute("conv1", _padding=[2, 2], _updated_padding=[2, 2]), ("conv1",), ("forward",)),
        Fault("activation", plant.forward("layer2.1.relu", lambda forward, x: x.clip(0, 6) * 0.99), ("layer2.1.relu",), ("forward",)),
        Fault("colours", plant.batches(lambda batch: {**batch, "images": batch["images"][:, ::-1].copy()}), ("", "conv1"), ("forward",)),
        Fault("normalised_twice", plant.batches(lambda batch: {**batch, "images": (batch["images"] - 0.1) / 0.9}), ("", "conv1"), ("forward",)),
        Fault("kernel_turned", _weight("layer2.1.conv1", lambda x: x.transpose(0, 1, 3, 2)), ("layer2.1.conv1",), ("init",)),
        Fault("running_mean", _weight("layer3.1.bn1", lambda x: x + 0.5, "_mean"), ("layer3.1.bn1",), ("init",)),
        Fault("wrong_layer", lambda training: training.module("layer4.1.bn2").set_state_dict(training.module("layer4.1.bn1").state_dict()), ("layer4.1.bn2",), ("init",)),
        Fault("no_bias", _weight("fc", lambda x: 0 * x, "bias"), ("fc",), ("init",)),
        Fault("residual_lost", plant.forward("layer1.1", lambda forward, x: forward(x) - x), ("layer1.1",), ("forward",)),
        Fault("detached", plant.forward("layer3.0.downsample", lambda forward, x: forward(x).detach()), ("layer3.0.downsample", "layer3.0.downsample.1"), ("backward", "gradient")),
        Fault("label_smoothing", plant.loss_by(_smoothed), ("",), ("loss",)),
        Fault("learning_rate", _options(learning_rate=5e-4), ("",), ("update",)),
        Fault("decay_missing", _not_decayed("fc.weight"), ("fc",), ("update",)),
    ),
)  # fmt: skip
