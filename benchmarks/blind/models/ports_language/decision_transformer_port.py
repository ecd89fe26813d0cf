"""Decision transformer of transformers against one on torch's encoder layers."""

from __future__ import annotations

import functools

import torch
from torch import nn
from torch.nn import functional as F

from ... import hub
from ... import plant as P
from ...spec import Clean, Fault, Model
from ...training import Training, batches, call, ids, normal, threads, uniform
from .shared import ported


class Trajectory(nn.Module):
    """A decision transformer on torch's own encoder layers."""

    def __init__(self, size: int, depth: int):
        super().__init__()
        self.time = nn.Embedding(30, size)
        self.want, self.see, self.do = nn.Linear(1, size), nn.Linear(5, size), nn.Linear(3, size)
        self.norm_in = nn.LayerNorm(size)
        self.body = nn.ModuleList(
            nn.TransformerEncoderLayer(size, 2, 4 * size, 0.0, functools.partial(F.relu), 1e-5, True, True)
            for _ in range(depth)
        )
        self.norm_out, self.act = nn.LayerNorm(size), nn.Linear(size, 3)
        self.place = nn.Embedding(64, size)

    def forward(self, states, actions, returns, times):
        time = self.time(times)
        x = torch.stack([self.want(returns) + time, self.see(states) + time, self.do(actions) + time], 2).flatten(1, 2)
        x = self.norm_in(x) + self.place(torch.zeros(1, dtype=torch.long))
        mask = torch.full((x.shape[1], x.shape[1]), -torch.inf, dtype=x.dtype).triu(1)
        for layer in self.body:
            x = layer(x, src_mask=mask)
        return torch.tanh(self.act(self.norm_out(x)[:, 1::3]))


def decision() -> Training:
    def data(g):
        return {
            "states": normal(g, 3, 4, 5),
            "actions": uniform(g, 3, 4, 3),
            "returns": normal(g, 3, 4, 1),
            "times": ids(g, 3, 1, below=20) + torch.arange(4),
            "target": normal(g, 3, 4, 3).tanh(),
        }

    config = {
        "state_dim": 5,
        "act_dim": 3,
        "hidden_size": 24,
        "max_ep_len": 30,
        "n_layer": 2,
        "n_head": 2,
        "n_positions": 64,
        "resid_pdrop": 0.0,
        "embd_pdrop": 0.0,
        "attn_pdrop": 0.0,
        "vocab_size": 1,
        "bos_token_id": 0,
        "eos_token_id": 0,
    }
    model = hub.made(lambda T: T.DecisionTransformerModel(T.DecisionTransformerConfig(**config)))

    def predict(m, b):
        return m(
            states=b["states"], actions=b["actions"], rewards=None, returns_to_go=b["returns"], timesteps=b["times"]
        ).action_preds

    def used(m):
        return torch.optim.AdamW(
            [p for n, p in m.named_parameters() if not any(k in n for k in ("predict_state", "predict_return", "wte"))],
            lr=1e-3,
            weight_decay=0.05,
        )

    return Training(
        model,
        predict,
        lambda o, b: F.mse_loss(o.float(), b["target"].float()),
        batches(data, "decision"),
        optimize=used,
    )


