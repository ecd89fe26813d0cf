"""The benchmark of localisation: its tables, its brute-force check, its grades, and some of its tuned pairs."""

from __future__ import annotations

import math
from dataclasses import replace
from types import SimpleNamespace

import pytest

import probe

pytest.importorskip("torch")
pytest.importorskip("transformers")

from benchmarks.localisation.faults.registry import FAULTS  # noqa: E402
from benchmarks.localisation.models.registry import ARCHITECTURES  # noqa: E402
from benchmarks.localisation.pairs.attention import ATTENTION  # noqa: E402
from benchmarks.localisation.pairs.clean import CLEAN  # noqa: E402
from benchmarks.localisation.pairs.forward import FORWARD, SIXTEEN_BITS  # noqa: E402
from benchmarks.localisation.pairs.gradients import GRADIENTS  # noqa: E402
from benchmarks.localisation.pairs.layers import LAYERS  # noqa: E402
from benchmarks.localisation.pairs.loss_and_backward import LOSS_AND_BACKWARD  # noqa: E402
from benchmarks.localisation.pairs.making import faulty  # noqa: E402
from benchmarks.localisation.pairs.optimizer import OPTIMIZER  # noqa: E402
from benchmarks.localisation.pairs.pair import PHASES, Setup, Truth  # noqa: E402
from benchmarks.localisation.pairs.registry import PAIRS, PARTS, SETS  # noqa: E402
from benchmarks.localisation.pairs.weights_and_inputs import INPUTS, WEIGHTS  # noqa: E402
from benchmarks.localisation.tools import suite, table  # noqa: E402
from benchmarks.localisation.tools.brute_force import holds, places, times_noise  # noqa: E402
from benchmarks.localisation.tools.noise_ladder import further_runs, reference  # noqa: E402
from benchmarks.localisation.tools.peers import Named, cannot, graded, peer_rows  # noqa: E402
from benchmarks.localisation.tools.random_pairs import DRAWN, random_pair  # noqa: E402
from benchmarks.localisation.tools.training import run_of  # noqa: E402
from probe.comparison.result import Divergence, Kind, NodeRef, Verdict  # noqa: E402
from probe.records import Phase, Role  # noqa: E402

CHECKED = (
    "bert/fp32/gelu_tanh/intermediate_act_fn",
    "cnn/cnn-sequence/fp32/pool_padding/7",
    "vit/fp32/loss_backward/1",
    "unet/fp32/gradient/up2/0.001",
    "qwen2/fp32/weight_gradient/gate_proj",
    "llama/fp32/decay/weight/0.1",
    "gan/fp32/gradient/conv2/0.01",
    "qwen2/fp32/schedule/0.5/steps3/at2",
    "bloom/fp32/alibi/transformer/0.0001",
    "mbart/fp32/micro_mean/micros4",
    "wav2vec2/fp32/residual_detached/0",
    "rnn-lm/fp32/untied/head",
    "deepseek/fp32/clip_scaled/clip0.5",
    "perceptron/fp32/biased/bn1/steps2",
    "phi3/phi3-split/fp32/eps_outside/norm1",
    "gemma3/fp32/scale_rounded/embed_tokens",
    "pegasus/fp32/row_mean",
    "mistral/fp32/overwritten/embed_tokens",
    "points/fp32/half_batches/bn2",
    "actor/fp32/truncated/memory",
    "exaone/fp32/count_lost/steps3/at2",
    "olmo/fp32/moments_exchanged/gate_proj/steps2/at1",
    "hf-qwen2/megatron-qwen2/fp32/ungrouped/linear_qkv",
    "hf-gpt2/nano-gpt2/fp32/first_position",
    "hf-vit/own-vit/fp32/patch_columns/proj",
    "hf-mamba/own-mamba/fp32/scan_anew/scan",
)
"""pairs of each phase, other structures, several models, a later step, faults that are planted in ways of their own; the command checks all"""


HELD_OUT = ("held-out-1", "held-out-2", "held-out-3", "held-out-4", "held-out-5")
TORCH = ("tuned", "once-held-out", *HELD_OUT)
"""the sets in PyTorch alone"""


