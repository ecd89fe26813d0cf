"""Trainings in the loops of others: transformers, accelerate, Lightning; and those in processes of their own."""

from __future__ import annotations

import functools
import importlib.util
import multiprocessing
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

from benchmarks.trainings.over_ranks import by_adamw, by_sgd
from benchmarks.trainings.situation import FAULT, MICROS, STEPS, WIDTH, Situation, Watch, batch, net, seeded


class Rows(Dataset):
    """Rows that are the same whoever asks for them."""

    def __len__(self) -> int:
        return 4 * STEPS * MICROS

    def __getitem__(self, index: int) -> Tensor:
        return torch.randn(WIDTH, generator=torch.Generator().manual_seed(index))


class Words(Rows):
    """Rows of words."""

    def __getitem__(self, index: int) -> Any:
        words = torch.randint(0, 64, (8,), generator=torch.Generator().manual_seed(index))
        return {"input_ids": words, "labels": words}


# ---- transformers ------------------------------------------------------------------------------------------

IN_QWEN2 = r"layers\.1\.input_layernorm$"


def qwen2(watch: Watch) -> Any:
    from transformers import Qwen2Config, Qwen2ForCausalLM

    sizes = {"vocab_size": 64, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "attn_implementation": "eager"}
    model = Qwen2ForCausalLM(Qwen2Config(**sizes, **heads))
    if watch.faulty:
        model.model.layers[1].input_layernorm.variance_epsilon = FAULT
    return model


def trainer(watch: Watch, resumes: bool = False, **options: Any) -> None:
    from transformers import Trainer, TrainerCallback, TrainingArguments

    class Steps(TrainerCallback):
        def on_pre_optimizer_step(self, *args: Any, model: nn.Module, **kwargs: Any) -> None:
            watch.keep({name: parameter.grad for name, parameter in model.named_parameters()})

        def on_step_end(self, *args: Any, **kwargs: Any) -> None:
            watch.step()

    common: dict[str, Any] = {
        "per_device_train_batch_size": 2, "max_steps": STEPS, "logging_steps": 1, "report_to": [], "use_cpu": True, "save_strategy": "no",
        "disable_tqdm": True, "learning_rate": 0.01, "output_dir": str(watch.folder),
    }  # fmt: skip

    def made(**more: Any) -> Any:
        arguments = TrainingArguments(**common | options | more)
        return Trainer(qwen2(watch), arguments, train_dataset=Words(), eval_dataset=Words(), callbacks=[Steps()])

    whole = made(**({"save_strategy": "steps", "save_steps": 2} if resumes else {}))
    if resumes:
        before, watch.path = watch.path, None
        whole.train()
        watch.path = before
        whole = made()
    watch.start(whole.model)
    whole.train(resume_from_checkpoint=str(watch.folder / "checkpoint-2") if resumes else None)
    watch.stop()
    timed = {
        "train_runtime",
        "train_samples_per_second",
        "train_steps_per_second",
        "eval_runtime",
        "eval_samples_per_second",
    }
    timed |= {"eval_steps_per_second"}
    watch.keep([{k: v for k, v in row.items() if k not in timed} for row in whole.state.log_history])
    watch.keep_model(
        whole.model, whole.optimizer.optimizer if hasattr(whole.optimizer, "optimizer") else whole.optimizer
    )


TRAINERS: dict[str, dict[str, Any]] = {
    "plain": {}, "accumulation": {"gradient_accumulation_steps": 2}, "bfloat16": {"bf16": True},
    "gradient checkpointing": {"gradient_checkpointing": True},
    "gradient checkpointing, reentrant": {"gradient_checkpointing": True, "gradient_checkpointing_kwargs": {"use_reentrant": True}},
    "evaluation": {"eval_strategy": "steps", "eval_steps": 1}, "resumed": {"resumes": True},
    "all of it": {"gradient_accumulation_steps": 2, "bf16": True, "gradient_checkpointing": True, "eval_strategy": "steps", "eval_steps": 1},
    "Adafactor": {"optim": "adafactor"}, "torch.compile": {"torch_compile": True, "torch_compile_backend": "eager"},
}  # fmt: skip


# ---- accelerate --------------------------------------------------------------------------------------------


def accelerated(watch: Watch, prepared_first: bool = True, **options: Any) -> None:
    from accelerate import Accelerator
    from accelerate.state import AcceleratorState

    AcceleratorState._reset_state(reset_partial_state=True)
    helper = Accelerator(cpu=True, **options)
    model: Any = net(watch)
    optimizer: Any = by_adamw(model.parameters())
    plain = optimizer
    if not prepared_first:
        watch.start(model, plain)
    model, optimizer, loader = helper.prepare(model, optimizer, DataLoader(Rows(), 4))
    if prepared_first:
        watch.start(model, plain)
    for x in loader:
        with helper.accumulate(model):
            loss = model(x).float().square().mean()
            helper.backward(loss)
            if helper.sync_gradients:
                watch.keep(helper.clip_grad_norm_(model.parameters(), 0.5))
            optimizer.step()
            optimizer.zero_grad()
        if helper.sync_gradients:
            watch.step(loss.detach())
    watch.stop()
    watch.keep_model(model, plain)


# ---- Lightning ---------------------------------------------------------------------------------------------


