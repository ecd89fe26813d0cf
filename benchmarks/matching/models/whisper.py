"""An encoder and decoder for speech: OpenAI's names (openai/whisper, whisper/model.py) against transformers'."""

from __future__ import annotations

import torch
from torch import nn
from transformers import WhisperConfig, WhisperForConditionalGeneration

CONFIG = WhisperConfig(
    vocab_size=40, num_mel_bins=6, d_model=32, encoder_layers=2, decoder_layers=2, encoder_attention_heads=4,
    decoder_attention_heads=4, encoder_ffn_dim=48, decoder_ffn_dim=48, max_source_positions=8, max_target_positions=12,
    dropout=0.0, pad_token_id=0, bos_token_id=1, eos_token_id=2, decoder_start_token_id=1, use_cache=False,
    attn_implementation="eager",
)  # fmt: skip


class MultiHeadAttention(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.query = nn.Linear(width, width)
        self.key = nn.Linear(width, width, bias=False)
        self.value = nn.Linear(width, width)
        self.out = nn.Linear(width, width)

    def forward(self, x: torch.Tensor, source: torch.Tensor | None = None, is_causal: bool = False) -> torch.Tensor:
        source = x if source is None else source
        q, k, v = (
            part.unflatten(2, (self.heads, -1)).transpose(1, 2)
            for part in (self.query(x), self.key(source), self.value(source))
        )
        scores = q @ k.transpose(2, 3) / q.shape[-1] ** 0.5
        if is_causal:
            scores = scores + torch.full(scores.shape[-2:], float("-inf")).triu(1)
        return self.out((scores.softmax(-1) @ v).transpose(1, 2).flatten(2))


class ResidualAttentionBlock(nn.Module):
    def __init__(self, width: int, heads: int, hidden: int, has_cross: bool) -> None:
        super().__init__()
        self.attn = MultiHeadAttention(width, heads)
        self.attn_ln = nn.LayerNorm(width)
        self.cross_attn = MultiHeadAttention(width, heads) if has_cross else None
        self.cross_attn_ln = nn.LayerNorm(width) if has_cross else None
        self.mlp = nn.Sequential(nn.Linear(width, hidden), nn.GELU(), nn.Linear(hidden, width))
        self.mlp_ln = nn.LayerNorm(width)

    def forward(self, x: torch.Tensor, source: torch.Tensor | None = None) -> torch.Tensor:
        x = x + self.attn(self.attn_ln(x), is_causal=source is not None)
        if source is not None:
            x = x + self.cross_attn(self.cross_attn_ln(x), source)
        return x + self.mlp(self.mlp_ln(x))


class AudioEncoder(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv1d(CONFIG.num_mel_bins, width, 3, padding=1)
        self.conv2 = nn.Conv1d(width, width, 3, stride=2, padding=1)
        self.register_buffer("positional_embedding", torch.zeros(CONFIG.max_source_positions, width))
        self.blocks = nn.ModuleList(
            ResidualAttentionBlock(width, CONFIG.encoder_attention_heads, CONFIG.encoder_ffn_dim, False)
            for _ in range(CONFIG.encoder_layers)
        )
        self.ln_post = nn.LayerNorm(width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = nn.functional.gelu(self.conv2(nn.functional.gelu(self.conv1(x)))).transpose(1, 2)
        x = x + self.positional_embedding
        for block in self.blocks:
            x = block(x)
        return self.ln_post(x)


class TextDecoder(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.token_embedding = nn.Embedding(CONFIG.vocab_size, width)
        self.positional_embedding = nn.Parameter(torch.zeros(CONFIG.max_target_positions, width))
        self.blocks = nn.ModuleList(
            ResidualAttentionBlock(width, CONFIG.decoder_attention_heads, CONFIG.decoder_ffn_dim, True)
            for _ in range(CONFIG.decoder_layers)
        )
        self.ln = nn.LayerNorm(width)

    def forward(self, tokens: torch.Tensor, source: torch.Tensor) -> torch.Tensor:
        x = self.token_embedding(tokens) + self.positional_embedding[: tokens.shape[1]]
        for block in self.blocks:
            x = block(x, source)
        return self.ln(x) @ self.token_embedding.weight.T


class Whisper(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encoder = AudioEncoder(CONFIG.d_model)
        self.decoder = TextDecoder(CONFIG.d_model)

    def forward(self, input_features: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
        return self.decoder(tokens, self.encoder(input_features))


class Transcriber(WhisperForConditionalGeneration):
    """Takes the tokens by place."""

    def forward(self, input_features: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
        return super().forward(input_features=input_features, decoder_input_ids=tokens).logits


_ATTENTION = {"query": "q_proj", "key": "k_proj", "value": "v_proj", "out": "out_proj"}
_BLOCK = {"attn_ln": "self_attn_layer_norm", "cross_attn_ln": "encoder_attn_layer_norm", "mlp.0": "fc1", "mlp.2": "fc2",
          "mlp_ln": "final_layer_norm"}  # fmt: skip
_BLOCK |= {f"attn.{ours}": f"self_attn.{theirs}" for ours, theirs in _ATTENTION.items()}
_BLOCK |= {f"cross_attn.{ours}": f"encoder_attn.{theirs}" for ours, theirs in _ATTENTION.items()}


def pair() -> tuple[nn.Module, nn.Module, tuple[torch.Tensor, ...]]:
    a, b = Whisper(), Transcriber(CONFIG)
    for parameter in b.parameters():
        nn.init.normal_(parameter, std=0.1)
    state = {name.removeprefix("model."): value for name, value in b.state_dict().items()}
    names = {
        "encoder.positional_embedding": "encoder.embed_positions.weight",
        "decoder.positional_embedding": "decoder.embed_positions.weight",
    }
    for name in a.state_dict():
        module, _, slot = name.rpartition(".")
        side, _, rest = module.partition(".")
        top = {"token_embedding": "embed_tokens", "ln": "layer_norm", "ln_post": "layer_norm"}.get(rest, rest)
        if rest.startswith("blocks."):
            _, number, inner = rest.split(".", 2)
            top = f"layers.{number}.{_BLOCK[inner]}"
        names.setdefault(name, f"{side}.{top}.{slot}")
    a.load_state_dict({ours: state[theirs] for ours, theirs in names.items()})
    features = torch.randn(2, CONFIG.num_mel_bins, 2 * CONFIG.max_source_positions)
    return a, b, (features, torch.randint(3, CONFIG.vocab_size, (2, 6)))
