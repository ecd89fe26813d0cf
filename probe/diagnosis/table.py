"""The hints: what an error looks like, and the test that holds it against what was recorded; `probe.report.words.checks` says what to look at.

Where several fit as well, the first of them is said first: what is more specific stands before what is less.
"""

from __future__ import annotations

from functools import partial

from probe.diagnosis import formulas
from probe.diagnosis.causes import attention, gates, losses, norms, orders, patterns, places, ranks, sizes, training
from probe.diagnosis.hint import ACTIVATIONS, GRADIENTS, LOSSES, WEIGHTS, Hint
from probe.records import Role

OUTPUT = (Role.OUTPUT,)
HINTS = (
    Hint("eps", OUTPUT, norms.eps),
    Hint("eps outside the root", OUTPUT, partial(norms.differs, part="form", at=1, code="place-of-eps")),
    Hint("unbiased variance", OUTPUT, partial(norms.differs, part="form", at=0, code="divisor-of-squares")),
    Hint("norm statistics", OUTPUT, partial(norms.differs, part="way", at=0, code="norm-statistics")),
    Hint("norm weight", OUTPUT, partial(norms.differs, part="way", at=1, code="norm-weight")),
    Hint("norm bias", OUTPUT, partial(norms.differs, part="way", at=2, code="norm-bias")),
    Hint("norm groups", OUTPUT, partial(norms.differs, part="way", at=3, code="norm-groups")),
    Hint("activation", (Role.INPUT, Role.OUTPUT), formulas.activation),
    Hint("softmax", OUTPUT, formulas.softmax),
    Hint("returns its input", OUTPUT, formulas.returns_input),
    Hint("gate and up", ACTIVATIONS, gates.exchanged_gate),
    Hint("order of queries, keys and values", ACTIVATIONS, partial(attention.attention, part="parts")),
    Hint("causal mask", ACTIVATIONS, partial(attention.attention, part="mask")),
    Hint("attention scale", ACTIVATIONS, partial(attention.attention, part="scale")),
    Hint("key and value groups", ACTIVATIONS, partial(attention.attention, part="groups")),
    Hint("rotary embeddings in attention", ACTIVATIONS, partial(attention.attention, part="rotary")),
    Hint("rotary", ACTIVATIONS, sizes.rotary),
    Hint("low precision product", OUTPUT, formulas.linear_precision),
    Hint("output of one rank", OUTPUT, ranks.output_of_one_rank),
    Hint("gradient of one rank", (Role.GRAD_INPUT,), ranks.gradient_of_one_rank),
    Hint("linear", OUTPUT, formulas.linear),
    Hint("linear gradient", GRADIENTS, training.linear_gradient),
    Hint("gradient passed through", GRADIENTS, training.straight_through),
    Hint("residual", OUTPUT, formulas.residual),
    Hint("multiple of the input", OUTPUT, formulas.share_of_input),
    Hint("running statistics", (Role.BUFFER,), sizes.momentum),
    Hint("losses added up", LOSSES, losses.added_up),
    Hint("shift of the labels", LOSSES, partial(losses.loss, part="shift")),
    Hint("ignored labels", LOSSES, partial(losses.loss, part="ignored")),
    Hint("label smoothing", LOSSES, partial(losses.loss, part="smoothing")),
    Hint("loss reduction", LOSSES, partial(losses.loss, part="reduction")),
    Hint("loss times a count", LOSSES, losses.loss_factor),
    Hint("clipping", GRADIENTS, training.clipping),
    Hint("one gradient", (Role.PARAM_GRAD,), training.one_gradient),
    Hint("gradient of one module", GRADIENTS, training.one_module),
    Hint("gradient divided by a count", GRADIENTS, training.gradient_factor),
    Hint("weight decay", (*GRADIENTS, Role.DELTA), training.weight_decay),
    Hint("one value for another", ACTIVATIONS, patterns.value_for_another),
    Hint("scale of an input", (Role.INPUT, Role.VALUE), patterns.scale_of_input),
    Hint("sign", (*ACTIVATIONS, *WEIGHTS, *GRADIENTS, Role.DELTA), patterns.sign),
    Hint("doubled or halved", (*ACTIVATIONS, *WEIGHTS), patterns.doubled),
    Hint("gradient doubled or halved", GRADIENTS, patterns.doubled),
    Hint("known factor", ACTIVATIONS, patterns.known_scale),
    Hint("learning rate", (Role.DELTA,), training.learning_rate),
    Hint("one number", (*ACTIVATIONS, *WEIGHTS, *GRADIENTS, Role.BUFFER), sizes.one_number),
    Hint("uniform scale", (Role.INPUT, Role.OUTPUT), patterns.uniform_scale),
    Hint("weight scale", WEIGHTS, patterns.uniform_scale),
    Hint("gradient scale", GRADIENTS, patterns.scale_of_gradient),
    Hint("scale of a used gradient", (Role.PARAM_GRAD,), patterns.scale_of_used_gradient),
    Hint("bias", OUTPUT, patterns.bias),
    Hint("counted from another number", ACTIVATIONS, patterns.counted_on),
    Hint("constant shift", ACTIVATIONS, patterns.constant_shift),
    Hint("same vector in every row", ACTIVATIONS, patterns.shift_by_column),
    Hint("transposed", (*ACTIVATIONS, *WEIGHTS), orders.transposed),
    Hint("shifted position", ACTIVATIONS, orders.shifted),
    Hint("permuted", (*ACTIVATIONS, *WEIGHTS), orders.permuted),
    Hint("drawn anew", WEIGHTS, sizes.redrawn),
    Hint("dropout", ACTIVATIONS, patterns.dropout),
    Hint("cut off", ACTIVATIONS, patterns.clamp),
    Hint("rounded", (*ACTIVATIONS, *WEIGHTS, *GRADIENTS), sizes.precision),
    Hint("dtype", (*ACTIVATIONS, *GRADIENTS), sizes.dtype),
    Hint("single elements", (*ACTIVATIONS, *WEIGHTS, *GRADIENTS), places.few_elements),
    Hint("padding", ACTIVATIONS, places.padding),
    Hint("some ids", ACTIVATIONS, places.some_tokens),
    Hint("last position", ACTIVATIONS, partial(places.one_position, at=-1, code="only-last-position")),
    Hint("first position", ACTIVATIONS, partial(places.one_position, at=0, code="only-first-position")),
    Hint("positions alone", OUTPUT, places.positions_alone),
    Hint("looks ahead", ACTIVATIONS, patterns.looks_ahead),
    Hint("grows with position", ACTIVATIONS, patterns.growth),
    Hint("from a position on", ACTIVATIONS, places.from_position),
    Hint("some positions", ACTIVATIONS, places.some_positions),
    Hint("some samples", ACTIVATIONS, places.some_samples),
    Hint("some heads", (*ACTIVATIONS, *WEIGHTS, *GRADIENTS), places.some_heads),
    Hint("some rows", (*WEIGHTS, *GRADIENTS), partial(places.some_indices, axis=0, code="only-some-rows")),
    Hint(
        "some columns",
        (*ACTIVATIONS, *WEIGHTS, *GRADIENTS),
        partial(places.some_indices, axis=-1, code="only-some-columns"),
    ),
    Hint("scale of columns", (*ACTIVATIONS, *WEIGHTS), partial(patterns.scale_along, axis=-1, code="scale-of-columns")),
    Hint("scale of rows", ACTIVATIONS, partial(patterns.scale_along, axis=0, code="scale-of-rows")),
)
OF_NUMBERS = tuple(hint for hint in HINTS if hint.roles is LOSSES)
"""those for a single number"""
