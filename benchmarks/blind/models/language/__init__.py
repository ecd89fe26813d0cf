"""Language models of transformers: Nystromformer, DBRX, JetMoE, RecurrentGemma, MiniMax, xLSTM, MobileBERT."""

from .dbrx import DBRX
from .jetmoe import JETMOE
from .minimax import MINIMAX
from .mobilebert import MOBILEBERT
from .nystromformer import NYSTROMFORMER
from .recurrent_gemma import RECURRENT
from .xlstm import XLSTM

MODELS = (
    NYSTROMFORMER,
    DBRX,
    JETMOE,
    RECURRENT,
    MINIMAX,
    XLSTM,
    MOBILEBERT,
)
