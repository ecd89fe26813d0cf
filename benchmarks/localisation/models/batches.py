"""What models are given: a batch of one step, drawn from a generator, as arguments by name and ``target``."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

VOCABULARY = 96
ROWS = 4
"""samples in a step's batch"""
PADDING = 1
"""the id of padding tokens"""
CLASSES = 10

Batch = dict[str, Tensor]


def normal(generator: torch.Generator, *shape: int) -> Tensor:
    return torch.randn(shape, generator=generator)


def classes(generator: torch.Generator, rows: int = ROWS) -> Tensor:
    return torch.randint(CLASSES, (rows,), generator=generator)


def token_ids(generator: torch.Generator, length: int = 16) -> Tensor:
    return torch.randint(2, VOCABULARY, (ROWS, length), generator=generator)


def padding_mask(length: int) -> Tensor:
    """Return a mask in which the second sample ends with five padding tokens."""
    mask = torch.ones(ROWS, length, dtype=torch.long)
    mask[1, length - 5 :] = 0
    return mask


def renamed_arguments(batch: Callable[[torch.Generator], Batch], **names: str) -> Callable[[torch.Generator], Batch]:
    """Return a batch function with other names of arguments: those of a port."""
    return lambda generator: {names.get(key, key): value for key, value in batch(generator).items()}


# Language models


def next_tokens(generator: torch.Generator) -> Batch:
    ids = token_ids(generator)
    return {"input_ids": ids, "target": ids}


def next_ids(generator: torch.Generator) -> Batch:
    """Return `next_tokens` for a hand-written network."""
    ids = token_ids(generator)
    return {"ids": ids, "target": ids}


def masked_next_tokens(generator: torch.Generator) -> Batch:
    """Return tokens of which the mask hides some, without the id of padding."""
    ids, mask = token_ids(generator), padding_mask(16)
    return {"input_ids": ids, "attention_mask": mask, "target": ids.masked_fill(mask == 0, -100)}


def padded_next_tokens(generator: torch.Generator) -> Batch:
    ids, mask = token_ids(generator), padding_mask(16)
    ids = ids.masked_fill(mask == 0, PADDING)
    return {"input_ids": ids, "attention_mask": mask, "target": ids.masked_fill(mask == 0, -100)}


# Masked language models, taggers, classifiers


def masked_tokens(generator: torch.Generator) -> Batch:
    ids, mask = token_ids(generator), padding_mask(16)
    target = torch.where(torch.rand(ids.shape, generator=generator) < 0.3, ids, -100).where(mask.bool(), -100)
    return {"input_ids": ids, "attention_mask": mask, "target": target}


def padded_tokens(generator: torch.Generator) -> Batch:
    """Return masked tokens with padding where the mask says so."""
    found = masked_tokens(generator)
    return {**found, "input_ids": found["input_ids"].masked_fill(found["attention_mask"] == 0, PADDING)}


def tokens_without_mask(generator: torch.Generator) -> Batch:
    """Return masked tokens for a model that takes no mask."""
    found = masked_tokens(generator)
    return {"input_ids": found["input_ids"], "target": found["target"]}


def typed_tokens(generator: torch.Generator) -> Batch:
    """Return padded tokens of which the second half is a second text."""
    types = (torch.arange(16) > 7).long().repeat(ROWS, 1)
    return {**padded_tokens(generator), "token_type_ids": types}


def boxed_tokens(generator: torch.Generator) -> Batch:
    """Return padded tokens and their bounding boxes on a page."""
    found = padded_tokens(generator)
    corners = torch.randint(16, (ROWS, 16, 2), generator=generator)
    sizes = torch.randint(1, 16, (ROWS, 16, 2), generator=generator)
    return {**found, "bbox": torch.cat([corners, corners + sizes], -1)}


def tagged_ids(generator: torch.Generator) -> Batch:
    return {"ids": token_ids(generator), "target": token_ids(generator)}


def classified_ids(generator: torch.Generator) -> Batch:
    return {"ids": token_ids(generator), "target": classes(generator)}


# Encoders with decoders


def translation(generator: torch.Generator) -> Batch:
    target = token_ids(generator, 10)
    target[2, 7:] = -100
    given = torch.roll(target, 1, 1).clamp_min(0)
    given[:, 0] = 0
    mask = padding_mask(16)
    return {"input_ids": token_ids(generator), "attention_mask": mask, "decoder_input_ids": given, "target": target}


def padded_translation(generator: torch.Generator) -> Batch:
    found = translation(generator)
    source = found["input_ids"].masked_fill(found["attention_mask"] == 0, PADDING)
    given = torch.roll(found["target"], 1, 1)
    return {**found, "input_ids": source, "decoder_input_ids": given.masked_fill(given < 0, PADDING)}


def translated_ids(generator: torch.Generator) -> Batch:
    """Return `padded_translation` for a hand-written network."""
    found = padded_translation(generator)
    return {"ids": found["input_ids"], "given": found["decoder_input_ids"], "target": found["target"]}


# Pictures and films


def images(name: str) -> Callable[[torch.Generator], Batch]:
    def draw(generator: torch.Generator) -> Batch:
        return {name: normal(generator, ROWS, 3, 16, 16), "target": classes(generator)}

    return draw


def square_images(side: int) -> Callable[[torch.Generator], Batch]:
    def draw(generator: torch.Generator) -> Batch:
        target = classes(generator)
        return {"pixel_values": normal(generator, ROWS, 3, side, side), "target": target}

    return draw


def image_pairs(generator: torch.Generator) -> Batch:
    return {"x": normal(generator, ROWS, 3, 16, 16), "target": normal(generator, ROWS, 3, 16, 16)}


