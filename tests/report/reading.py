"""Reading the HTML report back, and models to make one of."""

from __future__ import annotations

import base64
import json
import re
import zlib
from pathlib import Path
from typing import Any

import probe
from tests.toy import nn
from tests.toy.tensor import Tensor
from tests.toys import GPT, Block, gpt, module, record

DATA = re.compile(r'<script type="text/plain" id="data">([^<]*)</script>')


DETAILS = re.compile(DATA.pattern.replace("data", "details"))


def document_in(page: str) -> dict[str, Any]:
    """Return the document that stands in a page, in two parts."""
    whole, details = (json.loads(zlib.decompress(base64.b64decode(part.search(page)[1]))) for part in (DATA, DETAILS))
    if "tensors" in whole:
        whole["tensors"] = spread(whole["tensors"] | details)
    return whole


def spread(table: dict[str, Any]) -> dict[str, Any]:
    """Return a table with the columns whole that are written down as runs."""
    return {
        name: column if isinstance(column, list)
        else [value for value, count in zip(column["runs"][::2], column["runs"][1::2], strict=True) for _ in range(count)] if "runs" in column
        else spread(column)
        for name, column in table.items()
    }  # fmt: skip


class Port(GPT):
    """The same model under other names, with one module more in each layer."""

    def __init__(self) -> None:
        model = gpt()
        nn.Module.__init__(self, words=model.embed, decoder=nn.ModuleList(*map(PortedBlock, model.layers)),
                           final=model.norm, output=model.head)  # fmt: skip

    def forward(self, ids: Tensor) -> Tensor:
        x = self.words(ids)
        for layer in self.decoder:
            x = layer(x)
        return self.output(self.final(x))


class Add(nn.Module):
    """What the other model does without a module."""

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return x + y


class PortedBlock(nn.Module):
    """A `Block` with other names."""

    def __init__(self, block: Block) -> None:
        super().__init__(ln1=block.norm1, attention=block.attn, ln2=block.norm2, mlp=block.mlp, residual=Add())

    def forward(self, x: Tensor) -> Tensor:
        x = self.residual(x, self.attention(self.ln1(x)))
        return self.residual(x, self.mlp(self.ln2(x)))


MAPPING = {
    "TopLayer": {"embed": "words", "layers": "decoder", "norm": "final", "head": "output"},
    "Block": {"norm1": "ln1", "attn": "attention", "norm2": "ln2"},
}


def recorded(folder: Path, *, fault: bool = True, **options: Any) -> tuple[Path, Path]:
    """Record the model and its port, in which one norm of the second layer has another eps."""
    port = Port()
    if fault:
        module(port, "decoder.1.ln2").eps = 0.05
    return record(folder / "a.h5", **options), record(folder / "b.h5", port, **options)


def compared(folder: Path, **options: Any) -> probe.Comparison:
    """Compare the model with its faulty port."""
    return probe.compare(*recorded(folder, **options), mapping=MAPPING)
