MODEL_ARGS=" \
    --bf16 \
    --no-masked-softmax-fusion \
    --disable-bias-linear \
    --untie-embeddings-and-output-weights \
    --position-embedding-type rope \
    --no-rope-fusion \
    --normalization RMSNorm \
    --norm-epsilon 1e-6 \
    --swiglu \
    --num-layers 36 \
    --hidden-size 4096 \
    --ffn-hidden-size 12288 \
    --num-attention-heads 32 \
    --group-query-attention \
    --num-query-groups 8 \
    --kv-channels 128 \
    --qk-layernorm \
    --attention-dropout 0 \
    --hidden-dropout 0 \
    --seq-length 4096 \
    --max-position-embeddings 40960 \
    --padded-vocab-size 151936 \
    --make-vocab-size-divisible-by 1187 \
    --rotary-percent 1.0 \
    --rotary-base 1000000 \
    --no-bias-swiglu-fusion \
"
torchrun pretrain_gpt.py ${MODEL_ARGS}
