"""Support vector machines that share one kernel matrix: problem, factorisation, solvers, solution."""

from mmcl_lightning.svm.factorisation import Factorisation
from mmcl_lightning.svm.problem import MaxMarginDual, max_margin_dual
from mmcl_lightning.svm.solution import Solution, Status
from mmcl_lightning.svm.solvers import Exact, Inverse, ProjectedGradient, Solver

__all__ = [
    "Exact",
    "Factorisation",
    "Inverse",
    "MaxMarginDual",
    "ProjectedGradient",
    "Solution",
    "Solver",
    "Status",
    "max_margin_dual",
]
