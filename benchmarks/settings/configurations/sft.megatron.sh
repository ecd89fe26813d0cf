#!/bin/bash
export NVIDIA_TF32_OVERRIDE=0
export NCCL_ALGO=Ring
export CUBLAS_WORKSPACE_CONFIG=:4096:8
torchrun --nproc_per_node 1 pretrain_gpt.py \
    --micro-batch-size 2 \
    --global-batch-size 16 \
    --train-iters 1000 \
    --optimizer adam \
    --lr 2e-5 --min-lr 0.0 \
    --lr-decay-style cosine \
    --lr-warmup-fraction 0.03 \
    --weight-decay 0.1 \
    --adam-beta1 0.9 --adam-beta2 0.95 --adam-eps 1e-8 \
    --clip-grad 1.0 \
    --deterministic-mode \
    --use-checkpoint-args \
    --recompute-granularity full --recompute-method uniform --recompute-num-layers 1 \
    --bf16 \
    --seed 1234
