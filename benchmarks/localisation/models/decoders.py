"""Language models of transformers that predict the next token, without experts."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from benchmarks.localisation.models.architecture import (
    DECODER,
    EAGER,
    LAYER_NORM_DECODER,
    PADDED_BERT,
    SIZES,
    SPLIT,
    Architecture,
    transformer,
)
from benchmarks.localisation.models.batches import (
    PADDING,
    VOCABULARY,
    masked_next_tokens,
    next_tokens,
    padded_next_tokens,
)


class RootMeanSquare(nn.Module):
    """RMSNorm as written by hand."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(32))
        self.eps = 1e-6

    def forward(self, x: Tensor) -> Tensor:
        wide = x.float()
        return self.weight * (wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + self.eps)).to(x.dtype)


_PERSIMMON = {**SIZES, "num_hidden_layers": 3, "max_position_embeddings": 32, "tie_word_embeddings": False}
_GPT = {
    "vocab_size": VOCABULARY, "n_embd": 32, "n_layer": 3, "n_head": 4, "n_positions": 32,
    "attn_pdrop": 0.0, "embd_pdrop": 0.0, "resid_pdrop": 0.0,
}  # fmt: skip

DECODERS: dict[str, Architecture] = {
    "qwen2": Architecture(transformer("Qwen2ForCausalLM", **DECODER), next_tokens, EAGER, True),
    "llama": Architecture(transformer("LlamaForCausalLM", **DECODER), next_tokens, EAGER, True),
    "gpt2": Architecture(
        transformer(
            "GPT2LMHeadModel", vocab_size=VOCABULARY, n_embd=32, n_layer=3, n_head=4, n_positions=32,
            attn_pdrop=0.0, embd_pdrop=0.0, resid_pdrop=0.0,
        ), next_tokens, EAGER, True,
    ),
    "qwen3": Architecture(transformer("Qwen3ForCausalLM", **DECODER, head_dim=8), next_tokens, EAGER, True),
    "gemma2": Architecture(
        transformer("Gemma2ForCausalLM", **DECODER, head_dim=8, sliding_window=8), next_tokens, SPLIT, True
    ),
    "opt": Architecture(
        transformer(
            "OPTForCausalLM", vocab_size=VOCABULARY, hidden_size=32, ffn_dim=64, num_attention_heads=4, num_hidden_layers=3,
            max_position_embeddings=32, word_embed_proj_dim=32, dropout=0.0,
        ), next_tokens, EAGER, True,
    ),
    "neox": Architecture(
        transformer("GPTNeoXForCausalLM", **SIZES, num_hidden_layers=3, max_position_embeddings=32), next_tokens, EAGER, True
    ),
    "falcon": Architecture(
        transformer(
            "FalconForCausalLM", vocab_size=VOCABULARY, hidden_size=32, num_attention_heads=4, num_hidden_layers=3,
            hidden_dropout=0.0, attention_dropout=0.0, max_position_embeddings=32,
        ), next_tokens, EAGER, True,
    ),
    "bloom": Architecture(
        transformer(
            "BloomForCausalLM", vocab_size=VOCABULARY, hidden_size=32, n_head=4, n_layer=3, hidden_dropout=0.0,
            attention_dropout=0.0,
        ), masked_next_tokens, SPLIT, True,
    ),
    "phi": Architecture(
        transformer(
            "PhiForCausalLM", **SIZES, num_hidden_layers=3, num_key_value_heads=2, embd_pdrop=0.0, resid_pdrop=0.0,
            max_position_embeddings=32,
        ), next_tokens, EAGER, True,
    ),
    "phi3": Architecture(
        transformer("Phi3ForCausalLM", **DECODER, max_position_embeddings=32, original_max_position_embeddings=32, pad_token_id=0),
        next_tokens, EAGER, True,
    ),
    "stablelm": Architecture(transformer("StableLmForCausalLM", **LAYER_NORM_DECODER), next_tokens, EAGER, True),
    "olmo2": Architecture(transformer("Olmo2ForCausalLM", **DECODER), next_tokens, EAGER, True),
    "cohere": Architecture(
        transformer("CohereForCausalLM", **{**LAYER_NORM_DECODER, "tie_word_embeddings": True}, logit_scale=0.25),
        next_tokens, EAGER, True,
    ),
    "mistral": Architecture(transformer("MistralForCausalLM", **DECODER, sliding_window=6), next_tokens, EAGER, True),
    "granite": Architecture(
        transformer(
            "GraniteForCausalLM", **DECODER, embedding_multiplier=3.0, residual_multiplier=0.5, attention_multiplier=0.25,
            logits_scaling=2.0,
        ), next_tokens, EAGER, True,
    ),
    "starcoder2": Architecture(
        transformer(
            "Starcoder2ForCausalLM", **LAYER_NORM_DECODER, norm_epsilon=1e-5, use_bias=True, residual_dropout=0.0, embedding_dropout=0.0,
            sliding_window=None,
        ), next_tokens, EAGER, True,
    ),
    "gemma3": Architecture(
        transformer("Gemma3ForCausalLM", **DECODER, head_dim=8, query_pre_attn_scalar=8, sliding_window=5, sliding_window_pattern=2),
        next_tokens, EAGER, True,
    ),
    "persimmon": Architecture(transformer("PersimmonForCausalLM", **_PERSIMMON, hidden_dropout=0.0, attention_dropout=0.0), next_tokens, EAGER, True),
    "gptj": Architecture(transformer("GPTJForCausalLM", **_GPT, rotary_dim=4), next_tokens, SPLIT, True),
    "codegen": Architecture(transformer("CodeGenForCausalLM", **_GPT, rotary_dim=4), next_tokens, SPLIT, True),
    "xglm": Architecture(
        transformer(
            "XGLMForCausalLM", vocab_size=VOCABULARY, d_model=32, ffn_dim=64, num_layers=3, attention_heads=4,
            max_position_embeddings=32, dropout=0.0, attention_dropout=0.0, activation_dropout=0.0, layerdrop=0.0,
            pad_token_id=PADDING,
        ), padded_next_tokens, SPLIT, True,
    ),
    "mpt": Architecture(
        transformer("MptForCausalLM", vocab_size=VOCABULARY, d_model=32, n_heads=4, n_layers=3, expansion_ratio=2, max_seq_len=32),
        next_tokens, SPLIT, True,
    ),
    "nemotron": Architecture(transformer("NemotronForCausalLM", **LAYER_NORM_DECODER, norm_eps=1e-5), next_tokens, EAGER, True),
    "glm": Architecture(transformer("GlmForCausalLM", **DECODER, head_dim=8, pad_token_id=0), next_tokens, EAGER, True),
    "smollm3": Architecture(
        transformer("SmolLM3ForCausalLM", **DECODER, no_rope_layers=[1, 1, 0], pad_token_id=0), next_tokens, EAGER, True
    ),
    "cohere2": Architecture(
        transformer(
            "Cohere2ForCausalLM", **{**LAYER_NORM_DECODER, "tie_word_embeddings": True}, logit_scale=0.25, sliding_window=5,
            layer_types=["sliding_attention", "sliding_attention", "full_attention"],
        ), next_tokens, EAGER, True,
    ),
    "olmo": Architecture(transformer("OlmoForCausalLM", **LAYER_NORM_DECODER), next_tokens, EAGER, True),
    "gemma": Architecture(transformer("GemmaForCausalLM", **DECODER, head_dim=8), next_tokens, EAGER, True),
    "helium": Architecture(transformer("HeliumForCausalLM", **DECODER, head_dim=8), next_tokens, EAGER, True),
    "ernie": Architecture(transformer("Ernie4_5ForCausalLM", **DECODER, head_dim=8, use_bias=True), next_tokens, EAGER, True),
    "exaone": Architecture(transformer("Exaone4ForCausalLM", **DECODER, sliding_window=6), next_tokens, EAGER, True),
    "gpt-neo": Architecture(
        transformer(
            "GPTNeoForCausalLM", vocab_size=VOCABULARY, hidden_size=32, num_layers=2, attention_types=[[["global", "local"], 1]],
            num_heads=4, window_size=5, max_position_embeddings=32, intermediate_size=64, resid_dropout=0.0, embed_dropout=0.0,
            attention_dropout=0.0,
        ), next_tokens, SPLIT, True,
    ),
    "bigcode": Architecture(transformer("GPTBigCodeForCausalLM", **_GPT, multi_query=True), next_tokens, EAGER, True),
    "biogpt": Architecture(
        transformer("BioGptForCausalLM", **{**PADDED_BERT, "activation_dropout": 0.0, "layerdrop": 0.0, "scale_embedding": True}),
        padded_next_tokens, EAGER, True,
    ),
    "openai-gpt": Architecture(
        transformer("OpenAIGPTLMHeadModel", **{**_GPT, "n_layer": 2}), next_tokens, SPLIT, True
    ),
    "ctrl": Architecture(
        transformer(
            "CTRLLMHeadModel", vocab_size=VOCABULARY, n_positions=32, n_embd=32, dff=64, n_layer=3, n_head=4, resid_pdrop=0.0,
            embd_pdrop=0.0,
        ), next_tokens, SPLIT, True,
    ),
    "vaultgemma": Architecture(
        transformer(
            "VaultGemmaForCausalLM", **DECODER, head_dim=8, query_pre_attn_scalar=8, sliding_window=6, attn_logit_softcapping=None,
            final_logit_softcapping=2.0,
        ), next_tokens, SPLIT, True,
    ),
    "diffllama": Architecture(transformer("DiffLlamaForCausalLM", **{**DECODER, "num_key_value_heads": 4}), next_tokens, SPLIT, True),
}  # fmt: skip