def test_the_sets_are_whole():
    for name, pairs in SETS.items():
        assert {pair.set for pair in pairs} == {name} and all(pair.held_out is (name in HELD_OUT) for pair in pairs)
        assert {pair.phase for pair in pairs} == {*PHASES, "clean"}
        assert name == "ports" or {pair.a.dtype for pair in pairs} == {"fp32", "bf16", "fp16", "autocast"}
    assert sum(map(len, SETS.values())) == len(PAIRS) == len(PARTS["all"])
    assert all(pair.mapping is not None for pair in SETS["held-out-5"])
    for framework in ("paddle", "mindspore"):
        ports = [pair for pair in SETS["ports"] if pair.b.framework == framework]
        assert sum(pair.truth is not None for pair in ports) >= 16 and sum(pair.truth is None for pair in ports) >= 6
        assert {pair.phase for pair in ports} == {*PHASES, "clean"}
        assert any(pair.mapping is not None for pair in ports)


def test_a_held_out_set_has_models_and_faults_that_no_set_before_it_has():
    used: set[str] = set()
    for name in TORCH:
        models = {side.architecture for pair in SETS[name] for side in (pair.a, pair.b)}
        assert name == "once-held-out" or (models and not models & used), name
        used |= models
    assert used == set(ARCHITECTURES)
    known = {planted.fault for name in ("tuned", "ports", "once-held-out") for planted in _planted(name)}
    for name in HELD_OUT:
        faults = [planted.fault for planted in _planted(name)]
        assert set(faults) - known or name == "held-out-1", name
        assert name != "held-out-3" or set(faults) > known
        assert name != "held-out-4" or 0.4 < sum(fault not in known for fault in faults) / len(faults) < 0.6
        known |= set(faults)
    assert known == set(FAULTS)


@pytest.mark.parametrize(
    ("name", "faults", "clean"),
    [("held-out-2", 150, 60), ("held-out-3", 340, 70), ("held-out-4", 160, 50), ("held-out-5", 110, 40)],
)
def test_a_held_out_set_is_large(name, faults, clean):
    assert sum(pair.truth is not None for pair in SETS[name]) >= faults
    assert sum(pair.truth is None for pair in SETS[name]) >= clean


@pytest.mark.parametrize(
    ("table", "phases"),
    [
        (WEIGHTS, {"init"}),
        *((table, {"forward"}) for table in (INPUTS, ATTENTION, LAYERS, FORWARD, SIXTEEN_BITS)),
        (LOSS_AND_BACKWARD, {"loss", "backward"}),
        (GRADIENTS, {"gradient", "update"}),
        (OPTIMIZER, {"update"}),
        (CLEAN, {"clean"}),
    ],
)
def test_a_pair_stands_in_the_table_of_its_phase(table, phases):
    assert set(table) <= set(SETS)
    assert {pair.phase for pairs in table.values() for pair in pairs} == phases


def _planted(name):
    return [planted for pair in SETS[name] for planted in pair.b.planted]


@pytest.mark.parametrize("name", CHECKED)
def test_brute_force_finds_the_truth_and_refuses_another(name):
    pair = PAIRS[name]
    step, found = places(pair)
    assert holds(pair, step, found)
    assert not holds(replace(pair, truth=replace(pair.truth, phases=("other",))), step, found)
    assert not holds(replace(pair, truth=Truth("elsewhere", pair.truth.phases, step)), step, found)
    assert not holds(pair, step + 1, found)


@pytest.mark.parametrize("part", ["held-out-2", "held-out-3", "held-out-4", "held-out-5"])
def test_every_fault_of_a_held_out_set_can_be_planted(part):
    first = {planted.fault: pair for pair in reversed(PARTS[part]) for planted in pair.b.planted}
    for pair in dict.fromkeys(first.values()):
        run = run_of(pair.b)
        for planted in pair.b.planted:
            run.begin(planted.step)


@pytest.mark.parametrize("name", [name for name, each in ARCHITECTURES.items() if each.weights_of is not None])
def test_a_port_computes_what_its_baseline_does(name):
    losses = [float(run_of(Setup(each)).step(0)) for each in (ARCHITECTURES[name].baseline, name)]
    assert losses[0] == pytest.approx(losses[1], rel=1e-6)


