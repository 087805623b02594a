"""Data sets for training: the built-in digits, arrays in `.npz` files, folders of images."""

from nas.evaluation.datasets.augmentation import augment
from nas.evaluation.datasets.dataset import Dataset, Part, Scale
from nas.evaluation.datasets.digits import digits
from nas.evaluation.datasets.loading import load_dataset

__all__ = ["Dataset", "Part", "Scale", "augment", "digits", "load_dataset"]
