"""What the checks of one run say (`probe.checks`)."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from probe.report.words.notes import in_model, many

_KINDS = ("NaN", "+Inf", "−Inf")


def _share(share: float) -> str:
    return f"{float(f'{100 * share:.2g}'):g} %"


# Overflow


def _born(
    origin: str, step: int, phase: str, path: str, kind: str, counts: Sequence[int], tensors: int, steps: int
) -> str:
    names = [name for name, count in zip(_KINDS, counts, strict=True) if count]
    what = " and ".join(names) or "a loss that is not finite"
    where = {
        "module": f"is born in {in_model(path)} ({kind}): what it is given is finite, and what it returns is not",
        "code between modules": f"is born in the code of {in_model(path)} ({kind}), between two modules that it calls",
        "given to the model": f"is in what {in_model(path)} is given",
        "logged": "is in a tensor that the program logs, and no module returned it before",
        "weight": f"is in a weight of {in_model(path)} ({kind}) before the step",
        "loss": "is born behind the model, in the loss: what the model returned is finite",
        "backward of a module": f"is born in the backward of {in_model(path)} ({kind}): the gradient at its output is finite",
        "backward between modules": f"is born in backward, in the code of {in_model(path)} ({kind}) behind a module that it calls",
        "weight gradient": f"is born in a gradient of a weight of {in_model(path)} ({kind})",
        "optimizer": f"is born in the optimizer's step, at {in_model(path)} ({kind}): the gradients are finite",
    }[origin]
    others = f"; {many(tensors, 'tensor')} in {many(steps, 'step')}" if tensors > 1 else ""
    return f"{what} {where}; step {step}, {phase}{others}"


def _finite(masks: int) -> str:
    return "every tensor is finite" + (f", but for {many(masks, 'mask')} of −Inf" if masks else "")


def _near(path: str, largest: float, limit: float, dtype: str, modules: int) -> str:
    more = f"; {many(modules - 1, 'more module')}" if modules > 1 else ""
    return (
        f"{in_model(path)} reaches {largest:.3g} of the {limit:.5g} at which {dtype} ends ({_share(largest / limit)}): twice that "
        f"overflows{more}"
    )


def _far(path: str, largest: float, limit: float, dtype: str, modules: int) -> str:
    return f"nearest is {in_model(path)} with {largest:.3g} of the {limit:.5g} at which {dtype} ends"


def _lost(path: str, share: float, dtype: str, phase: str, modules: int) -> str:
    more = f", and in {many(modules - 1, 'more module')}" if modules > 1 else ""
    return (
        f"up to {_share(share)} of the {phase} elements of {in_model(path)} are 0 because {dtype} has no smaller numbers{more}: "
        "use a loss scale, or bfloat16"
    )


def _narrow(dtype: str, limit: float, largest: float, is_backward: bool) -> str:
    if is_backward:
        return f"{dtype} ends at {limit:.5g}: is the loss scale too large? A scaler lowers it by itself and skips such steps"
    reached = f"; what it was made from reaches {largest:.3g}" if largest else ""
    products = ", and products of two such numbers are beyond it" if largest**2 > limit else ""
    todo = "compute this in float32 or bfloat16, or scale it before (scores by 1/√d)"
    return f"{dtype} ends at {limit:.5g}{reached}{products}: {todo}"


# Data


def _named(names: Sequence[str]) -> str:
    return "; ".join(names)


def _shifted(shift: str, habit: str | None, is_wrong: bool) -> str:
    told = f"they are {shift}"
    if shift == "the ids at the position before":
        return f"{told}: shifted the wrong way"
    if habit is None or shift == "other than the ids":
        return told
    if not is_wrong:
        return (
            f"{told}, as a model needs that {'shifts them itself' if habit == 'the model' else 'does not shift them'}"
        )
    if habit == "the model":
        return f"{told}, and this model shifts them once more: give it the ids themselves as labels"
    return f"{told}, and this model does not shift them: it learns to repeat its input"


def _mask_wrong(step: int, sample: int, position: int, token: int, is_kept: bool, pad: Sequence[int]) -> str:
    where = f"step {step}, sample {sample}, position {position}"
    if is_kept:
        return f"{where} is padding (id {token}), and the mask does not hide it"
    return f"{where} is hidden by the mask, and its id {token} is no padding ({', '.join(map(str, pad))})"


def _sample(
    step: int, field: str, sample: int, position: Sequence[int], a: float, b: float, rows: Sequence[int],
    same_elsewhere: int,
) -> str:  # fmt: skip
    at = f" at {list(position)}" if position else ""
    told = f"step {step}, sample {sample}: {field} {a:g} in A, {b:g} in B{at}; {rows[0]} of {many(rows[1], 'sample')} differ"
    return f"{told}; A's sample is number {same_elsewhere} of B: another order" if same_elsewhere >= 0 else told


_OUTSIDE = {
    "given to the model": "look at the data: what the program gives to the model is not finite",
    "weight": "look at how the weights were loaded or initialised, and at the update before",
    "logged": "look at the code that makes the logged tensor",
}

_DATA: dict[str, str | Callable[..., str]] = {
    "no-inputs-recorded": "the recording holds no inputs (task='{task}'): record with task='statistics' or 'tensor'",
    "data-needs-values": "needs values: record with task='tensor'",
    "no-embedding-recorded": "no embedding was seen that is given integers",
    "no-ids-recorded": "no token ids were recorded",
    "ids-within-vocabulary": lambda path, low, high, rows: f"{in_model(path)}: {low} to {high} of {rows} rows",
    "ids-outside-vocabulary": lambda path, low, high, rows: (
        f"{in_model(path)} is given {low} to {high}, and has {rows} rows (0 to {rows - 1})"
    ),
    "labels-outside-vocabulary": "labels go up to {high}, and the vocabulary has {rows} rows",
    "vocabulary-in-parts": "a rank holds a part of the vocabulary of {path}",
    "no-special-ids": "the model's configuration names none",
    "special-ids-within": lambda ids, rows: f"{_named(ids)} of {rows}",
    "special-ids-outside": lambda ids, rows: f"{_named(ids)}: the vocabulary has {rows} rows (0 to {rows - 1})",
    "special-ids-of-tokenizer": lambda differing: _named(differing),
    "special-ids-differ": lambda differing: _named(differing),
    "special-ids-equal": lambda names: f"{', '.join(names)} equal in A and B",
    "tokenizer-too-large": "the tokenizer has {size} tokens, and the model {rows} rows: some ids have no row",
    "padding-side": "{side}",
    "padding-on-both-sides": lambda sides: f"padding stands {' and '.join(sides)}",
    "no-mask-and-no-pad-id": "the model is given no mask, and neither the configuration nor a tokenizer names a pad id",
    "padding-sides-differ": "{a} in A, {b} in B",
    "padding-without-mask": lambda pad: (
        f"samples begin or end with pad ids ({', '.join(map(str, pad))}), and the model is given no mask"
    ),
    "no-pad-id": "neither the configuration nor a tokenizer names a pad id",
    "mask-against-pad-id": _mask_wrong,
    "mask-hides-padding": lambda pad: f"the mask hides pad ids ({', '.join(map(str, pad))}) and nothing else",
    "no-labels-recorded": "the model is given none: probe.log('labels', labels) records them",
    "labels-of-another-shape": lambda shape: f"of shape {list(shape)}: no labels of next tokens",
    "labels-shifted": _shifted,
    "padding-is-trained-on": (
        "{count} labels count though the mask hides their position, first in step {step}, sample {sample}, position {position}: "
        "set them to −100"
    ),
    "no-common-batches": "no step was recorded on both sides",
    "no-common-fields": "nothing that the models were given can be held against each other without values",
    "batches-differ": "step {step}, micro-batch {micro}: {field} differ; values tell which sample: record with task='tensor'",
    "batches-of-other-shapes": lambda step, field, a, b: (
        f"step {step}: {field} of shape {list(a)} in A, {list(b)} in B"
    ),
    "sample-differs": _sample,
    "samples-equal": lambda steps, fields: f"all are equal in {many(steps, 'step')}: {', '.join(fields)}",
    "datasets-differ": lambda differing: _named(differing),
    "datasets-equal": lambda names: f"equal in A and B: {', '.join(names)}",
    "dataset-logged": lambda names: ", ".join(names),
}

WORDS: dict[str, str | Callable[..., str]] = {
    "structure-has-no-numbers": "the recording holds no numbers (task='structure'): record with task='statistics'",
    "no-floats-recorded": "no floating-point tensors were recorded",
    "all-finite": _finite,
    "nonfinite-born": _born,
    "near-largest-number": _near,
    "far-from-largest-number": _far,
    "gradients-underflow": _lost,
    "little-underflow": lambda share: (
        f"at most {_share(share)} of a module's gradients are 0 by underflow"
        if share >= 1e-4
        else "no gradients are lost"
    ),
    "no-gradients-recorded": "no gradients were recorded",
    "nonfinite-from-outside": lambda origin: _OUTSIDE[origin],
    "masked-throughout": (
        "{slot} of {path} has −Inf: a row that is masked throughout makes NaN in a softmax; look at the mask and the padding"
    ),
    "narrow-dtype-overflows": _narrow,
    "undefined-operation": lambda has_inf: (
        "look for a division by 0, or an exponential of a large number"
        if has_inf
        else "look for 0/0, Inf − Inf, or the root or logarithm of a negative number"
    ),
    **_DATA,
}
