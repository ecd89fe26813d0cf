"""Every row of the table of class pairs: the same numbers in both frameworks give the same outputs and gradients."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from probe.conversion import convert_weights
from probe.conversion.structure import Structure, Weight, layout_of
from probe.numbers.layouts import CLASSES, FRAMEWORKS
from probe.records import ModuleInfo
from probe.structure.tree import Tree
from tests.frameworks.layers import INPUTS

HERE = Path(__file__).parent
CLASS_OF = {
    case: case.removesuffix(" of 2 layers").removesuffix(" in evaluation").rpartition(" ")[2] for case in INPUTS
}
CHILDREN = {
    "MultiheadAttention": {"out_proj": "Linear"},
    "TransformerEncoderLayer": {
        "self_attn": "MultiheadAttention", "self_attn.out_proj": "Linear", "linear1": "Linear", "linear2": "Linear",
        "norm1": "LayerNorm", "norm2": "LayerNorm",
    },
}  # fmt: skip
CHILDREN["TransformerDecoderLayer"] = {
    **CHILDREN["TransformerEncoderLayer"], "multihead_attn": "MultiheadAttention", "multihead_attn.out_proj": "Linear",
    "norm3": "LayerNorm",
}  # fmt: skip
UNSUPPORTED = {
    ("mindspore", f"InstanceNorm{size}"): "Unsupported op [InstanceNorm] on CPU" for size in ("1d", "2d", "3d")
}
"""what has no kernel on the CPU, and how that shows"""
Arrays = dict[str, np.ndarray]


def run(framework: str, out: Path, *given: Path) -> Arrays:
    """Run every case in a process of its own."""
    command = [sys.executable, str(HERE / "layers.py"), framework, str(out), *map(str, given)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=HERE.parent.parent, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    return dict(np.load(out))


def of(arrays: Arrays, case: str, kind: str) -> Arrays:
    """Return arrays of a case and kind by the rest of their names."""
    prefix = f"{case}/{kind}/"
    return {name.removeprefix(prefix): x for name, x in arrays.items() if name.startswith(prefix)}


def structure(case: str, weights: Arrays) -> Structure:
    """Return the structure of torch's model, from names of classes and of weights alone."""
    name = CLASS_OF[case]
    kinds = {"": "Sequential", "0": name, **{f"0.{path}": kind for path, kind in CHILDREN.get(name, {}).items()}}
    paths = list(kinds)
    modules = [ModuleInfo(p, kinds[p], paths.index(p.rpartition(".")[0]) if p else -1) for p in paths]
    found = []
    for full, x in weights.items():
        owner, _, slot = full.rpartition(".")
        layout = layout_of("torch", (kinds[owner],), slot)
        found.append(Weight((full,), paths.index(owner), slot, x.shape, layout))
    return Structure("torch", Tree(modules), [(kinds[path],) for path in paths], found)


def mapping(framework: str, case: str) -> str | None:
    """Return the mapping that a case needs: the parts of these layers have other names."""
    renamed = case.startswith("Transformer") if framework == "mindspore" else case == "TransformerDecoderLayer"
    return f"torch/{framework}" if renamed else None


@pytest.fixture(scope="module")
def outcome(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], tuple[Arrays, Arrays]]:
    """What torch made of every case, and what another framework did with the weights as probe converts them."""
    folder = tmp_path_factory.mktemp("layers")
    reference = run("torch", folder / "torch.npz")
    done: dict[str, Arrays] = {}

    def outcome(framework: str) -> tuple[Arrays, Arrays]:
        if framework not in done:
            given = {}
            for case in INPUTS:
                weights = of(reference, case, "weight")
                options = {"to": framework, "source": structure(case, weights)}
                for name, x in convert_weights(weights, mapping(framework, case), **options).items():
                    given[f"{case}/weight/{name}"] = x
                given.update((f"{case}/input/{name}", x) for name, x in of(reference, case, "input").items())
            np.savez(folder / f"for-{framework}.npz", **given)
            done[framework] = run(framework, folder / f"{framework}.npz", folder / f"for-{framework}.npz")
        return reference, done[framework]

    return outcome


@pytest.mark.parametrize("framework", ["paddle", "mindspore"])
@pytest.mark.parametrize("case", INPUTS)
def test_the_same_numbers_give_the_same_outputs_and_gradients(
    outcome: Callable[[str], tuple[Arrays, Arrays]], framework: str, case: str
) -> None:
    a, b = outcome(framework)
    assert f"{case}/error" not in a
    if (framework, case) in UNSUPPORTED:
        assert UNSUPPORTED[framework, case] in str(b.get(f"{case}/error", "it runs now"))
        return
    assert f"{case}/error" not in b, str(b[f"{case}/error"])
    assert np.allclose(a[f"{case}/output"], b[f"{case}/output"], rtol=1e-4, atol=2e-5)
    for name, x in of(a, case, "grad_input").items():
        assert np.allclose(x, b[f"{case}/grad_input/{name}"], rtol=1e-3, atol=5e-5), name
    gradients = of(a, case, "grad")
    theirs = convert_weights(
        of(b, case, "grad"), mapping(framework, case), to="torch", source=framework,
        like=structure(case, gradients), direction="b-to-a",
    )  # fmt: skip
    assert theirs.keys() == gradients.keys()
    for name, x in gradients.items():
        assert np.allclose(x, theirs[name], rtol=1e-3, atol=1e-4), name


def test_every_row_of_the_table_has_a_case() -> None:
    without = {"NonDynamicallyQuantizableLinear"}  # a Linear, inside of torch's attention
    assert {row[FRAMEWORKS.index("torch")] for row in CLASSES} - without == {
        name for name in CLASS_OF.values() if not name.startswith("Transformer")
    }
