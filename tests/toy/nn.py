"""A framework of a few lines that really trains: modules with hooks, and optimizers, in numpy.

Most of probe's tests run on it, so they need neither a framework nor a mock.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

from tests.toy.tensor import Hooks, Tensor, gelu, relu, silu, softmax

step_pre_hooks = Hooks()
"""called with every optimizer that is about to make a step"""
step_post_hooks = Hooks()
"""called with every optimizer that has made a step"""
call_pre_hooks = Hooks()
"""called with every module that is about to be called"""
_rng = np.random.default_rng(0)


def random_state() -> dict[str, Any]:
    """Return where the random numbers stand."""
    return dict(_rng.bit_generator.state)


def set_random_state(state: dict[str, Any]) -> None:
    """Let the random numbers go on from where they stood."""
    _rng.bit_generator.state = state


def manual_seed(seed: int) -> None:
    """Begin the random numbers of initial weights and dropout anew."""
    global _rng
    _rng = np.random.default_rng(seed)


# Modules


class Parameter(Tensor):
    """A tensor that is trained; as an attribute of a module it is one of its parameters."""

    def __init__(self, data: object, requires_grad: bool = True) -> None:
        super().__init__(data, requires_grad)


class Buffer(Tensor):
    """A tensor that belongs to a module and is not trained."""


class Module:
    """Something that is called; its attributes are its parameters, buffers and children."""

    def __init__(self, **members: object) -> None:
        self.training = True
        self.pre_hooks, self.post_hooks = Hooks(), Hooks()
        vars(self).update(members)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Compute the output."""
        raise NotImplementedError

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        call_pre_hooks(self)
        self.pre_hooks(args, kwargs)
        try:
            output = self.forward(*args, **kwargs)
        except Exception:
            self.post_hooks(None, True)
            raise
        self.post_hooks(output, False)
        return output

    def children(self) -> Iterator[tuple[str, Module]]:
        """Yield (name, module) of the attributes that are modules."""
        return ((name, value) for name, value in vars(self).items() if isinstance(value, Module))

    def modules(self, path: str = "") -> Iterator[tuple[str, Module]]:
        """Yield (path, module) for every place in the tree, parents first."""
        yield path, self
        for name, child in self.children():
            yield from child.modules(f"{path}.{name}" if path else name)

    def named_tensors(self, kind: type[Tensor]) -> Iterator[tuple[str, Tensor, Module]]:
        """Yield (path, tensor, owner) of every parameter, or every buffer."""
        for path, module in self.modules():
            for name, value in vars(module).items():
                if isinstance(value, kind):
                    yield (f"{path}.{name}" if path else name), value, module

    def parameters(self) -> list[Tensor]:
        """Return every parameter once."""
        return list({id(tensor): tensor for _, tensor, _ in self.named_tensors(Parameter)}.values())

    def train(self, mode: bool = True) -> Module:
        """Set every module to training, or to evaluation."""
        for _, module in self.modules():
            module.training = mode
        return self


class Sequential(Module):
    """Modules, one after the other."""

    def __init__(self, *modules: Module) -> None:
        super().__init__(**{str(i): module for i, module in enumerate(modules)})

    def __iter__(self) -> Iterator[Module]:
        return (module for _, module in self.children())

    def forward(self, x: Any) -> Any:
        for module in self:
            x = module(x)
        return x


class ModuleList(Sequential):
    """Modules, which somebody else calls."""


class Linear(Module):
    """x Wᵀ + b, with the weight as [out, in]."""

    def __init__(self, n_in: int, n_out: int, bias: bool = True, dtype: object = np.float32) -> None:
        super().__init__(weight=_random((n_out, n_in), n_in**-0.5, dtype))
        if bias:
            self.bias = _random((n_out,), n_in**-0.5, dtype)

    def forward(self, x: Tensor) -> Tensor:
        y = x @ self.weight.swapaxes(0, 1)
        return y + self.bias if hasattr(self, "bias") else y


class LinearInOut(Linear):
    """Linear with the weight stored as [in, out], as PaddlePaddle does."""

    def __init__(self, n_in: int, n_out: int, bias: bool = True, dtype: object = np.float32) -> None:
        super().__init__(n_in, n_out, bias, dtype)
        self.weight = Parameter(np.ascontiguousarray(self.weight.data.T))

    def forward(self, x: Tensor) -> Tensor:
        return x @ self.weight + self.bias if hasattr(self, "bias") else x @ self.weight


class Embedding(Module):
    """Rows of a table, looked up by number."""

    def __init__(self, count: int, width: int, dtype: object = np.float32) -> None:
        super().__init__(weight=_random((count, width), 1.0, dtype))

    def forward(self, ids: Tensor) -> Tensor:
        return self.weight[ids]


class RMSNorm(Module):
    """x / √(mean x² + eps) · weight, over the last axis."""

    def __init__(self, width: int, eps: float = 1e-6, dtype: object = np.float32) -> None:
        super().__init__(weight=Parameter(np.ones(width, dtype)), eps=eps)

    def forward(self, x: Tensor) -> Tensor:
        return x * ((x * x).mean(-1, keepdims=True) + self.eps) ** -0.5 * self.weight


class LayerNorm(RMSNorm):
    """(x − mean) / √(var + eps) · weight + bias, over the last axis."""

    def __init__(self, width: int, eps: float = 1e-5, dtype: object = np.float32) -> None:
        super().__init__(width, eps, dtype)
        self.bias = Parameter(np.zeros(width, dtype))

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x - x.mean(-1, keepdims=True)) + self.bias


