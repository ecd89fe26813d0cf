"""Trainings over two processes: data parallel, sharded, split and in stages."""

from __future__ import annotations

import contextlib
import functools
import os
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed import fsdp
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import (
    apply_activation_checkpointing,
    checkpoint_wrapper,
)
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel

from benchmarks.trainings.situation import (
    FAULT,
    FAULTY,
    MICROS,
    STEPS,
    WIDTH,
    Block,
    Net,
    Situation,
    Watch,
    batch,
    net,
    seeded,
)

ByOptimizer = Callable[[Any], torch.optim.Optimizer]


def by_sgd(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.05, momentum=0.9)


def by_adamw(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.AdamW(parameters, lr=0.01)


def loop(
    watch: Watch,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    *,
    loss_of: Callable[[nn.Module, int], Tensor] | None = None,
    before: Callable[[int], contextlib.AbstractContextManager[object]] = lambda micro: contextlib.nullcontext(),
    clip: Callable[[], object] | None = None,
    **options: Any,
) -> None:
    """Train some steps of some micro-batches, and keep everything that must be the same."""
    loss_of = loss_of or (lambda model, index: model(batch(index)).float().square().mean())
    watch.start(model, optimizer, **options)
    for step in range(STEPS):
        for micro in range(MICROS):
            with before(micro):
                loss = loss_of(model, step * MICROS + micro)
                loss.backward()
        if clip is not None:
            watch.keep(clip())
        watch.keep({name: parameter.grad for name, parameter in model.named_parameters()})
        optimizer.step()
        optimizer.zero_grad()
        watch.step(loss.detach())
    watch.stop()
    watch.keep_model(model, optimizer)


# ---- data parallel -----------------------------------------------------------------------------------------


class Partly(Net):
    """Leaves its last linear layer out."""

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        for block in self.blocks:
            x = block(x)
        return x


def ddp(
    watch: Watch,
    hook: Callable[[DistributedDataParallel], None] = lambda model: None,
    kind: type[Net] = Net,
    accumulates: bool = False,
    zero: bool = False,
    overlap: bool = False,
    **options: Any,
) -> None:
    model = kind()
    if watch.faulty:
        model.blocks[1].norm.eps = FAULT
    wrapped = DistributedDataParallel(model, **options)
    hook(wrapped)
    if zero:
        optimizer: Any = ZeroRedundancyOptimizer(
            wrapped.parameters(), torch.optim.AdamW, lr=0.01, parameters_as_bucket_view=overlap
        )
    else:
        optimizer = by_sgd(wrapped.parameters())

    def before(micro: int) -> contextlib.AbstractContextManager[object]:
        return wrapped.no_sync() if accumulates and micro < MICROS - 1 else contextlib.nullcontext()

    loop(watch, wrapped, optimizer, before=before)


def powers(model: DistributedDataParallel) -> None:
    state = powerSGD_hook.PowerSGDState(None, matrix_approximation_rank=1, start_powerSGD_iter=2)
    model.register_comm_hook(state, powerSGD_hook.powerSGD_hook)


# ---- sharded -----------------------------------------------------------------------------------------------

FULL = fsdp.ShardingStrategy.FULL_SHARD


def fsdp1(
    watch: Watch,
    strategy: fsdp.ShardingStrategy = FULL,
    checkpointed: bool = False,
    whole: bool = False,
    accumulates: bool = False,
    hybrid: bool = False,
    **options: Any,
) -> None:
    model = net(watch)
    if checkpointed:
        apply_activation_checkpointing(
            model, checkpoint_wrapper_fn=checkpoint_wrapper, check_fn=lambda each: isinstance(each, Block)
        )
    policy = None if whole else fsdp.wrap.ModuleWrapPolicy({Block})
    if hybrid:
        options["device_mesh"] = torch.distributed.init_device_mesh("cpu", (1, 2))
    wrapped = fsdp.FullyShardedDataParallel(
        model, sharding_strategy=strategy, auto_wrap_policy=policy, device_id=torch.device("cpu"), **options
    )
    optimizer = by_adamw(wrapped.parameters())

    def before(micro: int) -> contextlib.AbstractContextManager[object]:
        return wrapped.no_sync() if accumulates and micro < MICROS - 1 else contextlib.nullcontext()

    loop(watch, wrapped, optimizer, before=before, clip=lambda: wrapped.clip_grad_norm_(0.5))


HALF = fsdp.MixedPrecision(param_dtype=torch.bfloat16, reduce_dtype=torch.float32, buffer_dtype=torch.bfloat16)


def fsdp2(
    watch: Watch, checkpointed: bool = False, reshard: bool | int = True, started_first: bool = False, **options: Any
) -> None:
    model = net(watch)
    if checkpointed:
        for block in model.blocks:
            torch.distributed._composable.checkpoint(block)
    mesh = torch.distributed.init_device_mesh("cpu", (2,))
    for block in model.blocks:
        fsdp.fully_shard(block, mesh=mesh, reshard_after_forward=reshard, **options)
    fsdp.fully_shard(model, mesh=mesh, reshard_after_forward=reshard, **options)
    optimizer = by_adamw(model.parameters())

    def accumulating(micro: int) -> contextlib.AbstractContextManager[object]:
        model.set_requires_gradient_sync(micro == MICROS - 1)
        return contextlib.nullcontext()

    loop(watch, model, optimizer, before=accumulating, clip=lambda: nn.utils.clip_grad_norm_(model.parameters(), 0.5))


# ---- split -------------------------------------------------------------------------------------------------


def split(watch: Watch, sequence: bool = False, loss_parallel: bool = False) -> None:
    from torch.distributed.tensor import Replicate, Shard
    from torch.distributed.tensor import parallel as tp

    model = net(watch)
    mesh = torch.distributed.init_device_mesh("cpu", (2,))
    plan: dict[str, Any] = {}
    for i in range(len(model.blocks)):
        if sequence:
            plan[f"blocks.{i}.norm"] = tp.SequenceParallel()
            plan[f"blocks.{i}.up"] = tp.ColwiseParallel(input_layouts=Shard(1))
            plan[f"blocks.{i}.down"] = tp.RowwiseParallel(output_layouts=Shard(1))
        else:
            plan[f"blocks.{i}.up"] = tp.ColwiseParallel()
            plan[f"blocks.{i}.down"] = tp.RowwiseParallel()
    if sequence:
        plan["first"] = tp.PrepareModuleOutput(output_layouts=Replicate(), desired_output_layouts=Shard(1))
        plan["last"] = tp.ColwiseParallel(input_layouts=Shard(1), output_layouts=Replicate())
    if loss_parallel:
        plan["last"] = tp.ColwiseParallel(output_layouts=Shard(-1), use_local_output=False)
    tp.parallelize_module(model, mesh, plan)

    def loss_of(model: nn.Module, index: int) -> Tensor:
        x = torch.randn(2, 4, WIDTH, generator=torch.Generator().manual_seed(index))  # the same on all ranks
        if not loss_parallel:
            return model(x).square().mean()
        return nn.functional.cross_entropy(model(x[0]), torch.arange(4))

    loop(
        watch, model, by_adamw(model.parameters()), loss_of=loss_of,
        before=(lambda micro: tp.loss_parallel()) if loss_parallel else lambda micro: contextlib.nullcontext(),
    )  # fmt: skip


def two_dimensional(watch: Watch) -> None:
    """FSDP2 of a model that is split by tensors."""
    from torch.distributed.tensor import parallel as tp

    model = net(watch)
    mesh = torch.distributed.init_device_mesh("cpu", (1, 2), mesh_dim_names=("data", "tensor"))
    for block in model.blocks:
        tp.parallelize_module(block, mesh["tensor"], {"up": tp.ColwiseParallel(), "down": tp.RowwiseParallel()})
        fsdp.fully_shard(block, mesh=mesh["data"])
    fsdp.fully_shard(model, mesh=mesh["data"])
    same = torch.randn(4, WIDTH, generator=torch.Generator().manual_seed(3))
    loop(watch, model, by_adamw(model.parameters()), loss_of=lambda model, index: model(same).square().mean())


# ---- in stages ---------------------------------------------------------------------------------------------


class Stage(nn.Module):
    """The half of a Net that one rank has."""

    def __init__(self, whole: Net, rank: int, of: int) -> None:
        super().__init__()
        self.first = whole.first if rank == 0 else None
        count = len(whole.blocks) // of
        self.blocks = nn.ModuleDict({str(i): whole.blocks[i] for i in range(rank * count, (rank + 1) * count)})
        self.last = whole.last if rank == of - 1 else None

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x) if self.first is not None else x
        for block in self.blocks.values():
            x = block(x)
        return self.last(x) if self.last is not None else x


