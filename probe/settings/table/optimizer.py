"""Optimizer, schedule, batches, loss."""

from __future__ import annotations

from probe.settings.setting import Category, Effect, Kind, Setting, When
from probe.settings.table import places

_O = Category.OPTIMIZER
_ADAM = (When("optimizer", ("adam", "adamw", "nadam", "radam", "adamax", "lamb", "lion")),)
_MOMENTUM = (When("optimizer", ("sgd", "momentum", "rmsprop", "muon")),)
_SCHEDULED = (When("lr_schedule", ("linear", "cosine", "polynomial", "inverse_sqrt", "wsd")),)

OPTIMIZERS = (
    Setting("optimizer", _O, "class of the optimizer", Kind.CHOICE, transformers="optim", megatron="optimizer",
            mindformers="optimizer.type", recorded="group.optimizer",
            words={"adam": "adam", "adamw": "adamw", "adamw_torch": "adamw", "adamw_torch_fused": "adamw",
                   "adamw_hf": "adamw", "adamw_apex_fused": "adamw", "fusedadam": "adamw", "fusedadamw": "adamw",
                   "megatron:adam": "adamw", "adamweightdecay": "adamw", "fp32stateadamweightdecay": "adamw",
                   "fusedadamweightdecay": "adamw", "pmadamw": "adamw", "adamw_npu_fused": "adamw", "sgd": "sgd",
                   "momentum": "sgd", "came": "came", "lion": "lion", "adafactor": "adafactor", "muon": "muon",
                   "dist_muon": "muon", "rmsprop": "rmsprop", "adagrad": "adagrad", "lamb": "lamb", "lars": "lars",
                   "adamax": "adamax", "nadam": "nadam", "radam": "radam"},
            defaults={"transformers": "adamw", "paddlenlp": "adamw", "megatron": "adamw"}, checklist="adam_optimizer",
            places=(places.UPDATE,)),
    Setting("adam_beta1", _O, "momentum of the gradient", transformers="adam_beta1", megatron="adam_beta1",
            mindformers="optimizer.betas|first optimizer.beta1", recorded="group.betas|first group.beta1",
            defaults={"transformers": 0.9, "paddlenlp": 0.9, "megatron": 0.9, "mindformers": 0.9}, recommended=0.9,
            only_with=_ADAM, checklist="beta1", places=(places.UPDATE,)),
    Setting("adam_beta2", _O, "momentum of its square", transformers="adam_beta2", megatron="adam_beta2",
            mindformers="optimizer.betas|second optimizer.beta2", recorded="group.betas|second group.beta2",
            defaults={"transformers": 0.999, "paddlenlp": 0.999, "megatron": 0.999, "mindformers": 0.999},
            recommended=0.95, only_with=_ADAM, checklist="beta2", places=(places.UPDATE,)),
    Setting("adam_eps", _O, "eps of the optimizer", transformers="adam_epsilon", megatron="adam_eps",
            mindformers="optimizer.eps", recorded="group.eps group.epsilon",
            defaults={"transformers": 1e-8, "paddlenlp": 1e-8, "megatron": 1e-8, "mindformers": 1e-8}, recommended=1e-8,
            only_with=_ADAM, checklist="eps", places=(places.UPDATE,)),
    Setting("momentum", _O, "momentum", megatron="sgd_momentum", mindformers="optimizer.momentum",
            recorded="group.momentum", defaults={"megatron": 0.9}, only_with=_MOMENTUM, places=(places.UPDATE,)),
    Setting("nesterov", _O, "Nesterov's momentum", Kind.FLAG, mindformers="optimizer.use_nesterov",
            recorded="group.nesterov group.use_nesterov", only_with=_MOMENTUM, places=(places.UPDATE,)),
    Setting("amsgrad", _O, "the largest squares count", Kind.FLAG, mindformers="optimizer.use_amsgrad",
            recorded="group.amsgrad group.use_amsgrad", only_with=_ADAM, places=(places.UPDATE,)),
    Setting("weight_decay", _O, "weight decay", transformers="weight_decay", megatron="weight_decay",
            mindformers="optimizer.weight_decay", recorded="group.weight_decay group.coeff", none=0.0,
            defaults={"transformers": 0.0, "paddlenlp": 0.0, "megatron": 0.01, "mindformers": 0.0},
            checklist="weight_decay", places=(places.DECAY,)),
    Setting("weight_decay_groups", _O, "what is decayed", Kind.CHOICE,
            megatron="apply_wd_to_qk_layernorm|means:norms_of_queries_too", recorded="group.decayed",
            words={"matrices": "matrices", "norms_of_queries_too": "norms_of_queries_too"},
            defaults={"transformers": "matrices", "paddlenlp": "matrices", "megatron": "matrices",
                      "mindformers": "matrices"}, checklist="weight_decay", places=(places.DECAY,)),
    Setting("clip_grad", _O, "largest norm of the gradient", transformers="max_grad_norm", megatron="clip_grad",
            mindformers="runner_wrapper.max_grad_norm", none=0.0,
            defaults={"transformers": 1.0, "paddlenlp": 1.0, "megatron": 1.0, "mindformers": 1.0}, recommended=1.0,
            checklist="clip_grad", places=(places.CLIPPING, places.UPDATE)),
)  # fmt: skip

