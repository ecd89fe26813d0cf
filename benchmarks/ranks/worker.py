"""`python -m benchmarks.ranks.worker FOLDER < specs.json`: train and record each, one process for each rank."""

from __future__ import annotations

import contextlib
import functools
import json
import sys
import warnings
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

import probe
from benchmarks.ranks.forking import train_on_ranks
from benchmarks.ranks.layers import cross_entropy, reduced
from benchmarks.ranks.model import Embedding, GPTModel, Groups, LayerNorm, positions
from benchmarks.ranks.spec import LENGTH, VOCABULARY, Spec

ORDER = ("tp", "cp", "dp", "pp")


def main() -> None:
    """Train what stdin says, one after the other; the ranks of each are forked from this process."""
    folder = Path(sys.argv[1])
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    for entry in json.load(sys.stdin):
        spec = Spec(**{**entry, "options": tuple(map(tuple, entry.get("options", ())))})
        train_on_ranks(spec.name, spec.world, functools.partial(_run, spec, folder))


def _run(spec: Spec, folder: Path, rank: int, store: Path) -> None:
    sizes = {name: getattr(spec, name) for name in ORDER}
    groups: dict[str, Any] = dict.fromkeys((*ORDER, "ep", "embd"))
    place = {}
    if spec.world > 1:
        dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=spec.world)
        stride = 1
        for name in ORDER:
            place[name] = rank // stride % sizes[name]
            for first in range(spec.world):
                if first // stride % sizes[name] == 0:
                    ranks = [first + k * stride for k in range(sizes[name])]
                    made = dist.new_group(ranks) if len(ranks) > 1 else None
                    if rank in ranks:
                        groups[name] = made
            stride *= sizes[name]
        if spec.ep > 1:
            groups["ep"] = groups["dp"]
        if spec.pp > 1 and spec.tied:
            groups["embd"] = groups["pp"]
    _train(spec, rank, groups, {name: place.get(name, 0) for name in ORDER}, folder)


def _train(spec: Spec, rank: int, groups: Groups, place: dict[str, int], folder: Path) -> None:
    torch.manual_seed(100)
    model: nn.Module = GPTModel(spec, groups, place["pp"])
    bare = model
    if spec.wrapper == "ddp":
        model = nn.parallel.DistributedDataParallel(model)
    elif spec.wrapper == "fsdp2":
        _shard(model, spec)
    if spec.fault == "replica-with-other-seed" and place["dp"] == spec.dp - 1 and place["tp"] == spec.tp - 1:
        with torch.no_grad():
            next(p for p in bare.parameters() if p.dim() == 1).add_(torch.randn(1) * 0.01)
    rate = 0.01 * (2 if spec.fault == "lr-not-scaled" else 1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate)
    parallel = {name: getattr(spec, name) for name in ORDER if getattr(spec, name) > 1}
    options: dict[str, Any] = {"task": spec.task, **dict(spec.options)}
    if parallel and spec.wrapper == "":
        options["parallel"] = {**parallel, **({"ep": _ranks(spec, "dp")} if spec.ep > 1 else {})}
    with probe.capture(model, folder / f"{spec.name}.h5", quiet=True, overwrite=True, **options):
        for step in range(spec.steps):
            loss = _step(spec, step, model, groups, place)
            _reduce(spec, bare, groups)
            optimizer.step()
            optimizer.zero_grad()
            probe.step(**({} if loss is None else {"loss": loss}))


def _ranks(spec: Spec, name: str) -> list[list[int]]:
    stride = 1
    for each in ORDER[: ORDER.index(name)]:
        stride *= getattr(spec, each)
    count = getattr(spec, name)
    firsts = [first for first in range(spec.world) if first // stride % count == 0]
    return [[first + k * stride for k in range(count)] for first in firsts]


def _shard(model: Any, spec: Spec) -> None:
    from torch.distributed.fsdp import fully_shard

    mesh = dist.init_device_mesh("cpu", (spec.dp,))
    for layer in model.decoder.layers:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)


