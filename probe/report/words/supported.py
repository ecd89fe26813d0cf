"""What the numbers of a finding support (`probe.comparison.hints`)."""

from __future__ import annotations

from collections.abc import Callable

from probe.comparison.notes import Note
from probe.report.words.checks import CHECKS


def _supported(name: str, found: Note, is_verified: bool, by: Note | None) -> str:
    from_what = f" from {by}" if by else ""
    return f"{found}{f' (verified{from_what})' if is_verified else ''}: look at {CHECKS[name]}"


def _multiple(factor: float, meaning: Note | None) -> str:
    return f"B is {factor:.7g} times A{meaning or ''}"


def _value_for_another(a: int, b: int, count: int, among: int) -> str:
    where = "everywhere" if count == among else f"in {count} of the {among} places where A has it"
    return f"{a} on A is {b} on B {where}, and nothing else differs"


def _bias(side: str, is_minus: bool, what: str) -> str:
    return f"{side} {what}: B − A is {'−' if is_minus else ''}the recorded bias"


def _bias_lacking(side: str, is_minus: bool) -> str:
    return _bias(side, is_minus, "lacks the bias")


def _bias_twice(side: str, is_minus: bool) -> str:
    return _bias(side, is_minus, "adds the bias twice")


def _shift(shift: float) -> str:
    return f"B is A {_signed(shift)} everywhere"


def _shift_by_statistics(shift: float) -> str:
    return f"B is A {_signed(shift)}, by mean, minimum and maximum"


def _signed(shift: float) -> str:
    return f"{'+' if shift > 0 else '−'} {abs(shift):.5g}"


def _clamped(side: str, bounds: tuple[str, ...], elements: int) -> str:
    return f"{side} cuts values off at {' and '.join(bounds)} ({elements} elements)"


# Places


def _runs(runs: tuple[tuple[int, int], ...], more: int) -> str:
    """Write indices, runs as ``3–7``."""
    texts = [str(first) if first == last else f"{first}–{last}" for first, last in runs]
    return ", ".join(texts) + (f" and {more} more" if more else "")


def _argument(slot: str) -> str:
    return f"argument {slot}" if slot[:1].isdigit() else slot


def _error_in_padding(mask: str) -> str:
    return f"all of the error is where {_argument(mask)} is 0, in padding"


def _zero_tokens(rows: int, side: str, mask: str, masked: int) -> str:
    whole = "1 token is" if rows == 1 else f"{rows} tokens are"
    return (
        f"{whole} zero in {side} alone, and {_argument(mask)} is 0 for {masked}: it may lie in padding alone, "
        "which task='tensor' tells"
    )


def _only(noun: str) -> Callable[..., str]:
    def words(count: int, size: int, which: Note) -> str:
        return f"only {_count(count, noun)} of {size} differ{'s' * (count == 1)}: {which}"

    return words


def _only_samples(count: int, size: int, which: Note) -> str:
    return f"only {_count(count, 'sample')} of the {size} in the batch differ{'s' * (count == 1)}: {which}"


def _only_heads(count: int, which: Note, size: int, channels: int) -> str:
    who = f"{'head' if count == 1 else 'heads'} {which} of {size}"
    return f"only {who} differ{'s' * (count == 1)} (of {channels} channels each)"


def _only_elements(count: int, size: int, first: tuple[int, ...]) -> str:
    return f"only {_count(count, 'element')} of {size} differ{'s' * (count == 1)}, the first at {list(first)}"


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" + ("" if number == 1 else "s")


# Orders


def _axes_in_order(order: tuple[int, ...]) -> str:
    return f"B is A with its axes in the order {', '.join(map(str, order))}"


def _parts_in_order(size: int, order: tuple[int, ...]) -> str:
    return f"its {len(order)} parts of {size} as {', '.join(map(str, order))}"


# Gradients and losses


def _number(factor: float, count: float) -> str:
    return f"{count:g}" if factor > 1 else f"1/{count:g}"


