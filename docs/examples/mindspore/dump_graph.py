"""Run the classifier's first forward in graph mode, where no hook runs, under MindSpore's Dump.

python dump_graph.py --weights mindspore.ckpt --out dump
"""

from __future__ import annotations

import argparse
import json
import os
from pathlib import Path


def config(folder: Path) -> dict[str, object]:
    """Return what MINDSPORE_DUMP_CONFIG names: all kernels of the first iteration."""
    common = {"path": str(folder.resolve()), "net_name": "Classifier", "iteration": "0", "saved_data": "tensor"}
    every = {"op_debug_mode": 0, "dump_mode": 0, "input_output": 0, "kernels": [], "support_device": [0]}
    return {"common_dump_settings": common | every, "e2e_dump_settings": {"enable": True, "trans_flag": True}}


def main() -> None:
    options = argparse.ArgumentParser(description="Dump a forward pass in graph mode.")
    options.add_argument("--weights", required=True, help="what probe convert has written")
    options.add_argument("--out", required=True, type=Path, help="the folder of the dump")
    options.add_argument("--fault", help="as that of train_mindspore.py")
    given = options.parse_args()
    Path("dump.json").write_text(json.dumps(config(given.out)), encoding="utf-8")
    os.environ["MINDSPORE_DUMP_CONFIG"] = str(Path("dump.json").resolve())  # before MindSpore is imported

    import mindspore as ms
    from inputs import BATCH
    from train_mindspore import Classifier

    import probe

    ms.set_context(mode=ms.GRAPH_MODE)
    model = Classifier(given.fault).set_train()
    ms.load_param_into_net(model, ms.load_checkpoint(given.weights))
    model(probe.make_inputs(BATCH, seed=0, to="mindspore")["x"])


if __name__ == "__main__":
    main()
