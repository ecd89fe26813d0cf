"""A training by transformers' Trainer, with accumulation and evaluation between steps."""

import sys
import tempfile

import numpy as np
import torch
from torch.utils.data import Dataset
from transformers import Qwen2Config, Qwen2ForCausalLM, Trainer, TrainingArguments, set_seed


class Words(Dataset):
    def __len__(self):
        return 64

    def __getitem__(self, index):
        words = torch.randint(0, 64, (8,), generator=torch.Generator().manual_seed(index))
        return {"input_ids": words, "labels": words}


set_seed(0)
config = Qwen2Config(
    vocab_size=64,
    hidden_size=32,
    intermediate_size=48,
    num_hidden_layers=3,
    num_attention_heads=4,
    num_key_value_heads=2,
)
model = Qwen2ForCausalLM(config)
arguments = TrainingArguments(
    output_dir=tempfile.mkdtemp(),
    per_device_train_batch_size=2,
    gradient_accumulation_steps=2,
    max_steps=3,
    logging_steps=1,
    eval_strategy="steps",
    eval_steps=1,
    per_device_eval_batch_size=32,
    learning_rate=0.01,
    report_to=[],
    use_cpu=True,
    save_strategy="no",
    disable_tqdm=True,
)
trainer = Trainer(model, arguments, train_dataset=Words(), eval_dataset=Words())
trainer.train()
losses = [row["loss"] for row in trainer.state.log_history if "loss" in row]
np.savez(sys.argv[1], losses=losses, **{k: v.numpy() for k, v in model.state_dict().items()})