def _gradient_times_a_count(factor: float, count: float, of: Note) -> str:
    return f"B's gradient is {_number(factor, count)} times A's, and {count:g} is {of}"


def _loss_times_a_count(factor: float, count: float, of: Note, adding: str) -> str:
    how = f"{adding} adds up where {'A' if adding == 'B' else 'B'} takes the mean"
    return f"B is {_number(factor, count)} times A, and {count:g} is {of}: {how}"


def _gradient_of_linear(right: str, wrong: str, factor: float | None) -> str:
    but = "is not" if factor is None else f"is {factor:.6g} times that"
    return f"{right}'s gradient is what its own input, weight and output's gradient give, {wrong}'s {but}"


def _multiple_of_parameter(of_gradients: bool, factor: float, more: Note | None) -> str:
    what = "gradients as the optimizer used them" if of_gradients else "updates"
    return f"the difference of the {what} is {factor:.3g} times the parameter{more or ''}"


def _loss_of_step(micro_batches: int, ways: tuple[Note, ...]) -> str:
    times = f"in each of {micro_batches} micro-batches" if micro_batches > 1 else "in its only forward"
    how = f"; what was given for the step is {ways[0]} on A, {ways[1]} on B" if ways else ""
    return f"what the model returns as its loss agrees {times}, and the number for the step does not{how}"


# Formulas


def _output_of(module: str, slot: str) -> str:
    return f"{module} {slot}" if slot != "0" else module


def _one_of(ways: tuple[Note, ...]) -> str:
    return " or ".join(map(str, ways))


def _returns_input(side: str, other: str, only: tuple[str, ...]) -> str:
    lacks = f"; {' and '.join(only)} {'exists' if len(only) == 1 else 'exist'} on {other} only" if only else ""
    return f"{side} returns its input unchanged, bit for bit, {other} does not{lacks}"


def _cut_off_at_zero(side: str, other: str, share: float, low: float, function: str) -> str:
    as_what = f", as {function} does" if function else ""
    return (
        f"nothing in {side} is below 0 and {share:.1%} of its elements are 0, as relu makes it; {other} goes down to "
        f"{low:.3g}{as_what}"
    )


def _parts_exchanged(taken: tuple[tuple[str, str], ...]) -> str:
    return f"{', '.join(f'{name} for {other}' for name, other in taken)} (their order in one tensor)"


def _rotary(what: str) -> Callable[..., str]:
    def words(a: object, b: object) -> str:
        shown = [f"{each:.6g}" if isinstance(each, float) else str(each) for each in (a, b)]
        return f"{what} {shown[0]} in A, {shown[1]} in B"

    return words


def _rotary_embeddings(differing: tuple[Note, ...]) -> str:
    return "; ".join(map(str, differing))


def _check(name: str) -> str:
    return CHECKS[name]


