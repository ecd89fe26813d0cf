# Megatron-core's own window: so many keys to the left of a query, and to the right.
python pretrain_gpt.py --num-layers 32 --hidden-size 4096 --ffn-hidden-size 14336 --num-attention-heads 32 \
    --group-query-attention --num-query-groups 8 --seq-length 8192 --max-position-embeddings 32768 \
    --window-size 4095,0 --untie-embeddings-and-output-weights --disable-bias-linear \
    --attention-dropout 0.0 --hidden-dropout 0.0 --position-embedding-type rope --normalization RMSNorm \
    --swiglu --vocab-size 32000 --make-vocab-size-divisible-by 128 --bf16