def test_fused_modules_and_optimizers_compute_the_same():
    for dtype, rounding in (("fp32", 1e-6), ("bf16", 4e-3)):
        plain, fused = (run_of(Setup("gpt-neo", dtype, fused=fused)) for fused in (False, True))
        assert [float(fused.step(i)) for i in range(2)] == pytest.approx(
            [float(plain.step(i)) for i in range(2)], rounding
        )
        assert fused.groups[0]["fused"] is (dtype == "fp32") and not plain.groups[0]["fused"]


def test_the_size_of_a_fault_is_held_against_the_noise_of_its_pair():
    assert 5 < times_noise(PAIRS["electra/fp32/loss_scaled/1e-06"]) < 50
    assert times_noise(PAIRS["cohere/fp32/logit_scale/1e-05"]) > 10  # the model's own outputs
    assert math.isnan(times_noise(PAIRS["phi3/phi3-split/fp32/eps_outside/norm1"]))


def test_a_pair_without_a_fault_has_no_place():
    pair = PAIRS["qwen2/fp32/lr/0.1"]
    assert places(replace(pair, b=replace(pair.b, planted=()))) == (-1, [])


def test_a_share_is_the_same_each_time_and_grows():
    tenth, fifth = suite.chosen(0.1, "all"), suite.chosen(0.2, "all")
    assert tenth == suite.chosen(0.1, "all") and set(tenth) < set(fifth)
    assert 0 < len(tenth) < len(PAIRS) / 5
    assert suite.chosen(1.0, "all") == [pair for pairs in SETS.values() for pair in pairs] == list(PAIRS.values())
    assert suite.chosen(1.0, "tuned") == [*SETS["tuned"], *SETS["ports"], *SETS["once-held-out"]]
    assert suite.chosen(1.0, "held-out") == list(SETS["held-out-1"])
    for part in ("ports", *HELD_OUT[1:]):
        assert suite.chosen(1.0, part) == list(SETS[part])


def test_random_pairs_are_clean_and_differ():
    pairs = [random_pair(number) for number in range(200)]
    assert pairs == [random_pair(number) for number in range(200)]
    assert all(pair.truth is None and pair.a != pair.b and pair.a.seed == pair.b.seed for pair in pairs)
    assert {pair.a.architecture for pair in pairs} == set(DRAWN)


def test_equal_setups_share_a_recording(tmp_path):
    setup = PAIRS["cnn/fp32/frozen/conv1"].a
    first = suite.record(setup, "statistics", tmp_path, "x")
    assert suite.record(replace(setup), "statistics", tmp_path, "x") == first
    assert suite.record(setup, "statistics", tmp_path, "other sources") != first
    assert suite.record(replace(setup, seed=1), "statistics", tmp_path, "x") != first
    assert len(list(tmp_path.iterdir())) == 3


TRUTH = Truth("model.layers.1.mlp", ("forward",))


@pytest.mark.parametrize(
    ("found", "grade"),
    [
        (["model.layers.1.mlp"], "exact"),
        (["model.layers.1"], "parent"),
        (["model.layers"], "wrong name"),
        (["model.layers.1.mlp.up"], "wrong name"),
        (["model.layers.1.mlp backward"], "other phase"),
        (["model.layers.1.mlp step 1"], "other phase"),
        (["model.norm", "lm_head", "model.layers.1.mlp"], "top-3"),
        (["model.norm", "lm_head", "a", "model.layers.1.mlp"], "wrong name"),
        ([], "missed"),
    ],
)
def test_grades_of_faults(found, grade):
    assert suite.grade(TRUTH, _comparison(found)) == grade
    assert suite.grade(None, _comparison(found)) == ("false alarm" if found else "aligned")
    undecided = SimpleNamespace(verdict=Verdict.UNDECIDED, first_divergence=None, divergences=())
    assert suite.grade(TRUTH, undecided) == suite.grade(None, undecided) == "undecided"