def lightning(watch: Watch, manual: bool = False, validates: bool = False, **options: Any) -> None:
    from lightning import pytorch

    class Module(pytorch.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.net, self.automatic_optimization = net(watch), not manual

        def training_step(self, x: Tensor, index: int) -> Any:
            loss = self.net(x).float().square().mean()
            if manual:
                optimizer: Any = self.optimizers()
                optimizer.zero_grad()
                self.manual_backward(loss)
                optimizer.step()
            self.log("loss", loss)
            return loss

        def validation_step(self, x: Tensor, index: int) -> None:
            self.log("val", self.net(x).square().mean())

        def configure_optimizers(self) -> Any:
            return by_adamw(self.parameters())

    class Steps(pytorch.Callback):
        def on_train_start(self, trainer: Any, module: Any) -> None:
            watch.start(module)

        def on_before_optimizer_step(self, trainer: Any, module: Any, optimizer: Any) -> None:
            watch.keep({name: parameter.grad for name, parameter in module.named_parameters()})

        def on_train_batch_end(self, trainer: Any, module: Any, outputs: Any, batch: Any, index: int) -> None:
            if (
                trainer.fit_loop.epoch_loop.batch_progress.is_last_batch
                or (index + 1) % trainer.accumulate_grad_batches == 0
            ):
                watch.step(outputs["loss"])

        def on_train_end(self, trainer: Any, module: Any) -> None:
            watch.stop()

    module = Module()
    quiet = {
        "logger": False,
        "enable_checkpointing": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
    }
    trainer = pytorch.Trainer(
        accelerator="cpu",
        devices=1,
        max_steps=STEPS,
        callbacks=[Steps()],
        default_root_dir=watch.folder,
        **quiet,
        **options,
    )
    trainer.fit(module, DataLoader(Rows(), 4), DataLoader(Rows(), 4) if validates else None)
    watch.keep_model(module, trainer.optimizers[0])


# ---- processes ---------------------------------------------------------------------------------------------


def workers(watch: Watch, method: str, persistent: bool = False) -> None:
    """Batches come from worker processes, begun while the recording runs."""
    model = net(watch)
    optimizer = by_sgd(model.parameters())
    watch.start(model, optimizer)
    context = multiprocessing.get_context(method)
    loader = DataLoader(Rows(), 4, num_workers=1, multiprocessing_context=context, persistent_workers=persistent)
    for _ in range(2 if persistent else 1):
        for x in loader:
            loss = model(x).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            watch.step(loss.detach())
    del loader
    watch.stop()
    watch.keep_model(model, optimizer)


def child(rank: int, folder: str, path: str | None, faulty: bool) -> None:
    """Train in a process of its own."""
    torch.set_num_threads(1)
    watch = Watch(Path(folder), None if path is None else Path(path), faulty)
    seeded()
    model = net(watch)
    optimizer = by_sgd(model.parameters())
    watch.start(model, optimizer)
    for index in range(STEPS):
        loss = model(batch(index)).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        watch.step(loss.detach())
    watch.stop()
    watch.keep_model(model, optimizer)
    torch.save((watch.seen, watch.left), Path(folder) / "seen.pt")


def spawned(watch: Watch, method: str, parent_records: bool = False) -> None:
    """The training is in a child; where the parent records, the child is what it has not to disturb."""
    inside = None if watch.path is None or parent_records else str(watch.path)
    model, optimizer = net(watch), None
    if parent_records:
        watch.start(model)
    torch.multiprocessing.start_processes(child, (str(watch.folder), inside, watch.faulty), 1, start_method=method)
    if parent_records:
        optimizer = by_sgd(model.parameters())
        for index in range(STEPS):
            loss = model(batch(index)).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            watch.step(loss.detach())
        watch.stop()
    seen, left = torch.load(watch.folder / "seen.pt", weights_only=False)
    watch.seen += seen
    watch.left |= left
    watch.written = watch.written or watch.path


def situations() -> Iterator[Situation]:
    """All of them, for which there is what they need."""
    if _is_there("transformers", "accelerate"):
        for name, options in TRAINERS.items():
            yield Situation(
                f"transformers.Trainer, {name}",
                functools.partial(trainer, **options),
                place=""
                if name in ("resumed", "torch.compile")
                else IN_QWEN2,  # the former differs in the weights already
                is_compiled=name == "torch.compile",
            )
    if _is_there("accelerate"):
        yield Situation("accelerate", accelerated)
        yield Situation("accelerate, started before prepare", functools.partial(accelerated, prepared_first=False))
        yield Situation("accelerate, accumulation", functools.partial(accelerated, gradient_accumulation_steps=2))
        yield Situation("accelerate, bfloat16", functools.partial(accelerated, mixed_precision="bf16"))
    if _is_there("lightning"):
        for name, options in LIGHTNING.items():
            yield Situation(f"Lightning, {name}", functools.partial(lightning, **options))
    for method in ("fork", "spawn", "forkserver"):
        yield Situation(f"DataLoader workers, {method}", functools.partial(workers, method=method))
    yield Situation(
        "DataLoader workers, spawn, persistent", functools.partial(workers, method="spawn", persistent=True)
    )
    for method in ("fork", "spawn", "forkserver"):
        yield Situation(f"training in a child, {method}", functools.partial(spawned, method=method))
        yield Situation(
            f"training in a child, {method}, the parent records",
            functools.partial(spawned, method=method, parent_records=True),
        )


LIGHTNING: dict[str, dict[str, Any]] = {
    "plain": {}, "accumulation": {"accumulate_grad_batches": 2}, "bfloat16": {"precision": "bf16-mixed"}, "manual": {"manual": True},
    "validation": {"validates": True}, "clipping": {"gradient_clip_val": 0.1},
}  # fmt: skip


def _is_there(*names: str) -> bool:
    return all(importlib.util.find_spec(name) is not None for name in names)
