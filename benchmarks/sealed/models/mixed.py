"""Gemma 3, HuBERT and BERT of transformers, the same code on both sides; a recurrent speech model and BYOL."""

from __future__ import annotations

import copy

import torch
from torch import nn
from torch.nn import functional as F

from ...blind import hub
from ...blind import plant as P
from ...blind.spec import Model
from ...blind.training import Training, batches, give, ids, lively, normal
from .. import common
from ..frame import (
    C,
    Ema,
    after,
    bad_backward,
    before,
    channels_last,
    checkpointed,
    decayed,
    detached,
    kernels,
    later,
    matrices,
    ported,
    times,
)
from ..frame import F as Fault

both = P.several(kernels("sdpa"), checkpointed)


def gemma3():
    return hub.causal(
        "s-gemma3",
        lambda T: T.Gemma3ForCausalLM(
            T.Gemma3TextConfig(
                **hub.SMALL | {"vocab_size": 64, "num_hidden_layers": 4},
                head_dim=8,
                sliding_window=6,
                query_pre_attn_scalar=8,
                layer_types=["sliding_attention", "full_attention"] * 2,
                use_cache=False,
            )
        ),
        words=64,
        shape=(4, 14),
    )


A = "model.layers."
GEMMA3 = Model(
    "s-gemma3",
    gemma3,
    "Gemma 3 with sliding windows and norms on both ends, the same code on both sides",
    (
        Fault(
            "window-everywhere",
            "wrong mask",
            "forward",
            A + "1.self_attn",
            P.around(
                A + "1.self_attn",
                lambda forward, *a, **k: forward(
                    *a,
                    **k | {"attention_mask": torch.full((14, 14), -1e9).triu(1) + torch.full((14, 14), -1e9).tril(-6)},
                ),
            ),
            "a full layer slides, too",
            also=A + "1.self_attn.o_proj",
        ),
        Fault(
            "post-norm-missing",
            "wrong code",
            "forward",
            A + "2.post_feedforward_layernorm",
            P.rewritten(A + "2.post_feedforward_layernorm", lambda self, x: x),
            "the norm after a feed-forward is missing",
            also=A + "2",
        ),
        Fault(
            "unit-offset",
            "wrong code",
            "forward",
            A + "0.pre_feedforward_layernorm",
            P.rewritten(
                A + "0.pre_feedforward_layernorm", lambda self, x: (self._norm(x.float()) * self.weight).type_as(x)
            ),
            "the 1 is not added to a norm's weight",
        ),
        Fault(
            "embeddings-not-scaled",
            "buffer",
            "init forward",
            "model.embed_tokens",
            lambda t: t.at("model.embed_tokens").embed_scale.fill_(1.0),
            "embeddings are not scaled by the root of the width",
        ),
        Fault(
            "eps-in-query-norm",
            "hard",
            "forward",
            A + "3.self_attn.q_norm",
            P.setting(A + "3.self_attn.q_norm", eps=1e-5),
            "eps 1e-5 for 1e-6",
        ),
        Fault(
            "down-in-fp16",
            "precision",
            "forward",
            A + "1.mlp.down_proj",
            P.rewritten(A + "1.mlp.down_proj", lambda self, x: F.linear(x.bfloat16(), self.weight.bfloat16()).float()),
            "one product is computed in bfloat16",
        ),
        Fault(
            "layer-twice",
            "wrong code",
            "forward",
            A + "2.mlp",
            P.around(A + "2.mlp", lambda forward, x: forward(forward(x))),
            "a feed-forward is applied twice",
            also=A + "2.mlp.*",
        ),
        Fault(
            "grad-clamped-later",
            "later",
            "update gradient",
            A + "3.mlp.up_proj",
            lambda t: t.after_backward.append(
                lambda n: t.at(A + "3.mlp.up_proj").weight.grad.clamp_(-1e-3, 1e-3) if n == 1 else None
            ),
            "one gradient is clamped in step 1",
            step=1,
            steps=2,
        ),
        Fault(
            "frozen-gate",
            "frozen parts",
            "gradient",
            A + "1.mlp.gate_proj",
            lambda t: t.at(A + "1.mlp.gate_proj").requires_grad_(False),
            "one matrix is frozen",
            also=A + "1.mlp",
        ),
        *common.faults("coupled schedule-late"),
    ),
    (
        *common.cleans("sdpa checkpointed fp32-bf16 fp32-autocast one-two clip-by-hand warmup"),
        *common.cleans("bf16 fp16 autocast three-steps outliers outliers-bf16 muon adagrad", change=both),
    ),
)


