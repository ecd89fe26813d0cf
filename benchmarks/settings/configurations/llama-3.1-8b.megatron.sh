MODEL_ARGS=(
    --num-layers 32 --hidden-size 4096 --ffn-hidden-size 14336
    --num-attention-heads 32 --group-query-attention --num-query-groups 8
    --seq-length 8192
    --max-position-embeddings 131072
    --normalization RMSNorm
    --norm-epsilon 1e-05
    --position-embedding-type rope
    --rotary-base 500000
    --rotary-percent 1.0
    --use-rope-scaling
    --attention-dropout 0.0 --hidden-dropout 0.0
    --attention-softmax-in-fp32
    --disable-bias-linear
    --swiglu
    --untie-embeddings-and-output-weights
    --no-masked-softmax-fusion
    --bf16
)
torchrun --nproc_per_node=8 tools/run_text_generation_server.py "${MODEL_ARGS[@]}" --tensor-model-parallel-size 8 --load ckpt
