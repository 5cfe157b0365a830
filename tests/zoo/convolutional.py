"""Networks of images, signals and volumes."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

from zoo.registry import Network, labels, network


class BasicBlock(nn.Module):
    """A residual block with batch norm; a 1×1 convolution where the size changes."""

    def __init__(self, width: int, out: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(width, out, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(out)
        self.conv2 = nn.Conv2d(out, out, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(out)
        self.relu = nn.ReLU(inplace=True)
        self.shortcut = nn.Sequential()
        if stride != 1 or width != out:
            self.shortcut = nn.Sequential(
                nn.Conv2d(width, out, 1, stride, bias=False), nn.BatchNorm2d(out)
            )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out = self.bn2(self.conv2(self.relu(self.bn1(self.conv1(x)))))
        out += self.shortcut(x)
        return self.relu(out)


def _resnet() -> Network:
    model = nn.Sequential(
        nn.Conv2d(2, 3, 3, padding=1, bias=False),
        nn.BatchNorm2d(3),
        nn.ReLU(inplace=True),
        BasicBlock(3, 3, 1),
        BasicBlock(3, 2, 2),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(2, 3),
    )
    return Network(model, nn.CrossEntropyLoss(), torch.randn(5, 2, 5, 5), labels(5))


@network()
def resnet_eval() -> Network:
    return _resnet()


@network(training=True, mixes=True)
def resnet_train() -> Network:
    return _resnet()


class UNet(nn.Module):
    """One level down and up, with a skip connection."""

    def __init__(self) -> None:
        super().__init__()
        self.down = nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), nn.GroupNorm(2, 4), nn.SiLU())
        self.middle = nn.Sequential(nn.Conv2d(4, 4, 3, padding=1), nn.GroupNorm(4, 4), nn.SiLU())
        self.up = nn.ConvTranspose2d(4, 2, 2, stride=2)
        self.head = nn.Conv2d(6, 3, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        skip = self.down(x)
        deep = self.middle(F.max_pool2d(skip, 2))
        return self.head(torch.cat([skip, self.up(deep)], dim=1))


@network()
def unet_group_norm() -> Network:
    return Network(UNet(), nn.CrossEntropyLoss(), torch.randn(3, 1, 4, 4), labels(3, 4, 4))


class ConvNeXtBlock(nn.Module):
    """Depthwise 7×7 convolution, layer norm over channels, two linear layers, layer scale."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.depthwise = nn.Conv2d(width, width, 7, padding=3, groups=width)
        self.norm = nn.LayerNorm(width, eps=1e-6)
        self.expand = nn.Linear(width, 2 * width)
        self.shrink = nn.Linear(2 * width, width)
        self.gamma = nn.Parameter(1e-1 * torch.ones(width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out = self.depthwise(x).permute(0, 2, 3, 1)
        out = self.gamma * self.shrink(F.gelu(self.expand(self.norm(out))))
        return x + out.permute(0, 3, 1, 2)


@network()
def convnext() -> Network:
    model = nn.Sequential(
        nn.Conv2d(2, 3, 2, stride=2),
        ConvNeXtBlock(3),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.LayerNorm(3),
        nn.Linear(3, 3),
    )
    loss = nn.CrossEntropyLoss(label_smoothing=0.1)
    return Network(model, loss, torch.randn(4, 2, 6, 6), labels(4))


class SqueezeExcite(nn.Module):
    """Channels scaled by a gate that looks at their means."""

    def __init__(self, width: int, gate: nn.Module) -> None:
        super().__init__()
        self.fc1, self.fc2, self.gate = nn.Conv2d(width, 2, 1), nn.Conv2d(2, width, 1), gate

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.gate(self.fc2(F.relu(self.fc1(x.mean((2, 3), keepdim=True)))))


def _mobilenet(gate: nn.Module) -> Network:
    model = nn.Sequential(
        nn.Conv2d(2, 4, 3, stride=2, padding=1, bias=False),
        nn.BatchNorm2d(4),
        nn.Hardswish(),
        nn.Conv2d(4, 4, 3, padding=1, groups=4, bias=False),
        nn.BatchNorm2d(4),
        nn.ReLU6(),
        SqueezeExcite(4, gate),
        nn.Conv2d(4, 3, 1),
        nn.AvgPool2d(2),
        nn.Flatten(),
        nn.Dropout(0.3),
        nn.Linear(3, 3),
    )
    return Network(model, nn.CrossEntropyLoss(), torch.randn(5, 2, 5, 5), labels(5))


@network()
def mobilenet() -> Network:
    return _mobilenet(nn.Sigmoid())


@network(may_be_refused="torch cannot differentiate its gate twice", truth="differences")
def mobilenet_with_hard_gate() -> Network:
    return _mobilenet(nn.Hardsigmoid())


@network()
def depthwise_and_dilated() -> Network:
    model = nn.Sequential(
        nn.Conv2d(3, 6, 3, groups=3, padding=1),
        nn.Tanh(),
        nn.Conv2d(6, 4, (3, 2), stride=(1, 2), dilation=(2, 1), groups=2),
        nn.ELU(),
        nn.Flatten(),
        nn.Linear(8, 2),
    )
    return Network(model, nn.MSELoss(), torch.randn(4, 3, 5, 4), torch.randn(4, 2))


@network()
def transposed_convolutions() -> Network:
    model = nn.Sequential(
        nn.ConvTranspose2d(2, 4, 3, stride=2, padding=1, output_padding=1, groups=2),
        nn.Softplus(),
        nn.ConvTranspose2d(4, 1, 2, dilation=2, bias=False),
    )
    return Network(model, nn.MSELoss(), torch.randn(3, 2, 2, 2), torch.randn(3, 1, 6, 6))


@network()
def convolutions_1d() -> Network:
    model = nn.Sequential(
        nn.Conv1d(2, 4, 3, stride=2),
        nn.GELU(),
        nn.ConvTranspose1d(4, 3, 3, stride=2, groups=1),
        nn.MaxPool1d(2, ceil_mode=True),
        nn.Conv1d(3, 3, 2, groups=3),
    )
    return Network(model, nn.CrossEntropyLoss(), torch.randn(4, 2, 7), labels(4, 3))


@network()
def convolutions_3d() -> Network:
    model = nn.Sequential(
        nn.Conv3d(1, 2, 2, padding=1, stride=2),
        nn.LeakyReLU(),
        nn.ConvTranspose3d(2, 2, 2),
        nn.AvgPool3d(2),
        nn.Flatten(),
        nn.Linear(2, 3),
    )
    return Network(model, nn.CrossEntropyLoss(), torch.randn(4, 1, 3, 3, 3), labels(4))


@network()
def same_padding() -> Network:
    model = nn.Sequential(
        nn.Conv2d(1, 3, 3, padding="same", dilation=2),
        nn.Tanh(),
        nn.Conv2d(3, 2, (4, 2), padding="same"),
        nn.Sigmoid(),
        nn.Conv2d(2, 1, 2, padding="valid"),
        nn.Flatten(),
        nn.Linear(12, 3),
    )
    return Network(model, nn.CrossEntropyLoss(), torch.randn(4, 1, 5, 4), labels(4))


@network()
def same_padding_1d() -> Network:
    model = nn.Sequential(
        nn.Conv1d(2, 3, 4, padding="same"), nn.Tanh(), nn.Flatten(), nn.Linear(15, 2)
    )
    return Network(model, nn.MSELoss(), torch.randn(5, 2, 5), torch.randn(5, 2))


@network()
def circular_and_reflecting_padding() -> Network:
    model = nn.Sequential(
        nn.Conv2d(1, 3, 3, padding=1, padding_mode="circular"),
        nn.Tanh(),
        nn.Conv2d(3, 2, 3, padding=(2, 1), padding_mode="reflect"),
        nn.Tanh(),
        nn.Conv2d(2, 2, 2, padding=1, padding_mode="replicate"),
        nn.AdaptiveMaxPool2d(2),
        nn.Flatten(),
        nn.Linear(8, 3),
    )
    return Network(model, nn.CrossEntropyLoss(), torch.randn(4, 1, 4, 4), labels(4))


@network()
def upsampling() -> Network:
    model = nn.Sequential(
        nn.Conv2d(1, 4, 3, padding=1),
        nn.PixelShuffle(2),
        nn.Mish(),
        nn.Upsample(scale_factor=0.5, mode="bilinear", align_corners=False),
        nn.Conv2d(1, 2, 2),
        nn.LPPool2d(2, 2),
    )
    return Network(
        model, nn.CrossEntropyLoss(), torch.randn(3, 1, 4, 4), labels(3, 1, 1, classes=2)
    )
