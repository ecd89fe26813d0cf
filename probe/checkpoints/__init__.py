"""Files of weights: safetensors, ``pytorch_model.bin``, ``.pdparams`` and ``.ckpt``, read and written tensor by tensor."""

from probe.checkpoints.reading import Checkpoint, open_checkpoint
from probe.checkpoints.stored import Stored
from probe.checkpoints.writing import SUFFIXES, Shard, write_checkpoint, written_whole

__all__ = ["SUFFIXES", "Checkpoint", "Shard", "Stored", "open_checkpoint", "write_checkpoint", "written_whole"]
