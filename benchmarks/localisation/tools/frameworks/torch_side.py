"""The baseline, in PyTorch."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from benchmarks.localisation.tools.frameworks.training import PortRun, Weights, examples

DTYPES = {"fp32": torch.float32, "fp16": torch.float16}


class TorchRun(PortRun):
    """One side in PyTorch."""

    def build(self) -> nn.Module:
        """Return the model without its weights."""
        return examples("torch").MODELS[self.name]()

    def load(self, weights: Weights) -> None:
        """Give the model its weights."""
        self.model.load_state_dict({name: torch.from_numpy(array.copy()) for name, array in weights.items()})

    def cast(self, dtype: str) -> None:
        """Give the model its dtype."""
        self.model.to(DTYPES[dtype])

    def make_optimizer(self) -> torch.optim.Optimizer:
        """Return the optimizer."""
        options = self.optimizer_options
        parameters = list(self.model.parameters())
        if self.setup.optimizer == "sgd":
            return torch.optim.SGD(parameters, options["lr"], weight_decay=options["decay"])
        betas = options["beta1"], options["beta2"]
        return torch.optim.Adam(parameters, options["lr"], betas, eps=1e-30, weight_decay=options["decay"])

    def train(self, inputs: np.ndarray, target: np.ndarray) -> float:
        """Run forward, backward and the update of a step; return the loss."""
        x = torch.from_numpy(inputs)
        x = x.to(DTYPES[self.setup.dtype]) if x.is_floating_point() else x
        loss = examples("torch").loss_of(self.model(x).float(), torch.from_numpy(target), self.reduction)
        (loss * self.loss_factor).backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        return loss.item()

    def stop(self, x: Tensor) -> Tensor:
        """Return a tensor without its history."""
        return x.detach()


def initial(name: str) -> Weights:
    """Return weights to begin with."""
    torch.manual_seed(0)
    model: Any = examples("torch").MODELS[name]()
    return {key: value.numpy() for key, value in model.state_dict().items()}
