#!/bin/bash
# The same run as an array of options; what is not set is Megatron's default.
TP=${TP:-1}
SEQ=8192
MODEL_ARGS=(
    --num-layers 28
    --hidden-size 3584
    --ffn-hidden-size 18944
    --num-attention-heads 28
    --group-query-attention
    --num-query-groups 4
    --seq-length $SEQ
    --max-position-embeddings 131072
    --position-embedding-type rope
    --rotary-base 1000000
    --normalization RMSNorm
    --norm-epsilon 1e-6
    --swiglu
    --disable-bias-linear
    --add-qkv-bias
    --untie-embeddings-and-output-weights
    --attention-dropout 0 --hidden-dropout 0
    --attention-softmax-in-fp32
    --no-masked-softmax-fusion
    --make-vocab-size-divisible-by 1
)
TRAIN_ARGS=(
    --micro-batch-size 1
    --global-batch-size 64
    --train-iters 1000
    --lr 1e-6          # as the fine-tuning guide has it
    --min-lr 1e-7
    --lr-decay-style cosine
    --lr-warmup-fraction 0.01
    --weight-decay 0.01
    --adam-beta1 0.9
    --adam-beta2 0.95
    --clip-grad 1.0
    --seed 42
    --bf16
    --use-flash-attn
)
PARALLEL_ARGS=(--tensor-model-parallel-size $TP --pipeline-model-parallel-size 1 --use-distributed-optimizer)
torchrun --nproc_per_node 8 pretrain_gpt.py "${MODEL_ARGS[@]}" "${TRAIN_ARGS[@]}" ${PARALLEL_ARGS[@]} --load ./ckpt
