"""The names that mosaicml-streaming imports at startup; the comparison uses none of them."""


class VisionDataset:
    """A base class of datasets that the comparison does not use."""
