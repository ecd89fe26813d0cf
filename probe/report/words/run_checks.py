"""What the checks of one run say (`probe.checks`)."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from probe.comparison.coverage.guards import grouped
from probe.report.words.notes import in_model, many

_MOST = 4
"""names in a sentence"""
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
        return f"{told}; this model {'shifts them itself' if habit == 'the model' else 'does not shift them'}"
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

# Initialisation


def _chance(p: float) -> str:
    return "p < 1e-16" if p < 1e-16 else f"p {p:.0e}"


def _initialised(
    names: Sequence[str], failed: Sequence[str], mean_a: float, mean_b: float, std_a: float, std_b: float, p: float,
    like_a: str, like_b: str,
) -> str:  # fmt: skip
    told = []
    if "constant" in failed:
        sides = (
            f"{like or f'random, std {std:.3g}'} in {side}"
            for side, like, std in (("A", like_a, std_a), ("B", like_b, std_b))
        )
        return f"{grouped(names, _MOST)}: {', '.join(sides)}"
    if "std" in failed:
        told.append(f"std {std_a:.3g} in A, {std_b:.3g} in B ({std_b / std_a:.3g} times)")
    if "mean" in failed:
        told.append(f"mean {mean_a:.2g} in A, {mean_b:.2g} in B")
    if not told:
        told.append(
            "same mean and std, another distribution"
            if "distribution" in failed
            else "other largest magnitudes: another distribution"
        )
    likes = [f"{side} is like {like}" for side, like in (("A", like_a), ("B", like_b)) if like and like_a != like_b]
    end = f"; {', '.join(likes)}" if likes else ""
    return f"{grouped(names, _MOST)}: {', '.join(told)}, {_chance(p)}{end}"


_INITIAL: dict[str, str | Callable[..., str]] = {
    "no-initial-weights": "the recordings hold no numbers of initial weights: record the first step, with task='statistics' or 'tensor'",
    "initialised-otherwise": _initialised,
    "initialised-alike": lambda count, tests, level: (
        f"{many(count, 'parameter')} alike: none of {many(tests, 'test')} has a p below {level:.1e}"
    ),
    "weights-are-equal": lambda count, total: (
        f"all of {many(total, 'weight')} are equal: they were loaded, or drawn with one seed"
        if count == total and total
        else f"no pair of weights could be tested ({count} of {total} are equal)"
    ),
    "some-weights-are-equal": lambda count, total: (
        f"{count} of {many(total, 'weight')} are equal in A and B: constant, loaded, or drawn with one seed"
    ),
    "too-few-elements": lambda count, fewest: f"{many(count, 'weight')} of fewer than {fewest} elements",
    "parameters-without-counterpart": lambda a, b: (
        "only " + "; ".join(f"in {side}: {grouped(names, _MOST)}" for side, names in (("A", a), ("B", b)) if names)
    ),
}

# Trained weights


def _never_loaded(names: Sequence[str], why: str) -> str:
    verb = "was" if len(names) == 1 else "were"
    return f"{grouped(names, _MOST)} {verb} never loaded, or trained: {why}"


def _kind_size(kind: str, base: str, count: int, ratio: float, usual: float, is_smaller: bool) -> str:
    told = f"{kind} are {ratio:.3f} times as long in B as in A, {base} {usual:.3f} times"
    if is_smaller:
        return f"{told}: does weight decay act on them in B, and not in A? Look at the groups without decay"
    return f"{told}: does weight decay act on them in A, and not in B? Look at the groups without decay"


def _matrices(kind: str, ratio: float) -> str:
    return f"{kind} are {ratio:.3f} times as long in B as in A: look at weight decay, the learning rate and the number of steps"


def _sticks_out(names: Sequence[str], norm: float, std: float, kind: str, usual: float) -> str:
    spread = f", its standard deviation {std:.3f} times" if std == std and abs(std / norm - 1) > 0.02 else ""
    return f"{grouped(names, _MOST)}: norm {norm:.3f} times A's{spread}; {kind} usually have {usual:.3f} times"


_WEIGHTS: dict[str, str | Callable[..., str]] = {
    "weights-not-paired": lambda paired, total, has_mapping: (
        f"{paired} of {many(total, 'weight')} have a counterpart: "
        + (
            "the mapping needs the classes of both models: give recordings of them with --from and --like"
            if has_mapping
            else "give a layer mapping (-lm), and recordings of both models (--from, --like)"
        )
    ),
    "weights-never-loaded": _never_loaded,
    "weights-look-loaded": lambda count, equal: (
        f"all of {many(count, 'weight')} are equal in A and B"
        if equal == count
        else f"none of {many(count, 'weight')} looks like a fresh one"
        + (f"; {equal} are equal in A and B" if equal else "")
    ),
    "trained-weights-not-finite": lambda names: f"NaN or Inf in {grouped(names, _MOST)}",
    "no-sizes-to-compare": "no weight is different from 0 on both sides",
    "kind-of-other-size": _kind_size,
    "matrices-of-other-size": _matrices,
    "kinds-of-one-size": lambda ratios: f"norm B/A: {', '.join(ratios)}",
    "weight-sticks-out": _sticks_out,
    "no-weight-sticks-out": lambda count: f"none of {many(count, 'weight')} differs more than the others of its kind",
    "weights-misshapen": lambda texts: (
        f"of other shapes: {'; '.join(texts[:_MOST])}"
        + (f" and {len(texts) - _MOST} more" if len(texts) > _MOST else "")
    ),
    "weights-all-paired": lambda count: f"all of {many(count, 'weight')} have a counterpart",
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
    "labels-of-one-side-shifted": lambda is_sure: (
        "labels are those of the other side, one position apart: right if one side's loss shifts them and the other's does not"
        if is_sure
        else "labels differ, by no more than a shift by one position does; values tell: record with task='tensor'"
    ),
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
    **_INITIAL,
    **_WEIGHTS,
}
