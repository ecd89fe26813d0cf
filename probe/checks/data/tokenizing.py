"""A tokenizer of transformers from a folder: the text of ids, and its special ids."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from probe.errors import ConfigError

_NAMES = (
    "bos_token_id",
    "eos_token_id",
    "pad_token_id",
    "unk_token_id",
    "sep_token_id",
    "cls_token_id",
    "mask_token_id",
)


@dataclass(frozen=True)
class Tokenizer:
    """What the checks need of a tokenizer."""

    size: int
    """how many tokens it has, added ones included"""
    special: dict[str, int]
    """special ids by their names in configurations"""
    _decode: Callable[[list[int]], str] = field(repr=False)

    def text(self, ids: Sequence[int]) -> str:
        """Return the text of ids; those that it does not have are left out."""
        return self._decode([int(each) for each in ids if 0 <= each < self.size])


def load_tokenizer(folder: str | Path) -> Tokenizer:
    """Load a tokenizer that lies in a folder; nothing is downloaded.

    Raises
    ------
    ConfigError
        transformers is not installed, or the folder holds no tokenizer
    """
    try:
        from transformers import AutoTokenizer
    except ImportError:
        raise ConfigError("--tokenizer needs transformers: pip install transformers") from None
    try:
        found = AutoTokenizer.from_pretrained(str(folder), local_files_only=True)
    except Exception as error:  # noqa: BLE001  transformers raises what its many backends do
        told = str(error).strip().partition("\n")[0]
        raise ConfigError(f"{folder} holds no tokenizer that transformers can load: {told}") from None
    special = {name: getattr(found, name, None) for name in _NAMES}
    kept = {name: value for name, value in special.items() if isinstance(value, int)}
    return Tokenizer(len(found), kept, found.decode)
