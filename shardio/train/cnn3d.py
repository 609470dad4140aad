"""The model of volumes: a small 3-D convolutional network in the manner of CosmoFlow (Mathuriya et al. 2018)."""

from typing import cast, final

from torch import Tensor, nn


@final
class Cnn3d(nn.Module):
    """Convolutions that each halve depth, height and width, then the mean over space and two linear layers.

    It takes volumes of any size. It has no normalization: that of batches would differ from rank to rank, and that of
    single volumes would lose how strong a signal is, which may be what is asked for.

    Args:
        num_targets: number of outputs.
        channels: number of input channels.
        widths: number of channels after each convolution.
    """

    def __init__(self, num_targets: int, channels: int, widths: tuple[int, ...] = (16, 32, 64, 64)) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        inputs = channels
        for outputs in widths:
            layers += [nn.Conv3d(inputs, outputs, 3, stride=2, padding=1), nn.LeakyReLU(0.1, inplace=True)]
            inputs = outputs
        self.body = nn.Sequential(*layers)
        self.head = nn.Sequential(nn.Linear(inputs, 64), nn.LeakyReLU(0.1, inplace=True), nn.Linear(64, num_targets))

    def forward(self, volumes: Tensor) -> Tensor:
        """Map volumes, float [B, channels, D, H, W], to outputs, float [B, num_targets]."""
        return cast(Tensor, self.head(self.body(volumes).mean(dim=(2, 3, 4))))


def cnn3d(num_targets: int, channels: int) -> Cnn3d:
    """Create a network for volumes with 8 voxels or more along each side."""
    return Cnn3d(num_targets, channels)
