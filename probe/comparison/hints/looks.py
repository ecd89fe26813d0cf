"""Hints that say what the difference itself looks like: multiples, sums, other places, and where the error sits."""

from __future__ import annotations

from probe.comparison.hints import orders, patterns, places, sizes, training
from probe.comparison.hints.hint import ACTIVATIONS, GRADIENTS, WEIGHTS, Hint
from probe.records import Role

LOOKS = (
    # Multiples of the value
    Hint(
        "sign", (*ACTIVATIONS, *WEIGHTS, *GRADIENTS, Role.DELTA),
        "B is −A",
        "the sign: maximize=, the sign of the loss, a swapped difference",
        patterns.sign,
    ),
    Hint(
        "doubled or halved", (*ACTIVATIONS, *WEIGHTS),
        "B is twice A, or half of it",
        "what is added or called twice, averaged, or split in two",
        patterns.doubled,
    ),
    Hint(
        "gradient doubled or halved", GRADIENTS,
        "B is twice A, or half of it, from the loss on",
        "accumulation, reduction of the loss, world size",
        patterns.doubled,
    ),
    Hint(
        "known factor", ACTIVATIONS,
        "B is A times a root of the width or of the head size, √2, or 1/(1 − p)",
        "scaling of embeddings and scores, and dropout",
        patterns.known_scale,
    ),
    Hint(
        "learning rate", (Role.DELTA,),
        "one update is a multiple of the other",
        "the learning rate and its schedule",
        training.learning_rate,
    ),
    Hint(
        "one number", (*ACTIVATIONS, *WEIGHTS, *GRADIENTS, Role.BUFFER),
        "all elements of one side are one number: 0, 1 …",
        "whether this was loaded, or computed, at all",
        sizes.one_number,
    ),
    Hint(
        "uniform scale", (Role.INPUT, Role.OUTPUT),
        "B is A times one number, or the error is parallel to the value",
        "eps, a scale or a weight",
        patterns.uniform_scale,
    ),
    Hint(
        "weight scale", WEIGHTS,
        "B is A times one number",
        "how this weight is initialised, loaded or converted",
        patterns.uniform_scale,
    ),
    Hint(
        "gradient scale", GRADIENTS,
        "B is A times one number",
        "a factor in backward, the loss scale, and how the loss is reduced",
        patterns.scale_of_gradient,
    ),
    Hint(
        "scale of a used gradient", (Role.PARAM_GRAD,),
        "a gradient is B's times one number as the optimizer used it, and not as backward left it",
        "clipping (which gradients are clipped together, and by which norm), unscaling and the reduction over ranks",
        patterns.scale_of_used_gradient,
    ),
    # Additions
    Hint(
        "bias", (Role.OUTPUT,),
        "B − A is the module's recorded bias, or minus it",
        "whether the bias is added, once",
        patterns.bias,
    ),
    Hint(
        "counted from another number", ACTIVATIONS, "B − A is one number, of integers",
        "position ids and offsets: where each side begins to count (at 0, at 1, behind the padding)",
        patterns.counted_on,
    ),
    Hint(
        "constant shift", ACTIVATIONS,
        "B − A is one number",
        "a bias, a constant that is added, a mean that is subtracted",
        patterns.constant_shift,
    ),
    Hint(
        "same vector in every row", ACTIVATIONS,
        "B − A is the same in all rows",
        "a bias, or an embedding that is added to all positions",
        patterns.shift_by_column,
    ),
    # The same numbers elsewhere
    Hint(
        "transposed", (*ACTIVATIONS, *WEIGHTS),
        "A with two axes swapped is B, or A read in the other order; of a weight at the beginning, the sums of rows and columns say so too",
        "how this tensor is transposed, reshaped or converted",
        orders.transposed,
    ),
    Hint(
        "shifted position", ACTIVATIONS, "B has at each position what A has at another one",
        "position ids, the shift of the labels and the padding side",
        orders.shifted,
    ),
    Hint(
        "permuted", (*ACTIVATIONS, *WEIGHTS),
        "A with the indices of one axis in another order is B; the order is solved for; of a weight at the beginning, from the sums of rows and columns too",
        "the order of the parts (q, k, v; gate, up), of heads and of rotary halves in how this is stored",
        orders.permuted,
    ),
    Hint(
        "drawn anew", WEIGHTS,
        "weights of the same spread without anything else in common",
        "whether this weight was loaded, or drawn with another seed",
        sizes.redrawn,
    ),
    # The form of the elements
    Hint(
        "dropout", ACTIVATIONS,
        "some elements are zero on one side alone, the others larger; or other ones on each side",
        "dropout: switch it off on both sides, or give both the same random numbers",
        patterns.dropout,
    ),
    Hint(
        "cut off", ACTIVATIONS,
        "one side has no values beyond a bound",
        "clamping, saturation and the range of the dtype",
        patterns.clamp,
    ),
    Hint(
        "rounded", (*ACTIVATIONS, *WEIGHTS, *GRADIENTS),
        "the numbers of one side have fewer bits than their dtype",
        "casts and autocast around this module, and the dtype in which it was saved",
        sizes.precision,
    ),
    Hint(
        "dtype", (*ACTIVATIONS, *GRADIENTS),
        "the two tensors have other dtypes",
        "casts, autocast and the dtype that this module keeps",
        sizes.dtype,
    ),
    # Where the error sits
    Hint(
        "single elements", (*ACTIVATIONS, *WEIGHTS, *GRADIENTS),
        "at most one element in 1,000",
        "an index that is written to, a damaged value, a tie that was broken otherwise",
        places.few_elements,
    ),
    Hint(
        "padding", ACTIVATIONS,
        "all of the error is where a mask that the model was given is 0",
        "whether padding is masked alike; it may not matter",
        places.padding,
    ),
    Hint(
        "some ids", ACTIVATIONS,
        "all rows of some token ids differ, no others",
        "padding_idx, special tokens and the size of the vocabulary",
        places.some_tokens,
    ),
    Hint(
        "last position", ACTIVATIONS,
        "only the last position",
        "the shift of labels or inputs, and what is appended",
        places.last_position,
    ),
    Hint(
        "first position", ACTIVATIONS,
        "only the first position",
        "the begin-of-sequence token, attention sinks and what is prepended",
        places.first_position,
    ),
    Hint(
        "positions alone", (Role.OUTPUT,),
        "some positions of a linear layer, a norm or an activation, which treat each position by itself",
        "what handles rows apart here: the tiles of a kernel and their rest, a split sequence, memory that is changed in place",
        places.positions_alone,
    ),
    Hint(
        "looks ahead", ACTIVATIONS,
        "in attention, the last position agrees and the error grows towards the first one",
        "the causal mask",
        patterns.looks_ahead,
    ),
    Hint(
        "grows with position", ACTIVATIONS,
        "the first position agrees and the error grows with the position",
        "rotary or other position embeddings (base, scaling, offset), and what the scores are multiplied by: "
        "neither changes the first position",
        patterns.growth,
    ),
    Hint(
        "from a position on", ACTIVATIONS,
        "all positions from one on differ, none before it",
        "the attention window (sliding_window), the mask, the length of a cache or of the longest sequence, the scaling of "
        "long positions",
        places.from_position,
    ),
    Hint(
        "some positions", ACTIVATIONS,
        "a few positions",
        "the mask, special tokens and position ids",
        places.some_positions,
    ),
    Hint(
        "some samples", ACTIVATIONS,
        "a part of the batch",
        "the mask of these samples, and how the batch is split or gathered",
        places.some_samples,
    ),
    Hint(
        "some heads", (*ACTIVATIONS, *WEIGHTS, *GRADIENTS),
        "whole heads",
        "masks of heads, key and value groups, and the order of heads in the weight",
        places.some_heads,
    ),
    Hint(
        "some rows", (*WEIGHTS, *GRADIENTS),
        "a few rows of a weight",
        "padding of the vocabulary or of sizes, and how the weight is put together",
        places.some_rows,
    ),
    Hint(
        "some columns", (*ACTIVATIONS, *WEIGHTS, *GRADIENTS),
        "a few indices of the last axis",
        "padding of sizes, outlier channels, and how shards are put together",
        places.some_columns,
    ),
    # Multiples that differ
    Hint(
        "scale of columns", (*ACTIVATIONS, *WEIGHTS),
        "B is A times one number for each column",
        "a weight or scale by channel",
        patterns.scale_by_column,
    ),
    Hint(
        "scale of rows", ACTIVATIONS,
        "B is A times one number for each row",
        "a normalisation, its eps, or a router's probability",
        patterns.scale_by_row,
    ),
)  # fmt: skip
"""what is more specific first"""
