"""Train an actor and a critic for two steps and record both, with the copy of the critic that gives targets.

python train.py --out a.h5
python train.py --out b.h5 --fault tau
"""

from __future__ import annotations

import argparse

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import probe

STATE, ACTION, GAMMA, TAU = 6, 2, 0.99, 0.05
BATCH = {
    "state": f"float32[16,{STATE}]",
    "action": f"float32[16,{ACTION}] uniform -1..1",
    "reward": "float32[16]",
    "after": f"float32[16,{STATE}]",
    "goes_on": "float32[16] uniform 0..1",
}
FAULTS = {
    "tau": "a target that follows ten times as fast",
    "done": "a value behind the end of an episode",
    "detach": "a target that is not cut off from the gradient",
    "order": "the actor's step before the critic's",
    "frozen": "an actor's loss that trains the critic too",
}


def mlp(given: int, returned: int) -> nn.Sequential:
    return nn.Sequential(nn.Linear(given, 32), nn.ReLU(), nn.Linear(32, returned))


class Actor(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net = mlp(STATE, ACTION)

    def forward(self, state: Tensor) -> Tensor:
        return torch.tanh(self.net(state))


class Critic(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net = mlp(STATE + ACTION, 1)

    def forward(self, state: Tensor, action: Tensor) -> Tensor:
        return self.net(torch.cat([state, action], -1)).squeeze(-1)


def main() -> None:
    options = argparse.ArgumentParser(description="Train an actor and a critic.")
    options.add_argument("--out", required=True, help="the recording to write")
    options.add_argument("--fault", choices=FAULTS, help="; ".join(f"{name}: {what}" for name, what in FAULTS.items()))
    given = options.parse_args()
    fault = given.fault

    torch.manual_seed(7)
    actor, critic, target = Actor(), Critic(), Critic()
    target.load_state_dict(critic.state_dict())
    of_actor = torch.optim.Adam(actor.parameters(), 1e-3)
    of_critic = torch.optim.Adam(critic.parameters(), 1e-3)

    def train_critic(batch: dict[str, Tensor]) -> Tensor:
        goes_on = (batch["goes_on"] > 0.1).float()
        value = target(batch["after"], actor(batch["after"]))
        wanted = batch["reward"] + GAMMA * (value if fault == "done" else goes_on * value)
        probe.log("target", wanted)
        wanted = wanted if fault == "detach" else wanted.detach()
        loss = F.mse_loss(critic(batch["state"], batch["action"]), wanted)
        of_critic.zero_grad()
        loss.backward()
        of_critic.step()
        return loss

    def train_actor(batch: dict[str, Tensor]) -> Tensor:
        critic.requires_grad_(fault == "frozen")
        loss = -critic(batch["state"], actor(batch["state"])).mean()
        of_actor.zero_grad()
        loss.backward()
        of_actor.step()
        critic.requires_grad_(True)
        return loss

    turns = {"critic": train_critic, "actor": train_actor}
    probe.start([actor, critic, target], given.out, task="tensor")
    for step in range(2):
        batch = probe.make_inputs(BATCH, seed=step, to="torch")
        for name in reversed(turns) if fault == "order" else turns:
            loss = turns[name](batch)
            print(f"step {step}  {name} {loss.item():.6f}")
            if name == "actor":
                with torch.no_grad():
                    for slow, fast in zip(target.parameters(), critic.parameters(), strict=True):
                        slow.lerp_(fast, 10 * TAU if fault == "tau" else TAU)
            probe.step(loss=loss)  # once per turn of an optimizer
    probe.stop()


if __name__ == "__main__":
    main()