def class_maps(generator: torch.Generator) -> Batch:
    return {"pixel_values": normal(generator, ROWS, 3, 32, 32), "target": normal(generator, ROWS, 10, 8, 8)}


def pixel_classes(generator: torch.Generator) -> Batch:
    target = torch.randint(CLASSES, (ROWS, 16, 16), generator=generator)
    target[1, 12:] = -100
    return {"x": normal(generator, ROWS, 3, 16, 16), "target": target}


def films(generator: torch.Generator) -> Batch:
    target = classes(generator)
    return {"pixel_values": normal(generator, ROWS, 4, 3, 8, 8), "target": target}


# Sounds and series


def speech(generator: torch.Generator) -> Batch:
    target = token_ids(generator, 10)
    given = torch.roll(target, 1, 1)
    return {"input_features": normal(generator, ROWS, 16, 32), "decoder_input_ids": given, "target": target}


def waveforms(generator: torch.Generator) -> Batch:
    target = classes(generator)
    return {"input_values": normal(generator, ROWS, 320), "target": target}


def spectrograms(generator: torch.Generator) -> Batch:
    target = classes(generator)
    return {"input_values": normal(generator, ROWS, 24, 16), "target": target}


def sounds_and_texts(generator: torch.Generator) -> Batch:
    return {"x": normal(generator, ROWS, 12, 20), "ids": token_ids(generator, 8), "target": torch.arange(ROWS)}


def series(generator: torch.Generator) -> Batch:
    x = normal(generator, ROWS, 25, 8).cumsum(1) / 4
    return {"x": x[:, :-1], "target": x[:, 1:, :4]}


def games(generator: torch.Generator) -> Batch:
    return {"x": normal(generator, ROWS, 10, 12), "target": normal(generator, ROWS, 10, 7)}


# Graphs, sets and point clouds


def _edges(generator: torch.Generator) -> Tensor:
    edges = (torch.rand(ROWS, 12, 12, generator=generator) < 0.15).float()
    return ((edges + edges.transpose(1, 2)) > 0).float() * (1 - torch.eye(12))


def classified_graphs(generator: torch.Generator) -> Batch:
    edges, target = _edges(generator), classes(generator)
    return {"nodes": normal(generator, ROWS, 12, 8), "edges": edges, "target": target}


def classified_nodes(generator: torch.Generator) -> Batch:
    edges = _edges(generator)
    target = torch.randint(CLASSES, (ROWS, 12), generator=generator)
    return {"nodes": normal(generator, ROWS, 12, 8), "edges": edges, "target": target}


def vector_sets(generator: torch.Generator) -> Batch:
    target = classes(generator)
    return {"x": normal(generator, ROWS, 20, 12), "target": target}


def point_clouds(generator: torch.Generator) -> Batch:
    target = classes(generator, 2 * ROWS)
    return {"x": normal(generator, 2 * ROWS, 3, 20), "target": target}


# Generative models


def images_against_noise(generator: torch.Generator) -> Batch:
    """Return what a generator and its discriminator are given."""
    return {"noise": normal(generator, ROWS, 8), "real": normal(generator, ROWS, 3, 8, 8)}


def vectors_and_noise(generator: torch.Generator) -> Batch:
    x = normal(generator, ROWS, 48)
    return {"x": x, "noise": normal(generator, ROWS, 8), "target": x}


def images_and_noise(generator: torch.Generator) -> Batch:
    x = normal(generator, ROWS, 3, 16, 16)
    return {"x": x, "noise": normal(generator, ROWS, 8), "target": x}


def timed_images(generator: torch.Generator) -> Batch:
    """Return noisy images, the numbers of their diffusion steps, and the noise to predict."""
    time = torch.randint(1000, (ROWS,), generator=generator)
    x = normal(generator, ROWS, 3, 16, 16)
    return {"x": x, "time": time, "target": normal(generator, ROWS, 3, 16, 16)}


def points(generator: torch.Generator) -> Batch:
    return {"x": normal(generator, 2 * ROWS, 16), "target": torch.zeros(2 * ROWS, 16)}


def reconstructed_vectors(generator: torch.Generator) -> Batch:
    x = normal(generator, 2 * ROWS, 12)
    return {"x": x, "target": x}


# Tables of columns, and retrieval


def columns(generator: torch.Generator) -> Batch:
    categories = torch.randint(40, (ROWS, 3, 4), generator=generator)
    target = classes(generator)
    return {"numbers": normal(generator, ROWS, 13), "categories": categories, "target": target}


def more_columns(generator: torch.Generator) -> Batch:
    """Return `columns` of twice as many samples, for batch normalisation."""
    categories = torch.randint(40, (ROWS * 2, 3, 4), generator=generator)
    target = classes(generator, ROWS * 2)
    return {"numbers": normal(generator, ROWS * 2, 13), "categories": categories, "target": target}


def numbers(generator: torch.Generator) -> Batch:
    return {"x": normal(generator, ROWS, 24), "target": classes(generator)}


def texts_and_vectors(generator: torch.Generator) -> Batch:
    return {"ids": token_ids(generator, 8), "x": normal(generator, ROWS, 48), "target": torch.arange(ROWS)}


def questions_and_passages(generator: torch.Generator) -> Batch:
    mask = padding_mask(12)
    questions, passages = (token_ids(generator, 12) for _ in range(2))
    return {
        "questions": questions.masked_fill(mask == 0, PADDING), "question_mask": mask,
        "passages": passages.masked_fill(mask.flip(0) == 0, PADDING), "passage_mask": mask.flip(0),
        "target": torch.arange(ROWS),
    }  # fmt: skip
