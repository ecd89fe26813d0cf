"""megatron-core itself against Qwen2 of transformers: a right pair and faults, with and without a mapping."""
