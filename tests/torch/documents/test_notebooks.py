"""The notebooks of docs/notebooks run, and what they store is what they give."""

from __future__ import annotations

import base64
import json
import os
import re
from pathlib import Path
from typing import Any

import pytest
from execute import NAMES, executed

pytest.importorskip("matplotlib")
pytest.importorskip("nbclient")
pytest.importorskip("ipykernel")
nbformat = pytest.importorskip("nbformat")


REPO = Path(__file__).parents[3]
NOTEBOOKS = REPO / "docs" / "notebooks"


LARGEST = 600 << 10
SAID = {
    "first_divergence.ipynb": [
        "DIVERGED model › layers › 2 › post_attention_layernorm model › layers › 2 › post_attention_layernorm",
        "ALIGNED",
    ],
    "tensor_drilldown.ipynb": ["model › layers › 1 › self_attn › v_proj model › layers › 1 › self_attn › v_proj"],
}
"""what each notebook is to say of what it compares: verdicts, and the way to the first divergence in A and B"""
HINTS = {"first_divergence.ipynb": "A used eps 1.0e-06, B 1.0e-05"}


@pytest.fixture(scope="module", params=NAMES)
def pair(request: Any, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Any, Any]:
    """Return a notebook's name, the notebook as it is stored, and as it is when it is executed now."""
    name = request.param
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", os.pathsep.join([str(REPO), os.environ.get("PYTHONPATH", "")]))
        patch.setenv("HF_HUB_OFFLINE", "1")
        fresh = executed(name, tmp_path_factory.mktemp("notebook"))
    return name, nbformat.read(NOTEBOOKS / name, as_version=4), fresh


def outputs(notebook: Any) -> list[Any]:
    """Return all outputs but warnings: that this machine's disk is full or slow is not what the notebook says."""
    found = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    return [output for output in found if output.get("name") != "stderr"]


def said(notebook: Any) -> list[str]:
    """Return, of each output that has any, the verdict and the ways to the first divergence."""
    pages = [output.get("data", {}).get("text/html", "") for output in outputs(notebook)]
    pieces = [re.findall(r'class="(?:verdict|chain)[^>]*>(.*?)</(?:b|code)>(?!<)', page) for page in pages]
    return [re.sub("<[^>]*>", "", " ".join(found)) for found in pieces if found]


def kinds(notebook: Any) -> list[tuple[str, list[str]]]:
    return [(output.output_type, sorted(output.get("data", {}))) for output in outputs(notebook)]


def printed(notebook: Any) -> list[str]:
    return [output.text for output in outputs(notebook) if output.output_type == "stream"]


def test_what_is_stored_is_what_it_gives(pair: tuple[str, Any, Any]) -> None:
    name, stored, fresh = pair
    assert said(stored) == said(fresh) == SAID[name]
    assert kinds(stored) == kinds(fresh), "run docs/notebooks/execute.py"
    numbers = re.compile(r"\d+\.\d+")
    assert [numbers.sub("", text) for text in printed(stored)] == [numbers.sub("", text) for text in printed(fresh)]
    if name in HINTS:
        assert any(HINTS[name] in str(output) for output in outputs(stored))
        assert any(HINTS[name] in str(output) for output in outputs(fresh))


def test_nothing_is_complained_of(pair: tuple[str, Any, Any]) -> None:
    for notebook in pair[1:]:
        assert not [each for each in outputs(notebook) if each.output_type == "error" or each.get("name") == "stderr"]


@pytest.mark.parametrize("name", NAMES)
def test_what_is_stored_is_small_and_knows_no_machine(name: str) -> None:
    text = (NOTEBOOKS / name).read_text(encoding="utf-8")
    notebook = json.loads(text)
    assert len(text) < LARGEST
    assert not re.search(r"/tmp/|/home/|/root|/work/|site-packages|[A-Z]:\\\\", text)
    assert notebook["metadata"].keys() == {"kernelspec", "language_info"}
    assert notebook["metadata"]["language_info"] == {"name": "python"}
    cells = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    assert [cell["execution_count"] for cell in cells] == list(range(1, len(cells) + 1))
    assert not any(cell["metadata"] for cell in cells), "no times of execution"
    images = [output["data"]["image/png"] for cell in cells for output in cell["outputs"] if "image/png" in output.get("data", {})]  # fmt: skip
    assert images and all(base64.b64decode(image).startswith(b"\x89PNG") for image in images)


def test_every_notebook_has_its_expectation() -> None:
    assert NAMES == sorted(SAID) == sorted(path.name for path in NOTEBOOKS.glob("*.ipynb"))
