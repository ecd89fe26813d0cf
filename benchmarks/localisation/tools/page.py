"""The page of the documentation, from the answers of several runs: `python -m benchmarks.localisation.tools.page --help`."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from string import Template

import click

from benchmarks.grading import GRADES
from benchmarks.localisation.pairs.registry import PAIRS
from benchmarks.localisation.tools.peers import CANNOT, PeerAnswer, peer_rows
from benchmarks.localisation.tools.suite import Answer
from benchmarks.localisation.tools.table import GOOD, misses, rows, summary

INTRODUCTION = Path(__file__).parents[1] / "introduction.md"
_NEAR = "{} × noise"
WHY = {
    **{name: _NEAR.format(times) for name, times in (
        ("ast/autocast/quick_gelu/activation_fn", 3.1),
        ("cvt/autocast/flushed/dense/0.05", 14), ("electra/autocast/other_norm/LayerNorm", 5.9),
        ("exaone/autocast/gate_detached/act_fn", 12), ("flow/fp32/scaled/fc2/1e-06", 4.8),
        ("gemma/fp16/narrow_sum/down_proj/sgd", 3.3), ("gemma/fp32/clip_counted/1.0003/clip0.3", 16),
        ("glm4-moe/bf16/expert_lost/experts", 6.3),
        ("gpt-neo/bf16/eight_bits/c_proj", 3.8), ("gpt-oss/bf16/other_norm/post_attention_layernorm", 5.3),
        ("granite/fp32/residual_factor/2/1e-05", 18), ("granitemoe/fp32/scaling/self_attn/1e-06", 4.5),
        ("helium/autocast/eight_bits/up_proj", 4.3), ("lfm2/fp32/eps/ffn_norm/2e-06", 6.3),
        ("longformer/fp32/residual/dense/1e-06", 4.6), ("olmo/fp16/narrow_logits/sgd", 3.9),
        ("olmoe/fp32/auxiliary_factor/0.1", 16), ("roberta/bf16/statistics_detached/LayerNorm", 9.1),
        ("sounds/fp32/bias_gradient/text/1e-05", 11),
        ("umt5/bf16/bucket_distance/SelfAttention/64", 33),
        ("unispeech/fp16/narrow_input/input_values/sgd", 3.4), ("xglm/fp32/eps/self_attn_layer_norm/3e-05", 5.6),
    )},
    **dict.fromkeys(
        ("swin/fp32/amsgrad/steps2", "timesformer/fp32/amsgrad/steps2"),
        "the settings are named, at the first step that has them; the numbers show them a step later",
    ),
    **dict.fromkeys(
        ("hf-vit/own-vit/fp32/patch_columns/proj", "hf-convnext/own-convnext/bf16/patch_columns/stem"),
        "statistics of a Linear on patches that are permuted do not show in which order its columns lie",
    ),
    **dict.fromkeys(
        ("hf-mamba/own-mamba/bf16/scan_decay/scan/1.5", "hf-mamba/own-mamba/bf16/scan_anew/scan/steps3/at2",
         "hf-mamba/own-mamba/fp16/detached/to_steps/sgd", "hf-mamba/own-mamba/bf16/weight_gradient/in_z/0.1",
         "hf-vit/own-vit/autocast/quick_gelu/act", "hf-t5/own-t5/autocast/detached/kv"),
        "in 16 bits it is below what noise explains",
    ),
    "hf-llama/vllm-llama/fp32/silu_as_gelu/mlp": "the activation, which B has not as a module, is named, not the module around it",
    "hf-llama/vllm-llama/fp32/gradient/qkv_proj/1e-05": "of a packed gradient statistics show the module around it",
    "hf-t5/own-t5/fp32/factor/6": "the head that B computes by hand is named, not the model whose code does",
    "hf-whisper/own-whisper/fp32/clip_counted/1.0005/clip0.3": "a norm that is a sum of many squares in float32 may be off by as much",
    "diffllama/autocast/split_2/steps2": "a factor that a norm behind it takes away has no gradient but rounding: Adam moves it, and exp makes 6 % of that",
    "hiera/fp16/narrow_input/pixel_values/sgd": "3.5 × noise: what a model is given may be off by 8 roundings",
    "phimoe/bf16/padded_vocabulary/32": "noise sends tokens to other experts: the logits are off by more than the fault makes of the loss",
    "qwen3-next/autocast/clip_counted/64/clip0.3": "a normalisation over 8 elements of small rows in 16 bits makes errors 16 times larger",
    "regnet/autocast/biased/normalization/steps2": "a running variance that differs by less than noise explains",
    "rnn-lm/autocast/eps_inside": "what eps does to these updates is less than their gradients' noise explains",
    "roformer/autocast/output_gradient/self/1": "noise hides it in single gradients: it is seen where they come together",
    "sinks/autocast/lr/0.05": "a token goes to another expert inside of a module that shows no integers",
    "sinks/fp32/alibi/stack/0.001": "masks that are filled with large numbers hide it; the module that is given the sum is named",
    "sounds/fp32/noisy/conv1/1e-06": "a sketch estimates the error a little too small",
    "timesformer/fp32/detached/temporal_dense": "gradients are seen where the module around it adds them up",
    "videomae/autocast/decay/weight/0.5": "most of all weights are concerned: the optimizer is named, not the dense layers",
}  # fmt: skip
"""why the built-in model misses what it misses"""


_TABLES = "## All pairs"
"""the heading behind the introduction"""
_WHY_MISSED = """`N × noise` is the size of the fault: the built-in model allows errors of 8 times what they inherit, 16 in backward, 3 if they have a direction."""


def introduction() -> str:
    """Return what stands before the tables, with the numbers of the pairs that there are."""
    clean = sum(pair.truth is None for pair in PAIRS.values())
    models = {pair.a.architecture for pair in PAIRS.values() if pair.truth is not None}
    text = Template(INTRODUCTION.read_text(encoding="utf-8"))
    return text.substitute(faults=f"{len(PAIRS) - clean:,}", models=len(models), clean=clean).rstrip()


def read_answers(path: Path) -> list[Answer]:
    """Return the answers that `python -m benchmarks.localisation -o` wrote."""
    found = json.loads(path.read_text(encoding="utf-8"))["answers"]
    return [Answer(x["pair"], x["mode"], x["grade"], x["expected"], x["said"]) for x in found]


def page(
    answers: list[Answer],
    rungs: dict[str, list[Answer]],
    drawn: list[Answer],
    peers: dict[str, list[PeerAnswer]],
    notes: tuple[str, ...] = (),
) -> str:
    """Return the page; ``notes`` say what was run."""
    modes = [mode for mode in ("tensor", "statistics") if any(answer.mode == mode for answer in answers)]
    lines = [introduction(), "", *(f"{note}\n" for note in notes), _TABLES, ""]
    lines += [f"* {summary(answers, mode)}" for mode in modes] + [""]
    lines += [*_table(["pairs", "number", *(f"right from {mode}" for mode in modes)], _right(answers, modes)), ""]
    lines += ["## Misses", "", _WHY_MISSED, "", *_about_misses(answers, len(modes)), ""]
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


def _right(answers: list[Answer], modes: list[str]) -> list[list[str]]:
    """Return a line for each part of the pairs: how many there are, and how many answers from each recording are right."""
    lines: dict[str, list[str]] = {}
    for mode in modes:
        for name, number, *grades in rows(answers, mode):
            right = sum(
                int(count) for grade, count in zip(GRADES, grades, strict=True) if grade in GOOD and count != "·"
            )
            lines.setdefault(name, [name, number]).append(str(right))
    return list(lines.values())


def _about_misses(answers: list[Answer], modes: int) -> list[str]:
    """Return the tables of missed faults and of other wrong answers; answers that are the same from both recordings are one line."""
    grouped: dict[tuple[str, ...], list[str]] = {}
    for pair, mode, *rest in misses(answers):
        grouped.setdefault((pair, *rest), []).append(mode)
    missed, others = [], []
    for (pair, grade, expected, said), from_ in grouped.items():
        where = "both" if len(from_) == modes > 1 else from_[0]
        if grade == "missed":
            missed.append(f"* `{pair}`{'' if where == 'both' else f' from {where} alone'}: {WHY.get(pair, expected)}")
        else:
            others.append([pair, where, grade, expected, said, WHY.get(pair, "")])
    return [
        f"`ALIGNED`: {len(missed)}", "", *missed, "",
        "Named otherwise:", "", *_table(["pair", "from", "grade", "right answer", "answer", "why"], others),
    ]  # fmt: skip


def _about_rungs(rungs: dict[str, list[Answer]]) -> list[str]:
    lines = []
    for name, answers in rungs.items():
        for mode in dict.fromkeys(answer.mode for answer in answers):
            lines.append(f"* `--rung {name}`: {summary(answers, mode)}")
        lines += [f"  * `{x[0]}`, {x[1]}: {x[2]}, {x[4]}" for x in misses(answers)]
    return [*lines, ""]


def _about_peers(peers: dict[str, list[PeerAnswer]], answers: list[Answer]) -> list[str]:
    lines = ["How many answers about faulty and about clean pairs have which grade."]
    for title, found in peers.items():
        names = {x.pair for x in found}
        same = [
            PeerAnswer(f"probe, {x.mode}", x.pair, PAIRS[x.pair].truth is not None, x.grade, x.expected, x.said)
            for x in answers
            if x.pair in names
        ]
        lines += [
            "",
            f"On {title}:",
            "",
            *_table(["tool", "faulty", "clean"], peer_rows(found + same)),
            *_reasons(found),
        ]
    return [*lines, ""]


def _reasons(found: list[PeerAnswer]) -> list[str]:
    """Return what tools cannot run, and why; tools with the same reason share a line."""
    reasons: dict[str, list[str]] = {}
    for (tool, why), number in Counter((x.tool, x.said) for x in found if x.grade == CANNOT).items():
        reasons.setdefault(f"{number} pairs: {why}", []).append(tool)
    return ["", *(f"* {' and '.join(tools)} cannot run {why}" for why, tools in reasons.items())] if reasons else []


def _table(names: list[str], lines: list[list[str]]) -> list[str]:
    table = [names, ["---"] * len(names), *lines]
    return ["| " + " | ".join(cell.strip().replace("|", "\\|") for cell in cells) + " |" for cells in table]


_FILE = click.Path(path_type=Path, dir_okay=False)


@click.command()
@click.argument("full", type=_FILE, nargs=-1)
@click.option("--noise", type=_FILE, multiple=True, help="Answers of --rung noise.")
@click.option("--reference", type=_FILE, multiple=True, help="Answers of --rung reference.")
@click.option("--random", "drawn", type=_FILE, multiple=True, help="Answers about drawn pairs; may be repeated.")
@click.option(
    "--peers",
    type=(str, _FILE),
    multiple=True,
    help="On which pairs, and what mindstudio or padiff wrote; may be repeated.",
)
@click.option("--note", "notes", multiple=True, help="What was run, in a sentence; may be repeated.")
@click.option("-o", "--output", type=_FILE, required=True)
def main(
    full: tuple[Path, ...],
    noise: tuple[Path, ...],
    reference: tuple[Path, ...],
    drawn: tuple[Path, ...],
    peers: tuple[tuple[str, Path], ...],
    notes: tuple[str, ...],
    output: Path,
) -> None:
    """Write the page from the answers of complete runs; without a run, write its introduction again and keep its tables."""
    if not full:
        tables = output.read_text(encoding="utf-8").partition(_TABLES)[2]
        output.write_text(f"{introduction()}\n\n{_TABLES}{tables}", encoding="utf-8")
        return
    rungs = {name: _all(files) for name, files in (("noise", noise), ("reference", reference)) if files}
    said: dict[str, list[PeerAnswer]] = {}
    for title, path in peers:
        said.setdefault(title, []).extend(PeerAnswer(**x) for x in json.loads(path.read_text(encoding="utf-8")))
    output.write_text(page(_all(full), rungs, _all(drawn), said, notes), encoding="utf-8")


def _all(files: tuple[Path, ...]) -> list[Answer]:
    return [answer for path in files for answer in read_answers(path)]


if __name__ == "__main__":
    main()