SCHEDULE = (
    Setting("lr", _O, "learning rate", transformers="learning_rate", megatron="lr",
            mindformers="lr_schedule.learning_rate optimizer.learning_rate", recorded="group.lr group.learning_rate",
            defaults={"transformers": 5e-5, "paddlenlp": 5e-5}, checklist="lr", places=(places.UPDATE,)),
    Setting("min_lr", _O, "learning rate at the end",
            transformers="lr_scheduler_kwargs.min_lr lr_scheduler_kwargs.lr_end lr_end min_lr", megatron="min_lr",
            mindformers="lr_schedule.lr_end", none=0.0,
            defaults={"transformers": 0.0, "paddlenlp": 0.0, "megatron": 0.0, "mindformers": 0.0}, only_with=_SCHEDULED,
            checklist="lr", places=(places.UPDATE,)),
    Setting("lr_schedule", _O, "how the learning rate changes", Kind.CHOICE, transformers="lr_scheduler_type",
            megatron="lr_decay_style", mindformers="lr_schedule.type",
            words={"linear": "linear", "cosine": "cosine", "constant": "constant", "constant_with_warmup": "constant",
                   "cosine_with_min_lr": "cosine", "cosine_with_restarts": "cosine_restarts",
                   "cosine_restarts": "cosine_restarts", "plateau": "plateau", "polynomial": "polynomial",
                   "inverse_sqrt": "inverse_sqrt", "inverse-square-root": "inverse_sqrt", "wsd": "wsd",
                   "warmup_stable_decay": "wsd", "cosinewithwarmuplr": "cosine", "linearwithwarmuplr": "linear",
                   "constantwarmuplr": "constant", "constantwithcooldownlr": "constant",
                   "polynomialwithwarmuplr": "polynomial", "cosineannealinglr": "cosine",
                   "cosinewithrestartsandwarmuplr": "cosine_restarts", "warmupstabledecaylr": "wsd",
                   "reduce_lr_on_plateau": "plateau"},
            defaults={"transformers": "linear", "paddlenlp": "linear", "megatron": "linear"}, recommended="constant",
            checklist="lr", places=(places.UPDATE,)),
    Setting("warmup_ratio", _O, "share of the steps in which it rises", transformers="warmup_ratio",
            megatron="lr_warmup_fraction", mindformers="lr_schedule.warmup_ratio", none=0.0,
            defaults={"transformers": 0.0, "paddlenlp": 0.0, "megatron": 0.0, "mindformers": 0.0},
            checklist="lr_warmup_fraction", places=(places.UPDATE,)),
    Setting("warmup_steps", _O, "steps in which it rises", transformers="warmup_steps", megatron="lr_warmup_iters",
            mindformers="lr_schedule.warmup_steps", none=0,
            defaults={"transformers": 0, "paddlenlp": 0, "megatron": 0, "mindformers": 0}, recommended=0,
            checklist="lr_warmup_fraction", places=(places.UPDATE,)),
    Setting("train_steps", _O, "steps of the training", transformers="max_steps|positive", megatron="train_iters",
            mindformers="lr_schedule.total_steps|positive", only_with=_SCHEDULED, checklist="lr",
            places=(places.UPDATE,)),
    Setting("lr_decay_steps", _O, "steps of the schedule", transformers="decay_steps|positive",
            megatron="lr_decay_iters", mindformers="lr_schedule.decay_steps|positive", only_with=_SCHEDULED,
            checklist="lr", places=(places.UPDATE,)),
)  # fmt: skip

BATCHES = (
    Setting("global_batch_size", _O, "samples of a step", transformers="global_batch_size train_batch_size",
            megatron="global_batch_size", mindformers="global_batch_size", checklist="global_batch_size",
            places=(places.IDS, places.SCALED_GRADIENTS)),
    Setting("micro_batch_size", _O, "samples of a forward", effect=Effect.ROUNDING,
            transformers="per_device_train_batch_size", megatron="micro_batch_size",
            mindformers="runner_config.batch_size", checklist="global_batch_size"),
    Setting("gradient_accumulation", _O, "forwards of a step", effect=Effect.ROUNDING,
            transformers="gradient_accumulation_steps", mindformers="runner_config.gradient_accumulation_steps",
            checklist="global_batch_size"),
    Setting("seq_length", _O, "tokens of a sample", transformers="max_seq_length max_length model_max_length",
            megatron="seq_length encoder_seq_length", mindformers="seq_length", vllm="", places=(places.IDS,)),
)  # fmt: skip

LOSS = (
    Setting("label_smoothing", _O, "label smoothing", transformers="label_smoothing_factor", none=0.0,
            defaults={"transformers": 0.0, "paddlenlp": 0.0, "megatron": 0.0}, places=(places.LABELS,)),
    Setting("loss_per_token", _O, "the loss is a mean over all tokens of a step", Kind.FLAG,
            megatron="calculate_per_token_loss",
            mindformers="calculate_per_token_loss runner_wrapper.calculate_per_token_loss",
            defaults={"megatron": False, "mindformers": False}, checklist="loss",
            places=(places.LOSS, places.SCALED_GRADIENTS)),
    Setting("loss_scale", _O, "static loss scale", effect=Effect.ROUNDING, megatron="loss_scale",
            mindformers="runner_wrapper.scale_sense"),
    Setting("initial_loss_scale", _O, "loss scale at the beginning", effect=Effect.ROUNDING, transformers="scale_loss",
            megatron="initial_loss_scale", mindformers="runner_wrapper.scale_sense.loss_scale_value"),
    Setting("mtp_loss_factor", _O, "weight of the loss on further tokens", megatron="mtp_loss_scaling_factor",
            mindformers="mtp_loss_factor mtp_loss_scaling_factor", only_with=(When("has_mtp", (True,)),),
            places=(places.LOSS,)),
)  # fmt: skip

OPTIMIZER = (*OPTIMIZERS, *SCHEDULE, *BATCHES, *LOSS)
