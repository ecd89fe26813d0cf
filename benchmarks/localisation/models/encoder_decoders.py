"""Models of transformers that read one text and write another."""

from __future__ import annotations

from benchmarks.localisation.models.architecture import EAGER, SPLIT, Architecture, transformer
from benchmarks.localisation.models.batches import PADDING, VOCABULARY, padded_translation, translation

_BART = {
    "vocab_size": VOCABULARY, "d_model": 32, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 4,
    "decoder_attention_heads": 4, "encoder_ffn_dim": 64, "decoder_ffn_dim": 64, "max_position_embeddings": 32,
    "dropout": 0.0, "attention_dropout": 0.0, "activation_dropout": 0.0, "encoder_layerdrop": 0.0, "decoder_layerdrop": 0.0,
    "scale_embedding": True, "pad_token_id": PADDING, "bos_token_id": 0, "eos_token_id": 2,
}  # fmt: skip

ENCODER_DECODERS: dict[str, Architecture] = {
    "t5": Architecture(
        transformer(
            "T5ForConditionalGeneration", vocab_size=VOCABULARY, d_model=32, d_kv=8, d_ff=64, num_layers=2,
            num_decoder_layers=2, num_heads=4, dropout_rate=0.0,
        ), translation, EAGER,
    ),
    "bart": Architecture(
        transformer(
            "BartForConditionalGeneration", vocab_size=VOCABULARY, d_model=32, encoder_layers=2, decoder_layers=2,
            encoder_attention_heads=4, decoder_attention_heads=4, encoder_ffn_dim=64, decoder_ffn_dim=64,
            max_position_embeddings=32, dropout=0.0,
        ), translation, EAGER,
    ),
    "mbart": Architecture(
        transformer(
            "MBartForConditionalGeneration", vocab_size=VOCABULARY, d_model=32, encoder_layers=2, decoder_layers=2,
            encoder_attention_heads=4, decoder_attention_heads=4, encoder_ffn_dim=64, decoder_ffn_dim=64,
            max_position_embeddings=32, dropout=0.0, scale_embedding=True, pad_token_id=PADDING,
        ), padded_translation, EAGER,
    ),
    "marian": Architecture(transformer("MarianMTModel", **_BART, decoder_start_token_id=0, decoder_vocab_size=VOCABULARY), padded_translation, EAGER),
    "pegasus": Architecture(transformer("PegasusForConditionalGeneration", **_BART), padded_translation, EAGER),
    "umt5": Architecture(
        transformer(
            "UMT5ForConditionalGeneration", vocab_size=VOCABULARY, d_model=32, d_kv=8, d_ff=64, num_layers=2, num_decoder_layers=2,
            num_heads=4, dropout_rate=0.0, relative_attention_num_buckets=8, relative_attention_max_distance=12,
        ), translation, SPLIT,
    ),
    "m2m": Architecture(transformer("M2M100ForConditionalGeneration", **_BART, decoder_start_token_id=2), padded_translation, EAGER),
    "blenderbot": Architecture(transformer("BlenderbotForConditionalGeneration", **_BART), padded_translation, EAGER),
    "prophetnet": Architecture(
        transformer(
            "ProphetNetForConditionalGeneration", vocab_size=VOCABULARY, hidden_size=32, encoder_ffn_dim=64, decoder_ffn_dim=64,
            num_encoder_layers=2, num_decoder_layers=2, num_encoder_attention_heads=4, num_decoder_attention_heads=4, dropout=0.0,
            attention_dropout=0.0, activation_dropout=0.0, max_position_embeddings=32, ngram=2, pad_token_id=PADDING,
            num_buckets=8, relative_max_distance=16,
        ), padded_translation, SPLIT,
    ),
}  # fmt: skip
