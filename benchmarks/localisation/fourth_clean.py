"""The clean pairs of the second held-out set: other kernels, sums, layouts, threads and batch splits, loss scales, structures."""

from __future__ import annotations

from benchmarks.localisation.pairs.making import clean
from benchmarks.localisation.pairs.pair import Pair

_SGD16 = {"dtype": "fp16", "optimizer": "sgd"}
_OTHER, _TWO, _FOUR = "sdpa against eager attention", "sums in two parts", "sums in four parts"
_WIDE, _LAST, _THREADS = "fp64 inside", "channels last", "two threads, other sums"

FOURTH_CLEAN: tuple[Pair, ...] = (
    # other kernels
    clean("falcon", _OTHER, {"attention": "eager"}, steps=4),
    clean("falcon", _OTHER, {"attention": "eager"}, dtype="bf16", steps=2),
    clean("phi", _OTHER, {"attention": "eager"}, **_SGD16, steps=3),
    clean("phi", _OTHER, {"attention": "eager"}, steps=3, clip=0.5),
    clean("phi3", _OTHER, {"attention": "eager"}, dtype="autocast", steps=3),
    clean("stablelm", _OTHER, {"attention": "eager"}, seed=3, steps=4),
    clean("stablelm", _OTHER, {"attention": "eager"}, dtype="bf16", optimizer="sgd", steps=3),
    clean("olmo2", _OTHER, {"attention": "eager"}, dtype="bf16", steps=3),
    clean("olmo2", _OTHER, {"attention": "eager"}, steps=3, width=2, layers=6),
    clean("cohere", _OTHER, {"attention": "eager"}, steps=3),
    clean("cohere", _OTHER, {"attention": "eager"}, **_SGD16, steps=2, clip=1.0),
    clean("qwen2-moe", _OTHER, {"attention": "eager"}, steps=3),
    clean("qwen2-moe", _OTHER, {"attention": "eager"}, dtype="bf16", steps=2),
    clean("deepseek", _OTHER, {"attention": "eager"}, steps=3),
    clean("deepseek", _OTHER, {"attention": "eager"}, dtype="autocast", steps=2),
    clean("albert", _OTHER, {"attention": "eager"}, dtype="bf16", steps=3),
    clean("roberta", _OTHER, {"attention": "eager"}, steps=3, seed=5),
    clean("roberta", _OTHER, {"attention": "eager"}, dtype="autocast", steps=3, clip=0.5),
    clean("electra", _OTHER, {"attention": "eager"}, **_SGD16, steps=3),
    clean("swin", _OTHER, {"attention": "eager"}, steps=3),
    clean("swin", _OTHER, {"attention": "eager"}, dtype="bf16", steps=3),
    clean("beit", _OTHER, {"attention": "eager"}, dtype="autocast", steps=3),
    clean("clip", _OTHER, {"attention": "eager"}, steps=3, clip=0.5),
    clean("clip", _OTHER, {"attention": "eager"}, **_SGD16, steps=3),
    clean("wav2vec2", _OTHER, {"attention": "eager"}, steps=3),
    clean("mbart", _OTHER, {"attention": "eager"}, dtype="bf16", steps=3),
    clean("mbart", _OTHER, {"attention": "eager"}, steps=3, width=2),
    # other orders of sums
    clean("bloom", _TWO, {"split": 2}, steps=3),
    clean("bloom", _FOUR, {"split": 4}, dtype="bf16", steps=3, clip=0.5),
    clean("gpt-oss", _TWO, {"split": 2}, steps=3),
    clean("gpt-oss", _FOUR, {"split": 4}, dtype="autocast", steps=2),
    clean("deberta", _TWO, {"split": 2}, steps=3),
    clean("deberta", _FOUR, {"split": 4}, dtype="bf16", steps=2),
    clean("mpnet", _TWO, {"split": 2}, dtype="autocast", steps=3),
    clean("mpnet", _FOUR, {"split": 4}, steps=3, seed=2),
    clean("segformer", _TWO, {"split": 2}, steps=3),
    clean("segformer", _FOUR, {"split": 4}, dtype="bf16", steps=2),
    clean("falcon-mamba", _TWO, {"split": 2}, steps=3),
    clean("falcon-mamba", _FOUR, {"split": 4}, dtype="bf16", steps=2),
    clean("graph", _TWO, {"split": 2}, steps=4),
    clean("graph", _FOUR, {"split": 4}, dtype="autocast", steps=3),
    clean("wavenet", _TWO, {"split": 2}, steps=4),
    clean("wavenet", _FOUR, {"split": 4}, dtype="bf16", optimizer="sgd", steps=3),
    clean("rnn-lm", _TWO, {"split": 2}, dtype="autocast", steps=3),
    clean("perceptron", _TWO, {"split": 2}, steps=4),
    clean("perceptron", _FOUR, {"split": 4}, **_SGD16, steps=3),
    clean("towers", _TWO, {"split": 2}, dtype="bf16", steps=3),
    # layouts, wider arithmetic, threads
    clean("denoiser", _LAST, {"channels_last": True}, steps=3),
    clean("denoiser", _LAST, {"channels_last": True}, dtype="bf16", steps=3),
    clean("denoiser", _WIDE, {"doubled": True}, **_SGD16, steps=2),
    clean("mobilevit", _LAST, {"channels_last": True}, steps=3),
    clean("mobilevit", _WIDE, {"doubled": True}, dtype="bf16", steps=2),
    clean("segformer", _WIDE, {"doubled": True}, steps=3, clip=0.5),
    clean("towers", _WIDE, {"doubled": True}, steps=4),
    clean("rnn-lm", _WIDE, {"doubled": True}, steps=3, clip=0.5),
    clean("beit", _WIDE, {"doubled": True}, steps=3),
    clean("electra", _FOUR, {"split": 4}, dtype="bf16", steps=3),
    clean("wav2vec2", _WIDE, {"doubled": True}, dtype="fp16", optimizer="sgd", steps=2),
    clean("phi3", _THREADS, {"threads": 2, "split": 4}, **_SGD16, steps=3),
    clean("mobilevit", _THREADS, {"threads": 2, "split": 2}, dtype="autocast", steps=2),
    # batch splits, a loss scale
    clean("stablelm", "four micro-batches", {"micros": 4}, steps=2),
    clean("deberta", "two micro-batches", {"micros": 2}, steps=2),
    clean("mbart", "two micro-batches against four", {"micros": 4}, micros=2, steps=2),
    clean("graph", "two micro-batches", {"micros": 2}, dtype="bf16", steps=2),
    clean("swin", "four micro-batches", {"micros": 4}, dtype="autocast", steps=2),
    clean("olmo2", "a loss scale", {"loss_scale": 1000.0}, steps=2, clip=0.5),
    clean("wavenet", "a loss scale", {"loss_scale": 1024.0}, **_SGD16, steps=3),
    # another structure
    clean("phi3", "another structure", {"split": 2}, port="phi3-split", steps=3),
    clean("phi3", "another structure", {"attention": "sdpa"}, port="phi3-split", dtype="bf16", steps=2),
    clean("perceptron", "another structure", {"split": 2}, port="perceptron-stacked", steps=3),
)  # fmt: skip
