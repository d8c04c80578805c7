"""A stand-in for spandrel's `ModelLoader`, which finds the architecture of a state dict by its names and shapes.

Tests use it where spandrel is not installed. The names and signatures are those of spandrel 0.4.
"""

import types

import torch
from torch import nn


class ModelLoader:
    def __init__(self, device=None):
        self.device = device or torch.device("cpu")

    def load_from_state_dict(self, state_dict):
        width, channels, *_ = state_dict["0.weight"].shape
        model = nn.Sequential(nn.Conv2d(channels, width, 3), nn.ReLU())
        model.load_state_dict(state_dict)
        return types.SimpleNamespace(model=model.to(self.device))
