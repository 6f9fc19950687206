"""What a file that ``predict`` or ``embed`` wrote holds: read, drawn as a map, handed to TensorBoard."""

from mmcl_lightning.representations.images import EmbeddedImages
from mmcl_lightning.representations.maps import draw_map, map_points

__all__ = ["EmbeddedImages", "draw_map", "map_points"]
