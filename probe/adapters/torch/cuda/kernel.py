"""The device's kernels, in Triton: statistics, sketch and hash of a tensor in one pass over its memory.

Importing this module imports triton; `probe.adapters.torch.cuda.launching` does it when it meets the first tensor on a device.
What is computed is defined in `probe.numbers.statistics` and `probe.numbers.sketch`; seeds and strides of buckets come as a plan
(`probe.adapters.torch.cuda.plans`). No number depends on the order in which programs run: each writes a row of its own.
"""

# No annotations from __future__: Triton's compiler evaluates these.

import triton
import triton.language as tl

_MIX_ADD = tl.constexpr(0x9E3779B97F4A7C15)
_MIX_FIRST = tl.constexpr(0xBF58476D1CE4E5B9)
_MIX_SECOND = tl.constexpr(0x94D049BB133111EB)
_VALUE_SEED = tl.constexpr(0x70726F62652021)
_WIDTH = tl.constexpr(61)
_LANES = tl.constexpr(64)
_ROW = tl.constexpr(80)
_SKETCH = tl.constexpr(8)
_HASH = tl.constexpr(72)
_PLACE = tl.constexpr(76)
_HEAD = tl.constexpr(6)
_AXIS = tl.constexpr(6)
_INFINITY = tl.constexpr(float("inf"))


@triton.jit
def _mix(z):
    """splitmix64 of uint64."""
    z = z + _MIX_ADD
    z = (z ^ (z >> 30)) * _MIX_FIRST
    z = (z ^ (z >> 27)) * _MIX_SECOND
    return z ^ (z >> 31)


@triton.jit
def _odd(index, seed):
    """Return 1 where the sign of an index is −1, else 0."""
    return (_mix(index.to(tl.uint64) ^ seed) & 1).to(tl.int32)


@triton.jit
def _bits(v, SIZE: tl.constexpr, IS_FLOAT: tl.constexpr):
    """Return the bit patterns of elements as uint64."""
    if not IS_FLOAT:
        bits = v.to(tl.int64)
    elif SIZE == 2:
        bits = v.to(tl.int16, bitcast=True).to(tl.int64)
    elif SIZE == 4:
        bits = v.to(tl.int32, bitcast=True).to(tl.int64)
    else:
        bits = v.to(tl.int64, bitcast=True)
    if SIZE < 8:
        bits = bits & ((1 << (8 * SIZE)) - 1)
    return bits.to(tl.uint64)


@triton.jit
def _widened(v):
    """Return floats of at most four bytes as float32; bfloat16 by its bits, as the interpreter loses its subnormal numbers."""
    if v.dtype == tl.bfloat16:
        value = (v.to(tl.int16, bitcast=True).to(tl.int32) << 16).to(tl.float32, bitcast=True)
    else:
        value = v.to(tl.float32)
    return value


