"""What the SVMs of some images found, and how to draw it."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

import torch
from PIL import Image
from torch import Tensor

from mmcl_lightning._options import check_whole
from mmcl_lightning.losses import MMCLLoss
from mmcl_lightning.losses.statistics import svm_stats
from mmcl_lightning.losses.weights import SolvedDual
from mmcl_lightning.negatives.drawing import BLUE, GREEN, GREY, INK, ORANGE, Tile, draw_grid, readable
from mmcl_lightning.negatives.held_out import HeldOutImages
from mmcl_lightning.svm import MaxMarginDual
from mmcl_lightning.svm.negatives import (
    at_bound,
    false_negative_shares,
    false_negative_sums,
    is_support,
    ranked_negatives,
)

__all__ = ["Selection", "SupportVectors"]


@dataclass(frozen=True)
class Selection:
    """Which queries a picture shows, and which negatives beside each.

    Args:
        queries: Number of rows, of as many classes as there are.
        support_vectors: How many of the strongest support vectors.
        others: How many of the nearest negatives with alpha = 0, and as many drawn from the rest.
        seed: The draw is a function of it and of the query.

    Raises:
        ConfigError: If an option is out of range.
    """

    queries: int = 8
    support_vectors: int = 6
    others: int = 2
    seed: int = 0

    def __post_init__(self) -> None:
        check_whole(1, queries=self.queries, support_vectors=self.support_vectors)
        check_whole(0, others=self.others, seed=self.seed)


@dataclass(frozen=True, eq=False)
class SupportVectors:
    """What the SVMs of some images found: anchor i is the first view of image i.

    Args:
        images: The images; candidates are their views, one view after the other.
        criterion: The loss whose SVMs these are, for its options.
        dual: One dual per image with its solution, alpha of shape ``(N, n)`` for N images and n
            candidates.
    """

    images: HeldOutImages
    criterion: MMCLLoss
    dual: SolvedDual

    @property
    def problem(self) -> MaxMarginDual:
        """The duals."""
        return self.dual.problem

    @property
    def alpha(self) -> Tensor:
        """Dual variables, shape ``(N, n)``."""
        return self.dual.solution.alpha

    def place(self, candidate: int) -> tuple[int, int]:
        """Return view and image of a candidate."""
        return divmod(candidate, len(self.images))

    def stats(self) -> dict[str, float]:
        """Return what :func:`svm_stats` says and, with labels, the shares of false negatives."""
        stats = {name: float(value) for name, value in svm_stats([self.dual]).items()}
        return stats | false_negative_shares(
            false_negative_sums(self.problem, self.alpha, self.images.targets.to(self.alpha.device))
        )

    def choose_queries(self, count: int) -> list[int]:
        """Choose images to look at: of as many classes as there are, then in their order."""
        rank: dict[int, int] = {}  # images of the class so far
        order = []
        for index, target in enumerate(self.images.targets.tolist()):
            rank[target] = rank.get(target, 0) + 1
            order.append((rank[target] if target >= 0 else 1, index))
        return sorted(index for _, index in sorted(order)[:count])

    def columns(self, query: int, selection: Selection) -> tuple[list[int], ...]:
        """Choose the candidates to show beside a query.

        Args:
            query: Index of the image.
            selection: How many.

        Returns:
            Candidates: the strongest support vectors, the nearest others, random others.
        """
        inside, outside = (x.tolist() for x in ranked_negatives(self.problem, self.alpha, query))
        generator = torch.Generator().manual_seed(1_000_003 * selection.seed + query)
        order = torch.randperm(self.problem.n, generator=generator).tolist()
        others = selection.others
        rest = set(outside[others:])
        drawn = [candidate for candidate in order if candidate in rest]  # stable while alpha changes
        return inside[: selection.support_vectors], outside[:others], drawn[:others]

    def draw(self, selection: Selection, note: str = "") -> Image.Image:
        """Draw one row per query: the query, its strongest support vectors, some negatives without weight.

        Source of the layout: the figure of support vectors in the appendix of Shah et al., AAAI 2022.

        Args:
            selection: Which queries and negatives.
            note: Said below the title, such as the epoch.
        """
        rows = []
        for query in self.choose_queries(selection.queries):
            groups = self.columns(query, selection)
            rows.append([[self._query_tile(query)], *[[self._tile(query, j) for j in g] for g in groups]])
        groups_shown = 4 if selection.others else 2
        headings = ["query", "strongest support vectors", "alpha = 0, nearest", "alpha = 0, random"]
        return draw_grid(
            "Which negatives count",
            [note, *self.describe()] if note else self.describe(),
            headings[:groups_shown],
            [row[:groups_shown] for row in rows],
            [1, selection.support_vectors, selection.others, selection.others][:groups_shown],
            self._legend(),
        )

    def describe(self) -> list[str]:
        """Say in a few lines what was solved and found."""
        loss, stats = self.criterion, self.stats()
        kernel = re.sub(r", \w+=None", "", str(self.problem.kernel_name))  # as fitted, where it is
        bound = "" if math.isinf(loss.C) else f", {stats['bound_fraction']:.1%} at C"
        lines = [
            f"{kernel}, {type(loss.solver).__name__}, C={loss.C:g}, reg={loss.reg:g}: "
            f"{len(self.images)} held-out images, {self.problem.negatives} negatives each",
            f"alpha: {stats['zero_fraction']:.1%} at zero, {stats['free_fraction']:.1%} free{bound}; margin "
            f"{stats['margin']:.3g}, relative duality gap {stats['duality_gap']:.2g}",
        ]
        if "false_negative_share" in stats:
            at_c = stats.get("bound_false_negative_share")
            lines.append(
                f"false negatives (the query's own class): "
                f"{stats['false_negative_base_rate']:.1%} of all negatives, "
                f"{stats['false_negative_share']:.1%} of support vectors "
                f"({stats['false_negative_share_by_alpha']:.1%} by alpha)"
                + ("" if at_c is None else f", {at_c:.1%} of those at C")
            )
        return lines

    def is_false_negative(self, query: int, candidate: int) -> bool:
        """Whether query and candidate are known to be of one class."""
        targets = self.images.targets
        return bool(targets[query] >= 0) and bool(targets[query] == targets[self.place(candidate)[1]])

    def _query_tile(self, query: int) -> Tile:
        view, image = self.place(int(self.problem.positive[query]))
        count = int(is_support(self.alpha[query]).sum())
        picture = self.images.picture(view, image)
        return Tile(picture, GREEN, f"{count} SV", self._caption(image))

    def _tile(self, query: int, candidate: int) -> Tile:
        view, image = self.place(candidate)
        alpha = self.alpha[query, candidate]
        false = self.is_false_negative(query, candidate)
        bound = bool(at_bound(alpha, self.problem.C))
        if not is_support(self.alpha[query])[candidate]:
            frame, corner = GREY, ""
        else:
            frame, corner = ORANGE if false else BLUE, f"{float(alpha):#.3g}" + (" = C" if bound else "")
        picture = self.images.picture(view, image)
        return Tile(picture, frame, corner, self._caption(image), ORANGE if false else INK, thick=bound)

    def _caption(self, image: int) -> str:
        name = self.images.class_name(image)
        unreadable = "?" in readable(name) and "?" not in name
        return f"class {int(self.images.targets[image])}" if unreadable else name

    def _legend(self) -> list[tuple[str, bool, str]]:
        legend = [(GREEN, False, "query"), (BLUE, False, "support vector, with its alpha")]
        if (self.images.targets >= 0).any():
            legend.append((ORANGE, False, "of the query's class: a false negative"))
        if at_bound(self.alpha, self.problem.C).any():
            dropped = ", which the loss leaves out" if self.criterion.drop_at_bound else ""
            legend.append((BLUE, True, f"alpha = C{dropped}"))
        return [*legend, (GREY, False, "alpha = 0")]