def hubert():
    def data(g):
        return {"sound": normal(g, 3, 400), "labels": ids(g, 3, 6, below=10) + 1}

    model = hub.made(
        lambda T: T.HubertForCTC(
            T.HubertConfig(
                vocab_size=12,
                hidden_size=32,
                num_hidden_layers=2,
                num_attention_heads=4,
                intermediate_size=48,
                conv_dim=(16, 16, 16),
                conv_stride=(4, 2, 2),
                conv_kernel=(8, 3, 2),
                num_conv_pos_embeddings=8,
                num_conv_pos_embedding_groups=2,
                pad_token_id=0,
                hidden_dropout=0.0,
                attention_dropout=0.0,
                activation_dropout=0.0,
                feat_proj_dropout=0.0,
                final_dropout=0.0,
                layerdrop=0.0,
                apply_spec_augment=False,
                mask_time_prob=0.0,
            )
        )
    )
    model.freeze_feature_encoder()
    return Training(model, lambda m, b: m(b["sound"]).logits, spelled, batches(data, "s-hubert"))


def spelled(logits, batch, blank=0):
    """CTC."""
    rows = logits.float().log_softmax(-1).transpose(0, 1)
    steps, labels = torch.full((rows.shape[1],), rows.shape[0]), batch["labels"]
    return F.ctc_loss(rows, labels, steps, torch.full((len(labels),), labels.shape[1]), blank=blank)


H = "hubert.encoder."
HUBERT = Model(
    "s-hubert",
    hubert,
    "HuBERT with frozen convolutions, a weight norm and CTC, the same code on both sides",
    (
        Fault(
            "blank-last", "loss", "loss", "", P.criterion(lambda y, b: spelled(y, b, 11)), "the blank is the last token"
        ),
        Fault(
            "sound-scaled",
            "data",
            "inputs",
            "",
            P.each_batch(lambda b: b | {"sound": b["sound"] / 1.5}),
            "the waveform has another scale",
        ),
        Fault(
            "pos-conv-shift",
            "wrong code",
            "forward",
            H + "pos_conv_embed",
            P.around(H + "pos_conv_embed.padding", lambda forward, x: x[:, :, 1:]),
            "even kernels are cut on the other side",
            also=H + "pos_conv_embed.padding",
        ),
        Fault(
            "weight-norm-axis",
            "initial weights",
            "init",
            H + "pos_conv_embed.conv.parametrizations.weight",
            lambda t: t.at(H + "pos_conv_embed.conv.parametrizations.weight").original0.data.mul_(1.3),
            "the weight norm's length is not loaded",
            also=H + "pos_conv_embed.conv " + H + "pos_conv_embed",
        ),
        Fault(
            "norm-frozen",
            "frozen parts",
            "gradient",
            H + "layer_norm",
            lambda t: t.at(H + "layer_norm").requires_grad_(False),
            "a norm is frozen, too",
        ),
        Fault(
            "projection-dropped",
            "wrong code",
            "forward",
            "hubert.feature_projection.layer_norm",
            P.rewritten("hubert.feature_projection.layer_norm", lambda self, x: x),
            "features are not normalised",
            also="hubert.feature_projection",
        ),
        Fault(
            "ffn-backward",
            "backward",
            "backward gradient",
            H + "layers.1.feed_forward",
            bad_backward(H + "layers.1.feed_forward", times(1.1)),
            "a feed-forward's backward is 10 % too large",
            also=H + "layers.1.feed_forward.intermediate_dense",
        ),
        *common.faults("amsgrad clip"),
    ),
    (
        *common.cleans("sdpa fp32-bf16 fp32-autocast threads fused"),
        *common.cleans("bf16 autocast three-steps", change=kernels("sdpa")),
    ),
)


