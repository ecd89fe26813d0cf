"""What the walk through a step says beside its findings: what it did not judge, and what it could not."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from probe.comparison.notes import Note

_ALIKE = "what a rank holds is compared with a run that is split alike"
_LONGER = "record with task='tensor'"

Rank = Sequence[int]
"""its number, and how many there are"""


def when(step: int) -> str:
    """Say between which steps weights came to differ."""
    return f"before step {step}; step {step - 1} was not recorded" if step else "before the first step"


def _first(places: Sequence[str]) -> str:
    first, *others = places
    return f"{first}{f' and {len(others)} more' if others else ''}"


def _ranks(a: Rank, b: Rank) -> str:
    return f"A is rank {a[0]} of {a[1]}, B rank {b[0]} of {b[1]}"


def _gradient(step: int, path: str, what: str, slot: str, error: float) -> str:
    return f"step {step}: the gradient of {path}'s {what} {slot} differs (rel {error:.1e})"


def _differs(role: str, slot: str, path: str, error: float) -> str:
    return f"the {role} {slot} of {path} differs (rel {error:.1e})"


# Weights and buffers


def _drifted(count: int, step: int, slot: str, path: str, error: float) -> str:
    before = (
        f"record the steps before {step} too: the runs part there, or do not start from the same weights"
        if step
        else ""
    )
    return f"{count} parameters differ {when(step)}, first {slot} of {path} (rel {error:.1e}): {before}"


def _weights_in_parts(a: Rank, b: Rank, count: int, slot: str, path: str, why: Note | None) -> str:
    weights = "1 weight is" if count == 1 else f"{count} weights are"
    return f"{_ranks(a, b)}: {weights} held in parts on one side, first {slot} of {path} ({why or ''}); {_ALIKE}"


def _other_integers(step: int, slot: str, path: str, share: float | None, others: int) -> str:
    how_many = "" if share is None else f" ({share:.2%} of its elements)"
    more = f", and so do {others} more" if others else ""
    return f"after step {step} the buffer {slot} of {path} holds other integers{how_many}{more}; before it both agree"


def _variance(
    slot: str, paths: Sequence[str], a: str, unbiased_a: bool, b: str, unbiased_b: bool, counts: Sequence[int]
) -> str:
    does_a, does_b = ("divides by n − 1" if is_unbiased else "divides by n" for is_unbiased in (unbiased_a, unbiased_b))
    return (
        f"{slot} of {', '.join(paths)} differs only by what the frameworks divide by (A, {a}, {does_a}; B, {b}, {does_b}; n = "
        f"{', '.join(map(str, counts))}): it cannot be set, and only evaluation sees it"
    )


# Inputs and outputs


def _masks(role: str, slot: str, path: str, side: str, is_judged: bool) -> str:
    what = f"a mask in {side} only" if side else "masks of other numbers"
    but = "agrees where that masks nothing" if is_judged else "is not judged: its values were not recorded"
    return f"the {role} {slot} of {path} holds {what}, and {but}"


def _padding(count: int, mask: str, role: str, slot: str, path: str, error: float) -> str:
    return (
        f"{count} {'tensor differs' if count == 1 else 'tensors differ'} only where {mask} is 0, in padding (verified), first the {role} "
        f"{slot} of {path} (rel {error:.1e}): the other positions are compared"
    )


def _modes(count: int, path: str, a: str, b: str) -> str:
    modules = "1 module runs" if count == 1 else f"{count} modules run"
    return f"{modules} in another mode, first {path}: {a} in A, {b} in B (dropout, BatchNorm)"


def _input_without_effect(input: str, move: Note | None, why: Note) -> str:  # noqa: A002
    return f"the model's input {input} differs{f': {move}' if move is not None else ''}; {why}"


# Gradients and updates


def _reduced(side: str, is_alone: bool) -> str:
    how = (
        f"{side} is one process, the other side adds gradients up over ranks behind backward"
        if is_alone
        else f"{side} adds its gradients up over ranks within backward, the other side behind it"
    )
    return f"{how}: as backward left them they are not judged, as the optimizer used them they agree"


def _not_shown(count: int, settings: Note) -> str:
    parameters = "1 parameter" if count == 1 else f"{count} parameters"
    return f"the optimizers are set differently for {parameters}: {settings}; that does not show in the numbers yet"


def _unknown_settings(settings: Sequence[tuple[str, str, str]]) -> str:
    listed = ", ".join(f"{name} {a} against {b}" for name, a, b in settings)
    return f"the optimizers have other settings of which it is not known what they do: {listed}; the updates agree"


WORDS: dict[str, str | Callable[..., str]] = {
    # weights and buffers
    "weights-drifted": _drifted,
    "weights-in-parts": _weights_in_parts,
    "weights-changed-unrecorded": (
        "step {step} uses weights that differ (rel {error:.1e}, all {count} together), and what changed them was not recorded: record the "
        "phases init and update too"
    ),
    "buffer-differs-before": lambda step, slot, path, error: (
        f"the buffer {slot} of {path} differs {when(step)} (rel {error:.1e})"
    ),
    "buffer-of-other-integers": _other_integers,
    "variance-divided-otherwise": _variance,
    # inputs and outputs
    "factor-stands-elsewhere": (
        "output {slot} of {path} is {factor:.6g} times A's in B, and what is made of it agrees: the factor stands elsewhere, and is left "
        "out here"
    ),
    "masks-inside-differ": _masks,
    "mask-masks-nothing": "it masks nothing",
    "mask-is-causal": (
        "it masks what lies ahead alone, as causal attention does without it: see that the other side's is"
    ),
    "padding-differs": _padding,
    "modes-differ": _modes,
    "border-lies-elsewhere": lambda places: (
        f"at {_first(places)} the sides differ, and what modules are given of it agrees: what the module does on one side, the code behind "
        "it does on the other; it is not judged"
    ),
    "same-steps-in-another-order": lambda places: (
        f"at {_first(places)} the shapes differ, and what is computed of it agrees: the same steps in another order (padding, pooling, the "
        "norm of one token); it is not judged"
    ),
    "elements-in-another-order": lambda places: (
        f"inside {_first(places)} the elements stand in another order, or are split otherwise: what is returned agrees, what is inside is "
        "not judged"
    ),
    "tokens-in-another-order": lambda places: (
        f"inside {_first(places)} the tokens stand in another order, as they are given to it, with two axes changed or the shares of "
        "ranks one behind the other: what it returns is judged, what is inside is not"
    ),
    "residual-sum-not-compared": lambda places: (
        f"at {_first(places)} a residual is added inside on one side, and the sum could not be compared: what is returned is judged"
    ),
    "tokens-of-what-was-made-before": lambda places: (
        f"at {_first(places)} the tokens stand in another order, as two axes are changed in what was made before: what is made of them is "
        "judged, they are not"
    ),
    "share-of-tokens": "as up to {most:.0%} of the tokens can make it",
    "tokens-alone": "in {count} of {total} tokens alone (verified)",
    "tokens-routed-otherwise": lambda role, slot, path, error, tokens: (
        f"{_differs(role, slot, path, error)} {tokens}, as rounding can route them otherwise: it is not judged"
    ),
    "tokens-may-be-routed-otherwise": lambda role, slot, path, error, tokens: (
        f"{_differs(role, slot, path, error)}, {tokens} that rounding routes otherwise: {_LONGER} to see how many they are"
    ),
    "routed-otherwise-inside": (
        "{share:.2%} of {slot} of {path} differ, as noise can make them (routing): what is inside is not judged"
    ),
    "looks-permuted": (
        "step {step}: the {role} {slot} of {path} differs, but only as it would if its axes or elements were in another order: {why}"
    ),
    "tensor-in-parts": lambda a, b, role, slot, path, why: (
        f"{_ranks(a, b)}: the {role} {slot} of {path} is held in parts on one side ({why or ''}); {_ALIKE}"
    ),
    "input-on-one-side": "the model is given {input} on {side} only: {why}",
    "call-handed-the-same-agrees": (
        "what is wrong first is not its work, since {path} was handed the same, and what it returns agrees"
    ),
    "input-differs-without-effect": _input_without_effect,
    "integers-shifted": lambda side, other, by: (
        f"those of {side} are {other}'s shifted by {'one position' if by == 1 else f'{by} positions'} (verified)"
    ),
    "shift-not-known": f"whether they are the same labels, shifted by a position, statistics do not tell: {_LONGER}",
    "first-fault-not-of-this-input": "what is wrong first was not made of it",
    "loss-gradient-of-the-same-labels": "the gradient of the loss is made of the same labels",
    "labels-shifted-by-the-other-loss": "that is right if the loss of the other side shifts them as far itself",
    "loss-and-gradients-agree": "the loss and the gradients agree, and nothing else is made of it",
    "loss-without-outputs": (
        "step {step}: the loss differs ({a:.9g} against {b:.9g}), and the outputs that it is computed from were not compared: record the "
        "phase forward of all modules"
    ),
    # gradients and updates
    "gradient-of-a-lone-caller": lambda caller, step, path, slot, error: (
        f"{_gradient(step, path, 'output', slot, error)}; {caller}, which calls it, has no call that it could be compared with: where one "
        "side calls that more often, record it alone, and sums of gradients are compared"
    ),
    "gradient-without-outputs": (
        "step {step}: the gradient that comes back to the model's output {slot} differs (rel {error:.1e}), and the outputs were not "
        "compared: record the phase forward too"
    ),
    "gradient-with-nothing-behind": lambda what, step, path, slot, error: (
        f"{_gradient(step, path, what, slot, error)}, and nothing behind it was compared: record the modules behind it too"
    ),
    "parameter-gradients-not-compared": lambda are_recorded: (
        "parameter gradients are "
        f"{'of weights that have no counterpart' if are_recorded else 'recorded on one side only'}: they are not compared"
    ),
    "gradients-routed-otherwise": (
        "the batch was split otherwise, and rounding has sent some elements another way (routing to experts): parameter gradients are not "
        "judged"
    ),
    "gradients-reduced-behind-backward": _reduced,
    "gradients-of-another-split": (
        "step {step}: {differing} of {judged} parameter gradients differ by up to {worst:.1e}; the batch was split otherwise, and what "
        "the weights' differences since the first step make of them was not compared: split it alike, or compare the first step alone"
    ),
    "factor-not-used": lambda scaling, advice: (
        f"{scaling}, the optimizer used them without that factor: {advice or ''}"
    ),
    "factors-not-used": "{scaling}; those that the optimizer used agree",
    "clipped-by-a-rounded-norm": (
        "all gradients that the optimizer used are longer or shorter in B by {error:.1e}: the norm that both are clipped by is a sum of "
        "many squares in float32, whose rounding can do that"
    ),
    "used-gradients-alone-recorded": (
        "step {step}: the gradients that the optimizer used differ (rel {error:.1e}), and those that backward left were not recorded on "
        "both sides: record the phases backward and gradient too"
    ),
    "settings-of-unknown-effect": _unknown_settings,
    "settings-not-shown": _not_shown,
    "last-step-writes-on-one-side": (
        "step {step} is the last, and {side} alone writes to weights in it behind their calls: they are not compared; record another step"
    ),
    "writes-not-recorded": (
        "{side} writes to weights by itself (averages, updates by hand), which {other}'s recording does not tell: they are not compared"
    ),
    "weights-replaced": (
        "{side}'s weights were replaced after probe.start(), and what became of them is not recorded: no update was compared"
    ),
}
