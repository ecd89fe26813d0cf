"""Faults in functional code, written by somebody who had not seen how operations are aligned; nothing here was changed since.

Each is one wrong line in a function that takes the place of one of transformers', or in a block in Megatron's style; ``# name.x`` marks
it, ``# name.n`` the lines that use it first. ``ON`` is the name of the fault that is planted.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
import transformers.models.gpt2.modeling_gpt2 as G
import transformers.models.qwen2.modeling_qwen2 as Q
import transformers.models.vit.modeling_vit as V
from torch import nn
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    Qwen2Config,
    Qwen2ForCausalLM,
    ViTConfig,
    ViTForImageClassification,
)
from transformers.modeling_outputs import ImageClassifierOutput

ON = ""


# ---------------------------------------------------------------- Qwen2
def q_rotate_half(x):
    x1 = x[..., : x.shape[-1] // 2]
    x2 = x[..., x.shape[-1] // 2 :]
    return torch.cat((x2, -x1), dim=-1)  # q_rotsign.x


def q_apply_rotary(q, k, cos, sin, unsqueeze_dim=1):
    cos = cos.unsqueeze(unsqueeze_dim)
    sin = sin.unsqueeze(unsqueeze_dim)
    q_embed = (q * cos) + (q_rotate_half(q) * sin)  # q_rotsign.n
    k_embed = (k * cos) + (q_rotate_half(k) * sin)  # q_rotsign.n
    return q_embed, k_embed


def q_repeat_kv(hidden_states, n_rep):
    batch, kv, slen, d = hidden_states.shape
    if ON == "q_kvorder":
        hidden_states = hidden_states[:, None, :, :, :].expand(batch, n_rep, kv, slen, d)  # q_kvorder.x
    else:
        hidden_states = hidden_states[:, :, None, :, :].expand(batch, kv, n_rep, slen, d)
    return hidden_states.reshape(batch, kv * n_rep, slen, d)  # q_kvorder.n


def q_eager(module, query, key, value, attention_mask, scaling, dropout=0.0, **kwargs):
    key_states = q_repeat_kv(key, module.num_key_value_groups)
    value_states = q_repeat_kv(value, module.num_key_value_groups)
    if ON == "q_scale":
        attn_weights = torch.matmul(query, key_states.transpose(2, 3))  # q_scale.x
    else:
        attn_weights = torch.matmul(query, key_states.transpose(2, 3)) * scaling  # q_kvorder.n
    attn_weights = attn_weights + attention_mask  # q_scale.n #q_mask.n
    if ON == "q_softbf16":
        attn_weights = F.softmax(attn_weights, dim=-1, dtype=torch.bfloat16).to(query.dtype)  # q_softbf16.x
    else:
        attn_weights = F.softmax(attn_weights, dim=-1, dtype=torch.float32).to(query.dtype)
    attn_weights = F.dropout(attn_weights, p=dropout, training=module.training)  # q_softbf16.n
    attn_output = torch.matmul(attn_weights, value_states)
    attn_output = attn_output.transpose(1, 2).contiguous()
    return attn_output, attn_weights


def q_mask(config, inputs_embeds, **kwargs):
    n = inputs_embeds.shape[1]
    mask = torch.full((n, n), -10.0, dtype=inputs_embeds.dtype)  # q_mask.x
    mask = torch.triu(mask, diagonal=1)  # q_mask.n
    return mask[None, None].expand(inputs_embeds.shape[0], 1, n, n)


def q_mlp(self, x):
    gate = self.act_fn(self.up_proj(x))  # q_gateup.x
    up = self.gate_proj(x)  # q_gateup.n
    return self.down_proj(gate * up)


def q_layer(self, hidden_states, attention_mask=None, position_ids=None, position_embeddings=None, **kwargs):
    residual = hidden_states
    hidden_states = self.input_layernorm(hidden_states)
    hidden_states, _ = self.self_attn(
        hidden_states=hidden_states,
        attention_mask=attention_mask,
        position_ids=position_ids,
        position_embeddings=position_embeddings,
        **kwargs,
    )
    hidden_states = residual + hidden_states
    residual = self.post_attention_layernorm(hidden_states)
    hidden_states = self.mlp(residual)
    hidden_states = residual + hidden_states  # q_resid.x
    return hidden_states


def q_sdpa(module, query, key, value, attention_mask, scaling, dropout=0.0, **kwargs):
    out = F.scaled_dot_product_attention(query, key, value, attn_mask=attention_mask, scale=scaling, enable_gqa=True)
    return out.transpose(1, 2), None


def q_rms(self, hidden_states):
    return F.rms_norm(hidden_states, (hidden_states.shape[-1],), self.weight, self.variance_epsilon)


# ---------------------------------------------------------------- GPT-2
def g_eager(module, query, key, value, attention_mask, scaling=None, dropout=0.0, **kwargs):
    if ON == "g_scale2":
        attn_weights = torch.matmul(query * scaling, key.transpose(-1, -2)) * scaling  # g_scale2.x
    else:
        attn_weights = torch.matmul(query, key.transpose(-1, -2)) * scaling
    attn_weights = attn_weights + attention_mask  # g_causal.n #g_scale2.n
    if ON == "g_axis":
        attn_weights = F.softmax(attn_weights, dim=-2)  # g_axis.x
    else:
        attn_weights = F.softmax(attn_weights, dim=-1)
    attn_weights = attn_weights.type(value.dtype)
    if ON == "g_dropout":
        attn_weights = F.dropout(attn_weights, p=0.1, training=True)  # g_dropout.x
    else:
        attn_weights = F.dropout(attn_weights, p=dropout, training=module.training)  # g_axis.n
    attn_output = torch.matmul(attn_weights, value)  # g_dropout.n #g_axis.n
    if ON == "g_reshape":
        attn_output = attn_output.reshape(query.shape[0], query.shape[2], query.shape[1], -1)  # g_reshape.x
    else:
        attn_output = attn_output.transpose(1, 2)
    return attn_output, attn_weights


def g_attn(self, hidden_states, cache=None, attention_mask=None, **kwargs):
    query_states, value_states, key_states = self.c_attn(hidden_states).split(self.split_size, dim=2)  # g_kvswap.x
    shape_kv = (*key_states.shape[:-1], -1, self.head_dim)
    key_states = key_states.view(shape_kv).transpose(1, 2)  # g_kvswap.n
    value_states = value_states.view(shape_kv).transpose(1, 2)  # g_kvswap.n
    query_states = query_states.view(shape_kv).transpose(1, 2)
    attn_output, attn_weights = g_eager(
        self, query_states, key_states, value_states, attention_mask, scaling=self.scaling
    )
    attn_output = attn_output.reshape(*attn_output.shape[:-2], -1).contiguous()
    attn_output = self.c_proj(attn_output)
    attn_output = self.resid_dropout(attn_output)
    return attn_output, attn_weights


def g_mlp(self, hidden_states):
    hidden_states = self.c_fc(hidden_states)
    hidden_states = F.gelu(hidden_states)  # g_gelu.x
    hidden_states = self.c_proj(hidden_states)  # g_gelu.n
    hidden_states = self.dropout(hidden_states)
    return hidden_states


def g_mask(config, inputs_embeds, **kwargs):
    n = inputs_embeds.shape[1]
    mask = torch.full((n, n), torch.finfo(inputs_embeds.dtype).min, dtype=inputs_embeds.dtype)
    mask = torch.triu(mask, diagonal=2)  # g_causal.x
    return mask[None, None].expand(inputs_embeds.shape[0], 1, n, n)


def g_einsum(module, query, key, value, attention_mask, scaling=None, dropout=0.0, **kwargs):
    s = torch.einsum("bhqd,bhkd->bhqk", query, key).mul(scaling)
    s = torch.add(attention_mask, s)
    s = s - s.amax(-1, keepdim=True).detach()
    e = s.exp()
    p = e / e.sum(-1, keepdim=True)
    return torch.einsum("bhqk,bhkd->bqhd", p, value), p


# ---------------------------------------------------------------- ViT
def v_embed(self, pixel_values, bool_masked_pos=None, interpolate_pos_encoding=False):
    embeddings = self.patch_embeddings(pixel_values)
    cls_tokens = self.cls_token.expand(embeddings.shape[0], -1, -1)
    embeddings = torch.cat((cls_tokens, embeddings), dim=1)
    embeddings = embeddings + self.position_embeddings  # v_pos2.n
    embeddings = embeddings + self.position_embeddings * 1  # v_pos2.x
    embeddings = self.dropout(embeddings)  # v_pos2.n
    return embeddings


def v_classify(self, pixel_values=None, labels=None, **kwargs):
    outputs = self.vit(pixel_values)
    sequence_output = outputs.last_hidden_state
    pooled_output = sequence_output[:, -1, :]  # v_cls.x
    logits = self.classifier(pooled_output)  # v_cls.n
    loss = self.loss_function(labels, logits, self.config)
    return ImageClassifierOutput(loss=loss, logits=logits)


def v_mlp(self, hidden_states):
    hidden_states = self.fc1(hidden_states)
    hidden_states = F.gelu(hidden_states, approximate="tanh")  # v_gelu.x
    hidden_states = self.fc2(hidden_states)  # v_gelu.n
    return hidden_states


def v_layer(self, hidden_states, attention_mask=None, **kwargs):
    residual = hidden_states
    hidden_states = self.layernorm_before(hidden_states)
    hidden_states, _ = self.attention(hidden_states, attention_mask, **kwargs)
    hidden_states = self.dropout(hidden_states)
    hidden_states = hidden_states + residual
    hidden_states = self.layernorm_after(hidden_states)
    hidden_states = self.mlp(hidden_states)
    hidden_states = self.dropout(hidden_states)
    hidden_states = hidden_states + residual  # v_resid.x
    return hidden_states


def v_patch(self, pixel_values):
    x = self.projection(pixel_values)
    return x.transpose(2, 3).flatten(2).transpose(1, 2)  # v_patch.x


def v_eager(module, query, key, value, attention_mask, scaling=None, dropout=0.0, **kwargs):
    scaling = module.config.hidden_size**-0.5
    attn_weights = torch.matmul(query, key.transpose(2, 3)) * scaling  # v_scale.x
    if attention_mask is not None:
        attn_weights = attn_weights + attention_mask
    attn_weights = F.softmax(attn_weights, dim=-1, dtype=torch.float32).to(query.dtype)  # v_scale.n
    attn_weights = F.dropout(attn_weights, p=dropout, training=module.training)
    attn_output = torch.matmul(attn_weights, value)
    attn_output = attn_output.transpose(1, 2).contiguous()
    return attn_output, attn_weights


def v_baddbmm(module, query, key, value, attention_mask, scaling=None, dropout=0.0, **kwargs):
    b, h, n, d = query.shape
    q = query.reshape(b * h, n, d)
    k = key.reshape(b * h, n, d)
    s = torch.baddbmm(torch.zeros(1, 1, 1), q, k.transpose(1, 2), beta=0, alpha=scaling)
    p = torch.softmax(s, -1)
    o = torch.bmm(p, value.reshape(b * h, n, d))
    return o.view(b, h, n, d).permute(0, 2, 1, 3), p.view(b, h, n, n)


# ---------------------------------------------------------------- Megatron style
class MNorm(nn.Module):
    def __init__(self, n, eps=1e-5):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(n))
        self.eps = eps

    def forward(self, x):
        var = (x * x).mean(-1, keepdim=True)
        if ON == "m_epsout":
            inv = 1.0 / (torch.sqrt(var) + self.eps)  # m_epsout.x
        else:
            inv = 1.0 / torch.sqrt(var + self.eps)
        return x * inv * self.weight  # m_epsout.n


def m_rotary(x, cos, sin):
    if ON == "m_addcmul":
        x1, x2 = x.chunk(2, -1)
        r = torch.cat((x2.neg(), x1), -1)
        return torch.addcmul(x * cos, r, sin).to(x.dtype)
    h = x.shape[-1] // 2
    r = torch.cat((-x[..., h:], x[..., :h]), dim=-1)
    if ON == "m_cast":
        return x * cos + r * sin  # m_cast.x
    else:
        return (x * cos + r * sin).to(x.dtype)


class MAttention(nn.Module):
    def __init__(self, n, heads, kv):
        super().__init__()
        self.heads, self.kv, self.d = heads, kv, n // heads
        self.qkv = nn.Linear(n, (heads + 2 * kv) * self.d)
        self.proj = nn.Linear(n, n, bias=False)

    def forward(self, x, cos, sin):
        b, s, _ = x.shape
        qkv = self.qkv(x)
        nq, nk = self.heads * self.d, self.kv * self.d
        if ON == "m_split":
            q, k, v = qkv.split([nq, nk, nk], dim=-1)
        else:
            q = qkv[..., :nq]
            k = qkv[..., nq : nq + nk]
            if ON == "m_slice":
                v = qkv[..., nq + nk - self.d : nq + 2 * nk - self.d]  # m_slice.x
            else:
                v = qkv[..., nq + nk :]
        q = q.view(b, s, self.heads, self.d).transpose(1, 2)
        k = k.reshape(b, s, self.kv, self.d).transpose(1, 2)
        v = v.reshape(b, s, self.kv, self.d).transpose(1, 2)  # m_slice.n
        q = m_rotary(q, cos[:s], sin[:s])
        if ON == "m_rotpos":
            k = m_rotary(k, cos[1 : s + 1], sin[1 : s + 1])  # m_rotpos.x
        else:
            k = m_rotary(k, cos[:s], sin[:s])
        k = k.repeat_interleave(self.heads // self.kv, dim=1)  # m_cast.n
        v = v.repeat_interleave(self.heads // self.kv, dim=1)  # m_slice.n
        scores = torch.matmul(q, k.transpose(-1, -2)) / math.sqrt(self.d)  # m_cast.n #m_rotpos.n
        if ON != "m_maskoff":
            keep = torch.ones(s, s, dtype=torch.bool).tril()
            scores = scores.masked_fill(~keep, float("-inf"))
        probs = torch.softmax(scores, dim=-1).to(v.dtype)  # m_maskoff.x
        ctx = torch.matmul(probs, v).transpose(1, 2).reshape(b, s, -1)  # m_maskoff.n
        return self.proj(ctx)


class MMLP(nn.Module):
    def __init__(self, n, f):
        super().__init__()
        self.fc1 = nn.Linear(n, 2 * f, bias=False)
        self.fc2 = nn.Linear(f, n, bias=False)

    def forward(self, x):
        y = self.fc1(x)
        if ON == "m_glu":
            up, gate = y.chunk(2, dim=-1)  # m_glu.x
        else:
            gate, up = y.chunk(2, dim=-1)
        if ON == "m_silu":
            act = gate * torch.sigmoid(gate)
        else:
            act = F.silu(gate)  # m_glu.n
        return self.fc2(act * up)  # m_glu.n


class MBlock(nn.Module):
    def __init__(self, n):
        super().__init__()
        self.norm1, self.attn, self.norm2, self.mlp = MNorm(n), MAttention(n, 4, 2), MNorm(n), MMLP(n, 128)

    def forward(self, x, cos, sin):
        x = x + self.attn(self.norm1(x), cos, sin)
        return x + self.mlp(self.norm2(x))


class MModel(nn.Module):
    def __init__(self, n=64, vocab=128):
        super().__init__()
        self.embed = nn.Embedding(vocab, n)
        nn.init.normal_(self.embed.weight, std=0.1)
        self.blocks = nn.ModuleList([MBlock(n) for _ in range(2)])
        self.norm = MNorm(n)
        self.head = nn.Linear(n, vocab, bias=False)
        d = n // 4
        inv = 10000.0 ** (-torch.arange(0, d, 2, dtype=torch.float64) / d)
        t = torch.arange(64, dtype=torch.float64)[:, None] * inv[None]
        t = torch.cat((t, t), -1)
        self.register_buffer("cos", t.cos())
        self.register_buffer("sin", t.sin())

    def forward(self, ids, mask):
        x = self.embed(ids)
        for block in self.blocks:
            x = block(x, self.cos, self.sin)
        logits = self.head(self.norm(x))
        logp = torch.log_softmax(logits[:, :-1], dim=-1)
        nll = -logp.gather(-1, ids[:, 1:, None]).squeeze(-1)
        nll = nll * mask
        if ON == "m_lossmean":
            return nll.mean()  # m_lossmean.x
        else:
            return nll.sum() / mask.sum()


# ---------------------------------------------------------------- table
QR = [(Q, "rotate_half", q_rotate_half), (Q, "apply_rotary_pos_emb", q_apply_rotary)]
QE = [(Q, "eager_attention_forward", q_eager)]
GE = [(G, "eager_attention_forward", g_eager)]
FAULTS = [
    *[
        ("q_rotsign", "qwen2", QR),
        ("q_scale", "qwen2", QE),
        ("q_kvorder", "qwen2", QE),
        ("q_mask", "qwen2", QE + [(Q, "create_causal_mask", q_mask)]),
        ("q_softbf16", "qwen2", QE),
        ("q_gateup", "qwen2", [(Q.Qwen2MLP, "forward", q_mlp)]),
        ("q_resid", "qwen2", [(Q.Qwen2DecoderLayer, "forward", q_layer)]),
        ("g_axis", "gpt2", GE),
        ("g_dropout", "gpt2", GE),
        ("g_scale2", "gpt2", GE),
        ("g_gelu", "gpt2", [(G.GPT2MLP, "forward", g_mlp)]),
        ("g_reshape", "gpt2", GE),
        ("g_kvswap", "gpt2", [(G.GPT2Attention, "forward", g_attn)]),
        ("g_causal", "gpt2", GE + [(G, "create_causal_mask", g_mask)]),
        ("v_pos2", "vit", [(V.ViTEmbeddings, "forward", v_embed)]),
        ("v_cls", "vit", [(V.ViTForImageClassification, "forward", v_classify)]),
        ("v_gelu", "vit", [(V.ViTMLP, "forward", v_mlp)]),
        ("v_resid", "vit", [(V.ViTLayer, "forward", v_layer)]),
        ("v_patch", "vit", [(V.ViTPatchEmbeddings, "forward", v_patch)]),
        ("v_scale", "vit", [(V, "eager_attention_forward", v_eager)]),
    ],
    *[(name, "mega", []) for name in "m_rotpos m_epsout m_lossmean m_slice m_glu m_cast m_maskoff".split()],
]
"""name, model, and what takes the place of what: (owner, attribute, function)"""
CLEAN = [
    ("q_sdpa", "qwen2", [(Q, "eager_attention_forward", q_sdpa)]),
    ("q_rms", "qwen2", [(Q.Qwen2RMSNorm, "forward", q_rms)]),
    ("g_einsum", "gpt2", [(G, "eager_attention_forward", g_einsum)]),
    ("v_baddbmm", "vit", [(V, "eager_attention_forward", v_baddbmm)]),
    ("m_split", "mega", []),
    ("m_silu", "mega", []),
    ("m_addcmul", "mega", []),
]


def build(arch):
    torch.manual_seed(0)
    if arch == "qwen2":
        m = Qwen2ForCausalLM(
            Qwen2Config(
                vocab_size=128,
                hidden_size=64,
                intermediate_size=128,
                num_hidden_layers=2,
                num_attention_heads=4,
                num_key_value_heads=2,
                max_position_embeddings=64,
                initializer_range=0.1,
                use_cache=False,
                attn_implementation="eager",
            )
        )
    elif arch == "gpt2":
        m = GPT2LMHeadModel(
            GPT2Config(
                vocab_size=128,
                n_positions=64,
                n_embd=64,
                n_layer=2,
                n_head=4,
                resid_pdrop=0.0,
                embd_pdrop=0.0,
                attn_pdrop=0.0,
                initializer_range=0.1,
                use_cache=False,
                bos_token_id=0,
                eos_token_id=0,
                attn_implementation="eager",
            )
        )
    elif arch == "vit":
        m = ViTForImageClassification(
            ViTConfig(
                hidden_size=64,
                num_hidden_layers=2,
                num_attention_heads=4,
                intermediate_size=128,
                image_size=32,
                patch_size=8,
                hidden_dropout_prob=0.0,
                attention_probs_dropout_prob=0.0,
                initializer_range=0.1,
                num_labels=10,
                attn_implementation="eager",
            )
        )
    else:
        m = MModel()
    g = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for p in m.parameters():
            p.add_(torch.randn(p.shape, generator=g) * 0.05)
    return m.train()