def test_the_table_counts_every_answer_once_and_lists_the_misses():
    names = [pair.name for pair in SETS["tuned"][:3]]
    clean = next(pair.name for pair in SETS["tuned"] if pair.truth is None)
    grades = ["exact", "parent", "wrong name"]
    answers = [suite.Answer(n, "tensor", g, "right", "said") for n, g in zip(names, grades, strict=True)]
    answers += [suite.Answer(clean, "tensor", "false alarm", "aligned", "said")]
    lines = {line[0].strip(): line[1:] for line in table.rows(answers, "tensor")}
    assert lines["all faults"] == ["3", "1", "1", "·", "·", "1", "·", "·", "·", "·"]
    assert lines["held-out third, faults"][0] == lines["second held-out set, faults"][0] == "0"
    assert lines["third held-out set, faults"][0] == lines["fourth held-out set, faults"][0] == "0"
    unseen = [
        suite.Answer(pair.name, "tensor", "exact", "", "")
        for number, name in enumerate(HELD_OUT, 1)
        for pair in SETS[name][:number]
    ]
    unseen += [suite.Answer(SETS["held-out-2"][-1].name, "tensor", "aligned", "", "")]
    lines = {line[0].strip(): line[1:3] for line in table.rows(unseen, "tensor")}
    assert lines["held-out third, faults"] == ["1", "1"] and lines["second held-out set, faults"] == ["2", "2"]
    assert lines["third held-out set, faults"] == ["3", "3"] and lines["third held-out set, clean"][0] == "0"
    assert lines["fourth held-out set, faults"] == ["4", "4"] and lines["fourth held-out set, clean"][0] == "0"
    assert lines["fifth held-out set, faults"] == ["5", "5"] and lines["fifth held-out set, clean"][0] == "0"
    assert lines["held-out third, clean"][0] == "0" and lines["second held-out set, clean"][0] == "1"
    assert [line[0] for line in table.misses(answers)] == [names[1], names[2], clean]
    assert table.summary(answers, "tensor") == (
        "tensor: of 3 faults 1 exact (33.3 %), 2 exact or parent (66.7 %); of 1 clean pairs 0 aligned, 1 false alarms"
    )


@pytest.mark.parametrize(("mode", "share", "least"), [("statistics", 0.1, 20), ("tensor", 0.05, 10)])
def test_some_of_the_tuned_pairs(mode, share, least, tmp_path):
    digest = suite.sources_digest()
    some = [pair for pair in suite.chosen(share, "tuned") if pair.b.framework == "torch"]
    answers = [suite.judge(pair, mode, tmp_path, digest) for pair in some]
    assert len(answers) >= least
    assert not table.misses(answers)


ONCE_WRONG = (
    "gan/fp32/doubled_true/steps3",  # errors of another micro-batch were forgotten
    "llama/llama-fused/fp32/scaled/attention/0.001",  # a module was blamed that ran before what agreed
    "gan/fp32/gradient/conv2/0.01",  # the gradient of a model's output was taken for the loss's
    "vit/fp32/detached/k_proj",  # a leaf that passes nothing back
    "bert/bf16/detached/dense",
    "cnn/bf16/lr/0.3/sgd",  # settings that differ for all, and show in some
    "random/6252",  # the states that an update began with had errors that the gradient had not
    "perceptron/fp32/detached/fc2",  # what does not learn was named, and not what passes nothing back
    "segformer/fp32/narrow_loss",  # a loss that one side alone rounds
    "random/0",  # clipping passes one error on to all gradients
    "random/1",  # another split under autocast
    "random/6",  # other experts under another split
    "random/18",  # gradients that are zero but for rounding, under another split
    "random/92",  # LeakyReLU at its kink
    "random/146",  # softmax passes little back to the queries, with the rounding of the values
    "random/1025",  # what cross attention passes back has the errors of all layers of the decoder
    "random/1046",  # a ReLU in a module's own code
    "random/1235",  # more elements at the kink than expected, by chance
    "random/1267",  # some tokens more than expected go to other experts, by chance
    "random/1325",  # 16-bit gradients of another split
    "random/1450",  # Adam's first moment, where gradients have cancelled out
    "random/1483",  # a loss of large logits
    "random/2444",  # the model's own parameter, used through all layers
    "t5/fp32/detached/wi",  # nothing passed back through several modules
    "bert/bf16/loss_scaled/0.05",  # a loss that was averaged in fp32 is no 16-bit number
    "mixer/fp32/detached/0",  # nothing passed back to what was transposed on the way
    "opt/autocast/last_micro/micros2",  # gradients of which many may differ as much behind ReLU, and all others do
    "qwen2/bf16/eps/post_attention_layernorm/0.1",  # a small error in one direction
    "gemma2/fp32/eps/pre_feedforward_layernorm/0.0001",
    "qwen2/autocast/smoothing/0.1",  # the gradient of the loss alone tells
    "bert/bf16/smoothing/0.2",
    "bert/bf16/decay/weight/10",  # rounding hides most of a weight decay
    "random/3090",  # a linear layer of which the terms cancel out
    "random/3091",  # small gradients of queries under another split, with the rounding of the values'
    "random/30206",  # the weight of a module that is not called
    "random/30924",  # noise of gradients that grows from layer to layer, under another split
    "random/30989",  # momentum and gradient that cancel out
    "llama/bf16/theta/rotary_emb",  # angles are rounded as float32 is
    "random/40185",  # a parameter of one element, rounded up on one side and down on the other
)


