"""State space models, linear recurrences and short convolutions, of transformers."""

from __future__ import annotations

from benchmarks.localisation.models.architecture import (
    DECODER,
    EAGER,
    LAYER_NORM_DECODER,
    SPLIT,
    Architecture,
    transformer,
)
from benchmarks.localisation.models.batches import VOCABULARY, next_tokens

STATE_SPACE: dict[str, Architecture] = {
    "mamba": Architecture(
        transformer("MambaForCausalLM", vocab_size=VOCABULARY, hidden_size=32, num_hidden_layers=3, state_size=8),
        next_tokens, SPLIT, True,
    ),
    "falcon-mamba": Architecture(
        transformer("FalconMambaForCausalLM", vocab_size=VOCABULARY, hidden_size=32, num_hidden_layers=2, state_size=8),
        next_tokens, SPLIT, True,
    ),
    "bamba": Architecture(
        transformer(
            "BambaForCausalLM", **DECODER, attn_layer_indices=[1], mamba_n_heads=8, mamba_d_head=8, mamba_n_groups=1,
            mamba_d_state=8, mamba_chunk_size=8, pad_token_id=0,
        ), next_tokens, EAGER, True,
    ),
    "rwkv": Architecture(
        transformer("RwkvForCausalLM", vocab_size=VOCABULARY, hidden_size=32, num_hidden_layers=3, attention_hidden_size=32, intermediate_size=64),
        next_tokens, SPLIT, True,
    ),
    "mamba2": Architecture(
        transformer(
            "Mamba2ForCausalLM", vocab_size=VOCABULARY, hidden_size=32, num_hidden_layers=3, state_size=8, num_heads=8, head_dim=8,
            n_groups=1, chunk_size=8, expand=2, pad_token_id=0, tie_word_embeddings=False,
        ), next_tokens, SPLIT, True,
    ),
    "lfm2": Architecture(
        transformer(
            "Lfm2ForCausalLM", **{**LAYER_NORM_DECODER, "norm_eps": 1e-6}, conv_L_cache=3, layer_types=["conv", "full_attention", "conv"],
            block_auto_adjust_ff_dim=False, pad_token_id=0,
        ), next_tokens, EAGER, True,
    ),
}  # fmt: skip
