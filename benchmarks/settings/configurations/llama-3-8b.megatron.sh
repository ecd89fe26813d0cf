#!/bin/bash
MODEL_ARGS=" \
    --use-mcore-models \
    --num-layers 32 \
    --hidden-size 4096 \
    --ffn-hidden-size 14336 \
    --num-attention-heads 32 \
    --group-query-attention \
    --num-query-groups 8 \
    --kv-channels 128 \
    --seq-length 8192 \
    --max-position-embeddings 8192 \
    --position-embedding-type rope \
    --rotary-base 500000 \
    --rotary-percent 1.0 \
    --attention-dropout 0.0 \
    --hidden-dropout 0.0 \
    --swiglu \
    --init-method-std 0.02 \
    --normalization RMSNorm \
    --untie-embeddings-and-output-weights \
    --disable-bias-linear \
    --attention-softmax-in-fp32 \
    --transformer-impl transformer_engine \
    --bf16 \
"
python pretrain_gpt.py $MODEL_ARGS --mock-data --tokenizer-type NullTokenizer --vocab-size 128256 --make-vocab-size-divisible-by 1