@triton.jit(do_not_specialize=("row", "first", "groups", "rounds"))
def measure(
    x,
    y,
    partials,
    partial_words,
    rows,
    plan,
    row,
    first,
    groups,
    rounds,
    AXES: tl.constexpr,
    SIZE: tl.constexpr,
    IS_FLOAT: tl.constexpr,
    IS_UPDATE: tl.constexpr,
    IS_FULL: tl.constexpr,
    GROUPS: tl.constexpr,
):
    """Write the sums of one program's share of a tensor (or of x − y) into its row of partial sums.

    A group is up to 61 elements that lie along one axis, the lanes'. Lane l reads the element whose bucket along this axis,
    moved by that of the other axes' indices, is l: so a lane's sum is a bucket's, and nothing is moved between lanes.
    """
    program = tl.program_id(0)
    lane = tl.arange(0, _LANES)[None, :]
    size = tl.load(plan).to(tl.int32)
    stride = tl.load(plan + 1)
    place_stride = tl.load(plan + 2)
    seed = tl.load(plan + 3).to(tl.uint64)
    stride_y = tl.load(plan + 4)
    per_row = (size + _WIDTH - 1) // _WIDTH

    if IS_FLOAT and SIZE < 8 and not IS_UPDATE:
        extreme = tl.full((GROUPS, _LANES), _INFINITY, tl.float32)
    else:
        extreme = tl.full((GROUPS, _LANES), _INFINITY, tl.float64)
    low, high = extreme, -extreme
    total = tl.zeros((GROUPS, _LANES), tl.float64)
    squares, sketch = total, total
    zeros = tl.zeros((GROUPS, _LANES), tl.int32)
    nan, posinf, neginf = zeros, zeros, zeros
    none = tl.zeros((GROUPS, _LANES), tl.int64).to(tl.uint64)
    low_x, high_x, low_y, high_y = none, none, none, none

    for turn in range(rounds):
        group = (program * rounds + turn) * GROUPS + tl.arange(0, GROUPS)
        is_there = group < groups
        left = group // per_row
        block = group - left * per_row
        shift = tl.zeros((GROUPS,), tl.int32)
        odd = tl.zeros((GROUPS,), tl.int32)
        at = tl.zeros((GROUPS,), tl.int64)
        at_y, place = at, at
        for axis in tl.static_range(AXES):
            entry = plan + _HEAD + axis * _AXIS
            rest = left // tl.load(entry).to(tl.int32)
            index = left - rest * tl.load(entry).to(tl.int32)
            left = rest
            at += index.to(tl.int64) * tl.load(entry + 1)
            place += index.to(tl.int64) * tl.load(entry + 2)
            if IS_UPDATE:
                at_y += index.to(tl.int64) * tl.load(entry + 4)
            shift += index % _WIDTH * tl.load(entry + 5).to(tl.int32)
            odd ^= _odd(index, tl.load(entry + 3).to(tl.uint64))
        column = lane - (shift % _WIDTH)[:, None]
        column = tl.where(column < 0, column + _WIDTH, column) + (block * _WIDTH)[:, None]
        mask = (lane < _WIDTH) & (column < size) & is_there[:, None]
        index = column.to(tl.int64)
        v = tl.load(x + at[:, None] + index * stride, mask=mask, other=0)
        if IS_FULL:
            where = ((place[:, None] + index * place_stride) * 2).to(tl.uint64)
            weight_low, weight_high = _mix(where) | 1, _mix(where + 1) | 1
            bits = _bits(v, SIZE, IS_FLOAT)
            low_x += bits * weight_low
            high_x += bits * weight_high
        if IS_UPDATE:
            w = tl.load(y + at_y[:, None] + index * stride_y, mask=mask, other=0)
            if IS_FULL:
                bits = _bits(w, SIZE, IS_FLOAT)
                low_y += bits * weight_low
                high_y += bits * weight_high
            if SIZE < 8:
                value = _widened(v).to(tl.float64) - _widened(w).to(tl.float64)
            else:
                value = v - w
        elif IS_FLOAT and SIZE < 8:
            value = _widened(v)
        else:
            value = v.to(tl.float64)
        is_zero = (value == 0) & mask
        zeros += is_zero.to(tl.int32)
        if IS_FLOAT:
            is_finite = tl.abs(value) < _INFINITY
            nan += (value != value).to(tl.int32)
            posinf += (value == _INFINITY).to(tl.int32)
            neginf += (value == -_INFINITY).to(tl.int32)
            counted = mask & is_finite
            clean = tl.where(is_finite, value, 0.0).to(tl.float64)
        else:
            counted = mask
            clean = value
        low = tl.minimum(low, tl.where(counted, value, _INFINITY))
        high = tl.maximum(high, tl.where(counted, value, -_INFINITY))
        total += clean
        squares += clean * clean
        if IS_FULL:
            flip = odd[:, None] ^ _odd(column, seed)
            if IS_FLOAT:
                sketched = clean
            else:
                flip ^= (_mix(v.to(tl.int64).to(tl.uint64) ^ _VALUE_SEED) & 1).to(tl.int32)
                sketched = mask.to(tl.float64)
            sketch += tl.where(flip == 0, sketched, -sketched)

    out = partials + (first + program).to(tl.int64) * _ROW
    out_words = partial_words + (first + program).to(tl.int64) * _ROW
    tl.store(out, tl.min(tl.min(low, 1), 0).to(tl.float64))
    tl.store(out + 1, tl.max(tl.max(high, 1), 0).to(tl.float64))
    tl.store(out + 2, tl.sum(tl.sum(total, 1), 0))
    tl.store(out + 3, tl.sum(tl.sum(squares, 1), 0))
    tl.store(out + 4, tl.sum(tl.sum(nan, 1), 0).to(tl.float64))
    tl.store(out + 5, tl.sum(tl.sum(posinf, 1), 0).to(tl.float64))
    tl.store(out + 6, tl.sum(tl.sum(neginf, 1), 0).to(tl.float64))
    tl.store(out + 7, tl.sum(tl.sum(zeros, 1), 0).to(tl.float64))
    tl.store(out + _SKETCH + tl.arange(0, _LANES), tl.sum(sketch, 0))
    tl.store(out_words + _HASH, tl.sum(tl.sum(low_x.to(tl.int64), 1), 0))
    tl.store(out_words + _HASH + 1, tl.sum(tl.sum(high_x.to(tl.int64), 1), 0))
    tl.store(out_words + _HASH + 2, tl.sum(tl.sum(low_y.to(tl.int64), 1), 0))
    tl.store(out_words + _HASH + 3, tl.sum(tl.sum(high_y.to(tl.int64), 1), 0))
    if program == 0:
        place_of = rows + row.to(tl.int64) * _ROW + _PLACE
        tl.store(place_of, first.to(tl.int64))
        tl.store(place_of + 1, tl.num_programs(0).to(tl.int64))


