"""Reinforcement learning: value networks, policies, critics."""

from .categorical_dqn import NOISY
from .dueling_dqn import DUELING
from .recurrent_ppo import RECURRENT
from .soft_actor_critic import TWIN

MODELS = (
    DUELING,
    RECURRENT,
    TWIN,
    NOISY,
)
