"""Faults of the data: what the model is given."""

from __future__ import annotations

import torch
from torch import Tensor

from benchmarks.localisation.pairs.pair import Planted
from benchmarks.localisation.tools.planting import FORWARD, Fault, given
from benchmarks.localisation.tools.run import Run


def _replace_token(ids: Tensor, size: float) -> Tensor:
    ids = ids.clone()
    ids[0, 3] = (ids[0, 3] + 1) % 90 + 2
    return ids


def _repeat_batch(run: Run, planted: Planted) -> None:
    right = run.batch
    run.batch = lambda index: right(max(0, index - 1))


def _repeated_half(x: Tensor, size: float) -> Tensor:
    return torch.cat([x[: len(x) // 2]] * 2)


INPUT_FAULTS: dict[str, Fault] = {
    "token": Fault("one other token", FORWARD, given(_replace_token), True),
    "scaled_input": Fault("an input × (1 + size)", FORWARD, given(lambda x, s: x * (1 + s), 0.01), True),
    "order": Fault("samples in another order", FORWARD, given(lambda x, s: x.roll(1, 0)), True),
    "padding_mask": Fault("a padding mask of ones", FORWARD, given(lambda x, s: torch.ones_like(x)), True),
    "noise_seed": Fault("other noise", FORWARD, given(lambda x, s: x.flip(0)), True),
    "bgr": Fault("colours in the order blue, green, red", FORWARD, given(lambda x, s: x.flip(1)), True),
    "mask_inverted": Fault("a mask in which true means hidden", FORWARD, given(lambda x, s: 1 - x), True),
    "unshifted": Fault("the decoder is given what it is to predict", FORWARD, given(lambda x, s: x.roll(-1, 1)), True),
    "off_by_one": Fault("a number that begins at one instead of zero", FORWARD, given(lambda x, s: x + 1), True),
    "one_way": Fault("edges in one direction only", FORWARD, given(lambda x, s: x.triu()), True),
    "other_statistics": Fault("pictures that were normalised by other numbers", FORWARD, given(lambda x, s: (x - s) / (1 - s), 0.03), True),
    "reversed": Fault("a sequence the other way round", FORWARD, given(lambda x, s: x.flip(1)), True),
    "sides": Fault("height and width exchanged", FORWARD, given(lambda x, s: x.transpose(-1, -2)), True),
    "padding_side": Fault("a padding mask for padding at the other end", FORWARD, given(lambda x, s: x.flip(1)), True),
    "repeated_half": Fault("the batch's second half is its first again: both ranks load the same", FORWARD, given(_repeated_half), True),
    "batch_before": Fault("the batch of the step before once more", FORWARD, _repeat_batch, True),
    "one_type": Fault("both texts of a pair as if they were the first", FORWARD, given(lambda x, s: torch.zeros_like(x)), True),
    "unknown": Fault("tokens from size on as the unknown one", FORWARD, given(lambda x, s: x.masked_fill(x >= s, 3), 90), True),
    "narrow_input": Fault("an input that went through bf16", FORWARD, given(lambda x, s: x.bfloat16().to(x.dtype)), True),
    "corners_swapped": Fault("boxes as y, x instead of x, y", FORWARD, given(lambda x, s: x[..., [1, 0, 3, 2]]), True),
}  # fmt: skip
