"""Models written with torch alone, as people write them: no library, no list of like blocks."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

Inputs = dict[str, np.ndarray]


class Block(nn.Module):
    """The smallest block there is: what a test needs two of."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.inner(x).tanh()


class Bottleneck(nn.Module):
    def __init__(self, inputs: int, width: int, stride: int = 1) -> None:
        super().__init__()
        outputs = 4 * width
        self.conv1 = nn.Conv2d(inputs, width, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, stride, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.conv3 = nn.Conv2d(width, outputs, 1, bias=False)
        self.bn3 = nn.BatchNorm2d(outputs)
        self.relu = nn.ReLU(inplace=True)
        self.downsample: nn.Module | None = None
        if stride != 1 or inputs != outputs:
            self.downsample = nn.Sequential(
                nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs)
            )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        way = x if self.downsample is None else self.downsample(x)
        x = self.relu(self.bn1(self.conv1(x)))
        x = self.relu(self.bn2(self.conv2(x)))
        x = self.bn3(self.conv3(x))
        x += way
        return self.relu(x)


class ResNet(nn.Module):
    """ResNet-50, as torchvision has it; `width` 64 is the real one."""

    def __init__(self, width: int = 8, depths: tuple[int, ...] = (3, 4, 6, 3)) -> None:
        super().__init__()
        self.inputs = width
        self.conv1 = nn.Conv2d(3, width, 7, 2, 3, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.relu = nn.ReLU(inplace=True)
        self.maxpool = nn.MaxPool2d(3, 2, 1)
        self.layer1 = self._stage(width, depths[0], 1)
        self.layer2 = self._stage(2 * width, depths[1], 2)
        self.layer3 = self._stage(4 * width, depths[2], 2)
        self.layer4 = self._stage(8 * width, depths[3], 2)
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.fc = nn.Linear(32 * width, 10)

    def _stage(self, width: int, depth: int, stride: int) -> nn.Sequential:
        blocks = [Bottleneck(self.inputs, width, stride)]
        self.inputs = 4 * width
        blocks += [Bottleneck(self.inputs, width) for _ in range(depth - 1)]
        return nn.Sequential(*blocks)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.maxpool(self.relu(self.bn1(self.conv1(x))))
        x = self.layer4(self.layer3(self.layer2(self.layer1(x))))
        return self.fc(torch.flatten(self.avgpool(x), 1))


class Basic(nn.Module):
    def __init__(self, inputs: int, width: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, width, 3, stride, 1)
        self.conv2 = nn.Conv2d(width, width, 3, 1, 1)
        self.way = nn.Conv2d(inputs, width, 1, stride) if stride != 1 else nn.Identity()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.relu(self.conv2(F.relu(self.conv1(x))) + self.way(x))


class SmallResNet(nn.Module):
    """Six blocks in three stages."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, 1, 1)
        self.layer1 = nn.Sequential(Basic(8, 8, 1), Basic(8, 8, 1))
        self.layer2 = nn.Sequential(Basic(8, 16, 2), Basic(16, 16, 1))
        self.layer3 = nn.Sequential(Basic(16, 32, 2), Basic(32, 32, 1))
        self.head = nn.Linear(32, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.layer3(self.layer2(self.layer1(F.relu(self.stem(x)))))
        return self.head(x.mean((2, 3)))


def double_conv(inputs: int, outputs: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, 3, padding=1, bias=False),
        nn.BatchNorm2d(outputs),
        nn.ReLU(inplace=True),
        nn.Conv2d(outputs, outputs, 3, padding=1, bias=False),
        nn.BatchNorm2d(outputs),
        nn.ReLU(inplace=True),
    )


class UNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inc = double_conv(3, 8)
        self.down1, self.down2 = double_conv(8, 16), double_conv(16, 32)
        self.up1 = nn.ConvTranspose2d(32, 16, 2, stride=2)
        self.merge1 = double_conv(32, 16)
        self.up2 = nn.ConvTranspose2d(16, 8, 2, stride=2)
        self.merge2 = double_conv(16, 8)
        self.outc = nn.Conv2d(8, 2, 1)

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        first = self.inc(image)
        second = self.down1(F.max_pool2d(first, 2))
        third = self.down2(F.max_pool2d(second, 2))
        x = self.merge1(torch.cat([second, self.up1(third)], 1))
        x = self.merge2(torch.cat([first, self.up2(x)], 1))
        return self.outc(x)


class LstmLm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(50, 16)
        self.lstm = nn.LSTM(16, 24, num_layers=2, batch_first=True)
        self.summary = nn.Linear(24, 16)
        self.head = nn.Linear(24, 50)

    def forward(self, ids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        x, (hidden, _) = self.lstm(self.table(ids))
        return self.head(x), torch.tanh(self.summary(hidden[-1]))


class Mixer(nn.Module):
    class Block(nn.Module):
        def __init__(self, tokens: int, width: int) -> None:
            super().__init__()
            self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
            self.tokens = nn.Sequential(
                nn.Linear(tokens, 2 * tokens), nn.GELU(), nn.Linear(2 * tokens, tokens)
            )
            self.channels = nn.Sequential(
                nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
            )

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = x + self.tokens(self.norm1(x).transpose(1, 2)).transpose(1, 2)
            return x + self.channels(self.norm2(x))

    def __init__(self) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, 16, 4, 4)
        self.mixers = nn.Sequential(*(self.Block(16, 16) for _ in range(4)))
        self.norm = nn.LayerNorm(16)
        self.head = nn.Linear(16, 10)

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        x = self.patches(image).flatten(2).transpose(1, 2)
        return self.head(self.norm(self.mixers(x)).mean(1))


class Generator(nn.Module):
    """A DCGAN generator: one Sequential of convolutions that grow."""

    def __init__(self) -> None:
        super().__init__()
        self.main = nn.Sequential(
            *(nn.ConvTranspose2d(12, 32, 4, 1, 0, bias=False), nn.BatchNorm2d(32), nn.ReLU(True)),
            *(nn.ConvTranspose2d(32, 16, 4, 2, 1, bias=False), nn.BatchNorm2d(16), nn.ReLU(True)),
            *(nn.ConvTranspose2d(16, 8, 4, 2, 1, bias=False), nn.BatchNorm2d(8), nn.ReLU(True)),
            *(nn.ConvTranspose2d(8, 3, 4, 2, 1, bias=False), nn.Tanh()),
        )

    def forward(self, noise: torch.Tensor) -> torch.Tensor:
        return self.main(noise)


class GraphNet(nn.Module):
    """Three rounds of messages over a dense adjacency matrix, then one number a graph."""

    class Round(nn.Module):
        def __init__(self, width: int) -> None:
            super().__init__()
            self.message = nn.Linear(width, width)
            self.update = nn.GRUCell(width, width)

        def forward(self, nodes: torch.Tensor, edges: torch.Tensor) -> torch.Tensor:
            heard = edges @ torch.tanh(self.message(nodes))
            flat = self.update(heard.flatten(0, 1), nodes.flatten(0, 1))
            return flat.reshape(nodes.shape)

    def __init__(self) -> None:
        super().__init__()
        self.encode = nn.Linear(6, 16)
        self.first, self.second, self.third = (self.Round(16) for _ in range(3))
        self.readout = nn.Sequential(nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 1))

    def forward(self, nodes: torch.Tensor, edges: torch.Tensor) -> torch.Tensor:
        edges = edges / edges.sum(-1, keepdim=True).clamp(min=1)
        x = self.encode(nodes)
        for step in (self.first, self.second, self.third):
            x = x + step(x, edges)
        return self.readout(x).sum(1)


class TimedBlock(nn.Module):
    def __init__(self, inputs: int, outputs: int, time: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.GroupNorm(4, inputs), nn.GroupNorm(4, outputs)
        self.conv1 = nn.Conv2d(inputs, outputs, 3, padding=1)
        self.time = nn.Linear(time, outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, padding=1)
        self.skip = nn.Conv2d(inputs, outputs, 1) if inputs != outputs else nn.Identity()

    def forward(self, x: torch.Tensor, time: torch.Tensor) -> torch.Tensor:
        made = self.conv1(F.silu(self.norm1(x))) + self.time(F.silu(time))[:, :, None, None]
        return self.skip(x) + self.conv2(F.silu(self.norm2(made)))


class DiffusionUNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.time1, self.time2 = nn.Linear(16, 32), nn.Linear(32, 32)
        self.conv_in = nn.Conv2d(3, 8, 3, padding=1)
        self.down = nn.ModuleList([TimedBlock(8, 8, 32), TimedBlock(8, 16, 32)])
        self.mid = TimedBlock(16, 16, 32)
        self.attention = nn.MultiheadAttention(16, 2, batch_first=True)
        self.up = nn.ModuleList([TimedBlock(32, 8, 32), TimedBlock(16, 8, 32)])
        self.norm_out = nn.GroupNorm(4, 8)
        self.conv_out = nn.Conv2d(8, 3, 3, padding=1)

    def forward(self, sample: torch.Tensor, timestep: torch.Tensor) -> torch.Tensor:
        rates = torch.exp(-math.log(10000) * torch.arange(8, dtype=torch.float32) / 8)
        angles = timestep[:, None].float() * rates
        time = torch.cat([angles.sin(), angles.cos()], -1).to(sample.dtype)
        time = self.time2(F.silu(self.time1(time)))
        x = self.conv_in(sample)
        ways = []
        for block in self.down:
            x = block(x, time)
            ways.append(x)
            x = F.avg_pool2d(x, 2)
        x = self.mid(x, time)
        rows = x.flatten(2).transpose(1, 2)
        rows = rows + self.attention(rows, rows, rows, need_weights=False)[0]
        x = rows.transpose(1, 2).reshape(x.shape)
        for block in self.up:
            x = F.interpolate(x, scale_factor=2.0, mode="nearest")
            x = block(torch.cat([x, ways.pop()], 1), time)
        return self.conv_out(F.silu(self.norm_out(x)))


class TwoTower(nn.Module):
    """Queries and documents through one encoder, prices through a net of their own."""

    class Encoder(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = nn.Embedding(40, 16)
            layer = [nn.TransformerEncoderLayer(16, 2, 32, 0.0, batch_first=True) for _ in range(2)]
            self.layers = nn.ModuleList(layer)

        def forward(self, ids: torch.Tensor) -> torch.Tensor:
            x = self.table(ids)
            for layer in self.layers:
                x = layer(x)
            return x.mean(1)

    def __init__(self) -> None:
        super().__init__()
        self.encoder = self.Encoder()
        self.price = nn.Sequential(nn.Linear(4, 64), nn.ReLU(), nn.Linear(64, 16))
        self.join = nn.Linear(32, 16)

    def forward(
        self, query: torch.Tensor, document: torch.Tensor, prices: torch.Tensor
    ) -> dict[str, torch.Tensor]:
        document = self.join(torch.cat([self.encoder(document), self.price(prices)], -1))
        query = self.encoder(query)
        return {"scores": query @ document.T, "query": query}


def _image(size: int = 16) -> Callable[[np.random.Generator], np.ndarray]:
    return lambda rng: rng.standard_normal((2, 3, size, size), dtype=np.float32)


def _ids(most: int, length: int = 7) -> Callable[[np.random.Generator], np.ndarray]:
    return lambda rng: rng.integers(0, most, (2, length))


def _floats(*shape: int) -> Callable[[np.random.Generator], np.ndarray]:
    return lambda rng: rng.standard_normal(shape, dtype=np.float32)


NETS: dict[str, tuple[type[nn.Module], dict[str, Callable[[np.random.Generator], np.ndarray]]]] = {
    "resnet-50": (ResNet, {"x": _image(32)}),
    "small resnet": (SmallResNet, {"x": _image()}),
    "u-net": (UNet, {"image": _image()}),
    "lstm": (LstmLm, {"ids": _ids(50)}),
    "mixer": (Mixer, {"image": _image()}),
    "gan": (Generator, {"noise": _floats(2, 12, 1, 1)}),
    "graph": (
        GraphNet,
        {
            "nodes": _floats(2, 5, 6),
            "edges": lambda rng: (rng.random((2, 5, 5)) < 0.5).astype(np.float32),
        },
    ),
    "diffusion": (
        DiffusionUNet,
        {"sample": _image(), "timestep": lambda rng: np.array([3, 77], np.int64)},
    ),
    "two towers": (
        TwoTower,
        {"query": _ids(40), "document": _ids(40, 9), "prices": _floats(2, 4)},
    ),
}

FAULTS = {
    "resnet-50": "layer2.1.conv2.weight",
    "small resnet": "layer2.1.conv2.weight",
    "u-net": "down2.3.weight",
    "lstm": "lstm.weight_hh_l1",
    "mixer": "mixers.2.channels.0.weight",
    "gan": "main.6.weight",
    "graph": "second.update.weight_hh",
    "diffusion": "mid.conv2.weight",
    "two towers": "price.2.weight",
}
"""A weight of each net in which a fault is planted."""


def build(name: str) -> nn.Module:
    """A net with seeded weights, in evaluation mode; batch norms have seen something."""
    torch.manual_seed(0)
    net = NETS[name][0]()
    for part in net.modules():
        if isinstance(part, nn.BatchNorm2d):
            part.running_mean.normal_(0, 0.1)
            part.running_var.uniform_(0.5, 1.5)
    return net.eval()


def inputs(name: str, seed: int = 0) -> Inputs:
    rng = np.random.default_rng(seed)
    return {key: make(rng) for key, make in NETS[name][1].items()}
