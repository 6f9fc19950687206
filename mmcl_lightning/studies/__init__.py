"""Studies: many runs from one file, and the table and plot of their records."""

from mmcl_lightning.studies.report import write_report
from mmcl_lightning.studies.study import Study, Variant
from mmcl_lightning.studies.sweep import Sweep

__all__ = ["Study", "Sweep", "Variant", "write_report"]