def bert():
    return hub.masked(
        "s-bert",
        lambda T: T.BertForMaskedLM(
            T.BertConfig(
                vocab_size=60,
                hidden_size=32,
                num_hidden_layers=3,
                num_attention_heads=4,
                intermediate_size=48,
                max_position_embeddings=32,
                hidden_dropout_prob=0.0,
                attention_probs_dropout_prob=0.0,
                hidden_act="gelu",
            )
        ),
        words=60,
        shape=(4, 14),
    )


E = "bert.encoder.layer."
BERT = Model(
    "s-bert",
    bert,
    "BERT's masked model with padding, the same code on both sides",
    (
        Fault(
            "mask-of-ones",
            "data",
            "inputs",
            "",
            P.each_batch(lambda b: b | {"mask": torch.ones_like(b["mask"])}),
            "the padding mask is all ones",
        ),
        Fault(
            "dropout-left-on",
            "evaluation mode",
            "forward",
            E + "1.output.dropout",
            P.setting(E + "1.output.dropout", p=0.1),
            "dropout is on in one layer",
            also=E + "1.output",
        ),
        Fault(
            "positions-from-2",
            "wrong code",
            "forward",
            "bert.embeddings.position_embeddings",
            before("bert.embeddings.position_embeddings", lambda x: x + 2),
            "positions begin behind the padding index, as RoBERTa's",
            also="bert.embeddings",
        ),
        Fault(
            "types-swapped",
            "initial weights",
            "init",
            "bert.embeddings.token_type_embeddings",
            P.values("bert.embeddings.token_type_embeddings", "weight", lambda w: w.flip(0)),
            "rows of the types are exchanged",
        ),
        Fault(
            "dense-not-held",
            "optimizer groups",
            "update",
            E + "1.attention.output.dense",
            P.frozen(E + "1.attention.output.dense"),
            "one matrix is not in the optimizer",
            also=E + "1.attention.output",
        ),
        Fault(
            "pad-labels",
            "loss",
            "loss",
            "",
            P.criterion(
                lambda y, b: F.cross_entropy(getattr(y, "logits", y).flatten(0, 1), b["labels"].flatten().clamp(min=0))
            ),
            "labels that should be left out count as 0",
        ),
        Fault(
            "query-half",
            "precision",
            "forward",
            E + "2.attention.self.query",
            P.rewritten(
                E + "2.attention.self.query",
                lambda self, x: F.linear(x.half(), self.weight.half(), self.bias.half()).float(),
            ),
            "queries are computed in half precision",
        ),
        Fault(
            "key-detached",
            "backward",
            "backward gradient",
            E + "0.attention.self.key",
            detached(E + "0.attention.self.key"),
            "keys pass no gradient on",
            also=E + "0.attention.self",
        ),
        Fault(
            "grad-halved-later",
            "later",
            "update gradient",
            E + "1.intermediate.dense",
            lambda t: t.after_backward.append(
                lambda n: t.at(E + "1.intermediate.dense").weight.grad.mul_(0.5) if n == 2 else None
            ),
            "one gradient is halved in step 2",
            step=2,
            steps=3,
        ),
        Fault(
            "norms-decay",
            "optimizer groups",
            "update",
            "",
            decayed(0.5),
            "norms and biases decay",
            also="bert* cls*",
            changes=decayed(0.5, matrices),
        ),
        *common.faults("state-lost"),
    ),
    (
        *common.cleans("sdpa checkpointed fp32-bf16 groups"),
        *common.cleans("bf16 fp16 autocast rmsprop in-two", change=both),
    ),
)


class Listener(nn.Module):
    """Convolutions, torch's GRU in two directions, a classifier."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Sequential(nn.Conv1d(12, 24, 5, 2, 2), nn.BatchNorm1d(24), nn.ReLU())
        self.gru, self.classify = nn.GRU(24, 20, batch_first=True, bidirectional=True), nn.Linear(40, 9)

    def forward(self, x):
        return self.classify(self.gru(self.conv(x).mT)[0])


class Gated(nn.Module):
    """A GRU's direction, step by step, with its six matrices apart."""

    def __init__(self, size: int, to: int, backwards: bool):
        super().__init__()
        self.backwards = backwards
        self.xr, self.xz, self.xn, self.hr, self.hz, self.hn = (nn.Linear(a, to) for a in (size,) * 3 + (to,) * 3)

    def kept(self, z, new, h):
        return (1 - z) * new + z * h

    def forward(self, x):
        h, rows = x.new_zeros(len(x), self.hr.out_features), []
        for t in reversed(range(x.shape[1])) if self.backwards else range(x.shape[1]):
            r, z = (self.xr(x[:, t]) + self.hr(h)).sigmoid(), (self.xz(x[:, t]) + self.hz(h)).sigmoid()
            h = self.kept(z, (self.xn(x[:, t]) + r * self.hn(h)).tanh(), h)
            rows.append(h)
        return torch.stack(rows[::-1] if self.backwards else rows, 1)