def own_decision() -> Training:
    def rename(held):
        new = {}
        for mine, theirs in {
            "time": "embed_timestep",
            "want": "embed_return",
            "see": "embed_state",
            "do": "embed_action",
            "norm_in": "embed_ln",
            "norm_out": "encoder.ln_f",
            "act": "predict_action.0",
            "place": "encoder.wpe",
        }.items():
            new |= {
                f"{mine}.{kind}": held[f"{theirs}.{kind}"] for kind in ("weight", "bias") if f"{theirs}.{kind}" in held
            }
        for i in range(2):
            old, to = f"encoder.h.{i}.", f"body.{i}."
            for kind in ("weight", "bias"):
                new[f"{to}self_attn.in_proj_{kind}"] = held[f"{old}attn.c_attn.{kind}"].T.contiguous()
                for mine, theirs in {
                    "self_attn.out_proj": "attn.c_proj",
                    "linear1": "mlp.c_fc",
                    "linear2": "mlp.c_proj",
                }.items():
                    new[f"{to}{mine}.{kind}"] = held[f"{old}{theirs}.{kind}"].T.contiguous()
                new[f"{to}norm1.{kind}"], new[f"{to}norm2.{kind}"] = (
                    held[f"{old}ln_1.{kind}"],
                    held[f"{old}ln_2.{kind}"],
                )
        return new

    return ported(
        decision, Trajectory(24, 2), rename, call(states="states", actions="actions", returns="returns", times="times")
    )


def _action_token(self, states, actions, returns, times):
    time = self.time(times)
    x = torch.stack([self.want(returns) + time, self.see(states) + time, self.do(actions) + time], 2).flatten(1, 2)
    x = self.norm_in(x) + self.place(torch.zeros(1, dtype=torch.long))
    mask = torch.full((x.shape[1], x.shape[1]), -torch.inf, dtype=x.dtype).triu(1)
    for layer in self.body:
        x = layer(x, src_mask=mask)
    return torch.tanh(self.act(self.norm_out(x)[:, 2::3]))


DECISION = Model(
    "decision-transformer-port",
    decision,
    "decision transformer of transformers against one on torch's encoder layers",
    (
        Fault(
            "reads-action-token",
            "off-by-one",
            P.rewritten("", _action_token),
            "",
            ("forward",),
            "actions are predicted from the actions' places",
            also=("predict_action", "predict_action.0"),
            planted="",
        ),
        Fault(
            "post-norm",
            "norm-order",
            lambda t: setattr(t.at("body.1"), "norm_first", False),
            "encoder.h.1",
            ("forward",),
            "post-norm for pre-norm",
            also=("encoder.h.1.attn", "encoder.h.1.ln_1"),
            planted="body.1",
        ),
        Fault(
            "relu",
            "activation",
            lambda t: setattr(t.at("body.0"), "activation", F.gelu),
            "encoder.h.0.mlp",
            ("forward",),
            "GELU for ReLU",
            also=("encoder.h.0.mlp.act", "encoder.h.0.mlp.c_proj", "encoder.h.0"),
            planted="body.0",
            mapped=True,
            dtype="autocast",
        ),
        Fault(
            "detached-time",
            "detach",
            P.around("time", lambda f, x: f(x).detach()),
            "embed_timestep",
            ("backward", "gradient"),
            "the time embedding is detached",
            also=("",),
            planted="time",
            mapped=True,
        ),
        Fault(
            "returns-scaled",
            "input-scale",
            P.each_batch(lambda b: {**b, "returns": b["returns"] / 10}),
            "",
            ("forward", "inputs"),
            "returns are divided by 10",
            planted="",
        ),
    ),
    (
        Clean("port", "the port, without a mapping"),
        Clean("port-mapped", "the port, with a mapping", mapped=True, steps=2),
        Clean("threads", "the port on two threads", lambda t: setattr(t, "context", lambda: threads(2)), mapped=True),
    ),
    port=own_decision,
    mapping={
        "TopLayer": {
            "embed_timestep": "time",
            "embed_return": "want",
            "embed_state": "see",
            "embed_action": "do",
            "embed_ln": "norm_in",
            "encoder.h": "body",
            "encoder.wpe": "place",
            "encoder.ln_f": "norm_out",
            "predict_action.0": "act",
        },
        "DecisionTransformerGPT2Block": {
            "ln_1": "norm1",
            "attn": "self_attn",
            "ln_2": "norm2",
            "mlp.c_fc": "linear1",
            "mlp.c_proj": "linear2",
        },
        "DecisionTransformerGPT2Attention": {"c_proj": "out_proj"},
    },
)
