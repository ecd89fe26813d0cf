"""Both models recorded by the config.json of msprobe's guide.

``python -m benchmarks.reference_trees.document CONFIG [FAULT ...]``
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import nn

import probe
from benchmarks.reference_trees.converter import mindspeed_of
from benchmarks.reference_trees.faults import FAULTS, FURTHER, plant
from benchmarks.reference_trees.llamafactory import llamafactory
from benchmarks.reference_trees.sizes import Sizes, make_batch
from benchmarks.reference_trees.training import loss_of, optimizer_of


def main(config: str, *faults: str) -> None:
    """Record a step of each model, and of MindSpeed-MM's with each fault, into folders by name in ``dump_path``."""
    options, sizes = json.loads(Path(config).read_text()), Sizes()
    record(options, "llamafactory", llamafactory(sizes), sizes)
    record(options, "mindspeed", mindspeed_of(llamafactory(sizes), sizes), sizes)
    for fault in (each for each in FAULTS + FURTHER if each.name in faults):
        model = mindspeed_of(llamafactory(sizes), sizes)
        plant(model[0], fault)
        record(options, fault.name, model, sizes)


def record(options: Mapping[str, Any], name: str, model: nn.Module | Sequence[nn.Module], sizes: Sizes) -> None:
    """Train for a step, which a configuration with another folder records."""
    folder = Path(options["dump_path"], name)
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps({**options, "dump_path": str(folder)}))
    first = model if isinstance(model, nn.Module) else model[0]
    optimizer, batch = optimizer_of(first), make_batch(sizes, 0)
    probe.start(model, config=folder / "config.json", quiet=True)
    loss = loss_of(first(batch), batch.tokens)
    loss.backward()
    optimizer.step()
    probe.step(loss=loss)
    probe.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
