"""The page of the documentation, from the answers of several runs: `python -m benchmarks.localisation.page --help`."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import click

from benchmarks.localisation.peers import CANNOT, PeerAnswer, peer_rows
from benchmarks.localisation.suite import GRADES, PAIRS, Answer
from benchmarks.localisation.table import header, misses, rows, summary

INTRODUCTION = Path(__file__).with_name("introduction.md")
_NEAR = "{} times the noise of the pair: the built-in model allows errors of 8 times what they inherit, 16 in backward; 3 times if they have a direction"
WHY = {
    **{name: _NEAR.format(times) for name, times in (
        ("electra/autocast/other_norm/LayerNorm", 5.9), ("gpt-oss/bf16/other_norm/post_attention_layernorm", 5.3),
        ("phi/bf16/eps/input_layernorm/0.05", 3.7), ("phi3/fp32/loss_scaled/5e-07", 9.2),
        ("roberta/bf16/statistics_detached/LayerNorm", 9.1), ("segformer/fp32/loss_scaled/1e-06", 16),
        ("falcon-mamba/autocast/smoothing/0.05", 8.4), ("ast/autocast/quick_gelu/activation_fn", 3.1),
        ("crossnet/fp32/shifted/linear/1e-06", 3.8), ("flow/fp32/scaled/fc2/1e-06", 4.8),
        ("glm/bf16/shifted/o_proj/0.02", 3.5), ("glm4-moe/bf16/expert_lost/experts", 6.3),
        ("glm4-moe/fp32/temperature/1e-06", 12), ("gptj/fp32/residual/2/1e-06", 3.4),
        ("pvt/bf16/eps/layer_norm_1/0.05", 3.6), ("pvt/fp32/scaled_input/pixel_values/5e-07", 8),
        ("sounds/fp32/bias_gradient/text/1e-05", 11), ("squeeze/fp32/loss_scaled/1e-06", 10),
        ("timesformer/fp32/shifted/dense/1e-06", 5.4), ("umt5/fp32/shifted/wo/2e-06", 3.6),
        ("umt5/fp32/smoothing/1e-06", 7.6), ("xglm/fp32/eps/self_attn_layer_norm/3e-05", 5.6),
        ("xlnet/bf16/silu/activation_function", 5.6), ("umt5/bf16/bucket_distance/SelfAttention/64", 33),
        ("granite/fp32/residual_factor/2/1e-05", 18),
        ("gemma/fp16/narrow_sum/down_proj/sgd", 3.3), ("squeezebert/fp32/smoothing/1e-06", 3.4),
        ("unispeech/fp16/narrow_input/input_values/sgd", 3.4), ("gpt-neo/bf16/eight_bits/c_proj", 3.8),
        ("olmo/fp16/narrow_logits/sgd", 3.9), ("helium/autocast/eight_bits/up_proj", 4.3),
        ("granitemoe/fp32/scaling/self_attn/1e-06", 4.5), ("longformer/fp32/residual/dense/1e-06", 4.6),
        ("lfm2/fp32/eps/ffn_norm/2e-06", 6.3), ("hiera/bf16/weighted/0.05", 6.7), ("points/fp32/weighted/1e-06", 9.6),
        ("exaone/autocast/gate_detached/act_fn", 12), ("cvt/autocast/flushed/dense/0.05", 14),
        ("diffllama/fp32/temperature/1e-06", 14), ("convnext2/fp32/loss_scaled/1e-06", 16),
        ("gemma/fp32/clip_counted/1.0003/clip0.3", 16), ("olmoe/fp32/auxiliary_factor/0.1", 16),
    )},
    **dict.fromkeys(
        ("convvae/fp32/averaged/0.1/sgd", "roformer/fp32/averaged", "tagger/fp32/averaged/0.01", "persimmon/fp32/narrow_weights",
         "roformer/fp32/narrow_weights/steps2/at1", "sew/fp32/narrow_weights/sgd"),
        "weights were changed after the optimizer had stepped, in the last recorded step, which recordings did not show (mended since)",
    ),
    **dict.fromkeys(
        ("regnet/fp32/statistics_swapped/normalization", "squeeze/bf16/statistics_swapped/bn2"),
        "running statistics that no forward in training uses were but a note (mended since)",
    ),
    **dict.fromkeys(
        ("swin/fp32/amsgrad/steps2", "timesformer/fp32/amsgrad/steps2"),
        "the settings are named, at the first step that has them; the numbers show them a step later",
    ),
    **dict.fromkeys(
        ("gemma3/autocast/loss_backward/0.5", "glm/fp16/loss_backward/0.02/sgd"),
        "noise hides the factor in each gradient that the optimizer used, and it was said to be undone (mended since)",
    ),
    **dict.fromkeys(
        ("phimoe/bf16/gradient/v_proj/0.4", "phimoe/bf16/padded_vocabulary/32", "phimoe/bf16/half_updated/o_proj"),
        "weights of experts beside choices that noise had changed were judged (mended since)",
    ),
    **dict.fromkeys(
        ("wavlm/fp32/split_4/steps3", "wavlm/fp32/bias_gradient/output_dense/3e-06"),
        "a key bias of a module that is not called: its gradient is rounding (mended since)",
    ),
    "squeezebert/fp32/doubled_true/steps3": "scores in which a mask's fill hid the error that softmax inherits (mended since)",
    "bigbird/fp32/half_updated/dense": "weights set back behind the optimizer were named as a whole, now by their module (mended since)",
    "hiera/fp16/narrow_input/pixel_values/sgd": "3.5 times the noise of the pair: what a model is given may be off by 8 roundings",
    "qwen3-next/autocast/clip_counted/64/clip0.3": "a normalisation over 8 elements of small rows in 16 bits makes errors 16 times larger",
    "rnn-lm/autocast/eps_inside": "what eps does to these updates is less than their gradients' noise explains",
    "xlnet/fp16/eps_inside": "it shows in few parameters, which were named (mended since)",
    "dit/bf16/step_late/steps2": "rounding to 16 bits hides it in each update (mended since: most of them together show it)",
    "bamba/fp32/lr/0.002": "it shows in one parameter alone, which is named (mended since)",
    "mpt/fp32/left_out/up_proj/steps2/at1": "behind the first step, one-sided updates were passed over (mended since)",
    "qwen3-moe/fp32/gradient/o_proj/0.001": "logits of a router that are used inside too were taken for the loss's (mended since)",
    "xlnet/fp32/split_4/steps3": "vanishing gradients of three parameters were taken for all of them (mended since)",
    "sinks/autocast/lr/0.05": "a token goes to another expert inside of a module that shows no integers",
    "videomae/autocast/decay/weight/0.5": "most of all weights are concerned: the optimizer is named, not the dense layers",
    "phi3/phi3-split/fp32/eps_outside/norm1": "as small as what it inherits",
}  # fmt: skip
"""why the built-in model misses what it misses"""


def read_answers(path: Path) -> list[Answer]:
    """Return the answers that `python -m benchmarks.localisation -o` wrote."""
    found = json.loads(path.read_text(encoding="utf-8"))["answers"]
    return [Answer(x["pair"], x["mode"], x["grade"], x["expected"], x["said"]) for x in found]


def page(
    answers: list[Answer],
    rungs: dict[str, list[Answer]],
    drawn: list[Answer],
    peers: list[PeerAnswer],
    notes: tuple[str, ...] = (),
) -> str:
    """Return the page; ``notes`` say what was run."""
    modes = [mode for mode in ("tensor", "statistics") if any(answer.mode == mode for answer in answers)]
    lines = [INTRODUCTION.read_text(encoding="utf-8").rstrip(), "", *(f"{note}\n" for note in notes)]
    for mode in modes:
        lines += [f"## From {mode} dumps", "", *_table(header(), rows(answers, mode)), ""]
    lines += [f"* {summary(answers, mode)}" for mode in modes] + [""]
    lines += ["## Misses", "", *_table(["pair", "mode", "grade", "right answer", "answer", "why"],
              [[*line, WHY.get(line[0], "")] for line in misses(answers)]), ""]  # fmt: skip
    if rungs:
        lines += ["## The higher rungs", "", *_about_rungs(rungs)]
    if drawn:
        alarms = [answer for answer in drawn if answer.grade != "aligned"]
        lines += ["## Drawn clean pairs", "", f"Of {len(drawn)} clean pairs that no rule was tuned on (`--random`), "
                  f"{len(drawn) - len(alarms)} were aligned.", ""]  # fmt: skip
        lines += [f"* `{x.pair}`: {x.grade}, {x.said}" for x in alarms] + ([""] if alarms else [])
    if peers:
        lines += ["## Other tools on the same pairs", "", *_about_peers(peers, answers)]
    return "\n".join(lines).rstrip() + "\n"


def _about_rungs(rungs: dict[str, list[Answer]]) -> list[str]:
    lines = []
    for name, answers in rungs.items():
        for mode in dict.fromkeys(answer.mode for answer in answers):
            lines.append(f"* `--rung {name}`: {summary(answers, mode)}")
        lines += [f"  * `{x[0]}`, {x[1]}: {x[2]}, {x[4]}" for x in misses(answers)]
    return [*lines, ""]


def _about_peers(peers: list[PeerAnswer], answers: list[Answer]) -> list[str]:
    lines = []
    sets = {tool: frozenset(x.pair for x in peers if x.tool == tool) for tool in _tools(peers)}
    for names in dict.fromkeys(sets.values()):
        some = [x for x in peers if sets[x.tool] == names]
        same = [
            PeerAnswer(f"probe, {x.mode}", x.pair, PAIRS[x.pair].truth is not None, x.grade, x.expected, x.said)
            for x in answers
            if x.pair in names
        ]
        lines += [*_table(["tool", "pairs", "number", *GRADES, CANNOT], peer_rows(some, same)), ""]
    reasons = Counter((x.tool, x.said) for x in peers if x.grade == CANNOT)
    lines += [f"* {tool} cannot run {number} pairs: {why}" for (tool, why), number in reasons.items()]
    return [*lines, ""]


def _tools(peers: list[PeerAnswer]) -> dict[str, None]:
    return dict.fromkeys(answer.tool for answer in peers)


def _table(names: list[str], lines: list[list[str]]) -> list[str]:
    table = [names, ["---"] * len(names), *lines]
    return ["| " + " | ".join(cell.strip().replace("|", "\\|") for cell in cells) + " |" for cells in table]


_FILE = click.Path(path_type=Path, dir_okay=False)


@click.command()
@click.argument("full", type=_FILE, nargs=-1, required=True)
@click.option("--noise", type=_FILE, multiple=True, help="Answers of --rung noise.")
@click.option("--reference", type=_FILE, multiple=True, help="Answers of --rung reference.")
@click.option("--random", "drawn", type=_FILE, multiple=True, help="Answers about drawn pairs; may be repeated.")
@click.option("--peers", type=_FILE, multiple=True, help="What mindstudio or padiff wrote; may be repeated.")
@click.option("--note", "notes", multiple=True, help="What was run, in a sentence; may be repeated.")
@click.option("-o", "--output", type=_FILE, required=True)
def main(
    full: tuple[Path, ...],
    noise: tuple[Path, ...],
    reference: tuple[Path, ...],
    drawn: tuple[Path, ...],
    peers: tuple[Path, ...],
    notes: tuple[str, ...],
    output: Path,
) -> None:
    """Write the page from the answers of complete runs."""
    rungs = {name: _all(files) for name, files in (("noise", noise), ("reference", reference)) if files}
    said = [PeerAnswer(**x) for path in peers for x in json.loads(path.read_text(encoding="utf-8"))]
    output.write_text(page(_all(full), rungs, _all(drawn), said, notes), encoding="utf-8")


def _all(files: tuple[Path, ...]) -> list[Answer]:
    return [answer for path in files for answer in read_answers(path)]


if __name__ == "__main__":
    main()
