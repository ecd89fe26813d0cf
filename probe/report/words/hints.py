"""What findings are likely to come from (`Divergence.advice`)."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from probe.comparison.notes import Note

if TYPE_CHECKING:
    from probe.comparison.exemptions.known_differences import KnownDifference


def _tied_on_one_side(slot: str, to: str, side: str, other: str, one: str, second: str) -> str:
    tied = f" to {to}" if to else ""
    return (
        f"{slot} is tied{tied} on {side}, not on {other}: its gradient on {side} is that of {one} and {second} together"
    )


_MOST_NAMED = 4


def written(factor: float) -> str:
    """Return a factor in words; one over a whole number as such where six digits do not tell it."""
    inverse = 1 / factor if factor else 0.0
    is_whole = abs(inverse) >= 1.5 and math.isclose(inverse, round(inverse), rel_tol=1e-6)
    if is_whole and float(f"{factor:.6g}") != 1 / round(inverse):
        return f"{'-' if inverse < 0 else ''}1/{abs(round(inverse))}"
    return f"{factor:.6g}"


def listed(paths: Sequence[str]) -> str:
    """Return the first paths, and how many there are beside them."""
    more = f" and {len(paths) - _MOST_NAMED} more" if len(paths) > _MOST_NAMED else ""
    return ", ".join(paths[:_MOST_NAMED]) + more


def _without_counterpart(paths: Sequence[str], has_weights: bool) -> str:
    weights = ", its weights included" if has_weights else ""
    return f"look at {listed(paths)}, which B has nothing to compare with{weights}"


def _compared_by_weights(paths: Sequence[str]) -> str:
    return f"look at what B has in the place of {listed(paths)}, of which the weights alone are compared"


def _left_out(paths: Sequence[str]) -> str:
    return f"look at {listed(paths)}, left out by the mapping (ignore): nothing in there was compared"


def _any_of(ways: tuple[Note, ...]) -> str:
    return "; or ".join(map(str, ways))


def _computed_between(start: str, end: str, class_name: str) -> str:
    places = f"{start or 'its input'} and {end or 'what it returns'}"
    return f"look at what both sides compute between {places}, {class_name} and what it is given"


def _maker_of_inputs(slots: Sequence[str], path: str) -> str:
    return f"look at what makes the inputs {listed(slots)} of {path}, and at {path} itself"


def _lacks_module(side: str, is_mapped: bool) -> str:
    why = "the mapping does not give" if is_mapped else "was not found: a layer mapping (-lm) can give it"
    return f"{side} lacks this module, or runs it under a name that {why}"


def _give_input(other: str, name: str, is_slot: bool, own: tuple[str, ...]) -> str:
    what = f"the same {name}" if is_slot else f"{name} too"
    there = f"; or {other} has it as {' or '.join(own)}, under another name" if own else ""
    return f"give {other} {what}, or look at its default there{there}"


def _loss_function(behind: str) -> str:
    start = f"what is done to the output of {behind} before the loss, and at " if behind else ""
    return f"look at {start}the loss function: reduction, label smoothing, ignored index, weights"


def _order_of_building(by_weights: bool) -> str:
    return "look at the order in which the layers are built" + (", or their weights loaded" if by_weights else "")


def _loss_function_and_scale(slot: str) -> str:
    own = f", or at what the model's own code makes of its output {slot}: the others may be made of it" if slot else ""
    return f"look at the loss function and at the loss scale{own}"


def _does_not_learn(slot: str, side: str, is_there: bool) -> str:
    why = "requires_grad is off, or the parameter is cut off from the loss" if is_there else f"{side} lacks it"
    return f"{slot} does not learn on {side}: {why}"


def _zero_rows(rows: int, side: str) -> str:
    return f"{rows} more {'row is' if rows == 1 else 'rows are'} zero on {side}: look at padding_idx"


def joined(names: Sequence[str]) -> str:
    """Return names as a list that ends with “and”, the first where they are many."""
    if len(names) > _MOST_NAMED:
        return f"{', '.join(names[:_MOST_NAMED])} and {len(names) - _MOST_NAMED} more"
    return " and ".join(filter(None, [", ".join(names[:-1]), names[-1]]))


def _lying(names: Sequence[str], groups: int) -> str:
    return f"{', '.join(names)} {'one after the other' if groups == 1 else f'in {groups} groups'}"


def _parts_in_another_order(
    names: Sequence[str], whole: str, side: str, actual: tuple[Sequence[str], int], expected: tuple[Sequence[str], int],
    is_mapped: bool,
) -> str:  # fmt: skip
    split = "it is the mapping's split that is wrong" if is_mapped else "say so by a split in a layer mapping"
    order = f"{_lying(*actual)}, where {_lying(*expected)} was expected (verified: so they agree)"
    if side == "A":  # the side that is trusted: what B took out of it is wrong
        return (
            f"B's {joined(names)} were taken out of A's {whole} as if it held {order}: look at how B's weights are loaded or "
            f"converted; if A reads it so, {split}"
        )
    return (
        f"B's {whole} holds {order}: look at how this weight is loaded or converted; if the model reads it so, {split}"
    )


def _parts_do_not_learn(names: Sequence[str], side: str) -> str:
    does = "does" if len(names) == 1 else "do"
    return (
        f"{joined(names)} {does} not learn on {side}: requires_grad is off, or the parameter is cut off from the loss"
    )


def _clips_scaled(side: str, factor: float) -> str:
    return f"{side} clips gradients that are still {written(factor)} times as large: divide them by the loss scale, then clip"


TITLES = {"torch": "PyTorch", "paddle": "PaddlePaddle", "mindspore": "MindSpore"}


def _known_differences(first: Note | None, names: Sequence[str], a: str, b: str) -> str:
    from probe.comparison.exemptions.known_differences import KNOWN_DIFFERENCES  # where one is named

    rows = {row.name: row for row in KNOWN_DIFFERENCES}
    texts = [_known_difference(rows[name], (a, b)) for name in names]
    begin = f"{first}; " if first else ""
    return f"{begin}known difference{'s' if len(texts) > 1 else ''}: {'. '.join(texts)}"


def _known_difference(row: KnownDifference, frameworks: tuple[str, str]) -> str:
    sides = [(row.habits[name], TITLES[name]) for name in frameworks]
    does = " and ".join(f"{habit.does} in {title}" for habit, title in sides)
    ways = " or ".join(f"{habit.instead} in {title}" for habit, title in sides if habit.instead)
    advice = "; ".join(part for part in (f"set {ways}" if ways else "", row.advice) if part)
    return f"{row.about} {does} ({advice})"


def _lines(lines: Sequence[str]) -> str:
    """Write ``line 2 of m.yaml``, ``line 3 of m.yaml`` as ``line 2, line 3 of m.yaml``."""
    more = f" and {len(lines) - _MOST_NAMED} more" if len(lines) > _MOST_NAMED else ""
    parts = [line.rpartition(" of ") for line in lines[:_MOST_NAMED]]
    return f"{', '.join(part[0] for part in parts)}{more} of {parts[0][2]}"


def _mend_lines(lines: Sequence[str], said: Note) -> str:
    text = str(said)
    rest = text.partition(": ")[2] if text.startswith("the mapping's line ") else text
    return f"mend {_lines(lines)} first: {rest}"


def _lines_pair(lines: Sequence[str], otherwise: Note | None) -> str:
    pair = "they pair" if len(lines) > 1 else "it pairs"
    meant = otherwise or "look at the models"
    return f"look at {_lines(lines)} first: {pair} layers in another order; if that is meant so, {meant}"


WORDS: dict[str, str | Callable[..., str]] = {
    "and-also": "{first}; {then}",
    "same-dropout-rate": "switch dropout off on both sides, or give both the same rate",
    "exchanged": "{given}: the two are exchanged",
    "tied-on-one-side": _tied_on_one_side,
    "weights-of-another-layer": "what {a} has in A, {b} has in B: look at the order of the layers",
    "weights-of-a-layer-left-out": (
        "what {a} has in A, {b} has in B, and what {nowhere} has in A is nowhere in B: look at which layers were left out, and "
        "which weights were loaded into which"
    ),
    "scale-of-value": "B is {factor:.7g} times A, a uniform scale of the value: look at eps, a scale or a weight",
    "scale-of-passed-back": "B is {factor:.7g} times A, a uniform scale of the value: look at a factor in backward",
    # calls on one side
    "code-that-calls-module": "look at the code that calls {path}: {other} does not call {there}",
    "modules-without-counterpart": _without_counterpart,
    "modules-compared-by-weights": _compared_by_weights,
    "modules-left-out-by-mapping": _left_out,
    "any-of": _any_of,
    "code-between-models": "look at the code that hands on what one model, or stage, returns to the next",
    "computed-between": _computed_between,
    "maker-of-inputs": _maker_of_inputs,
    "number-of-layers": "look at the number of layers of both models, and at what is built between them",
    "has-module-alone": "{side} has {inner} without it: look at what it does before and after",
    "place-of-weights": "look at what {other} has in the place of {path}, of which the weights alone are compared",
    "code-that-makes-call": "look at the code that calls {path}: {other} does not make this call",
    "computed-in-its-place": (
        "what {other} computes in the place of this {class_name} is not the same: look at it, and at its settings"
    ),
    "place-of-tied-weights": "look at what {other} computes in the place of {path}, before and behind the product with its weights",
    "lacks-module": _lacks_module,
    "give-other-side-the-input": _give_input,
    # a forward pass
    "same-batch": "feed both sides the same batch before looking at anything else",
    "same-part-of-batch": (
        "give the other side's process the batch of this rank alone, or compare with a run of as many ranks"
    ),
    "record-modules-before": "record the modules before it too: what is wrong lies there, or in the batch",
    "parameter-is-missing": "{slot} is missing on {side}",
    "tied-there": "{slot} is tied to {to} on {side}, not on {other}",
    "precision-of-module": "look at casts, autocast and the precision that this module is set to",
    "code-of-module": "look at the code of this module itself: what it does between the modules that it calls",
    "factor-of-one-side": "look for a factor that one side alone applies to what {path} returns, or that differs",
    "loss-function": _loss_function,
    "split-of-layer": (
        "look at how this layer is split over ranks: which part each rank holds, what is added up, and what runs in parts before it"
    ),
    "same-mode": "call train() or eval() on both models alike",
    "dropout-on-both-sides": "dropout draws other numbers on each side: switch it off on both",
    "settings-of-norm": "look at what this module computes and with which settings, eps first",
    "settings-of-module": "look at what this module computes and with which settings",
    # orders
    "order-of-building": _order_of_building,
    "order-of-calls": "look at the order in which the code calls them",
    "holder-is-no-counterpart": (
        "if B is meant so, {holder} is no counterpart of {a}: leave it out of the mapping, and name what is in it"
    ),
    # a backward pass
    "backward-of-module": "look at this module's backward, and at custom autograd functions in it",
    "backward-of-own-code": "look at the backward of this module's own code",
    "loss-function-and-scale": _loss_function_and_scale,
    "detached-in-module": "look for detach(), no_grad() or .data in this module",
    "cuts-graph-at": "{side} cuts the graph {place}: look for detach(), no_grad() or .data",
    "cuts-graph-here": "{side} cuts the graph here: look for detach(), no_grad() or .data",
    "cuts-graph-in-module": "{side} cuts the graph here: look for detach(), no_grad() or .data in this module",
    "accumulation-divided-on-one-side": (
        "accumulation is divided on {other} only: {side} does not divide the loss by its {count} micro-batches"
    ),
    "loss-not-divided-by-micro-batches": "the loss is not divided by the number of micro-batches, {a} in A and {b} in B",
    "sign-of-loss": "one side goes up where the other goes down: the sign of the loss, or maximize=",
    "loss-scaling": "loss scaling",
    "loss-scale-or-reduction": (
        "look at the loss scale, and at how the loss is reduced: sum or mean, number of micro-batches or ranks"
    ),
    "loss-averaged-by-micro-batch": (
        "one side averages the loss over each micro-batch by itself, the other over all tokens of the step: look at what the "
        "loss of a micro-batch is divided by (its own number of tokens, or that of the whole step)"
    ),
    "settings-differ": "the settings differ: {settings}",
    "writes-between-forwards": (
        "look at what writes to weights between two forwards: averaging (EMA, momentum encoders), perturbing (SAM), clipping"
    ),
    "does-not-learn": _does_not_learn,
    "accumulation-and-reduction": "look at accumulation, zero_grad, loss scale and reduction over micro-batches or ranks",
    "record-with-same-split": "record both sides with the same split: that names the first module that differs",
    "record-forward-and-backward": "record both sides with forward and backward: that names the first module that differs",
    "zero-rows-of-embedding": _zero_rows,
    "sizes-padding-and-strides": "look at sizes, padding and strides there",
    "update-of-running-statistics": "look at how this module updates its running statistics: momentum, biased variance",
    "skipping-of-steps": (
        "look at what skips steps whose gradients are not finite: a loss scaler (GradScaler) does, and in {side} nothing did"
    ),
    # weights
    "loading-of-weight": "look at how this weight is loaded or converted",
    "loading-of-running-statistics": (
        "look at how running statistics are loaded or converted: training does not use them, evaluation does"
    ),
    "same-numbers-in-another-order": (
        "B has the same numbers in another order: it is transposed, or its rows or parts are swapped; look at how this weight is converted"
    ),
    "start-from-the-same-weights": (
        "the two runs do not start from the same weights: load or convert one side's into the other"
    ),
    "record-steps-before": "record the steps before {step} too: the runs part there, or do not start from the same weights",
    "other-kind-of-numbers": "the two models do not hold this parameter in the same kind of numbers",
    "built-with-other-sizes": "the two models are not built with the same sizes",
    # parts that lie in one weight
    "parts-stand-in-another-order": _parts_in_another_order,
    "rows-stand-in-another-order": (
        "the rows lie in {side}'s {path} as in {other}'s {there}, where another order was expected, that of the other layers or of the "
        "mapping (verified: so they agree): look at how this weight is loaded or converted"
    ),
    "rows-of-heads-not-turned": (
        "the rows of each head lie in {side}'s {path} as in {other}'s {there}, where those of the two halves against neighbours were "
        "expected (verified: so they agree): look at how this weight is loaded or converted; if both models turn alike, it is the "
        "mapping's rotary that is wrong"
    ),
    "parts-do-not-learn": _parts_do_not_learn,
    "clips-scaled-gradients": _clips_scaled,
    "same-settings": "give both optimizers the same settings: what they do with others shows later, or adds up",
    # losses
    "dtype-of-loss": "look at the dtype in which the loss is computed and averaged",
    "or-shift-of-labels": "{first}; or at how far each side's loss shifts its {name}: {shift}",
    # between steps
    "behind-optimizer-step": (
        "look at what runs behind optimizer.step(): averaging (EMA), rounding, clipping or tying of weights"
    ),
    "set-back-behind-optimizer-step": (
        "look at what sets them back behind optimizer.step(), and at how copies (masters) are copied into them: not at all, or before it"
    ),
    # updates
    "clipping-and-unscaling": "look at clipping, unscaling and the reduction over ranks",
    "not-given-to-optimizer": "{side}'s optimizer was not given this parameter",
    "stepped-early": "probe.step() comes before the optimizer's step in {side}: call it after that, and record again",
    "no-optimizer-seen": (
        "no optimizer was seen to step in {side}, and at its probe.step() this weight was as before: is it updated, or copied back "
        "from what is, and is probe.step() called behind that?"
    ),
    "no-write-seen": (
        "in {side} nothing had written to it at its probe.step(): is it averaged (EMA) or updated, and is probe.step() called behind that?"
    ),
    "settings-of-parameter": "look at the optimizer's settings for this parameter",
    "writes-behind-step": (
        "look at what writes to this weight behind the optimizer's step: averaging (EMA, teachers), or an update by hand"
    ),
    "learning-rate-and-schedule": "look at the learning rate and its schedule",
    "learning-rate-and-copying": "look at the learning rate, and at how what is trained is copied back",
    "copying-and-learning-rate": "look at how what is trained is copied back, and at the learning rate",
    "learning-rate-and-correction": "look at the learning rate, at Adam's count of steps and its bias correction, at eps",
    "schedule-and-correction": "look at the learning rate and its schedule, at Adam's bias correction and eps",
    "loaded-state-and-skipped-steps": "look at what the optimizer's state was loaded from, and at which steps it was skipped",
    "decay-of-group": "look at the weight decay of this parameter's group",
    "eps-is-zero": "the optimizer's eps {eps} is 0 in float16: a vanishing gradient is divided by 0",
    "what-optimizer-divides-by": "look at what the optimizer divides by",
    "betas-and-first-state": "look at the betas and at what the state began with",
    "known-differences": _known_differences,
    # lines of a mapping
    "mend-lines-first": _mend_lines,
    "lines-pair-in-another-order": _lines_pair,
}
