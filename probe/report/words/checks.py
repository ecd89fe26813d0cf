"""What to look at where the numbers of a finding support a hint, by its name in `probe.diagnosis.table`."""

CHECKS = {
    "eps": "eps in the settings of this module",
    "eps outside the root": "where eps is added in this normalisation",
    "unbiased variance": "var(unbiased=) or correction= in this normalisation",
    "norm statistics": "whether this is an RMSNorm or a LayerNorm, and whether it runs in training or evaluation mode",
    "norm weight": "how this normalisation uses its weight (zero-centred gamma, elementwise_affine)",
    "norm bias": "how this normalisation uses its bias",
    "norm groups": "num_groups",
    "activation": "which activation function, and which approximation of it, the configuration names",
    "softmax": "axis, scale and dtype of this softmax",
    "returns its input": "whether this module is left out on that side, or replaced by an Identity",
    "gate and up": "the order of gate and up in one weight, and which of the two goes through the activation",
    "order of queries, keys and values": "the order in which q, k and v are cut out of one tensor",
    "causal mask": "is_causal and the attention mask",
    "attention scale": "what the scores are divided by: √head size",
    "key and value groups": "repeat_kv: repeat_interleave against repeat",
    "rotary embeddings in attention": "rotate_half, the layout of the rotary halves, and whether queries and keys are both turned",
    "rotary": "rope_theta, rope_scaling and the position ids",
    "low precision product": "autocast, TensorFloat-32 (allow_tf32) and casts around this layer",
    "output of one rank": "the reduction over ranks (all-reduce, reduce-scatter) at the end of this layer",
    "gradient of one rank": "the reduction over ranks (all-reduce, reduce-scatter) in this layer's backward",
    "linear": "how this layer uses its weight and bias",
    "linear gradient": "custom autograd functions, gradient hooks and fused kernels of that side's layer",
    "gradient passed through": "this module's backward (a straight-through estimator, a missing factor)",
    "residual": "residual connections of this block",
    "multiple of the input": "residual connections of this block, and how they are scaled",
    "running statistics": "momentum (PaddlePaddle's and MindSpore's is 1 − PyTorch's) and the biased variance",
    "losses added up": (
        "how the losses of micro-batches are added up, weighted and divided for probe.step(loss=…), and not at the loss function"
    ),
    "shift of the labels": "whether labels are shifted once: in the batch, or in the model",
    "ignored labels": "ignore_index and the padding of the labels",
    "label smoothing": "label_smoothing",
    "loss reduction": "reduction of the loss: sum or mean, over all tokens or over those that count",
    "loss times a count": "reduction of the loss: sum or mean, and over what",
    "clipping": "max_norm, and what it is the norm of",
    "one gradient": "hooks on this parameter, custom autograd functions, and what uses it twice: it is neither accumulation nor the loss",
    "gradient of one module": (
        "a factor in this module's backward: hooks on gradients, custom autograd functions, what is added or called twice; it is "
        "neither accumulation nor the loss"
    ),
    "gradient divided by a count": "accumulation, reduction over ranks (sum or mean) and reduction of the loss",
    "weight decay": "the weight decay of this parameter's group",
    "one value for another": "ignore_index and the padding of labels, padding and special tokens of ids",
    "scale of an input": "the scale of this input and its preprocessing: mean and standard deviation, division by 255, units",
    "sign": "the sign: maximize=, the sign of the loss, a swapped difference",
    "doubled or halved": "what is added or called twice, averaged, or split in two",
    "gradient doubled or halved": "accumulation, reduction of the loss, world size",
    "known factor": "scaling of embeddings and scores, and dropout",
    "learning rate": "the learning rate and its schedule",
    "one number": "whether this was loaded, or computed, at all",
    "uniform scale": "eps, a scale or a weight",
    "weight scale": "how this weight is initialised, loaded or converted",
    "gradient scale": "a factor in backward, the loss scale, and how the loss is reduced",
    "scale of a used gradient": (
        "clipping (which gradients are clipped together, and by which norm), unscaling and the reduction over ranks"
    ),
    "bias": "whether the bias is added, once",
    "counted from another number": "position ids and offsets: where each side begins to count (at 0, at 1, behind the padding)",
    "constant shift": "a bias, a constant that is added, a mean that is subtracted",
    "same vector in every row": "a bias, or an embedding that is added to all positions",
    "transposed": "how this tensor is transposed, reshaped or converted",
    "shifted position": "position ids, the shift of the labels and the padding side",
    "permuted": "the order of the parts (q, k, v; gate, up), of heads and of rotary halves in how this is stored",
    "drawn anew": "whether this weight was loaded, or drawn with another seed",
    "dropout": "dropout: switch it off on both sides, or give both the same random numbers",
    "cut off": "clamping, saturation and the range of the dtype",
    "rounded": "casts and autocast around this module, and the dtype in which it was saved",
    "dtype": "casts, autocast and the dtype that this module keeps",
    "single elements": "an index that is written to, a damaged value, a tie that was broken otherwise",
    "padding": "whether padding is masked alike; it may not matter",
    "some ids": "padding_idx, special tokens and the size of the vocabulary",
    "last position": "the shift of labels or inputs, and what is appended",
    "first position": "the begin-of-sequence token, attention sinks and what is prepended",
    "positions alone": (
        "what handles rows apart here: the tiles of a kernel and their rest, a split sequence, memory that is changed in place"
    ),
    "looks ahead": "the causal mask",
    "grows with position": (
        "rotary or other position embeddings (base, scaling, offset), and what the scores are multiplied by: neither changes the "
        "first position"
    ),
    "from a position on": (
        "the attention window (sliding_window), the mask, the length of a cache or of the longest sequence, the scaling of long "
        "positions"
    ),
    "some positions": "the mask, special tokens and position ids",
    "some samples": "the mask of these samples, and how the batch is split or gathered",
    "some heads": "masks of heads, key and value groups, and the order of heads in the weight",
    "some rows": "padding of the vocabulary or of sizes, and how the weight is put together",
    "some columns": "padding of sizes, outlier channels, and how shards are put together",
    "scale of columns": "a weight or scale by channel",
    "scale of rows": "a normalisation, its eps, or a router's probability",
}
