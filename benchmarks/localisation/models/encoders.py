"""Text encoders: masked language models of transformers, and two hand-written classifiers."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from benchmarks.localisation.models.architecture import (
    BERT,
    DOUBLED,
    EAGER,
    PADDED_BERT,
    SIZES,
    SPLIT,
    Architecture,
    transformer,
)
from benchmarks.localisation.models.batches import (
    PADDING,
    VOCABULARY,
    boxed_tokens,
    classified_ids,
    masked_tokens,
    padded_tokens,
    tokens_without_mask,
    typed_tokens,
)


class Encoder(nn.Module):
    """PyTorch's own transformer encoder layers behind an embedding, as a classifier."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(96, 32)
        self.position = nn.Parameter(torch.zeros(16, 32))
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(32, 4, 64, dropout=0.0, batch_first=True, norm_first=True) for _ in range(3)
        )
        self.norm = nn.LayerNorm(32)
        self.head = nn.Linear(32, 10)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.embedding(ids) + self.position[: ids.shape[1]]
        for layer in self.layers:
            x = layer(x)
        return self.head(self.norm(x)[:, 0])


class Tagger(nn.Module):
    """Characters through a convolution, a GRU in both directions, one in one, and the mean of all."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(96, 24)
        self.conv = nn.Conv1d(24, 24, 3, padding=1)
        self.both = nn.GRU(24, 16, batch_first=True, bidirectional=True)
        self.gru = nn.GRU(32, 32, batch_first=True)
        self.norm, self.act, self.head = nn.LayerNorm(32), nn.Softplus(), nn.Linear(32, 10)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.conv(self.embedding(ids).transpose(1, 2)).transpose(1, 2)
        x, _ = self.gru(self.both(x)[0])
        return self.head(self.act(self.norm(x)).mean(1))


ENCODERS: dict[str, Architecture] = {
    "bert": Architecture(
        transformer(
            "BertForMaskedLM", **SIZES, num_hidden_layers=3, max_position_embeddings=32,
            hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
        ), masked_tokens, EAGER,
    ),
    "distilbert": Architecture(
        transformer(
            "DistilBertForMaskedLM", vocab_size=VOCABULARY, dim=32, hidden_dim=64, n_heads=4, n_layers=3,
            max_position_embeddings=32, dropout=0.0, attention_dropout=0.0,
        ), masked_tokens, EAGER,
    ),
    "deberta": Architecture(
        transformer(
            "DebertaV2ForMaskedLM", **BERT, relative_attention=True, position_buckets=8, pos_att_type=["p2c", "c2p"],
            share_att_key=False, norm_rel_ebd="layer_norm", position_biased_input=False, type_vocab_size=0,
        ), masked_tokens, SPLIT,
    ),
    "albert": Architecture(transformer("AlbertForMaskedLM", **BERT, embedding_size=16), masked_tokens, EAGER),
    "roberta": Architecture(
        transformer("RobertaForMaskedLM", **BERT, pad_token_id=PADDING), padded_tokens, EAGER
    ),
    "electra": Architecture(
        transformer("ElectraForMaskedLM", **BERT, embedding_size=16), masked_tokens, EAGER
    ),
    "mpnet": Architecture(transformer("MPNetForMaskedLM", **BERT), padded_tokens, SPLIT),
    "modernbert": Architecture(
        transformer(
            "ModernBertForMaskedLM", **SIZES, num_hidden_layers=3, max_position_embeddings=32, global_attn_every_n_layers=2,
            local_attention=6, pad_token_id=PADDING, bos_token_id=0, eos_token_id=2, cls_token_id=0, sep_token_id=2,
        ), tokens_without_mask, EAGER,
    ),
    "fnet": Architecture(
        transformer("FNetForMaskedLM", vocab_size=VOCABULARY, hidden_size=32, num_hidden_layers=3, intermediate_size=64, hidden_dropout_prob=0.0, max_position_embeddings=32, use_tpu_fourier_optimizations=False),
        tokens_without_mask, SPLIT,
    ),
    "esm": Architecture(
        transformer("EsmForMaskedLM", **BERT, position_embedding_type="rotary", pad_token_id=PADDING, mask_token_id=0, token_dropout=False),
        padded_tokens, EAGER,
    ),
    "deberta1": Architecture(
        transformer(
            "DebertaForMaskedLM", **BERT, relative_attention=True, pos_att_type=["c2p", "p2c"], max_relative_positions=16,
            position_biased_input=False, type_vocab_size=0,
        ), masked_tokens, SPLIT,
    ),
    "xlnet": Architecture(
        transformer("XLNetLMHeadModel", vocab_size=VOCABULARY, d_model=32, n_layer=3, n_head=4, d_inner=64, dropout=0.0),
        masked_tokens, SPLIT,
    ),
    "roformer": Architecture(transformer("RoFormerForMaskedLM", **BERT, embedding_size=32, rotary_value=False), masked_tokens, SPLIT),
    "squeezebert": Architecture(
        transformer(
            "SqueezeBertForMaskedLM", **PADDED_BERT, embedding_size=32, q_groups=2, k_groups=2, v_groups=2, post_attention_groups=1,
            intermediate_groups=2, output_groups=2,
        ), typed_tokens, SPLIT,
    ),
    "bigbird": Architecture(transformer("BigBirdForMaskedLM", **PADDED_BERT, attention_type="original_full"), typed_tokens, SPLIT),
    "longformer": Architecture(
        transformer("LongformerForMaskedLM", **{**PADDED_BERT, "max_position_embeddings": 40}, attention_window=[8, 8, 8]),
        padded_tokens, SPLIT,
    ),
    "layoutlm": Architecture(transformer("LayoutLMForMaskedLM", **PADDED_BERT, max_2d_position_embeddings=40), boxed_tokens, EAGER),
    "megatron-bert": Architecture(transformer("MegatronBertForMaskedLM", **PADDED_BERT), typed_tokens, SPLIT),
    "convbert": Architecture(
        transformer("ConvBertForMaskedLM", **PADDED_BERT, embedding_size=32, head_ratio=2, conv_kernel_size=3), typed_tokens, SPLIT
    ),
    "funnel": Architecture(
        transformer(
            "FunnelForMaskedLM", vocab_size=VOCABULARY, block_sizes=[1, 1], num_decoder_layers=1, d_model=32, n_head=4, d_head=8,
            d_inner=64, hidden_dropout=0.0, attention_dropout=0.0, activation_dropout=0.0,
        ), padded_tokens, SPLIT,
    ),
    "encoder": Architecture(lambda setup: Encoder(), classified_ids, DOUBLED),
    "tagger": Architecture(lambda setup: Tagger(), classified_ids, SPLIT),
}  # fmt: skip
