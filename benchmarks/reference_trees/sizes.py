"""The sizes of both models, their batch, and where the patches of an image lie: what the two projects agree on."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

Grid = tuple[int, int]
"""rows and columns of an image's patches"""


@dataclass(frozen=True, slots=True)
class Sizes:
    """Numbers of layers as printed, and small widths."""

    vision_layers: int = 16
    text_layers: int = 8
    full_attention: tuple[int, ...] = (7, 15)
    """layers of the vision tower whose attention is not within windows"""
    vision_width: int = 64
    vision_heads: int = 4
    vision_hidden: int = 80
    width: int = 96
    heads: int = 6
    groups: int = 2
    hidden: int = 160
    vocabulary: int = 128
    sections: tuple[int, int, int] = (2, 3, 3)
    """of half a head: by time, row and column"""
    text_theta: float = 1e6
    vision_theta: float = 1e4
    eps: float = 1e-6
    patch: int = 14
    frames: int = 2
    merge: int = 2
    window: int = 2
    """merged patches along each side of a window"""

    @property
    def patch_width(self) -> int:
        """Numbers in a patch: three colours of some frames."""
        return 3 * self.frames * self.patch**2


@dataclass(frozen=True)
class Batch:
    """Two texts, each with one image."""

    pixels: Tensor
    grids: tuple[Grid, ...]
    tokens: Tensor
    positions: Tensor
    """by time, row and column of each token"""


IMAGE, LENGTH, BEGINS = 0, 24, 4
"""the token that an image's features replace, tokens of a text, and where the image begins"""
GRIDS: tuple[Grid, ...] = ((8, 6), (4, 8))


def make_batch(sizes: Sizes, step: int) -> Batch:
    """Return the batch of a step."""
    random = torch.Generator().manual_seed(1000 + step)
    count = sum(rows * columns for rows, columns in GRIDS)
    pixels = torch.randn(count, sizes.patch_width, generator=random)
    tokens = torch.randint(1, sizes.vocabulary, (len(GRIDS), LENGTH), generator=random)
    positions = torch.zeros(3, len(GRIDS), LENGTH, dtype=torch.long)
    for text, (rows, columns) in enumerate(GRIDS):
        high, wide = rows // sizes.merge, columns // sizes.merge
        end = BEGINS + high * wide
        tokens[text, BEGINS:end] = IMAGE
        positions[:, text, :BEGINS] = torch.arange(BEGINS)
        place = torch.arange(high * wide)
        positions[:, text, BEGINS:end] = BEGINS + torch.stack([0 * place, place // wide, place % wide])
        positions[:, text, end:] = BEGINS + max(high, wide) + torch.arange(LENGTH - end)
    return Batch(pixels, GRIDS, tokens, positions)


def patch_positions(grids: tuple[Grid, ...], merge: int) -> Tensor:
    """Return row and column of each patch, in the order in which they are given: those that are merged follow one another."""
    found = []
    for rows, columns in grids:
        row, column = torch.meshgrid(torch.arange(rows), torch.arange(columns), indexing="ij")
        found.append(torch.stack([_merged_together(each, merge) for each in (row, column)], -1))
    return torch.cat(found)


def _merged_together(grid: Tensor, merge: int) -> Tensor:
    rows, columns = grid.shape
    return grid.view(rows // merge, merge, columns // merge, merge).transpose(1, 2).flatten()


def windows(grids: tuple[Grid, ...], merge: int, window: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return the merged patches window by window, and of each patch, so ordered, which window and which image it is of."""
    orders, of_window, of_image, start, count = [], [], [], 0, 0
    for image, (rows, columns) in enumerate(grids):
        high, wide = rows // merge, columns // merge
        row, column = torch.meshgrid(torch.arange(high), torch.arange(wide), indexing="ij")
        number = ((row // window) * -(-wide // window) + column // window).flatten()
        order = torch.argsort(number, stable=True)
        orders.append(start + order)
        of_window.append(count + number[order])
        of_image.append(torch.full_like(number, image))
        start, count = start + high * wide, count + int(number.max()) + 1
    each = merge**2
    return torch.cat(orders), torch.cat(of_window).repeat_interleave(each), torch.cat(of_image).repeat_interleave(each)


def window_by_window(x: Tensor, order: Tensor, merge: int) -> Tensor:
    """Return patches with those of each window one after the other."""
    return x.view(len(order), merge**2, -1)[order].view(len(x), -1)


def rotated(x: Tensor) -> Tensor:
    """Return the two halves of the last axis, swapped and the first one negative."""
    first, second = x.chunk(2, -1)
    return torch.cat([-second, first], -1)


def by_sections(table: Tensor, sections: tuple[int, ...]) -> Tensor:
    """Return of angles by time, row and column, on the first axis, those that each section of a head is turned by."""
    parts = table.split([*sections, *sections], -1)
    return torch.cat([part[k % len(sections)] for k, part in enumerate(parts)], -1)