def batch_of(spec: Spec, step: int, place: dict[str, int], groups: Groups) -> list[tuple[Tensor, Tensor]]:
    """Return the micro-batches of a rank: ids and labels, [samples, tokens]."""
    generator = torch.Generator().manual_seed(1000 + step)
    tokens = torch.randint(0, VOCABULARY, (spec.batch, LENGTH + 1), generator=generator)
    if spec.fault == "other-order-of-samples" and place["dp"] == spec.dp - 1:
        tokens = tokens.roll(1, 0)
    count = spec.batch // (spec.dp * spec.micros)
    found = []
    for micro in range(spec.micros):
        if spec.strided:
            own = tokens[place["dp"] :: spec.dp][micro * count : (micro + 1) * count]
        else:
            first = (micro * spec.dp + place["dp"]) * count
            own = tokens[first : first + count]
        at = positions(LENGTH // spec.cp, groups["cp"], spec.zigzag)
        found.append((own[:, at].contiguous(), own[:, at + 1].contiguous()))
    return found


def _loss(spec: Spec, logits: Tensor, labels: Tensor, groups: Groups) -> Tensor:
    losses = cross_entropy(logits, labels.t(), groups["tp"])
    if spec.fault == "loss-over-wrong-group":
        return losses.mean() / spec.dp / spec.tp
    return losses.mean()


def _step(spec: Spec, step: int, model: nn.Module, groups: Groups, place: dict[str, int]) -> Tensor | None:
    batches = batch_of(spec, step, place, groups)
    if spec.pp == 1:
        total = torch.zeros(())
        for k, (ids, labels) in enumerate(batches):
            with _no_sync(spec, model, k < len(batches) - 1):
                loss = _loss(spec, model(ids), labels, groups) / spec.micros
                loss.backward()
            total += loss.detach()
        return total
    return _pipeline(spec, model, groups, place, batches)


def _no_sync(spec: Spec, model: Any, waits: bool) -> Any:
    return model.no_sync() if spec.wrapper == "ddp" and waits else contextlib.nullcontext()


def _pipeline(
    spec: Spec, model: Any, groups: Groups, place: dict[str, int], batches: list[tuple[Tensor, Tensor]]
) -> Tensor | None:
    """All micro-batches forward, then all backward."""
    ranks = dist.get_process_group_ranks(groups["pp"])
    before, after = ranks[place["pp"] - 1], ranks[(place["pp"] + 1) % spec.pp]
    given, made, total = [], [], torch.zeros(())
    length = LENGTH // spec.cp // (spec.tp if spec.sequence_parallel else 1)
    for ids, labels in batches:
        if model.is_first:
            x = ids
        else:
            x = torch.empty(length, ids.size(0), 32)
            dist.recv(x, before)
            x.requires_grad_()
        y = model(x)
        if model.is_last:
            y = _loss(spec, y, labels, groups) / spec.micros
            total += y.detach()
        else:
            dist.send(y.detach().contiguous(), after)
        given.append(x)
        made.append(y)
    for x, y in zip(given, made, strict=True):
        if model.is_last:
            y.backward()
        else:
            gradient = torch.empty_like(y)
            dist.recv(gradient, after)
            y.backward(gradient)
        if not model.is_first:
            dist.send(x.grad.contiguous(), before)
    return total if model.is_last else None


def _reduce(spec: Spec, model: nn.Module, groups: Groups) -> None:
    """Add gradients up over ranks, as Megatron does behind backward."""
    if spec.sequence_parallel and spec.fault != "norms-not-reduced":
        for module in model.modules():
            if isinstance(module, LayerNorm):
                for parameter in module.parameters():
                    parameter.grad = reduced(parameter.grad, groups["tp"])
    if spec.sequence_parallel and isinstance(getattr(model, "embedding", None), Embedding):
        weight = model.embedding.position_embeddings.weight
        weight.grad = reduced(weight.grad, groups["tp"])
    if spec.sequence_parallel:
        for name, parameter in model.named_parameters():
            if name.endswith(("linear_proj.bias", "linear_fc2.bias")):
                parameter.grad = reduced(parameter.grad, groups["tp"])
    if groups["embd"] is not None and spec.fault != "tied-not-reduced":
        for parameter in model.parameters():
            if getattr(parameter, "shared_embedding", False):
                parameter.grad = reduced(parameter.grad, groups["embd"])
    for name in ("cp", "dp"):
        if groups[name] is None or spec.wrapper:
            continue
        for parameter in model.parameters():
            if parameter.grad is None:
                continue
            is_expert = getattr(parameter, "allreduce", True) is False
            count = getattr(spec, name) if spec.fault != "scaled-by-world-size" else 1
            if is_expert and name == "dp" and spec.ep > 1:
                parameter.grad /= count
            else:
                parameter.grad = reduced(parameter.grad, groups[name]) / count


if __name__ == "__main__":
    main()