@triton.jit(do_not_specialize=("begin",))
def fold(partials, partial_words, rows, row_words, begin, AT_ONCE: tl.constexpr):
    """Add up the partial sums of one tensor into its row."""
    row = (begin + tl.program_id(0)).to(tl.int64) * _ROW
    first = tl.load(row_words + row + _PLACE)
    count = tl.load(row_words + row + _PLACE + 1).to(tl.int32)
    lane = tl.arange(0, _LANES)[None, :]
    low = tl.full((AT_ONCE,), _INFINITY, tl.float64)
    high = -low
    sums = tl.zeros((AT_ONCE, _LANES), tl.float64)
    counts = tl.zeros((AT_ONCE, 8), tl.float64)
    words = tl.zeros((AT_ONCE, 4), tl.int64)
    columns = tl.arange(0, 8)[None, :]
    halves = tl.arange(0, 4)[None, :]
    for start in range(0, count, AT_ONCE):
        mine = start + tl.arange(0, AT_ONCE)
        is_there = mine < count
        at = (first + mine) * _ROW
        low = tl.minimum(low, tl.load(partials + at, mask=is_there, other=_INFINITY))
        high = tl.maximum(high, tl.load(partials + at + 1, mask=is_there, other=-_INFINITY))
        there = is_there[:, None]
        counts += tl.load(partials + at[:, None] + columns, mask=there & (columns > 1), other=0.0)
        sums += tl.load(partials + at[:, None] + _SKETCH + lane, mask=there, other=0.0)
        words += tl.load(partial_words + at[:, None] + _HASH + halves, mask=there, other=0)
    tl.store(rows + row + tl.arange(0, 8), tl.sum(counts, 0), mask=tl.arange(0, 8) > 1)
    tl.store(rows + row, tl.min(low, 0))
    tl.store(rows + row + 1, tl.max(high, 0))
    tl.store(rows + row + _SKETCH + tl.arange(0, _LANES), tl.sum(sums, 0))
    tl.store(row_words + row + _HASH + tl.arange(0, 4), tl.sum(words, 0))
