"""The rows of the MindFormers checklist before a search for a precision problem, and which of them no configuration tells."""

from __future__ import annotations

from probe.settings.setting import Category

CHECKLIST: dict[Category, tuple[str, ...]] = {
    Category.STRUCTURE: (
        "num_layers", "num_heads", "hidden_size", "intermediate_size", "n_kv_heads", "Regularization function",
        "rms_norm_eps",
        "dropout", "Fusion computation",
    ),
    Category.MOE: (
        "expert_num", "num_experts_chosen", "capacity_factor", "aux_loss_factor", "enable_sdrop", "router_dense_type",
        "use_fused_ops_topkrouter", "use_shared_expert_gating",
    ),
    Category.OPTIMIZER: (
        "adam optimizer", "eps", "beta1", "beta2", "weight_decay", "lr", "lr_warmup_fraction", "clip_grad",
        "global_batch_size",
    ),
    Category.WEIGHTS: ("param_init_type", "init-method-std"),
    Category.PRECISION: (
        "compute_dtype", "layernorm_compute_type", "softmax_compute_type", "rotary_dtype", "Calculation of weights",
        "bias add",
        "residual add", "loss", "Operator High Precision Mode",
    ),
    Category.PARALLEL: (
        "data_parallel", "model_parallel", "pipeline_stage", "use_seq_parallel", "enable_parallel_optimizer",
        "micro_batch_interleave_num",
    ),
    Category.OTHER: (
        "Data Check", "Special Words Check", "inputs_id check", "Overflow Detection", "Graph Operator Fusion",
        "Training Inference Template Consistency", "Version Check", "Differences with Open Source",
    ),
}  # fmt: skip
"""its key parameters, by category"""

FROM_RECORDINGS: dict[str, str] = {
    "Calculation of weights": "recordings have the dtype of every weight and input: probe compare names a module that returns another one",
    "bias add": "recordings of both sides compare the output of every layer",
    "residual add": "recordings of both sides compare the output of every block",
    "loss": "recordings of both sides compare the loss of every step",
    "Data Check": "probe.compare_batches names the first sample that differs; recordings compare the inputs",
    "inputs_id check": "recordings have the largest and smallest id of every input",
    "Differences with Open Source": "record the open-source model as A and yours as B: probe compare names the first that differs",
}
"""rows that no setting tells, or not alone, and what does"""