WORDS: dict[str, str | Callable[..., str]] = {
    "check": _check,
    "supported": _supported,
    "verified": "{found} (verified)",
    # what it was verified from
    "from-records": "what was recorded",
    "from-input-and-weight": "the recorded input and weight",
    "from-weight-and-gradient": "the recorded weight and gradient",
    "from-angles": "the recorded angles",
    "from-inputs": "the recorded inputs",
    "from-norms": "their norms",
    "from-sketches": "sketches",
    "from-logits-and-labels": "the recorded logits and labels",
    "from-outputs": "the recorded outputs",
    "from-sums-of-rows-and-columns": "the sums of its rows and columns",
    "from-input-weight-and-output": "the recorded input, weight and output",
    "from-input-and-output": "the recorded input and output",
    "from-queries-keys-and-values": "the recorded queries, keys and values",
    # multiples
    "multiple": _multiple,
    "uniform-scale": ", a uniform scale of the value",
    "root-of-two": ", which is √2",
    "one-over-root-of-two": ", which is 1/√2",
    "root-of-size": ", which is √{size:.0f}, the root of {of}",
    "one-over-root-of-size": ", which is 1/√{size:.0f}, one over the root of {of}",
    "kept-by-dropout": ", which is 1/(1 − {rate}), as dropout of {rate} multiplies what it keeps",
    "width": "the width",
    "head-size": "the head size",
    "opposite-sign": "B is −A: the sign is the opposite everywhere",
    "value-for-another": _value_for_another,
    "scale-of-columns": "B is A times a factor of each column, the same in all rows ({low:.5g} to {high:.5g}), as a weight would multiply it",
    "scale-of-rows": (
        "B is A times a factor of each row, the same in all its elements ({low:.5g} to {high:.5g}), as a normalisation "
        "would multiply it"
    ),
    # sums
    "bias-lacking": _bias_lacking,
    "bias-twice": _bias_twice,
    "same-vector-in-every-row": "the same vector is added to every row",
    "shift": _shift,
    "shift-by-statistics": _shift_by_statistics,
    # the form of the elements
    "error-grows-with-position": (
        "no error at the first position, then it grows with it (rank correlation {correlation:.2f}, rel {last:.1e} at the last)"
    ),
    "error-grows-towards-first-position": (
        "the last position agrees, and the error grows towards the first one, as if one side looked ahead"
    ),
    "clamped": _clamped,
    "other-zeros-on-each-side": (
        "other elements are zero on each side ({zeros_a:.1%} in A alone, {zeros_b:.1%} in B alone), the rest agrees"
    ),
    "dropped-out": "{share:.1%} of the elements are zero in {side} alone, the others {factor:.4g} times as large",
    "dropped-out-by-norm": "{share:.1%} of the elements are zero in {side} alone, and its norm is as dropout makes it",
    "rounded-value-of-other-side": "{side} is the other side's value rounded to {format}, though they are {dtype}",
    "has-fewer-bits": "all numbers of {side} have the bits of {format}, though they are {dtype}",
    "other-dtypes": "A is {a}, B {b}: {side} is computed or kept in {coarse}",
    "one-number": "all elements of {side} are {number:.6g}",
    "drawn-anew": "the two weights have the same spread and nothing else in common, as if drawn anew",
    # places
    "runs": _runs,
    "error-in-padding": _error_in_padding,
    "zero-tokens-may-be-padding": _zero_tokens,
    "only-last-position": "only the last of {size} positions differs",
    "only-first-position": "only the first of {size} positions differs",
    "differs-from-position-on": "the positions before {start} agree, all from {start} of {size} on differ",
    "only-some-positions": _only("position"),
    "only-some-ids": "all rows of the ids {which} differ and no others",
    "only-some-samples": _only_samples,
    "only-some-heads": _only_heads,
    "only-some-columns": _only("column"),
    "only-some-rows": _only("row"),
    "only-some-elements": _only_elements,
    # orders
    "transpose": "B is the transpose of A",
    "axes-in-order": _axes_in_order,
    "transposed-and-read-by-row": "B is A transposed and then read row by row (a view instead of a transpose)",
    "read-by-column": "B is A read column by column (a view instead of a transpose)",
    "heads-not-swapped-back": (
        "{side} reads [{heads} heads, positions, size] as [positions, {heads} heads, size], without swapping them back"
    ),
    "shifted-position": "{behind} has at position p what {ahead} has at p + {by}",
    "permuted": "B has the {axis} of A in another order, {order}",
    "elements": "elements",
    "rows": "rows",
    "columns": "columns",
    "positions": "positions",
    "indices-of-axis": "indices of axis {axis}",
    "last-first": "the last first",
    "inside-blocks": "{order} inside each block of {block}",
    "moved-by": "moved by {by}",
    "halves-for-pairs": "halves for pairs (rotary layouts)",
    "pairs-for-halves": "pairs for halves (rotary layouts)",
    "parts-not-interleaved": "{parts} parts one after the other instead of interleaved",
    "parts-interleaved": "{parts} parts interleaved instead of one after the other",
    "parts-in-order": _parts_in_order,
    "parts-elsewhere": "{moved} of its {parts} parts of {size} elsewhere",
    "two-swapped": "{one} and {other} swapped",
    "indices-elsewhere": "{moved} of {size} elsewhere",
    # normalisations
    "other-eps": "A used eps {a}, B {b}",
    "eps": "{eps:.1e}",
    "eps-below": "below {bound:.0e}",
    "place-of-eps": "A adds eps {a} the root, B adds eps {b} the root",
    "eps-under-root": "under",
    "eps-outside-root": "outside",
    "divisor-of-squares": "A takes squares {a}, B takes squares {b}",
    "divided-by-n": "divided by n",
    "divided-by-n-minus-1": "divided by n − 1",
    "norm-statistics": "A normalises by the {a}, B normalises by the {b}",
    "mean-and-variance": "mean and variance",
    "mean-square": "mean square",
    "running-mean-and-variance": "running mean and variance",
    "norm-weight": "A multiplies by {a}, B multiplies by {b}",
    "weight": "weight",
    "one-plus-weight": "1 + weight",
    "no-weight": "no weight",
    "norm-bias": "A adds {a}, B adds {b}",
    "bias": "bias",
    "no-bias": "no bias",
    "norm-groups": "A normalises in {a} groups, B normalises in {b} groups",
    "variance-of-batch": "A takes the variance of the batch {a}, B {b}",
    "momentum-of-statistics": "A gives the batch's statistics a weight of {a:.4g}, B of {b:.4g} (momentum)",
    # rotary embeddings
    "rotary-embeddings": _rotary_embeddings,
    "rotary-base": _rotary("base"),
    "rotary-stretch": _rotary("position scaling"),
    "rotary-layout": _rotary("layout"),
    "rotary-first": _rotary("first position"),
    # formulas
    "computes": "A computes {a}, B {b}",
    "returns": "A returns {a}, B {b}",
    "computes-another-function": "{side} computes {function}, {other} another function of the same elements",
    "one-of": _one_of,
    "function": "{name}",
    "leaky-relu": "leaky relu with slope {slope:.4g}",
    "softmax-over-axis": "softmax over axis {axis}",
    "softmax-with-one-added": "softmax with 1 added to the sum",
    "log-softmax": "log softmax",
    "softmax-in": "softmax in {format}",
    "softmax-of-divided-scores": "softmax of scores divided by {by}",
    "softmax-of-multiplied-scores": "softmax of scores times {by}",
    "product": "x · Wᵀ",
    "product-with-bias": "x · Wᵀ + bias",
    "product-without-bias": "x · Wᵀ without the bias",
    "product-with-bias-twice": "x · Wᵀ + bias twice",
    "product-of-rounded": "x · Wᵀ of numbers rounded to {format}",
    "product-not-transposed": "x · W, the weight not transposed,",
    "output-of": _output_of,
    "output-alone": "{of} alone",
    "output-plus-input": "{of} + input",
    "output-plus-twice-the-input": "{of} + twice the input",
    "outputs-without-input": "{one} + {other} without the input",
    "outputs-plus-input": "{one} + {other} + input",
    "multiple-of-input": "B − A is {share:.5g} times what came in",
    "returns-its-input": _returns_input,
    "cut-off-at-zero": _cut_off_at_zero,
    "gate-and-up-exchanged": (
        "A multiplies {activation} of one tensor by the other, B {activation} of the other by the first: gate and up change places"
    ),
    "output-of-one-rank": (
        "{side} returns {product} of what this rank holds, {other} does not: as where what all ranks compute is added up on "
        "{other} only"
    ),
    "gradient-of-one-rank": (
        "{side} passes back what this rank's own weight and output's gradient give, {other} does not: as where what all "
        "ranks pass back is added up on {other} only"
    ),
    # attention
    "attention-differs": "A's attention has {a}, B's {b}",
    "parts-as-recorded": "queries, keys and values as they were recorded",
    "parts-exchanged": _parts_exchanged,
    "no-rotary": "no rotary embedding",
    "rotary-of-halves": "rotary embeddings of halves",
    "rotary-backwards": "rotary embeddings turned backwards",
    "rotary-of-pairs": "rotary embeddings of pairs",
    "rotary-of-pairs-with-angles-of-halves": "rotary embeddings of pairs with the angles of halves",
    "rotary-of-queries": "rotary embeddings of queries alone",
    "rotary-of-keys": "rotary embeddings of keys alone",
    "causal-mask": "a causal mask",
    "no-mask": "no mask",
    "mask-that-hides": "a mask that hides {share:.4g} of the scores",
    "divided-by-root-of-head-size": "scores divided by √head size",
    "not-divided": "scores not divided",
    "divided-by-root-of-width": "scores divided by √width",
    "divided-by-head-size": "scores divided by the head size",
    "scores-times": "scores times {factor:.6g}, {times:.6g} times that",
    "heads-repeated-in-place": "each key and value head repeated in place",
    "heads-repeated-as-a-whole": "the key and value heads repeated as a whole",
    # losses
    "cross-entropies": "A's loss is a cross entropy {a}, B's {b}",
    "label-at-same-position": "with the label at the same position",
    "label-at-next-position": "with the label at the next position",
    "label-two-positions-on": "with the label two positions on",
    "all-tokens": "of all tokens",
    "without-label": "without the label {label}",
    "no-label-smoothing": "without label smoothing",
    "label-smoothing": "with label smoothing {share:g}",
    "mean-over-what-counts": "as a mean over what counts",
    "sum-of-all": "as a sum",
    "sum-over-samples": "as a sum over the samples' number",
    "mean-over-all-tokens": "as a mean over all tokens, ignored ones too",
    "loss-of-step-differs": _loss_of_step,
    "mean-of-micro-batches": "their mean",
    "sum-of-micro-batches": "their sum",
    "last-micro-batch": "the last of them",
    "neither-mean-nor-sum": "neither their mean nor their sum",
    "loss-times-a-count": _loss_times_a_count,
    "number-of-micro-batches": "the number of micro-batches",
    "world-size": "the world size",
    "number-of-samples": "the number of samples",
    "number-of-tokens": "the number of tokens",
    "number-of-tokens-with-a-next": "the number of tokens that have a next one",
    "number-of-positions": "the number of positions",
    "number-of-next-tokens": "the number of next tokens",
    # gradients and updates
    "gradient-times-a-count": _gradient_times_a_count,
    "one-gradient-is-a-multiple": "B's gradient of this parameter is {factor:.6g} times A's, while those of others agree",
    "gradient-is-a-multiple-from-here": (
        "B's gradient is {factor:.6g} times A's from here on, while those that ran back before it agree"
    ),
    "gradient-of-linear": _gradient_of_linear,
    "gradient-passed-through": "{side} passes back the gradient of its output unchanged",
    "gradients-treated-otherwise": "A {a}, B {b}",
    "clips-each-gradient": "clips each parameter's gradient to a norm of {norm:.4g}",
    "leaves-gradients": "leaves them as they are (norm {norm:.4g})",
    "multiplies-gradients": "multiplies all gradients by {factor:.4g}, to a norm of {norm:.4g} (before {before:.4g})",
    "difference-is-multiple-of-parameter": _multiple_of_parameter,
    "more-weight-decay": "; at the learning rate {rate:g} that is {decay:.3g} more weight decay on {side}",
    "update-as-learning-rate": "B's update is {factor:.5g} times A's, and so is its learning rate ({a:g} and {b:g})",
    "update-is-a-multiple": "B's update is {factor:.5g} times A's",
}
