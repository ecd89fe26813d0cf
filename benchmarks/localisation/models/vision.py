"""Vision models: of transformers, and hand-written."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.localisation.models.architecture import (
    CHANNELS_LAST,
    DOUBLED,
    EAGER,
    NO_DROPOUT,
    SPLIT,
    VIT,
    Architecture,
    transformer,
)
from benchmarks.localisation.models.batches import class_maps, films, image_pairs, images, pixel_classes, square_images


class ConvNet(nn.Module):
    """Convolutions, batch normalisation, pooling, a classifier."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 8, 3, padding=1)
        self.bn1 = nn.BatchNorm2d(8)
        self.act1 = nn.ReLU()
        self.pool1 = nn.MaxPool2d(2)
        self.conv2 = nn.Conv2d(8, 16, 3, padding=1)
        self.bn2 = nn.BatchNorm2d(16)
        self.act2 = nn.ReLU()
        self.pool2 = nn.AvgPool2d(3, stride=2, padding=1)
        self.drop = nn.Dropout(0.0)
        self.head = nn.Linear(16 * 4 * 4, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.pool1(self.act1(self.bn1(self.conv1(x))))
        x = self.pool2(self.act2(self.bn2(self.conv2(x))))
        return self.head(self.drop(x.flatten(1)))


class Residual(nn.Module):
    """A block of two convolutions around which its input goes."""

    def __init__(self, inside: int, outside: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inside, outside, 3, stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(outside)
        self.conv2 = nn.Conv2d(outside, outside, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(outside)
        self.relu = nn.ReLU(inplace=True)
        self.shortcut: nn.Module | None = None
        if stride != 1 or inside != outside:
            self.shortcut = nn.Sequential(nn.Conv2d(inside, outside, 1, stride, bias=False), nn.BatchNorm2d(outside))

    def forward(self, x: Tensor) -> Tensor:
        kept = x if self.shortcut is None else self.shortcut(x)
        x = self.relu(self.bn1(self.conv1(x)))
        return self.relu(self.bn2(self.conv2(x)) + kept)


class ResNet(nn.Module):
    """Three stages of residual blocks."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, padding=1, bias=False)
        self.bn = nn.BatchNorm2d(8)
        self.layer1 = nn.Sequential(Residual(8, 8, 1), Residual(8, 8, 1))
        self.layer2 = nn.Sequential(Residual(8, 16, 2), Residual(16, 16, 1))
        self.fc = nn.Linear(16, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.layer2(self.layer1(F.relu(self.bn(self.stem(x)))))
        return self.fc(x.mean((2, 3)))


class Double(nn.Module):
    """Two convolutions with group normalisation."""

    def __init__(self, inside: int, outside: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inside, outside, 3, padding=1)
        self.norm1 = nn.GroupNorm(4, outside)
        self.conv2 = nn.Conv2d(outside, outside, 3, padding=1)
        self.norm2 = nn.GroupNorm(4, outside)
        self.act = nn.SiLU()

    def forward(self, x: Tensor) -> Tensor:
        return self.act(self.norm2(self.conv2(self.act(self.norm1(self.conv1(x))))))


class UNet(nn.Module):
    """Down, across and up again, with a connection at each level."""

    def __init__(self) -> None:
        super().__init__()
        self.down1, self.down2 = Double(3, 8), Double(8, 16)
        self.pool = nn.MaxPool2d(2)
        self.middle = Double(16, 16)
        self.up2, self.up1 = nn.ConvTranspose2d(16, 16, 2, stride=2), nn.Upsample(scale_factor=2, mode="nearest")
        self.merge2, self.merge1 = Double(32, 16), Double(24, 8)
        self.out = nn.Conv2d(8, 3, 1)

    def forward(self, x: Tensor) -> Tensor:
        first = self.down1(x)
        second = self.down2(self.pool(first))
        x = self.middle(self.pool(second))
        x = self.merge2(torch.cat([self.up2(x), second], 1))
        return self.out(self.merge1(torch.cat([self.up1(x), first], 1)))


class MixerLayer(nn.Module):
    """Mixes tokens, then channels."""

    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(32), nn.LayerNorm(32)
        self.tokens = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 16))
        self.channels = nn.Sequential(nn.Linear(32, 64), nn.SiLU(), nn.Linear(64, 32))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.tokens(self.norm1(x).transpose(1, 2)).transpose(1, 2)
        return x + self.channels(self.norm2(x))


class Mixer(nn.Module):
    """Patches mixed along both axes, without attention."""

    def __init__(self) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, 32, 4, stride=4)
        self.layers = nn.ModuleList(MixerLayer() for _ in range(3))
        self.norm = nn.LayerNorm(32)
        self.head = nn.Linear(32, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.patches(x).flatten(2).transpose(1, 2)
        for layer in self.layers:
            x = layer(x)
        return self.head(self.norm(x).mean(1))


class Excite(nn.Module):
    """A factor for each channel, from the mean of all."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.reduce, self.act = nn.Conv2d(channels, channels // 2, 1), nn.SiLU()
        self.expand, self.gate = nn.Conv2d(channels // 2, channels, 1), nn.Sigmoid()

    def forward(self, x: Tensor) -> Tensor:
        return x * self.gate(self.expand(self.act(self.reduce(x.mean((2, 3), keepdim=True)))))


class Inverted(nn.Module):
    """An inverted bottleneck: wide, one kernel for each channel, a factor for each, narrow again."""

    def __init__(self, inside: int, outside: int, stride: int) -> None:
        super().__init__()
        wide = 2 * inside
        self.expand, self.bn1, self.act1 = nn.Conv2d(inside, wide, 1, bias=False), nn.BatchNorm2d(wide), nn.SiLU()
        self.depth = nn.Conv2d(wide, wide, 3, stride, padding=1, groups=wide, bias=False)
        self.bn2, self.act2, self.excite = nn.BatchNorm2d(wide), nn.SiLU(), Excite(wide)
        self.project, self.bn3 = nn.Conv2d(wide, outside, 1, bias=False), nn.BatchNorm2d(outside)
        self.is_residual = stride == 1 and inside == outside

    def forward(self, hidden_states: Tensor) -> Tensor:
        x = self.act1(self.bn1(self.expand(hidden_states)))
        x = self.bn3(self.project(self.excite(self.act2(self.bn2(self.depth(x))))))
        return hidden_states + x if self.is_residual else x


class SqueezeNet(nn.Module):
    """Inverted bottlenecks with squeeze and excitation."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.bn, self.act = nn.Conv2d(3, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8), nn.SiLU()
        self.block1, self.block2, self.block3 = Inverted(8, 8, 1), Inverted(8, 16, 2), Inverted(16, 16, 1)
        self.pool, self.flat = nn.AvgPool2d(3, stride=2, padding=1), nn.Flatten()
        self.head = nn.Linear(16 * 4 * 4, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.act(self.bn(self.stem(x)))
        return self.head(self.flat(self.pool(self.block3(self.block2(self.block1(x))))))


class Fusion(nn.Module):
    """Brings what is coarse to the size of what is fine, and adds it."""

    def __init__(self) -> None:
        super().__init__()
        self.lateral = nn.Conv2d(8, 16, 1)

    def forward(self, hidden_states: Tensor, fine: Tensor) -> Tensor:
        coarse = F.interpolate(hidden_states, scale_factor=2, mode="bilinear", align_corners=False)
        return coarse + self.lateral(fine)


class Segmenter(nn.Module):
    """A class for every pixel, from two scales."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.norm1 = nn.Conv2d(3, 8, 3, stride=2, padding=1), nn.GroupNorm(4, 8)
        self.conv2, self.norm2 = nn.Conv2d(8, 16, 3, stride=2, padding=1), nn.GroupNorm(4, 16)
        self.act, self.middle = nn.ReLU6(), nn.Conv2d(16, 16, 3, padding=1)
        self.fusion, self.smooth = Fusion(), nn.Conv2d(16, 16, 3, padding=1)
        self.up = nn.Upsample(scale_factor=2, mode="bilinear", align_corners=False)
        self.head = nn.Conv2d(16, 10, 1)

    def forward(self, x: Tensor) -> Tensor:
        fine = self.act(self.norm1(self.conv1(x)))
        coarse = self.middle(self.act(self.norm2(self.conv2(fine))))
        x = self.head(self.up(self.smooth(self.fusion(coarse, fine))))
        return x.permute(0, 2, 3, 1)


VISION: dict[str, Architecture] = {
    "vit": Architecture(
        transformer(
            "ViTForImageClassification", hidden_size=32, intermediate_size=64, num_attention_heads=4, image_size=16,
            num_hidden_layers=3, patch_size=4, num_labels=10, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
        ), images("pixel_values"), EAGER,
    ),
    "cnn": Architecture(lambda setup: ConvNet(), images("x"), CHANNELS_LAST),
    "resnet": Architecture(lambda setup: ResNet(), images("x"), CHANNELS_LAST),
    "unet": Architecture(lambda setup: UNet(), image_pairs, CHANNELS_LAST),
    "convnext": Architecture(
        transformer(
            "ConvNextForImageClassification", num_channels=3, patch_size=2, num_stages=2, hidden_sizes=[16, 32], depths=[2, 2],
            image_size=16, num_labels=10, layer_scale_init_value=1.0,
        ), images("pixel_values"), CHANNELS_LAST,
    ),
    "mixer": Architecture(lambda setup: Mixer(), images("x"), DOUBLED),
    "swin": Architecture(
        transformer(
            "SwinForImageClassification", image_size=16, patch_size=2, embed_dim=16, depths=[2, 2], num_heads=[2, 4],
            window_size=4, mlp_ratio=2.0, drop_path_rate=0.0, num_labels=10,
        ), images("pixel_values"), EAGER,
    ),
    "beit": Architecture(
        transformer(
            "BeitForImageClassification", hidden_size=32, intermediate_size=64, num_attention_heads=4, image_size=16,
            patch_size=4, num_hidden_layers=3, num_labels=10, drop_path_rate=0.0, layer_scale_init_value=0.5,
            use_relative_position_bias=True, **NO_DROPOUT,
        ), images("pixel_values"), EAGER,
    ),
    "clip": Architecture(
        transformer(
            "CLIPForImageClassification", num_labels=10,
            vision_config={"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 3, "num_attention_heads": 4,
                           "image_size": 16, "patch_size": 4},
        ), images("pixel_values"), EAGER,
    ),
    "segformer": Architecture(
        transformer(
            "SegformerForSemanticSegmentation", num_encoder_blocks=2, depths=[2, 1], sr_ratios=[2, 1], hidden_sizes=[16, 32],
            patch_sizes=[7, 3], strides=[4, 2], num_attention_heads=[2, 4], mlp_ratios=[2, 2], decoder_hidden_size=16,
            num_labels=10, drop_path_rate=0.0, classifier_dropout_prob=0.0, **NO_DROPOUT,
        ), class_maps, SPLIT,
    ),
    "mobilevit": Architecture(
        transformer(
            "MobileViTForImageClassification", image_size=64, patch_size=2, hidden_sizes=[16, 24, 32],
            neck_hidden_sizes=[8, 8, 16, 16, 24, 32, 32], num_attention_heads=4, mlp_ratio=2.0, expand_ratio=2.0,
            num_labels=10, classifier_dropout_prob=0.0, **NO_DROPOUT,
        ), square_images(64), CHANNELS_LAST,
    ),
    "dinov2": Architecture(
        transformer("Dinov2ForImageClassification", **{k: v for k, v in VIT.items() if k != "intermediate_size"}, mlp_ratio=2, layerscale_value=0.5),
        images("pixel_values"), EAGER,
    ),
    "deit": Architecture(transformer("DeiTForImageClassification", **VIT), images("pixel_values"), EAGER),
    "pvt": Architecture(
        transformer(
            "PvtForImageClassification", image_size=32, num_encoder_blocks=2, depths=[2, 1], sequence_reduction_ratios=[2, 1],
            hidden_sizes=[16, 32], patch_sizes=[4, 2], strides=[4, 2], num_attention_heads=[2, 4], mlp_ratios=[2, 2],
            num_labels=10, drop_path_rate=0.0, **NO_DROPOUT,
        ), square_images(32), SPLIT,
    ),
    "poolformer": Architecture(
        transformer(
            "PoolFormerForImageClassification", depths=[2, 2], hidden_sizes=[16, 32], num_encoder_blocks=2, patch_sizes=[4, 3],
            strides=[2, 2], padding=[1, 1], mlp_ratio=2.0, num_labels=10, drop_path_rate=0.0, layer_scale_init_value=0.5,
        ), images("pixel_values"), CHANNELS_LAST,
    ),
    "regnet": Architecture(
        transformer(
            "RegNetForImageClassification", embedding_size=8, hidden_sizes=[16, 24], depths=[1, 2], groups_width=8, layer_type="y", num_labels=10,
        ), square_images(32), CHANNELS_LAST,
    ),
    "swin2": Architecture(
        transformer(
            "Swinv2ForImageClassification", image_size=16, patch_size=2, embed_dim=16, depths=[2, 2], num_heads=[2, 4],
            window_size=4, mlp_ratio=2.0, drop_path_rate=0.0, num_labels=10,
        ), images("pixel_values"), SPLIT,
    ),
    "data2vec": Architecture(
        transformer("Data2VecVisionForImageClassification", **VIT, drop_path_rate=0.0, layer_scale_init_value=0.5, use_relative_position_bias=True),
        images("pixel_values"), EAGER,
    ),
    "videomae": Architecture(
        transformer("VideoMAEForVideoClassification", **{**VIT, "image_size": 8}, num_frames=4, tubelet_size=2), films, EAGER
    ),
    "timesformer": Architecture(
        transformer("TimesformerForVideoClassification", **{**VIT, "image_size": 8}, num_frames=4, drop_path_rate=0), films, SPLIT
    ),
    "squeeze": Architecture(lambda setup: SqueezeNet(), images("x"), CHANNELS_LAST),
    "segmenter": Architecture(lambda setup: Segmenter(), pixel_classes, CHANNELS_LAST),
    "resnet-hf": Architecture(
        transformer("ResNetForImageClassification", embedding_size=8, hidden_sizes=[16, 32], depths=[2, 1], layer_type="basic", num_labels=10),
        square_images(32), CHANNELS_LAST,
    ),
    "efficientnet": Architecture(
        transformer(
            "EfficientNetForImageClassification", image_size=32, width_coefficient=1.0, depth_coefficient=1.0, depth_divisor=8,
            kernel_sizes=[3, 5], in_channels=[32, 16], out_channels=[16, 24], depthwise_padding=[], strides=[1, 2],
            num_block_repeats=[1, 2], expand_ratios=[1, 2], hidden_dim=1280, dropout_rate=0.0, drop_connect_rate=0.0, num_labels=10,
        ), square_images(32), CHANNELS_LAST,
    ),
    "convnext2": Architecture(
        transformer(
            "ConvNextV2ForImageClassification", num_channels=3, patch_size=2, num_stages=2, hidden_sizes=[16, 32], depths=[2, 2],
            image_size=16, num_labels=10,
        ), images("pixel_values"), SPLIT,
    ),
    "levit": Architecture(
        transformer(
            "LevitForImageClassification", image_size=64, patch_size=16, stride=2, kernel_size=3, padding=1, hidden_sizes=[16, 24, 32],
            num_attention_heads=[2, 3, 4], depths=[1, 1, 1], key_dim=[8, 8, 8], drop_path_rate=0, mlp_ratio=[2, 2, 2],
            attention_ratio=[2, 2, 2], num_labels=10,
        ), square_images(64), SPLIT,
    ),
    "cvt": Architecture(
        transformer(
            "CvtForImageClassification", patch_sizes=[3, 3], patch_stride=[2, 2], patch_padding=[1, 1], embed_dim=[16, 32],
            num_heads=[2, 4], depth=[1, 2], mlp_ratio=[2.0, 2.0], attention_drop_rate=[0.0, 0.0], drop_rate=[0.0, 0.0],
            drop_path_rate=[0.0, 0.0], qkv_bias=[True, True], cls_token=[False, True], qkv_projection_method=["dw_bn", "dw_bn"],
            kernel_qkv=[3, 3], padding_kv=[1, 1], stride_kv=[2, 2], padding_q=[1, 1], stride_q=[1, 1], num_labels=10,
        ), images("pixel_values"), SPLIT,
    ),
    "focalnet": Architecture(
        transformer(
            "FocalNetForImageClassification", image_size=16, patch_size=2, embed_dim=16, hidden_sizes=[16, 32], depths=[2, 2],
            focal_levels=[2, 2], focal_windows=[3, 3], mlp_ratio=2.0, drop_path_rate=0.0, num_labels=10,
        ), images("pixel_values"), CHANNELS_LAST,
    ),
    "hiera": Architecture(
        transformer(
            "HieraForImageClassification", embed_dim=16, image_size=[16, 16], patch_size=[3, 3], patch_stride=[2, 2],
            patch_padding=[1, 1], mlp_ratio=2.0, depths=[1, 1], num_heads=[2, 4], embed_dim_multiplier=2.0, num_query_pool=1,
            query_stride=[2, 2], masked_unit_size=[4, 4], masked_unit_attention=[True, False], drop_path_rate=0.0, num_labels=10,
        ), images("pixel_values"), SPLIT,
    ),
    "siglip": Architecture(
        transformer(
            "SiglipForImageClassification", num_labels=10,
            vision_config={"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 3, "num_attention_heads": 4,
                           "image_size": 16, "patch_size": 4},
        ), images("pixel_values"), EAGER,
    ),
    "ijepa": Architecture(transformer("IJepaForImageClassification", **VIT), images("pixel_values"), EAGER),
}  # fmt: skip
