"""Where the fourth held-out set's faults are planted, and the dtypes they are planted in."""

M, T, S, G, E = "model.layers", "transformer.h", "backbone.layers", "biogpt.layers", "bert.encoder.layer"
N, K, Y, C = "model.encoder.layers", "model.decoder.layers", "layoutlm.encoder.layer", "convbert.encoder.layer"
R, F, X, V = (
    "resnet.encoder.stages",
    "efficientnet.encoder.blocks",
    "convnextv2.encoder.stages",
    "cvt.encoder.stages",
)
Q, H, A, J = "focalnet.encoder.stages", "hiera.encoder.stages", "vision_model.encoder.layers", "ijepa.layers"
W, U = "wavlm.encoder.layers", "unispeech.encoder.layers"
BF, AC, HALF = {"dtype": "bf16"}, {"dtype": "autocast"}, {"dtype": "fp16", "optimizer": "sgd"}
PACKED, LISTED = {"port": "olmo-packed"}, {"port": "points-listed"}
