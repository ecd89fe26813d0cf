"""Speech and sound: source separation, a conformer with CTC, a snake codec, a speaker encoder."""

from .conformer_ctc import CONFORMER
from .conv_tasnet import SEPARATOR
from .speaker_encoder import SPEAKER

MODELS = (
    SEPARATOR,
    CONFORMER,
    SPEAKER,
)