def stages(watch: Watch, schedule: str, chunks: int = 4, per_rank: int = 1) -> None:
    from torch.distributed import pipelining

    here, of = torch.distributed.get_rank(), 2 * per_rank
    whole = Net(depth=4)
    if watch.faulty:
        whole.blocks[1].norm.eps = FAULT
    numbers = [here + 2 * i for i in range(per_rank)]
    models = [Stage(whole, number, of) for number in numbers]
    parts = [
        pipelining.PipelineStage(model, number, of, torch.device("cpu"))
        for model, number in zip(models, numbers, strict=True)
    ]
    kind = getattr(pipelining, schedule)
    plan = kind(
        parts if per_rank > 1 else parts[0],
        n_microbatches=chunks,
        loss_fn=lambda out, target: (out - target).square().mean(),
    )
    optimizer = by_adamw([parameter for model in models for parameter in model.parameters()])
    watch.start(models if per_rank > 1 else models[0], optimizer)
    generator = torch.Generator().manual_seed(1)
    for _ in range(STEPS):
        x, target = (torch.randn(8, WIDTH, generator=generator) for _ in range(2))
        losses: list[Tensor] = []
        given = {"target": target, "losses": losses} if of - 1 in numbers else {}
        plan.step(*([x] if here == 0 else []), **given)
        watch.keep([{name: parameter.grad for name, parameter in model.named_parameters()} for model in models], losses)
        optimizer.step()
        optimizer.zero_grad()
        watch.step(torch.stack(losses).mean().detach() if losses else None)
    watch.stop()
    for model in models:
        watch.keep_model(model, optimizer)


