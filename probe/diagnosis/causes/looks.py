"""Hints that say what the difference itself looks like: multiples, sums, other places, and where the error sits."""

from __future__ import annotations

from probe.diagnosis.causes import orders, patterns, places, sizes, training
from probe.diagnosis.hint import ACTIVATIONS, GRADIENTS, WEIGHTS, Hint
from probe.records import Role

LOOKS = (
    # Multiples of the value
    Hint(
        "sign", (*ACTIVATIONS, *WEIGHTS, *GRADIENTS, Role.DELTA),
        "B is −A",
        patterns.sign,
    ),
    Hint(
        "doubled or halved", (*ACTIVATIONS, *WEIGHTS),
        "B is twice A, or half of it",
        patterns.doubled,
    ),
    Hint(
        "gradient doubled or halved", GRADIENTS,
        "B is twice A, or half of it, from the loss on",
        patterns.doubled,
    ),
    Hint(
        "known factor", ACTIVATIONS,
        "B is A times a root of the width or of the head size, √2, or 1/(1 − p)",
        patterns.known_scale,
    ),
    Hint(
        "learning rate", (Role.DELTA,),
        "one update is a multiple of the other",
        training.learning_rate,
    ),
    Hint(
        "one number", (*ACTIVATIONS, *WEIGHTS, *GRADIENTS, Role.BUFFER),
        "all elements of one side are one number: 0, 1 …",
        sizes.one_number,
    ),
    Hint(
        "uniform scale", (Role.INPUT, Role.OUTPUT),
        "B is A times one number, or the error is parallel to the value",
        patterns.uniform_scale,
    ),
    Hint(
        "weight scale", WEIGHTS,
        "B is A times one number",
        patterns.uniform_scale,
    ),
    Hint(
        "gradient scale", GRADIENTS,
        "B is A times one number",
        patterns.scale_of_gradient,
    ),
    Hint(
        "scale of a used gradient", (Role.PARAM_GRAD,),
        "a gradient is B's times one number as the optimizer used it, and not as backward left it",
        patterns.scale_of_used_gradient,
    ),
    # Additions
    Hint(
        "bias", (Role.OUTPUT,),
        "B − A is the module's recorded bias, or minus it",
        patterns.bias,
    ),
    Hint(
        "counted from another number", ACTIVATIONS, "B − A is one number, of integers",
        patterns.counted_on,
    ),
    Hint(
        "constant shift", ACTIVATIONS,
        "B − A is one number",
        patterns.constant_shift,
    ),
    Hint(
        "same vector in every row", ACTIVATIONS,
        "B − A is the same in all rows",
        patterns.shift_by_column,
    ),
    # The same numbers elsewhere
    Hint(
        "transposed", (*ACTIVATIONS, *WEIGHTS),
        "A with two axes swapped is B, or A read in the other order; of a weight at the beginning, the sums of rows and columns say so too",
        orders.transposed,
    ),
    Hint(
        "shifted position", ACTIVATIONS, "B has at each position what A has at another one",
        orders.shifted,
    ),
    Hint(
        "permuted", (*ACTIVATIONS, *WEIGHTS),
        "A with the indices of one axis in another order is B; the order is solved for; of a weight at the beginning, from the sums of rows and columns too",
        orders.permuted,
    ),
    Hint(
        "drawn anew", WEIGHTS,
        "weights of the same spread without anything else in common",
        sizes.redrawn,
    ),
    # The form of the elements
    Hint(
        "dropout", ACTIVATIONS,
        "some elements are zero on one side alone, the others larger; or other ones on each side",
        patterns.dropout,
    ),
    Hint(
        "cut off", ACTIVATIONS,
        "one side has no values beyond a bound",
        patterns.clamp,
    ),
    Hint(
        "rounded", (*ACTIVATIONS, *WEIGHTS, *GRADIENTS),
        "the numbers of one side have fewer bits than their dtype",
        sizes.precision,
    ),
    Hint(
        "dtype", (*ACTIVATIONS, *GRADIENTS),
        "the two tensors have other dtypes",
        sizes.dtype,
    ),
    # Where the error sits
    Hint(
        "single elements", (*ACTIVATIONS, *WEIGHTS, *GRADIENTS),
        "at most one element in 1,000",
        places.few_elements,
    ),
    Hint(
        "padding", ACTIVATIONS,
        "all of the error is where a mask that the model was given is 0",
        places.padding,
    ),
    Hint(
        "some ids", ACTIVATIONS,
        "all rows of some token ids differ, no others",
        places.some_tokens,
    ),
    Hint(
        "last position", ACTIVATIONS,
        "only the last position",
        places.last_position,
    ),
    Hint(
        "first position", ACTIVATIONS,
        "only the first position",
        places.first_position,
    ),
    Hint(
        "positions alone", (Role.OUTPUT,),
        "some positions of a linear layer, a norm or an activation, which treat each position by itself",
        places.positions_alone,
    ),
    Hint(
        "looks ahead", ACTIVATIONS,
        "in attention, the last position agrees and the error grows towards the first one",
        patterns.looks_ahead,
    ),
    Hint(
        "grows with position", ACTIVATIONS,
        "the first position agrees and the error grows with the position",
        patterns.growth,
    ),
    Hint(
        "from a position on", ACTIVATIONS,
        "all positions from one on differ, none before it",
        places.from_position,
    ),
    Hint(
        "some positions", ACTIVATIONS,
        "a few positions",
        places.some_positions,
    ),
    Hint(
        "some samples", ACTIVATIONS,
        "a part of the batch",
        places.some_samples,
    ),
    Hint(
        "some heads", (*ACTIVATIONS, *WEIGHTS, *GRADIENTS),
        "whole heads",
        places.some_heads,
    ),
    Hint(
        "some rows", (*WEIGHTS, *GRADIENTS),
        "a few rows of a weight",
        places.some_rows,
    ),
    Hint(
        "some columns", (*ACTIVATIONS, *WEIGHTS, *GRADIENTS),
        "a few indices of the last axis",
        places.some_columns,
    ),
    # Multiples that differ
    Hint(
        "scale of columns", (*ACTIVATIONS, *WEIGHTS),
        "B is A times one number for each column",
        patterns.scale_by_column,
    ),
    Hint(
        "scale of rows", ACTIVATIONS,
        "B is A times one number for each row",
        patterns.scale_by_row,
    ),
)  # fmt: skip
"""what is more specific first"""
