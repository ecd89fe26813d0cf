"""Why two tensors could not be compared, or how they were (`Metrics.why`)."""

from __future__ import annotations

from collections.abc import Callable, Sequence

INVERSES = "two masks, True in one where the other is False: compared by where they mask"
_NOT_FINITE = ("NaN", "+Inf", "-Inf")


def _counts(a: Sequence[int], b: Sequence[int]) -> str:
    in_a, in_b = (
        ", ".join(f"{count} {name}" for count, name in zip(side, _NOT_FINITE, strict=True) if count) for side in (a, b)
    )
    return f"A has {in_a or 'only finite values'}, B has {in_b or 'only finite values'}"


WORDS: dict[str, str | Callable[..., str]] = {
    "no-statistics": "no statistics were recorded",
    "calls-do-not-join": lambda part, whole: f"{list(part)} of several calls do not join to {list(whole)}",
    "shapes-differ": lambda a, b: f"shape {list(a)} against {list(b)}",
    "kinds-differ": "{a} against {b}",
    "squares-overflow": "the squares of the elements overflow",
    "axes-may-be-swapped": "axes of the same size may be swapped; record with task='tensor' to decide",
    "elements-may-be-reordered": "the elements may stand in another order: axes were merged or split",
    "sketches-do-not-correspond": (
        "of a sum or difference of tensors nothing is known but a sketch, and these two do not correspond"
    ),
    "nonfinite-counts": _counts,
    "nonfinite-on-one-side": lambda count: (
        f"{count} {'element is' if count == 1 else 'elements are'} NaN or Inf on one side only"
    ),
    "masks-are-inverses": INVERSES,
    "masks-of-other-numbers": "two masks, {a:.3g} in A and {b:.3g} in B: compared by where they mask",
    "masks-of-other-kinds": "two masks, {a} in A and {b} in B: compared by where they mask",
}
