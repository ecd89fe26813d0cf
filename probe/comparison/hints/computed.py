"""Hints that say what one side computes, or is given, otherwise: formulas, losses, gradients and inputs."""

from __future__ import annotations

from functools import partial

from probe.comparison.hints import attention, formulas, gates, losses, norms, patterns, ranks, sizes, training
from probe.comparison.hints.hint import ACTIVATIONS, GRADIENTS, LOSSES, Hint
from probe.records import Role

COMPUTED = (
    # Formulas that give what was recorded
    Hint(
        "eps", (Role.OUTPUT,),
        "the output of a normalisation is what its input and weight give with another eps; both are solved for",
        "eps in the settings of this module",
        norms.eps,
    ),
    Hint(
        "eps outside the root", (Role.OUTPUT,),
        "1/(σ + eps) on one side, 1/√(σ² + eps) on the other",
        "where eps is added in this normalisation",
        norms.eps_outside,
    ),
    Hint(
        "unbiased variance", (Role.OUTPUT,),
        "the squares are divided by n − 1 on one side",
        "var(unbiased=) or correction= in this normalisation",
        norms.unbiased_variance,
    ),
    Hint(
        "norm statistics", (Role.OUTPUT,),
        "the mean is not subtracted on one side, or running statistics take the place of the batch's",
        "whether this is an RMSNorm or a LayerNorm, and whether it runs in training or evaluation mode",
        norms.norm_statistics,
    ),
    Hint(
        "norm weight", (Role.OUTPUT,),
        "a normalisation multiplies by its weight, by 1 + weight or by nothing",
        "how this normalisation uses its weight (zero-centred gamma, elementwise_affine)",
        norms.norm_weight,
    ),
    Hint(
        "norm bias", (Role.OUTPUT,),
        "a normalisation does not add its bias on one side",
        "how this normalisation uses its bias",
        norms.norm_bias,
    ),
    Hint(
        "norm groups", (Role.OUTPUT,),
        "channels are normalised in another number of groups",
        "num_groups",
        norms.norm_groups,
    ),
    Hint(
        "activation", (Role.INPUT, Role.OUTPUT),
        "the tensor is one known function of what was recorded before it on A, another one on B: gelu (erf, "
        "tanh, quick), silu, relu …",
        "which activation function, and which approximation of it, the configuration names",
        formulas.activation,
    ),
    Hint(
        "softmax", (Role.OUTPUT,),
        "the probabilities are those of a softmax over another axis, at another temperature, with 1 added to "
        "the sum, or in fewer bits",
        "axis, scale and dtype of this softmax",
        formulas.softmax,
    ),
    Hint(
        "returns its input", (Role.OUTPUT,),
        "one side returns its input bit for bit, and the other does not",
        "whether this module is left out on that side, or replaced by an Identity",
        formulas.returns_input,
    ),
    Hint(
        "gate and up", ACTIVATIONS,
        "f(x) · y of two recorded tensors gives A, f(y) · x gives B",
        "the order of gate and up in one weight, and which of the two goes through the activation",
        gates.exchanged_gate,
    ),
    Hint(
        "order of queries, keys and values", ACTIVATIONS,
        "attention over the recorded queries, keys and values gives A, and B where some are taken for others",
        "the order in which q, k and v are cut out of one tensor",
        partial(attention.attention, part="parts"),
    ),
    Hint(
        "causal mask", ACTIVATIONS,
        "attention over the recorded queries, keys and values gives A with a causal mask and B without, or "
        "the other way round",
        "is_causal and the attention mask",
        partial(attention.attention, part="mask"),
    ),
    Hint(
        "attention scale", ACTIVATIONS,
        "attention over the recorded queries, keys and values gives both, with other factors on the scores",
        "what the scores are divided by: √head size",
        partial(attention.attention, part="scale"),
    ),
    Hint(
        "key and value groups", ACTIVATIONS,
        "attention over the recorded queries, keys and values gives both, with the key and value heads "
        "repeated in another order",
        "repeat_kv: repeat_interleave against repeat",
        partial(attention.attention, part="groups"),
    ),
    Hint(
        "rotary embeddings in attention", ACTIVATIONS,
        "attention over the recorded queries, keys and values gives both, which one side turns by the "
        "recorded angles in pairs, backwards or not at all",
        "rotate_half, the layout of the rotary halves, and whether queries and keys are both turned",
        partial(attention.attention, part="rotary"),
    ),
    Hint(
        "rotary", ACTIVATIONS,
        "the angles of rotary embeddings were made with another base, scaling, layout or first position",
        "rope_theta, rope_scaling and the position ids",
        sizes.rotary,
    ),
    Hint(
        "low precision product", (Role.OUTPUT,),
        "x · Wᵀ of the recorded numbers gives one side as they are, and the other one rounded to fewer bits",
        "autocast, TensorFloat-32 (allow_tf32) and casts around this layer",
        formulas.linear_precision,
    ),
    Hint(
        "output of one rank", (Role.OUTPUT,),
        "under several ranks, x · Wᵀ + b of what this rank holds gives one side, and not the other",
        "the reduction over ranks (all-reduce, reduce-scatter) at the end of this layer",
        ranks.output_of_one_rank,
    ),
    Hint(
        "gradient of one rank", (Role.GRAD_INPUT,),
        "under several ranks, what this rank's weight and gradient of the output give is passed back by one side, and not by the other",
        "the reduction over ranks (all-reduce, reduce-scatter) in this layer's backward",
        ranks.gradient_of_one_rank,
    ),
    Hint(
        "linear", (Role.OUTPUT,),
        "x · Wᵀ + b of the recorded numbers gives one side; the weight is not transposed, or the bias left "
        "out, on the other",
        "how this layer uses its weight and bias",
        formulas.linear,
    ),
    Hint(
        "linear gradient", GRADIENTS,
        "one side's gradient is what the recorded input, weight and gradient of the output give, the other's "
        "is not",
        "custom autograd functions, gradient hooks and fused kernels of that side's layer",
        training.linear_gradient,
    ),
    Hint(
        "gradient passed through", GRADIENTS,
        "one side passes back the gradient of its output unchanged",
        "this module's backward (a straight-through estimator, a missing factor)",
        training.straight_through,
    ),
    Hint(
        "residual", (Role.OUTPUT,),
        "a block returns the recorded outputs of its modules with what came in added on one side, and not, or"
        " twice, on the other",
        "residual connections of this block",
        formulas.residual,
    ),
    Hint(
        "multiple of the input", (Role.OUTPUT,),
        "B − A is a multiple of what the module was given",
        "residual connections of this block, and how they are scaled",
        formulas.share_of_input,
    ),
    Hint(
        "running statistics", (Role.BUFFER,),
        "the running mean or variance took another share of the batch's, which is solved for",
        "momentum (PaddlePaddle's and MindSpore's is 1 − PyTorch's) and the biased variance",
        sizes.momentum,
    ),
    # The loss
    Hint(
        "losses added up", LOSSES,
        "what the model returns as its loss agrees in each micro-batch, the number given for the step does not",
        "how the losses of micro-batches are added up, weighted and divided for probe.step(loss=…), and not at the loss function",
        losses.added_up,
    ),
    Hint(
        "shift of the labels", LOSSES,
        "cross entropies of the recorded logits and labels give both losses, at other positions",
        "whether labels are shifted once: in the batch, or in the model",
        partial(losses.loss, part="shift"),
    ),
    Hint(
        "ignored labels", LOSSES,
        "cross entropies of the recorded logits and labels give both losses, with other labels left out",
        "ignore_index and the padding of the labels",
        partial(losses.loss, part="ignored"),
    ),
    Hint(
        "label smoothing", LOSSES,
        "cross entropies of the recorded logits and labels give both losses, with other smoothing (0.01 to "
        "0.3)",
        "label_smoothing",
        partial(losses.loss, part="smoothing"),
    ),
    Hint(
        "loss reduction", LOSSES,
        "cross entropies of the recorded logits and labels give both losses, divided by other numbers",
        "reduction of the loss: sum or mean, over all tokens or over those that count",
        partial(losses.loss, part="reduction"),
    ),
    Hint(
        "loss times a count", LOSSES,
        "the losses are apart by a number of samples, tokens, micro-batches or ranks",
        "reduction of the loss: sum or mean, and over what",
        losses.loss_factor,
    ),
    # Gradients and updates as a whole
    Hint(
        "clipping", GRADIENTS,
        "all gradients are multiplied by one number, or brought to one norm, between backward and the "
        "optimizer",
        "max_norm, and what it is the norm of",
        training.clipping,
    ),
    Hint(
        "one gradient", (Role.PARAM_GRAD,),
        "the gradient of one parameter is a multiple, while those of others agree",
        "hooks on this parameter, custom autograd functions, and what uses it twice: it is neither accumulation nor the loss",
        training.one_gradient,
    ),
    Hint(
        "gradient of one module", GRADIENTS,
        "a gradient is a multiple from one module on, while those that ran back before it agree",
        "a factor in this module's backward: hooks on gradients, custom autograd functions, what is added or called twice; "
        "it is neither accumulation nor the loss",
        training.one_module,
    ),
    Hint(
        "gradient divided by a count", GRADIENTS,
        "a gradient is a multiple by the number of micro-batches, ranks, samples or tokens, or by one over it",
        "accumulation, reduction over ranks (sum or mean) and reduction of the loss",
        training.gradient_factor,
    ),
    Hint(
        "weight decay", (*GRADIENTS, Role.DELTA),
        "the difference of two updates is a multiple of the parameter",
        "the weight decay of this parameter's group",
        training.weight_decay,
    ),
    # What the model is given
    Hint(
        "one value for another", ACTIVATIONS,
        "of integers: all that differ have one number on A and another one on B",
        "ignore_index and the padding of labels, padding and special tokens of ids",
        patterns.value_for_another,
    ),
    Hint(
        "scale of an input", (Role.INPUT, Role.VALUE),
        "what the model is given on B is A's times one number",
        "the scale of this input and its preprocessing: mean and standard deviation, division by 255, units",
        patterns.scale_of_input,
    ),
)  # fmt: skip
"""what is more specific first"""
