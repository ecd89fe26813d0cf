"""A training by Lightning, with accumulation, a validation before it and between steps, and a schedule."""

import sys

import numpy as np
import torch
from lightning import pytorch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Rows(Dataset):
    def __len__(self):
        return 24

    def __getitem__(self, index):
        return torch.randn(16, generator=torch.Generator().manual_seed(index))


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(16, eps=1e-5)
        self.up, self.act, self.down = nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 16)

    def forward(self, x):
        return x + self.down(self.act(self.up(self.norm(x))))


class Module(pytorch.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(16, 16), Block(), Block(), nn.Linear(16, 4))
        self.loss = nn.MSELoss()

    def training_step(self, x, index):
        loss = self.loss(self.net(x), x[:, :4])
        self.log("loss", loss)
        return loss

    def validation_step(self, x, index):
        self.log("val", self.loss(self.net(x), x[:, :4]))

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.parameters(), lr=0.01)
        schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.1, 10)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}


pytorch.seed_everything(0)
module = Module()
callbacks = []
trainer = pytorch.Trainer(
    accelerator="cpu",
    devices=1,
    max_steps=3,
    accumulate_grad_batches=2,
    val_check_interval=2,
    callbacks=callbacks,
    logger=False,
    enable_checkpointing=False,
    enable_progress_bar=False,
    enable_model_summary=False,
)
trainer.fit(module, DataLoader(Rows(), 4), DataLoader(Rows(), 24))
np.savez(sys.argv[1], **{k: v.numpy() for k, v in module.state_dict().items()})
