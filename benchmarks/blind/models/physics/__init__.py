"""Networks for differential equations and scenes: PINN, DeepONet, Fourier operator, radiance field, neural ODE."""

from .burgers_pinn import PINN
from .deeponet import DEEPONET
from .fourier_operator import OPERATOR
from .neural_ode import ODE
from .radiance_field import RADIANCE

MODELS = (
    PINN,
    DEEPONET,
    OPERATOR,
    RADIANCE,
    ODE,
)
