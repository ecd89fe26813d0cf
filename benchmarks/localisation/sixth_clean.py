"""The clean pairs of the fourth held-out set: other kernels, sums, layouts, threads, batch splits, loss scales, structures."""

from __future__ import annotations

from benchmarks.localisation.pairs.making import clean
from benchmarks.localisation.pairs.pair import Pair

_SGD16 = {"dtype": "fp16", "optimizer": "sgd"}
_OTHER, _TWO, _FOUR = "sdpa against eager attention", "sums in two parts", "sums in four parts"
_FUSED = "norms, activations and the optimizer fused"
_WIDE, _LAST, _THREADS = "fp64 inside", "channels last", "two threads, other sums"

SIXTH_CLEAN: tuple[Pair, ...] = (
    # other kernels
    clean("olmo", _OTHER, {"attention": "eager"}, steps=4),
    clean("olmo", _OTHER, {"attention": "eager"}, dtype="bf16", steps=2, clip=0.5),
    clean("olmoe", _OTHER, {"attention": "eager"}, steps=2),
    clean("gemma", _OTHER, {"attention": "eager"}, steps=3, width=2, layers=4),
    clean("gemma", _OTHER, {"attention": "eager"}, dtype="autocast", steps=3),
    clean("helium", _OTHER, {"attention": "eager"}, **_SGD16, steps=3),
    clean("phimoe", _OTHER, {"attention": "eager"}, steps=2, seed=3),
    clean("granitemoe", _OTHER, {"attention": "eager"}, steps=3),
    clean("ernie", _OTHER, {"attention": "eager"}, dtype="bf16", steps=3),
    clean("exaone", _OTHER, {"attention": "eager"}, steps=3, clip=0.5),
    clean("bigcode", _OTHER, {"attention": "eager"}, steps=3),
    clean("biogpt", _OTHER, {"attention": "eager"}, dtype="autocast", steps=2),
    clean("qwen3-next", _OTHER, {"attention": "eager"}, steps=2),
    clean("lfm2", _OTHER, {"attention": "eager"}, steps=4),
    clean("layoutlm", _OTHER, {"attention": "eager"}, steps=3),
    clean("m2m", _OTHER, {"attention": "eager"}, dtype="bf16", steps=2),
    clean("blenderbot", _OTHER, {"attention": "eager"}, steps=3, seed=5),
    clean("siglip", _OTHER, {"attention": "eager"}, **_SGD16, steps=2),
    clean("ijepa", _OTHER, {"attention": "eager"}, dtype="autocast", steps=4),
    clean("unispeech", _OTHER, {"attention": "eager"}, steps=3),
    # other orders of sums
    clean("gpt-neo", _TWO, {"split": 2}, steps=3),
    clean("openai-gpt", "fp64 inside the head", {"doubled": True}, dtype="bf16", steps=2),
    clean("ctrl", _FOUR, {"split": 4}, steps=3, clip=0.5),
    clean("mamba2", _TWO, {"split": 2}, steps=3),
    clean("mamba2", _FOUR, {"split": 4}, dtype="bf16", steps=2),
    clean("vaultgemma", _FOUR, {"split": 4}, steps=3),
    clean("diffllama", _TWO, {"split": 2}, dtype="autocast", steps=2),
    clean("squeezebert", "fp64 inside the linear layers", {"doubled": True}, steps=3),
    clean("bigbird", _FOUR, {"split": 4}, steps=3),
    clean("longformer", _TWO, {"split": 2}, dtype="bf16", steps=2),
    clean("megatron-bert", _TWO, {"split": 2}, **_SGD16, steps=2),
    clean("convbert", _FOUR, {"split": 4}, steps=3),
    clean("funnel", _TWO, {"split": 2}, steps=2),
    clean("vaultgemma", _TWO, {"split": 2}, dtype="autocast", steps=3),
    clean("prophetnet", _TWO, {"split": 2}, steps=2),
    clean("switch", _TWO, {"split": 2}, steps=3),
    clean("hiera", _TWO, {"split": 2}, dtype="bf16", steps=3),
    clean("wavlm", _FOUR, {"split": 4}, steps=3),
    clean("actor", _TWO, {"split": 2}, **_SGD16, steps=4),
    clean("codebook", _FOUR, {"split": 4}, steps=3),
    clean("retriever", _TWO, {"split": 2}, dtype="bf16", steps=3),
    # layouts, wider arithmetic, threads
    clean("resnet-hf", _LAST, {"channels_last": True}, steps=3),
    clean("efficientnet", _LAST, {"channels_last": True}, steps=2),
    clean("convnext2", _WIDE, {"doubled": True}, dtype="bf16", steps=3),
    clean("focalnet", _LAST, {"channels_last": True}, **_SGD16, steps=3),
    clean("points", _WIDE, {"doubled": True}, steps=3),
    clean("levit", _WIDE, {"doubled": True}, steps=1),
    clean("cvt", _TWO, {"split": 2}, dtype="autocast", steps=2),
    clean("gpt-neo", _THREADS, {"threads": 2, "split": 4}, dtype="bf16", steps=2),
    # fused as a compiler does
    clean("phimoe", _FUSED, {"fused": True}, steps=2),
    clean("gpt-neo", _FUSED, {"fused": True}, dtype="bf16", steps=3),
    clean("ctrl", _FUSED, {"fused": True, "split": 2}, steps=3),
    clean("ijepa", _FUSED, {"fused": True}, **_SGD16, steps=3),
    clean("bigbird", _FUSED, {"fused": True}, dtype="bf16", steps=2, clip=0.5),
    clean("focalnet", _FUSED, {"fused": True}, steps=4),
    clean("prophetnet", _FUSED, {"fused": True}, optimizer="sgd", steps=3),
    clean("actor", _FUSED, {"fused": True}, steps=4),
    # batch splits, a loss scale
    clean("helium", "two micro-batches", {"micros": 2}, steps=3),
    clean("hiera", "four micro-batches", {"micros": 4}, steps=2),
    clean("lfm2", "two micro-batches against four", {"micros": 4}, micros=2, dtype="bf16", steps=2),
    clean("biogpt", "a loss scale", {"loss_scale": 1000.0}, steps=2, clip=0.5),
    # another structure
    clean("olmo", "another structure", {"split": 2}, port="olmo-packed", steps=3),
    clean("olmo", "another structure", {"attention": "sdpa"}, port="olmo-packed", dtype="bf16", steps=2),
    clean("points", "another structure", {"doubled": True}, port="points-listed", steps=2),
)  # fmt: skip