@pytest.mark.parametrize("name", ONCE_WRONG)
def test_what_was_wrong_once(name, tmp_path):
    answer = suite.judge(suite.pair_of(name), "statistics", tmp_path, suite.sources_digest())
    assert answer.grade in ("exact", "aligned"), answer


def test_a_factor_that_updates_have_moved_in_one_direction_is_none_of_the_attention(tmp_path):
    """It was named in the forward pass.

    Whether the rest of this clean pair is aligned is up to seed and kernels: its noise is 0.25 to 8 times what the built-in
    model allows (of 5 further seeds 4 are false alarms, with and without vector instructions). That is open.
    """
    pair = PAIRS["diffllama/autocast/split_2/steps2"]
    files = [suite.record(setup, "statistics", tmp_path, suite.sources_digest()) for setup in (pair.a, pair.b)]
    found = probe.compare(*files).divergences
    assert not [each for each in found if each.phase is Phase.FORWARD and each.role is Role.OUTPUT]


UNDER_THE_NOISE = (
    faulty("qwen2", "eps", "model.layers.1.post_attention_layernorm", size=2e-2, dtype="bf16"),
    PAIRS["electra/autocast/other_norm/LayerNorm"],
)


@pytest.mark.parametrize("rung", ["noise", "reference"])
@pytest.mark.parametrize("pair", UNDER_THE_NOISE, ids=lambda pair: pair.name)
def test_what_the_built_in_model_cannot_see_is_found_on_the_higher_rungs(pair, rung, tmp_path):
    digest = suite.sources_digest()
    assert suite.judge(pair, "statistics", tmp_path, digest).grade == "missed"
    assert suite.judge(pair, "statistics", tmp_path, digest, rung).grade == "exact"


@pytest.mark.parametrize(
    ("name", "rung"),
    [
        ("mamba/bf16/split_4/steps3", "reference"),  # what a scan passes back cancels out
        ("convnext/fp16/doubled_true/sgd/steps2", "noise"),  # weights that an update moved scale what they make
        ("mixtral/bf16/attention_eager/steps2", "noise"),  # a token that takes another way is off in few places
        ("mobilevit/fp32/channels_last_true/steps3", "noise"),  # B is noisier than the further runs altogether
        ("mamba2/bf16/split_4/steps2", "noise"),  # a few large elements are most of the norm
        ("ijepa/fp16/fused_true/sgd/steps3", "noise"),  # a sum of gradients that the further runs add up as A does
    ],
)
def test_what_was_no_noise_on_a_higher_rung_once(name, rung, tmp_path):
    assert suite.judge(PAIRS[name], "statistics", tmp_path, suite.sources_digest(), rung).grade == "aligned"


