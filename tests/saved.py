"""What torch.save wrote, without torch."""

from __future__ import annotations

import numpy as np


def torch_legacy() -> bytes:
    """Return what torch.save wrote before 1.6, without torch."""
    magic = b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19."
    keys = b"\x80\x02]q\x00X\x01\x00\x00\x000a."
    values = (6).to_bytes(8, "little") + np.arange(6, dtype=np.float32).tobytes()
    return magic + b"\x80\x02M\xe9\x03." + b"\x80\x02}." + b"\x80\x02" + state_dict() + b"." + keys + values


def state_dict() -> bytes:
    """Return the opcodes of {"up.weight": a tensor of 2 × 3}."""
    storage = b"(X\x07\x00\x00\x00storagectorch\nFloatStorage\nX\x01\x00\x00\x000X\x03\x00\x00\x00cpuK\x06tQ"
    tensor = (
        b"ctorch._utils\n_rebuild_tensor_v2\n("
        + storage
        + b"K\x00K\x02K\x03\x86K\x03K\x01\x86\x89ccollections\nOrderedDict\n)RtR"
    )
    return b"}X\x09\x00\x00\x00up.weight" + tensor + b"s"
