"""ResNet-50 (He et al. 2016, with the stride in the 3 x 3 convolution), to measure training."""

from torch import Tensor, nn


class Bottleneck(nn.Module):
    """1 x 1, 3 x 3 and 1 x 1 convolutions with an identity shortcut, or a projection where the shape changes."""

    def __init__(self, inputs: int, width: int, stride: int) -> None:
        super().__init__()
        outputs = 4 * width
        self.body = nn.Sequential(
            *(nn.Conv2d(inputs, width, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU(inplace=True)),
            *(nn.Conv2d(width, width, 3, stride, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU(inplace=True)),
            *(nn.Conv2d(width, outputs, 1, bias=False), nn.BatchNorm2d(outputs)),
        )
        same = stride == 1 and inputs == outputs
        projection = nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))
        self.beside = nn.Identity() if same else projection
        self.end = nn.ReLU(inplace=True)

    def forward(self, x: Tensor) -> Tensor:
        """The same, or half, the height and width."""
        made: Tensor = self.end(self.body(x) + self.beside(x))
        return made


def resnet50(num_classes: int = 1000) -> nn.Module:
    """Map images [B, 3, 224, 224] to scores [B, num_classes], with 25.6 million parameters."""
    layers: list[nn.Module] = [
        *(nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU(inplace=True), nn.MaxPool2d(3, 2, 1))
    ]
    inputs = 64
    for stage, (width, blocks) in enumerate(((64, 3), (128, 4), (256, 6), (512, 3))):
        for block in range(blocks):
            layers.append(Bottleneck(inputs, width, 2 if stage and not block else 1))
            inputs = 4 * width
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inputs, num_classes))
