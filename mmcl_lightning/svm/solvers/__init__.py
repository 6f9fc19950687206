"""Solvers of the box-constrained dual, one per file."""

from mmcl_lightning.svm.solvers.base import Solver
from mmcl_lightning.svm.solvers.exact import Exact
from mmcl_lightning.svm.solvers.inverse import Inverse
from mmcl_lightning.svm.solvers.projected_gradient import ProjectedGradient

__all__ = ["Exact", "Inverse", "ProjectedGradient", "Solver"]