class OwnListener(nn.Module):
    def __init__(self):
        super().__init__()
        self.front, self.usual = nn.Conv1d(12, 24, 5, 2, 2), nn.BatchNorm1d(24)
        self.ahead, self.back, self.out = Gated(24, 20, False), Gated(24, 20, True), nn.Linear(40, 9)

    def forward(self, x):
        x = F.relu(self.usual(self.front(x))).mT
        return self.out(torch.cat([self.ahead(x), self.back(x)], -1))


def listener():
    return Training(
        lively(Listener()).train(),
        give("mel"),
        spelled,
        batches(lambda g: {"mel": normal(g, 6, 12, 32), "labels": ids(g, 6, 4, below=8) + 1}, "s-listener"),
    )


GRU_RULES = {
    f"{way}.{kind}{gate}.{p}": lambda a, old=f"gru.{p}_{'ih' if kind == 'x' else 'hh'}_l0{end}", i=i: a(old)[
        20 * i : 20 * i + 20
    ]
    for way, end in (("ahead", ""), ("back", "_reverse"))
    for kind in "xh"
    for i, gate in enumerate("rzn")
    for p in ("weight", "bias")
} | {
    f"{new}.{p}": f"{old}.{p}"
    for new, old, names in (("front", "conv.0", 2), ("usual", "conv.1", 5), ("out", "classify", 2))
    for p in ("weight", "bias", "running_mean", "running_var", "num_batches_tracked")[:names]
}

LISTENER = Model(
    "s-listener",
    listener,
    "torch's GRU in two directions against a loop over single matrices",
    (
        Fault(
            "gates-exchanged",
            "wrong code",
            "forward",
            "gru",
            P.method("ahead", "kept", lambda self, z, new, h: z * new + (1 - z) * h),
            "the update gate is taken the other way round",
            planted="ahead",
        ),
        Fault(
            "not-reversed",
            "wrong code",
            "forward",
            "gru",
            P.rewritten("back", lambda self, x: Gated.forward(self, x).flip(1)),
            "the other direction's rows are not put back in order",
            planted="back",
            mapped=True,
        ),
        Fault(
            "reset-before",
            "initial weights",
            "init",
            "gru",
            lambda t: _exchange(t, "back.hr", "back.hz"),
            "reset and update matrices are exchanged",
            planted="back",
        ),
        Fault(
            "running",
            "buffer",
            "init",
            "conv.1",
            P.values("usual", "running_mean", lambda w: w + 0.1),
            "running means are not loaded",
            planted="usual",
            mapped=True,
        ),
        Fault(
            "time-cut",
            "backward",
            "backward gradient",
            "gru",
            P.method("ahead", "kept", lambda self, z, new, h: (1 - z) * new + z * h.detach()),
            "no gradient flows through the kept state",
            planted="ahead",
        ),
        Fault(
            "usual-later",
            "later",
            "forward",
            "conv.1",
            later(1, lambda t: t.at("usual").eval()),
            "the batch norm goes into evaluation mode after step 0",
            planted="usual",
            mapped=True,
            step=1,
            steps=2,
        ),
        Fault(
            "length-mean",
            "loss",
            "loss",
            "",
            P.criterion(lambda y, b: 4 * spelled(y, b)),
            "the loss is not divided by the labels' length",
            planted="",
        ),
        *common.faults("no-clip", planted="", mapped=True),
        *common.faults("nesterov", planted=""),
    ),
    (
        C("port", "the port"),
        C("port-mapped", "the port with its mapping", mapped=True),
        *common.cleans("three-steps+ fp32-fp64+ in-two sgd"),
    ),
    port=ported(listener, OwnListener, GRU_RULES, 1, give("mel")),
    mapping={"TopLayer": {"conv.0": "front", "conv.1": "usual", "classify": "out"}},
)


