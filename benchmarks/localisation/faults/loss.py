"""Faults of the loss."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from benchmarks.localisation.pairs.pair import Planted
from benchmarks.localisation.tools.planting import LOSS, Fault, Plant, given, knob, size_of
from benchmarks.localisation.tools.run import Run


def _replace_loss(wrong: Callable[[Run, Callable[..., Tensor], Tensor, Tensor, int], Tensor]) -> Plant:
    """Return what takes the loss by another function of the run, the right loss and its arguments."""

    def plant(run: Run, planted: Planted) -> None:
        right = run.loss
        run.loss = lambda output, target, count: wrong(run, right, output, target, count)

    return plant


def _shift_labels(target: Tensor, size: float) -> Tensor:
    return torch.cat([target[:, 1:], torch.full_like(target[:, :1], -100)], 1)


def _change_output(change: Callable[[Tensor, float], Tensor], default: float = 0.0) -> Plant:
    """Return what changes the model's output before the loss is taken."""

    def plant(run: Run, planted: Planted) -> None:
        size = size_of(planted, default)
        _replace_loss(lambda run, right, output, target, count: right(change(output, size), target, count))(
            run, planted
        )

    return plant


def _ignore_first(target: Tensor, size: float) -> Tensor:
    target = target.clone()
    target[:, : int(size)] = -100
    return target


def _mean_of_rows(run: Run, right: Callable[..., Tensor], output: Tensor, target: Tensor, count: int) -> Tensor:
    rows = zip(output.split(1), target.split(1), strict=True)
    return sum(right(x, y, run.count(y)) for x, y in rows) / (len(target) * run.setup.micros)


def _add_z_loss(run: Run, planted: Planted) -> None:
    size = size_of(planted, 1e-3)

    def loss(run: Run, right: Callable[..., Tensor], output: Tensor, target: Tensor, count: int) -> Tensor:
        return right(output, target, count) + size * output.float().logsumexp(-1).square().mean()

    _replace_loss(loss)(run, planted)


def _divide_logits(run: Run, planted: Planted) -> None:
    factor = 1 + size_of(planted, 0.1)
    _replace_loss(lambda run, right, output, target, count: right(output / factor, target, count))(run, planted)


def _smooth_l1(run: Run, right: Callable[..., Tensor], output: Tensor, target: Tensor, count: int) -> Tensor:
    return F.smooth_l1_loss(output.float(), target.float(), reduction="sum") / count


def _absolute_error(run: Run, right: Callable[..., Tensor], output: Tensor, target: Tensor, count: int) -> Tensor:
    return F.l1_loss(output.float(), target.float(), reduction="sum") / count


def _mean_over_rows(run: Run, right: Callable[..., Tensor], output: Tensor, target: Tensor, count: int) -> Tensor:
    return right(output, target, len(target) * run.setup.micros)


def _binary_cross_entropy(run: Run, right: Callable[..., Tensor], output: Tensor, target: Tensor, count: int) -> Tensor:
    wanted = F.one_hot(target, output.shape[-1]).float()
    return F.binary_cross_entropy_with_logits(output.float(), wanted, reduction="sum") / count


def _weight_classes(run: Run, planted: Planted) -> None:
    size = size_of(planted, 1.0)

    def loss(run: Run, right: Callable[..., Tensor], output: Tensor, target: Tensor, count: int) -> Tensor:
        weights = torch.ones(output.shape[-1])
        weights[: len(weights) // 2] += size
        return F.cross_entropy(output.float(), target, weight=weights, reduction="sum") / count

    _replace_loss(loss)(run, planted)


LOSS_FAULTS: dict[str, Fault] = {
    # labels
    "label_shift": Fault("labels that are not moved by one", LOSS, knob(shift=lambda s: False), True),
    "ignore_index": Fault("padding counts: ignore_index is another number", LOSS, given(lambda t, s: t.clamp_min(0)), True),
    "labels_twice": Fault("labels that are moved twice", LOSS, given(_shift_labels), True),
    "token_ignored": Fault("a token that is wrongly ignored", LOSS, knob(ignored=int), True),
    "first_ignored": Fault("the first size targets of each sample are ignored", LOSS, given(_ignore_first, 4), True),
    # means
    "sum": Fault("the sum instead of the mean", LOSS, knob(reduction=lambda s: "sum"), True),
    "micro_mean": Fault("the mean of micro-batches' means", LOSS, _replace_loss(lambda run, right, output, target, count: right(output, target, run.count(target) * run.setup.micros)), True),
    "row_mean": Fault("the mean of the rows' means", LOSS, _replace_loss(_mean_of_rows), True),
    "padding_in_mean": Fault("the loss divided by the number of all tokens", LOSS, _replace_loss(lambda run, right, output, target, count: right(output, target, target.numel())), True),
    "by_rows": Fault("the loss divided by the number of samples instead of elements", LOSS, _replace_loss(_mean_over_rows), True),
    # another loss
    "smoothing": Fault("label smoothing", LOSS, knob(0.1, smoothing=lambda s: s), True),
    "temperature": Fault("logits divided by 1 + size before the loss", LOSS, _divide_logits, True),
    "z_loss": Fault("size times the squared logarithm of the softmax's sum is added to the loss", LOSS, _add_z_loss, True),
    "smooth_l1": Fault("smooth L1 for the squared error", LOSS, _replace_loss(_smooth_l1), True),
    "softmax_twice": Fault("the loss takes probabilities for logits", LOSS, _change_output(lambda x, s: x.float().softmax(-1)), True),
    "padded_vocabulary": Fault("size classes of padding with logits of zero in the loss", LOSS, _change_output(lambda x, s: F.pad(x, (0, int(s))), 8), True),
    "absolute": Fault("the absolute error for the squared one", LOSS, _replace_loss(_absolute_error), True),
    "binary": Fault("a yes or no for each class instead of one class", LOSS, _replace_loss(_binary_cross_entropy), True),
    "weighted": Fault("the first half of the classes weighs 1 + size", LOSS, _weight_classes, True),
    "no_auxiliary": Fault("the experts' auxiliary loss is left out", LOSS, knob(auxiliary=lambda s: 0.0), True),
    "auxiliary_factor": Fault("the experts' auxiliary loss × size", LOSS, knob(0.2, auxiliary=lambda s: s), True),
    # factors and precision
    "loss_scaled": Fault("the loss × (1 + size)", LOSS, knob(0.01, loss_factor=lambda s: 1 + s), True),
    "loss_backward": Fault("the loss × (1 + size), for backward only", LOSS, knob(0.5, backward_factor=lambda s: 1 + s), True),
    "narrow_loss": Fault("a loss that was averaged in bf16", LOSS, _replace_loss(lambda run, right, *args: right(*args).bfloat16().float()), True),
    "narrow_logits": Fault("logits in bf16 before the loss", LOSS, _change_output(lambda x, s: x.bfloat16()), True),
}  # fmt: skip
