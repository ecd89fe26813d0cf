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
_INFINITY = tl.constexpr(float("inf"))

# A row: 8 sums and counts, 64 lanes, 4 halves of hashes, which partial sums are its own
_ROW = tl.constexpr(80)
_SKETCH = tl.constexpr(8)
_HASH = tl.constexpr(72)
_PLACE = tl.constexpr(76)
# A plan: entries of 6 words, the first for the lanes' axis
_SIZE = tl.constexpr(0)
_STRIDE = tl.constexpr(1)
_PLACE_STRIDE = tl.constexpr(2)
_SEED = tl.constexpr(3)
_STRIDE_Y = tl.constexpr(4)
_SHIFT = tl.constexpr(5)
_ENTRY = tl.constexpr(6)


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
def _wide(v, SIZE: tl.constexpr, IS_FLOAT: tl.constexpr):
    """Return elements as float32 where that holds them, else as float64; bfloat16 by its bits: the interpreter loses small ones."""
    if IS_FLOAT and SIZE < 8:
        if v.dtype == tl.bfloat16:
            value = (v.to(tl.int16, bitcast=True).to(tl.int32) << 16).to(tl.float32, bitcast=True)
        else:
            value = v.to(tl.float32)
    else:
        value = v.to(tl.float64)
    return value


@triton.jit
def _found(plan, left, AXES: tl.constexpr):
    """Return where the groups of some rows lie in both tensors and in C order, by how many lanes they are moved, and their signs."""
    at = tl.zeros_like(left).to(tl.int64)
    at_y, place = at, at
    shift = tl.zeros_like(left)
    odd = shift
    for axis in tl.static_range(AXES):
        entry = plan + (1 + axis) * _ENTRY
        size = tl.load(entry + _SIZE).to(tl.int32)
        rest = left // size
        index = left - rest * size
        left = rest
        at += index.to(tl.int64) * tl.load(entry + _STRIDE)
        at_y += index.to(tl.int64) * tl.load(entry + _STRIDE_Y)
        place += index.to(tl.int64) * tl.load(entry + _PLACE_STRIDE)
        shift += index % _WIDTH * tl.load(entry + _SHIFT).to(tl.int32)
        odd ^= _odd(index, tl.load(entry + _SEED).to(tl.uint64))
    return at, at_y, place, shift % _WIDTH, odd


@triton.jit
def _total(values):
    """Return the sum of all elements."""
    return tl.sum(tl.sum(values, 1), 0)


@triton.jit(do_not_specialize=("row", "first", "groups", "rounds"), do_not_specialize_on_alignment=("x", "y"))
def measure(
    x, y, partials, partial_words, rows, plan, row, first, groups, rounds,
    AXES: tl.constexpr, SIZE: tl.constexpr, IS_FLOAT: tl.constexpr, IS_UPDATE: tl.constexpr, IS_FULL: tl.constexpr,
    GROUPS: tl.constexpr,
):  # fmt: skip
    """Write the sums of one program's share of a tensor (or of x − y) into its row of partial sums.

    A group is up to 61 elements that lie along one axis, the lanes'. Lane l reads the element whose bucket along this axis,
    moved by that of the other axes' indices, is l: so a lane's sum is a bucket's, and nothing is moved between lanes.
    """
    program = tl.program_id(0)
    lane = tl.arange(0, _LANES)[None, :]
    size = tl.load(plan + _SIZE).to(tl.int32)
    seed = tl.load(plan + _SEED).to(tl.uint64)
    per_row = (size + _WIDTH - 1) // _WIDTH
    total = tl.zeros((GROUPS, _LANES), tl.float64)
    squares, sketch = total, total
    nan = tl.zeros((GROUPS, _LANES), tl.int32)
    posinf, neginf, zeros = nan, nan, nan
    hash_low = nan.to(tl.uint64)
    hash_high, hash_low_y, hash_high_y = hash_low, hash_low, hash_low
    low = total + _INFINITY
    if IS_FLOAT and SIZE < 8 and not IS_UPDATE:
        low = low.to(tl.float32)
    high = -low
    for turn in range(rounds):
        group = (program * rounds + turn) * GROUPS + tl.arange(0, GROUPS)
        at, at_y, place, shift, odd = _found(plan, group // per_row, AXES)
        column = lane - shift[:, None]
        column = tl.where(column < 0, column + _WIDTH, column) + (group % per_row * _WIDTH)[:, None]
        mask = (lane < _WIDTH) & (column < size) & (group < groups)[:, None]
        index = column.to(tl.int64)
        v = tl.load(x + at[:, None] + index * tl.load(plan + _STRIDE), mask=mask, other=0)
        where = ((place[:, None] + index * tl.load(plan + _PLACE_STRIDE)) * 2).to(tl.uint64)
        value = _wide(v, SIZE, IS_FLOAT)
        if IS_FULL:
            hash_low += _bits(v, SIZE, IS_FLOAT) * (_mix(where) | 1)
            hash_high += _bits(v, SIZE, IS_FLOAT) * (_mix(where + 1) | 1)
        if IS_UPDATE:
            w = tl.load(y + at_y[:, None] + index * tl.load(plan + _STRIDE_Y), mask=mask, other=0)
            value = value.to(tl.float64) - _wide(w, SIZE, IS_FLOAT).to(tl.float64)
            if IS_FULL:
                hash_low_y += _bits(w, SIZE, IS_FLOAT) * (_mix(where) | 1)
                hash_high_y += _bits(w, SIZE, IS_FLOAT) * (_mix(where + 1) | 1)
        is_finite = tl.abs(value) < _INFINITY
        nan += (value != value).to(tl.int32)
        posinf += (value == _INFINITY).to(tl.int32)
        neginf += (value == -_INFINITY).to(tl.int32)
        zeros += ((value == 0) & mask).to(tl.int32)
        low = tl.minimum(low, tl.where(mask & is_finite, value, _INFINITY))
        high = tl.maximum(high, tl.where(mask & is_finite, value, -_INFINITY))
        clean = tl.where(is_finite, value, 0.0).to(tl.float64)
        total += clean
        squares += clean * clean
        if IS_FULL:
            flip = odd[:, None] ^ _odd(column, seed)
            if not IS_FLOAT:
                flip ^= _odd(v.to(tl.int64), _VALUE_SEED)
                clean = mask.to(tl.float64)
            sketch += tl.where(flip == 0, clean, -clean)
    counts = (_total(nan), _total(posinf), _total(neginf), _total(zeros))
    hashes = (_total(hash_low), _total(hash_high), _total(hash_low_y), _total(hash_high_y))
    sums = (tl.min(tl.min(low, 1), 0), tl.max(tl.max(high, 1), 0), _total(total), _total(squares))
    _write(partials, partial_words, (first + program).to(tl.int64) * _ROW, sums, counts, tl.sum(sketch, 0), hashes)
    if program == 0:
        place_of = rows + row.to(tl.int64) * _ROW + _PLACE
        tl.store(place_of, first.to(tl.int64))
        tl.store(place_of + 1, tl.num_programs(0).to(tl.int64))


@triton.jit
def _write(numbers, words, at, sums, counts, sketch, hashes):
    """Write a row."""
    for place in tl.static_range(4):
        tl.store(numbers + at + place, sums[place].to(tl.float64))
        tl.store(numbers + at + 4 + place, counts[place].to(tl.float64))
        tl.store(words + at + _HASH + place, hashes[place].to(tl.int64))
    tl.store(numbers + at + _SKETCH + tl.arange(0, _LANES), sketch)


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