@pytest.mark.parametrize(
    "name",
    [
        "hf-mixtral/own-mixtral/bf16/gradient/o_proj/0.3",
        "levit/bf16/coupled",  # and a batch norm's statistics, which are rounded channel by channel, are no fault
    ],
)
def test_what_the_built_in_model_finds_further_runs_hide_only_if_they_show_it(name, tmp_path):
    assert suite.judge(PAIRS[name], "statistics", tmp_path, suite.sources_digest(), "noise").grade == "exact"


_QUERY = "albert.encoder.albert_layer_groups.0.albert_layers.0.attention.query"


def test_a_fault_of_many_times_what_further_runs_show_is_found_beside_them(tmp_path):
    """Its limit is 3.2 to 5.2 times smaller with the kernels of `scripts/test-kernels`."""
    pair = faulty("albert", "weight_gradient", _QUERY, size=5e-5)
    assert suite.judge(pair, "statistics", tmp_path, suite.sources_digest(), "noise").grade == "exact"


AT_THE_EDGE = (
    "phi3/fp32/loss_scaled/5e-07",  # 1.3 to 1.5 times its limit, by the kernels
    "gpt-oss/fp32/eps/input_layernorm/2e-06",  # 1.1 times
    "albert/fp32/weight_gradient/query/5e-06",  # 1.3 to 2.1 times, or hidden: further runs show half of it
)
"""faults of less than 3 times the noise: the kernels of a CPU decide whether further runs show as much"""


def test_what_the_built_in_model_finds_at_the_edge_further_runs_mostly_leave(tmp_path):
    digest = suite.sources_digest()
    grades = [suite.judge(PAIRS[name], "statistics", tmp_path, digest, "noise").grade for name in AT_THE_EDGE]
    assert set(grades) <= {"exact", "missed"} and grades.count("exact") >= 2, grades


def test_further_runs_are_neither_side_and_a_reference_begins_with_the_same_numbers():
    for pair in (pair for name in TORCH for pair in SETS[name]):
        runs = further_runs(pair)
        assert len(runs) == 2 and pair.a not in runs and replace(pair.b, planted=()) not in runs
        assert all(not run.planted and run.seed == pair.a.seed for run in runs)
        wide = reference(pair)
        assert (wide is None) == (pair.a.dtype == "fp32")
        if wide is not None:
            assert wide.dtype == "fp32" and wide.rounded_to == ("" if pair.a.dtype == "autocast" else pair.a.dtype)
    assert not any(further_runs(pair) or reference(pair) for pair in SETS["ports"])


def test_other_tools_are_graded_by_the_same_rules():
    fault, clean = PAIRS["qwen2/fp32/gelu/act_fn"], PAIRS["qwen2/fp32/attention_eager/steps3"]
    right = graded("x", fault, Named("model.layers.2.mlp.act_fn", "forward"))
    answers = [right, graded("x", fault, Named("model.norm", "forward")), graded("x", fault, None)]
    answers += [cannot("x", fault, "why"), graded("x", clean, None), graded("x", clean, Named("model.norm", "forward"))]
    assert [answer.grade for answer in answers] == [
        "exact", "wrong name", "missed", "cannot", "aligned", "false alarm",
    ]  # fmt: skip
    assert peer_rows(answers) == [
        ["x", "faulty", "4", "1", "·", "·", "·", "1", "·", "1", "·", "·", "1"],
        ["x", "clean", "2", "·", "·", "·", "·", "·", "·", "·", "1", "1", "·"],
    ]


def _comparison(found: list[str]) -> SimpleNamespace:
    divergences = tuple(map(_divergence, found))
    verdict = Verdict.DIVERGED if found else Verdict.ALIGNED
    return SimpleNamespace(verdict=verdict, divergences=divergences, first_divergence=next(iter(divergences), None))


def _divergence(text: str) -> Divergence:
    path, _, rest = text.partition(" ")
    phase = Phase.BACKWARD if rest == "backward" else Phase.FORWARD
    ref = NodeRef(1 if rest == "step 1" else 0, 0, path, "Module", 0, "0")
    return Divergence(phase, Role.OUTPUT, Kind.INTRODUCED, 0.9, (ref,), (ref,), None)
