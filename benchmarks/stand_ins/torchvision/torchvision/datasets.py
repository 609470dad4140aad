"""The names that mosaicml-streaming imports when it is loaded; the comparison uses none of them."""


class VisionDataset:
    """A base class of data sets that the comparison does not touch."""
