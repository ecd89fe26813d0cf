TP=8
NUM_LAYERS=32
GPT_ARGS="
    --tensor-model-parallel-size ${TP} \
    --sequence-parallel \
    --sliding-window 4096 \
    --num-layers ${NUM_LAYERS} \
    --hidden-size 4096 \
    --ffn-hidden-size 14336 \
    --num-attention-heads 32 \
    --group-query-attention \
    --num-query-groups 8 \
    --seq-length 32768 \
    --max-position-embeddings 32768 \
    --micro-batch-size 1 \
    --global-batch-size 32 \
    --make-vocab-size-divisible-by 1 \
    --untie-embeddings-and-output-weights \
    --disable-bias-linear \
    --attention-dropout 0.0 \
    --init-method-std 0.02 \
    --hidden-dropout 0.0 \
    --position-embedding-type rope \
    --normalization RMSNorm \
    --use-fused-rmsnorm \
    --use-fused-swiglu \
    --use-rotary-position-embeddings \
    --swiglu \
    --use-flash-attn \
    --attention-softmax-in-fp32 \
    --bf16 \
    --transformer-impl local
"
torchrun --nproc_per_node 8 pretrain_gpt.py $GPT_ARGS --data-path data --split 100,0,0 | tee logs/train.log
