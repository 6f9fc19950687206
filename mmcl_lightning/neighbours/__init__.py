"""Which images a network takes for alike: nearest neighbours and near duplicates of representations."""

from mmcl_lightning.neighbours.search import near_duplicates, nearest_neighbours

__all__ = ["near_duplicates", "nearest_neighbours"]
