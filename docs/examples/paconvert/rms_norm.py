"""What PaddlePaddle has no class of, and PaConvert marks."""

from __future__ import annotations

import paddle
from paddle import Tensor, nn


class RMSNorm(nn.Layer):
    def __init__(self, size: int, epsilon: float = 1e-5) -> None:
        super().__init__()
        self.weight = self.create_parameter([size], default_initializer=nn.initializer.Constant(1.0))
        self.epsilon = epsilon

    def forward(self, x: Tensor) -> Tensor:
        return x * paddle.rsqrt((x * x).mean(-1, keepdim=True) + self.epsilon) * self.weight
