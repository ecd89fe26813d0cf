"""Llama: transformers' against Meta's own names."""

from tests.torch.meta_llama import pair as pair
