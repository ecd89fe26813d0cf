"""What a setting is: a row of the table."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field


class Category(enum.StrEnum):
    """The checklist that a setting stands in."""

    STRUCTURE = "network structure"
    MOE = "MoE"
    OPTIMIZER = "optimizer"
    WEIGHTS = "weights"
    PRECISION = "mixed precision"
    PARALLEL = "parallel"
    OTHER = "other"
    ENVIRONMENT = "environment"


class Effect(enum.StrEnum):
    """What a difference does by itself."""

    NUMBERS = "numbers"
    """another computation"""
    PRECISION = "precision"
    """the same computation in another precision"""
    RANDOM = "random"
    """other random numbers, or sums in an order that changes from run to run"""
    ROUNDING = "rounding"
    """the same computation in the same precision; sums are taken in another order"""
    NONE = "none"
    """memory and time only"""
    UNKNOWN = "unknown"
    """the table does not have it"""

    @property
    def counts(self) -> bool:
        """Return True if two runs that differ so cannot be expected to agree."""
        return self in (Effect.NUMBERS, Effect.PRECISION, Effect.RANDOM)


class Kind(enum.StrEnum):
    """How the values of a setting are read."""

    NUMBER = "number"
    FLAG = "flag"
    DTYPE = "dtype"
    CHOICE = "choice"
    """one of several words, which have synonyms"""
    TEXT = "text"


class Dialect(enum.StrEnum):
    """Whose names a configuration uses."""

    TRANSFORMERS = "transformers"
    MEGATRON = "megatron"
    """Megatron-LM, Megatron-core, MindSpeed-LLM"""
    MINDFORMERS = "mindformers"
    PADDLENLP = "paddlenlp"
    VLLM = "vllm"
    META = "meta"
    """Meta's and Mistral's params.json"""


class Part(enum.StrEnum):
    """What a configuration is of; a setting that is missing has its default where the part is there."""

    MODEL = "model"
    TRAINING = "training"


_OF_MODEL = (Category.STRUCTURE, Category.MOE, Category.WEIGHTS)


@dataclass(frozen=True, slots=True)
class Place:
    """Where a setting shows: findings of these phases, roles and kinds in modules of these classes, or with these hints."""

    classes: tuple[str, ...] = ("*",)
    """globs of class names, in small letters"""
    phases: tuple[str, ...] = ()
    """labels of `probe.records.Phase`; empty: all"""
    roles: tuple[str, ...] = ()
    kinds: tuple[str, ...] = ()
    """values of `probe.answer.result.Kind`"""
    hints: tuple[str, ...] = ()
    """names of hints that suffice, whatever the class"""


@dataclass(frozen=True, slots=True)
class When:
    """A condition: another setting has one of these values, or is not known."""

    setting: str
    values: tuple[object, ...]


@dataclass(frozen=True, slots=True)
class Setting:
    """One setting.

    A name is a key of the configuration, with dots where it lies in a section, and what is done to its value behind a bar:
    ``untie_embeddings_and_output_weights|not``, ``bf16|means:bfloat16`` (`probe.settings.values`). Several are tried in
    their order.
    """

    name: str
    category: Category
    what: str
    """in a few words"""
    kind: Kind = Kind.NUMBER
    effect: Effect = Effect.NUMBERS
    transformers: str = ""
    """names in config.json and TrainingArguments, with blanks between them; PaddleNLP and vLLM take them too"""
    megatron: str = ""
    mindformers: str = ""
    paddlenlp: str = ""
    vllm: str = ""
    meta: str = ""
    recorded: str = ""
    """names in the environment of a recording, and in the parameter groups of its optimizers (``group.betas``)"""
    variables: str = ""
    """names of environment variables"""
    words: dict[str, str] = field(default_factory=dict)
    """of a choice: synonyms; what one dialect alone means by a word stands behind its name (``megatron:adam``)"""
    none: object = None
    """what None means; None where it says nothing"""
    defaults: dict[str, object] = field(default_factory=dict)
    """by dialect: the value of a key that is missing"""
    recommended: object = None
    """for aligning two runs, by the checklist"""
    checklist: str = ""
    """key parameters of the MindFormers checklist that this is, with blanks between them"""
    only_with: tuple[When, ...] = ()
    """without these it does nothing"""
    places: tuple[Place, ...] = ()
    """where a difference shows"""

    @property
    def part(self) -> Part:
        """The part of a configuration that it stands in."""
        return Part.MODEL if self.category in _OF_MODEL else Part.TRAINING

    def names(self, dialect: Dialect) -> tuple[str, ...]:
        """Return its names in a dialect, the first that is there counts."""
        own = str(getattr(self, dialect.value)).split()
        shared = self.transformers.split() if dialect in (Dialect.PADDLENLP, Dialect.VLLM) else []
        return tuple(dict.fromkeys([*own, *shared]))

    def keys(self, dialect: Dialect) -> set[str]:
        """Return its names in a dialect without what is done to their values."""
        return {name.partition("|")[0] for name in self.names(dialect)}
