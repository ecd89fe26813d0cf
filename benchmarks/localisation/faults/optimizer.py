"""Faults of the optimizer: hyper-parameters, its formula, its state, what it updates."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from benchmarks.localisation.pairs.pair import Planted
from benchmarks.localisation.tools import surgery
from benchmarks.localisation.tools.planting import UPDATE, Fault, Plant, hyper, size_of
from benchmarks.localisation.tools.run import Run


def _use_optimizer(kind: type[surgery.ByHand]) -> Callable[[Run, Planted], None]:
    def plant(run: Run, planted: Planted) -> None:
        run.optimizers = [kind(optimizer.param_groups) for optimizer in run.optimizers]

    return plant


# Formula


def _couple_weight_decay(run: Run, planted: Planted) -> None:
    run.optimizers = [torch.optim.Adam(optimizer.param_groups, foreach=False) for optimizer in run.optimizers]
    for group in run.groups:
        group["decoupled_weight_decay"] = False


class _HalfCorrected(surgery.ByHand):
    """AdamW that corrects the bias of the first moment only."""

    def quotient(self, state: dict[str, Tensor], group: dict[str, Any]) -> tuple[Tensor, Tensor]:
        """Return the two parts of what the learning rate is multiplied with."""
        return state["exp_avg"] / (1 - group["betas"][0] ** state["step"]), state["exp_avg_sq"].sqrt() + group["eps"]


class _Beside(torch.optim.SGD):
    """SGD whose weight decay does not go through the momentum."""

    @torch.no_grad()
    def step(self, closure: None = None) -> None:
        """Update the parameters."""
        decays = [group["weight_decay"] for group in self.param_groups]
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    parameter.mul_(1 - group["lr"] * group["weight_decay"])
            group["weight_decay"] = 0.0
        super().step()
        for group, decay in zip(self.param_groups, decays, strict=True):
            group["weight_decay"] = decay


def _decay_beside_momentum(run: Run, planted: Planted) -> None:
    run.optimizers = [_Beside(optimizer.param_groups, foreach=False) for optimizer in run.optimizers]


def _step_times(times: int) -> Plant:
    """Return what lets the optimizer make another number of steps."""

    def plant(run: Run, planted: Planted) -> None:
        for optimizer in run.optimizers:
            step = optimizer.step
            optimizer.step = lambda step=step: [step() for _ in range(times)]

    return plant


def _swap_weight_decay(run: Run, planted: Planted) -> None:
    for optimizer in run.optimizers:
        decays = [group["weight_decay"] for group in optimizer.param_groups]
        for group, decay in zip(optimizer.param_groups, reversed(decays), strict=True):
            group["weight_decay"] = decay


def _scale_rate(run: Run, planted: Planted) -> None:
    run.schedule = lambda step: 1.0 if step < planted.step else size_of(planted, 0.5)


def _warm_up(run: Run, planted: Planted) -> None:
    steps = size_of(planted, 10)
    run.schedule = lambda step: min(1.0, (step + 1) / steps)


# State


def _clear_state(run: Run, planted: Planted) -> None:
    for optimizer in run.optimizers:
        optimizer.state.clear()


def _round_moments(run: Run, planted: Planted) -> None:
    def narrow(optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        for state in optimizer.state.values():
            for name in {"exp_avg", "exp_avg_sq", "momentum_buffer"} & set(state):
                state[name].copy_(state[name].bfloat16())

    for optimizer in run.optimizers:
        optimizer.register_step_post_hook(narrow)


def _round_variance(run: Run, planted: Planted) -> None:
    def narrow(optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        for state in optimizer.state.values():
            state["exp_avg_sq"].copy_(state["exp_avg_sq"].half())

    for optimizer in run.optimizers:
        optimizer.register_step_post_hook(narrow)


def _change_states(change: Callable[[dict[str, Tensor]], None]) -> Plant:
    """Return what changes the optimizer's states, of a module's parameters or of all, as the step begins."""

    def plant(run: Run, planted: Planted) -> None:
        for parameter in run.model.get_submodule(planted.path).parameters():
            for optimizer in run.optimizers:
                if parameter in optimizer.state:
                    change(optimizer.state[parameter])

    return plant


def _roll_moments(state: dict[str, Tensor]) -> None:
    for name in ("exp_avg", "exp_avg_sq"):
        state[name].copy_(state[name].roll(len(state[name]) // 2, 0))


# Update


def _leave_out(run: Run, planted: Planted) -> None:
    chosen = set(run.model.get_submodule(planted.path).parameters())
    for group in run.groups:
        group["params"] = [parameter for parameter in group["params"] if parameter not in chosen]


def _change_update(change: Callable[[Tensor, Tensor, float], Tensor], default: float = 0.0) -> Plant:
    """Return a plant that changes parameters, given their values before and after the update.

    They are those of the planted module, or all without a path.
    """

    def plant(run: Run, planted: Planted) -> None:
        chosen, update = list(run.model.get_submodule(planted.path).parameters()), run.update
        size = size_of(planted, default)

        @torch.no_grad()
        def changed(index: int) -> None:
            before = [parameter.clone() for parameter in chosen]
            update(index)
            for old, parameter in zip(before, chosen, strict=True):
                parameter.copy_(change(old, parameter, size))

        run.update = changed

    return plant


def _keep_second_half(old: Tensor, new: Tensor, size: float) -> Tensor:
    half = len(new) // 2
    return torch.cat([new[:half], old[half:]])


def _restart_from_first_weights(run: Run, planted: Planted) -> None:
    """Let every later update begin with the weights as they were first."""
    first, update = [parameter.detach().clone() for parameter in run.names], run.update

    @torch.no_grad()
    def changed(index: int) -> None:
        for parameter, kept in zip(run.names, first, strict=True):
            parameter.copy_(kept)
        update(index)

    run.update = changed


def _decay_after_update(run: Run, planted: Planted) -> None:
    """Let a weight decay after it has been moved, by what it is then."""
    decays = [[group["weight_decay"] for group in optimizer.param_groups] for optimizer in run.optimizers]
    update = run.update

    @torch.no_grad()
    def changed(index: int) -> None:
        learning = {parameter for parameter in run.names if parameter.grad is not None}
        for group in run.groups:
            group["weight_decay"] = 0.0
        update(index)
        for optimizer, each in zip(run.optimizers, decays, strict=True):
            for group, decay in zip(optimizer.param_groups, each, strict=True):
                for parameter in learning.intersection(group["params"]):
                    parameter.mul_(1 - group["lr"] * decay)

    run.update = changed


OPTIMIZER_FAULTS: dict[str, Fault] = {
    # hyper-parameters
    "lr": Fault("the learning rate × (1 + size)", UPDATE, hyper(0.1, lr=lambda old, s: old * (1 + s))),
    "decay": Fault("weight decay of size", UPDATE, hyper(0.1, weight_decay=lambda old, s: s)),
    "no_decay": Fault("no weight decay", UPDATE, hyper(0, weight_decay=lambda old, s: 0.0), True, True),
    "beta1": Fault("beta1 set to size", UPDATE, hyper(0.8, betas=lambda old, s: (s, old[1]))),
    "beta2": Fault("beta2 set to size", UPDATE, hyper(0.999, betas=lambda old, s: (old[0], s))),
    "adam_eps": Fault("Adam's eps set to size", UPDATE, hyper(1e-3, eps=lambda old, s: s)),
    "maximize": Fault("the loss is maximised", UPDATE, hyper(1, maximize=lambda old, s: True)),
    "amsgrad": Fault("AMSGrad", UPDATE, hyper(1, amsgrad=lambda old, s: True)),
    "sgd_momentum": Fault("SGD's momentum set to size", UPDATE, hyper(0.8, momentum=lambda old, s: s)),
    "nesterov": Fault("Nesterov's momentum", UPDATE, hyper(1, nesterov=lambda old, s: True)),
    "dampening": Fault("dampening of size", UPDATE, hyper(0.1, dampening=lambda old, s: s)),
    "decay_unscaled": Fault("weight decay that is not multiplied by the learning rate", UPDATE, hyper(1000, weight_decay=lambda old, s: old * s), True, True),
    "decay_all": Fault("norms and biases decay as well", UPDATE, hyper(0.1, weight_decay=lambda old, s: s), True, True),
    "betas_swapped": Fault("Adam's betas exchanged", UPDATE, hyper(0, betas=lambda old, s: (old[1], old[0])), True),
    "decay_sign": Fault("weight decay with the wrong sign", UPDATE, hyper(0, weight_decay=lambda old, s: -old), True, True),
    "groups_swapped": Fault("norms and biases decay, and the other weights do not", UPDATE, _swap_weight_decay, True),
    "schedule": Fault("the learning rate × size from a step on", UPDATE, _scale_rate, True),
    "warmup": Fault("a learning rate that rises over size steps", UPDATE, _warm_up, True),
    # formula
    "uncorrected": Fault("Adam without bias correction", UPDATE, _use_optimizer(surgery.Uncorrected), True),
    "coupled": Fault("weight decay inside Adam instead of beside it", UPDATE, _couple_weight_decay, True, True),
    "eps_inside": Fault("Adam's eps under the root", UPDATE, _use_optimizer(surgery.EpsInside), True),
    "step_late": Fault("Adam counts its steps from one step later", UPDATE, _use_optimizer(surgery.StepLate), True),
    "eps_uncorrected": Fault("Adam's eps is added before the correction of the bias", UPDATE, _use_optimizer(surgery.EpsUncorrected), True),
    "half_corrected": Fault("Adam corrects the bias of its first moment only", UPDATE, _use_optimizer(_HalfCorrected), True),
    "decay_beside": Fault("SGD's weight decay beside the momentum instead of in it", UPDATE, _decay_beside_momentum, True, True),
    "decay_late": Fault("weight decay after the update instead of before it", UPDATE, _decay_after_update, True, True),
    "stepped_twice": Fault("the optimizer makes two steps at once", UPDATE, _step_times(2), True),
    "step_skipped": Fault("the optimizer makes no step", UPDATE, _step_times(0), True),
    # state
    "forgetful": Fault("the optimizer's state is lost", UPDATE, _clear_state, True),
    "narrow_moments": Fault("the optimizer's moments are kept in bf16", UPDATE, _round_moments, True),
    "narrow_variance": Fault("Adam's second moments are kept in fp16", UPDATE, _round_variance, True),
    "count_lost": Fault("Adam counts its steps from zero again", UPDATE, _change_states(lambda state: state["step"].zero_()), True),
    "variance_lost": Fault("Adam's second moments are zero again", UPDATE, _change_states(lambda state: state["exp_avg_sq"].zero_()), True),
    "moments_exchanged": Fault("the halves of a module's moments exchanged", UPDATE, _change_states(_roll_moments)),
    # update
    "left_out": Fault("the optimizer was not given a module's parameters", UPDATE, _leave_out),
    "averaged": Fault("parameters are a share of size of what they were before", UPDATE, _change_update(lambda old, new, s: s * old + (1 - s) * new, 0.5), True),
    "narrow_weights": Fault("parameters are rounded to bf16 after the update", UPDATE, _change_update(lambda old, new, s: new.bfloat16().to(new.dtype)), True),
    "half_updated": Fault("the second half of a module's rows is not updated: not gathered", UPDATE, _change_update(_keep_second_half)),
    "narrow_update": Fault("what weights change by is rounded to bf16", UPDATE, _change_update(lambda old, new, s: old + (new - old).bfloat16().to(new.dtype)), True),
    "stale": Fault("updates begin with an old copy of the weights", UPDATE, _restart_from_first_weights, True),
}  # fmt: skip