def _exchange(training, one, other):
    a, b = training.at(one), training.at(other)
    kept = copy.deepcopy(a.state_dict())
    a.load_state_dict(b.state_dict())
    b.load_state_dict(kept)


class Byol(nn.Module):
    """Two views, a predictor, and a target that follows."""

    def __init__(self):
        super().__init__()
        self.online = nn.Sequential(
            nn.Conv2d(3, 12, 3, 2, 1),
            nn.BatchNorm2d(12),
            nn.ReLU(),
            nn.Conv2d(12, 16, 3, 2, 1),
            nn.GroupNorm(4, 16),
            nn.ReLU(),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
            nn.Linear(16, 24),
        )
        self.predict = nn.Sequential(nn.Linear(24, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 24))
        self.target = copy.deepcopy(self.online).requires_grad_(False)

    def forward(self, one, other):
        goal = self.target(other)
        return self.predict(self.online(one)), goal.detach()


def byol():
    model = lively(Byol())
    model.target.load_state_dict(model.online.state_dict())
    training = Training(
        model.train(),
        give("one", "other"),
        lambda y, b: (2 - 2 * F.cosine_similarity(y[0].float(), y[1].float())).mean(),
        batches(lambda g: {"one": normal(g, 8, 3, 12, 12), "other": normal(g, 8, 3, 12, 12)}, "s-byol"),
    )
    training.after_step.append(lambda number: Ema("online", "target", 0.95)(training, number))
    return training


def _follow(source, decay):
    return lambda training: training.after_step.__setitem__(
        0, lambda number: Ema(source, "target", decay)(training, number)
    )


BYOL = Model(
    "s-byol",
    byol,
    "BYOL with a target network that follows, the same code on both sides",
    (
        Fault(
            "target-decay",
            "moving average",
            "update",
            "target",
            _follow("online", 0.5),
            "the target follows by 0.5",
            also="target.* ROOT",
            steps=2,
        ),
        Fault(
            "target-in-evaluation",
            "evaluation mode",
            "forward",
            "target.1",
            lambda t: t.at("target").eval(),
            "the target is in evaluation mode",
        ),
        Fault(
            "target-stale",
            "moving average",
            "update",
            "target",
            lambda t: t.after_step.clear(),
            "the target does not follow",
            also="target.* ROOT",
            steps=2,
        ),
        Fault(
            "views-exchanged",
            "data",
            "inputs",
            "",
            P.each_batch(lambda b: {"one": b["other"], "other": b["one"]}),
            "views are exchanged",
        ),
        Fault(
            "goal-not-normed",
            "loss",
            "loss",
            "",
            P.criterion(lambda y, b: (y[0] - y[1]).square().mean()),
            "squares of what is not normalised",
        ),
        Fault(
            "predictor-skipped",
            "wrong code",
            "forward",
            "predict.2",
            P.rewritten("predict.2", lambda self, x: x),
            "no ReLU in the predictor",
            also="predict",
        ),
        Fault(
            "online-flipped",
            "wrong code",
            "forward",
            "online.3",
            before("online.3", lambda x: x.mT),
            "feature maps are transposed",
            also="online",
        ),
        Fault(
            "pool-backward",
            "backward",
            "backward gradient",
            "online.6",
            bad_backward("online.6", times(36.0)),
            "the pooling's backward is not divided",
        ),
        Fault(
            "norm-off", "hard", "forward", "online.4", after("online.4", times(1 + 1e-5)), "a norm is larger by 1e-5"
        ),
        *common.faults("rms-eps micro-sum skipped"),
    ),
    (
        *common.cleans("channels-last threads fp32-fp64 fused"),
        *common.cleans("bf16 autocast three-steps sgd in-two", change=channels_last),
        C(
            "target-foreach",
            "the target follows by one call",
            lambda t: t.after_step.__setitem__(
                0,
                lambda n: torch._foreach_lerp_(
                    list(t.at("target").parameters()), [p.detach() for p in t.at("online").parameters()], 1 - 0.95
                ),
            ),
            steps=3,
        ),
    ),
)

MODELS = (GEMMA3, HUBERT, BERT, LISTENER, BYOL)