class GammaBetaNorm(Module):
    """LayerNorm with the names that MindSpore gives its parameters."""

    def __init__(self, width: int, eps: float = 1e-5, dtype: object = np.float32) -> None:
        super().__init__(gamma=Parameter(np.ones(width, dtype)), beta=Parameter(np.zeros(width, dtype)), eps=eps)

    def forward(self, x: Tensor) -> Tensor:
        x = x - x.mean(-1, keepdims=True)
        return x * ((x * x).mean(-1, keepdims=True) + self.eps) ** -0.5 * self.gamma + self.beta


class ReLU(Module):
    """max(x, 0)."""

    def __init__(self, inplace: bool = False) -> None:
        super().__init__(inplace=inplace)

    def forward(self, x: Tensor) -> Tensor:
        return relu(x, self.inplace)


class SiLU(Module):
    """x · sigmoid(x)."""

    def forward(self, x: Tensor) -> Tensor:
        return silu(x)


class GELU(Module):
    """Gaussian error linear unit."""

    def forward(self, x: Tensor) -> Tensor:
        return gelu(x)


class Dropout(Module):
    """Sets a random part of the elements to zero in training."""

    def __init__(self, p: float) -> None:
        super().__init__(p=p)

    def forward(self, x: Tensor) -> Tensor:
        return x * ((_rng.random(x.shape) >= self.p) / (1 - self.p)) if self.training and self.p else x


class Attention(Module):
    """Causal self-attention over [batch, sequence, width]."""

    def __init__(self, width: int, heads: int, dtype: object = np.float32) -> None:
        super().__init__(**{name: Linear(width, width, False, dtype) for name in ("q", "k", "v", "o")}, heads=heads)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        q, k, v = (layer(x).reshape(batch, length, self.heads, -1).swapaxes(1, 2) for layer in (self.q, self.k, self.v))
        scores = q @ k.swapaxes(-1, -2) * (width / self.heads) ** -0.5
        mixed = softmax(scores + np.triu(np.full((length, length), -np.inf), 1)) @ v
        return self.o(mixed.swapaxes(1, 2).reshape(batch, length, width))


def _random(shape: tuple[int, ...], scale: float, dtype: object) -> Parameter:
    return Parameter((_rng.standard_normal(shape) * scale).astype(dtype))


# Optimizers


class Optimizer:
    """Parameter groups, state and hooks; parameters without a gradient are left alone."""

    def __init__(self, parameters: Iterable[Any], **defaults: object) -> None:
        groups = list(parameters)
        groups = groups if groups and isinstance(groups[0], dict) else [{"params": groups}]
        self.param_groups = [{**defaults, **group, "params": list(group["params"])} for group in groups]
        self.state: dict[Tensor, dict[str, Any]] = {}
        self.pre_hooks, self.post_hooks = Hooks(), Hooks()

    def step(self) -> None:
        """Change the parameters by their gradients."""
        for hooks in (step_pre_hooks, self.pre_hooks):
            hooks(self)
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    self.update(parameter.data, parameter.grad.data, group, self.state.setdefault(parameter, {}))
        for hooks in (self.post_hooks, step_post_hooks):
            hooks(self)

    def update(self, p: np.ndarray, g: np.ndarray, group: dict[str, Any], state: dict[str, Any]) -> None:
        """Change one parameter in place."""
        raise NotImplementedError

    def zero_grad(self) -> None:
        """Forget the gradients."""
        for group in self.param_groups:
            for parameter in group["params"]:
                parameter.grad = None


class SGD(Optimizer):
    """Gradient descent with momentum and L2 weight decay."""

    def __init__(self, parameters: Iterable[Any], lr: float, momentum: float = 0.0, weight_decay: float = 0.0) -> None:
        super().__init__(parameters, lr=lr, momentum=momentum, weight_decay=weight_decay)

    def update(self, p: np.ndarray, g: np.ndarray, group: dict[str, Any], state: dict[str, Any]) -> None:
        g = g + group["weight_decay"] * p
        if group["momentum"]:
            buffer = state.setdefault("momentum_buffer", Tensor(np.zeros_like(p)))
            buffer.data[...] = buffer.data * group["momentum"] + g
            g = buffer.data
        p -= group["lr"] * g


class AdamW(Optimizer):
    """Adam with decoupled weight decay (Loshchilov, Hutter 2019)."""

    def __init__(
        self, parameters: Iterable[Any], lr: float = 1e-3, betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8, weight_decay: float = 1e-2,
    ) -> None:  # fmt: skip
        super().__init__(parameters, lr=lr, betas=betas, eps=eps, weight_decay=weight_decay)

    def update(self, p: np.ndarray, g: np.ndarray, group: dict[str, Any], state: dict[str, Any]) -> None:
        state["step"] = state.get("step", 0) + 1
        first = state.setdefault("exp_avg", Tensor(np.zeros_like(p))).data
        second = state.setdefault("exp_avg_sq", Tensor(np.zeros_like(p))).data
        beta1, beta2 = group["betas"]
        first[...] = beta1 * first + (1 - beta1) * g
        second[...] = beta2 * second + (1 - beta2) * g * g
        scale = (second / (1 - beta2 ** state["step"])) ** 0.5 + group["eps"]
        p -= group["lr"] * (first / (1 - beta1 ** state["step"]) / scale + group["weight_decay"] * p)
