vllm serve Qwen/Qwen2-0.5B \
    --dtype bfloat16 \
    --seed 0 \
    --tensor-parallel-size 1 \
    --max-model-len 4096 \
    --enforce-eager \
    --hf-overrides '{"rope_theta": 1000000.0, "rms_norm_eps": 1e-06}'
