"""Detection, capsules, spatial transformers, convolutional recurrence, style transfer."""

from .capsule_net import CAPSULES
from .convolutional_lstm import CONVLSTM
from .fcos_detector import DETECTOR
from .spatial_transformer import SPATIAL
from .style_transfer import STYLE

MODELS = (
    DETECTOR,
    CAPSULES,
    SPATIAL,
    CONVLSTM,
    STYLE,
)