# ---- what goes wrong on one rank ---------------------------------------------------------------------------


def raises_on_one(watch: Watch) -> None:
    """The second rank's loss raises in step 1; it goes on with the next step, as does the other one."""
    model = DistributedDataParallel(net(watch))
    optimizer = by_sgd(model.parameters())
    watch.start(model, optimizer)
    for step in range(STEPS):
        loss = model(batch(step)).square().mean()
        with contextlib.suppress(ValueError):
            if step == 1:
                raise ValueError("planted") if torch.distributed.get_rank() else ValueError
            loss.backward()
            optimizer.step()
        optimizer.zero_grad()
        watch.step(loss.detach())
    watch.stop()
    watch.keep_model(model, optimizer)


def records_on_one(watch: Watch) -> None:
    """Only the first rank records."""
    model = DistributedDataParallel(net(watch))
    loop(watch, model, by_sgd(model.parameters()), ranks=[0])


OF_STAGE = rf"{FAULTY}|^\d?$"
"""the faulty norm, or what a stage is given by the rank that has it"""


def dies_on_one(watch: Watch) -> None:
    """The second of two ranks is gone in the middle of step 2; the other one is told so by gloo, and ends its recording."""
    context = torch.multiprocessing.get_context("fork")
    workers = [context.Process(target=_survivor, args=(watch, rank)) for rank in range(2)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    seen, watch.left, watch.written = torch.load(watch.folder / "seen.pt", weights_only=False)
    watch.seen += seen


def _survivor(watch: Watch, rank: int) -> None:
    store = f"file://{watch.folder}/store"
    torch.distributed.init_process_group("gloo", init_method=store, rank=rank, world_size=2)
    seeded()
    model = DistributedDataParallel(net(watch))
    optimizer = by_sgd(model.parameters())
    watch.start(model, optimizer)
    told = False
    for step in range(STEPS):
        if rank and step == 2:
            os._exit(9)
        loss = model(batch(step)).square().mean()
        try:
            loss.backward()
        except RuntimeError:
            told = True
            break
        optimizer.step()
        optimizer.zero_grad()
        watch.step(loss.detach())
    watch.stop()
    watch.keep(told)
    watch.keep_model(model, optimizer)
    torch.save((watch.seen, watch.left, watch.written), watch.folder / "seen.pt")
    os._exit(0)


SHARDINGS = {
    "full": FULL, "grad op": fsdp.ShardingStrategy.SHARD_GRAD_OP, "none": fsdp.ShardingStrategy.NO_SHARD,
}  # fmt: skip


def _fsdp1() -> Iterator[Situation]:
    for name, strategy in SHARDINGS.items():
        for original in (True, False):
            kind = "original" if original else "flat"
            run = functools.partial(fsdp1, strategy=strategy, use_orig_params=original)
            yield Situation(f"FSDP1, {name}, {kind} parameters", run, 2)
    for name, strategy in (
        ("hybrid", fsdp.ShardingStrategy.HYBRID_SHARD), ("hybrid, grad op", fsdp.ShardingStrategy._HYBRID_SHARD_ZERO2),
    ):  # fmt: skip
        run = functools.partial(fsdp1, strategy=strategy, use_orig_params=True, hybrid=True)
        yield Situation(f"FSDP1, {name}", run, 2)
    further: dict[str, dict[str, Any]] = {
        "CPU offload": {"cpu_offload": fsdp.CPUOffload(offload_params=True)}, "mixed precision": {"mixed_precision": HALF},
        "activation checkpointing": {"checkpointed": True}, "one unit": {"whole": True},
        "no_sync": {"accumulates": True}, "no limit, no prefetch": {"limit_all_gathers": False, "backward_prefetch": None},
        "forward prefetch": {"forward_prefetch": True},
        "mixed precision, checkpointing": {"mixed_precision": HALF, "checkpointed": True},
    }  # fmt: skip
    for name, options in further.items():
        for original in (True, False):
            kind = "original" if original else "flat"
            yield Situation(
                f"FSDP1, {name}, {kind} parameters", functools.partial(fsdp1, use_orig_params=original, **options), 2
            )


def _fsdp2() -> Iterator[Situation]:
    ways: dict[str, dict[str, Any]] = {
        "reshard": {}, "no reshard": {"reshard": False}, "checkpointing": {"checkpointed": True},
        "mixed precision": {"mp_policy": fsdp.MixedPrecisionPolicy(torch.bfloat16, torch.float32)},
        "mixed precision, no reshard": {"mp_policy": fsdp.MixedPrecisionPolicy(torch.bfloat16, torch.float32), "reshard": False},
        "CPU offload": {"offload_policy": fsdp.CPUOffloadPolicy(pin_memory=False)},
    }  # fmt: skip
    for name, options in ways.items():
        yield Situation(f"FSDP2, {name}", functools.partial(fsdp2, **options), 2)


def _ddp() -> Iterator[Situation]:
    ways: dict[str, dict[str, Any]] = {
        "plain": {}, "static graph": {"static_graph": True}, "bucket view": {"gradient_as_bucket_view": True},
        "unused parameters": {"find_unused_parameters": True, "kind": Partly},
        "no_sync": {"accumulates": True}, "no_sync, bucket view": {"accumulates": True, "gradient_as_bucket_view": True},
        "small buckets": {"bucket_cap_mb": 0.001}, "comm hook, fp16": {"hook": lambda m: m.register_comm_hook(None, default_hooks.fp16_compress_hook)},
        "comm hook, all-reduce": {"hook": lambda m: m.register_comm_hook(None, default_hooks.allreduce_hook)},
        "comm hook, PowerSGD": {"hook": powers}, "mixed precision": {"mixed_precision": None},
        "ZeRO optimizer": {"zero": True}, "ZeRO optimizer, bucket view": {"zero": True, "overlap": True},
    }  # fmt: skip
    ways.pop("mixed precision")
    for name, options in ways.items():
        yield Situation(f"DDP, {name}", functools.partial(ddp, **options), 2)


def situations() -> list[Situation]:
    """All of them."""
    return [*_ddp(), *_fsdp1(), *_fsdp2(), *_OTHERS]


_OTHERS = [
    Situation("tensor parallel, columns and rows", split, 2),
    Situation("tensor parallel, sequence", functools.partial(split, sequence=True), 2),
    Situation("tensor parallel, loss", functools.partial(split, loss_parallel=True), 2),
    Situation("tensor parallel in FSDP2", two_dimensional, 2),
    Situation("pipeline, GPipe", functools.partial(stages, schedule="ScheduleGPipe"), 2, place=OF_STAGE),
    Situation("pipeline, 1F1B", functools.partial(stages, schedule="Schedule1F1B"), 2, place=OF_STAGE),
    Situation("pipeline, interleaved 1F1B", functools.partial(stages, schedule="ScheduleInterleaved1F1B", per_rank=2), 2, place=OF_STAGE),
    Situation("pipeline, looped BFS", functools.partial(stages, schedule="ScheduleLoopedBFS", per_rank=2), 2, place=OF_STAGE),
    Situation("pipeline, zero bubble", functools.partial(stages, schedule="ScheduleInterleavedZeroBubble", per_rank=2), 2, place=OF_STAGE),
    Situation("DDP, one rank raises", raises_on_one, 2),
    Situation("DDP, one rank records", records_on_one, 2),
    Situation("DDP, one rank dies", dies_on_one),
]  # fmt: skip
