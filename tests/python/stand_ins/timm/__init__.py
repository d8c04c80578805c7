"""A stand-in for `timm.create_model` of timm 1.0: what it does with a state dict in `pretrained_cfg_overlay`.

Tests use it where timm is not installed.
"""

from torch import nn


def create_model(model_name, pretrained=False, pretrained_cfg=None, pretrained_cfg_overlay=None, **kwargs):
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    if pretrained:
        model.load_state_dict(pretrained_cfg_overlay["state_dict"], strict=True)
    return model
