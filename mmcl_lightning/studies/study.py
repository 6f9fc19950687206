"""What a study is: options that all runs share, variants, options to tune, seeds."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from mmcl_lightning.errors import ConfigError

__all__ = ["Run", "Study", "Variant"]


@dataclass(frozen=True)
class Variant:
    """One method of a study.

    Args:
        name: What tables and plots call it.
        options: Options of the command line, by name without dashes; a list under ``config`` gives several.
        tune: Values to try on the validation part, by option; the product of all is tried.
    """

    name: str
    options: dict[str, Any] = field(default_factory=dict)
    tune: dict[str, list[Any]] = field(default_factory=dict)

    def tries(self) -> list[dict[str, Any]]:
        """Every combination of the values to try; one empty one where nothing is tuned."""
        return [
            dict(zip(self.tune, values, strict=True)) for values in itertools.product(*self.tune.values())
        ]


@dataclass(frozen=True)
class Run:
    """One call of the command line.

    Args:
        name: Folder of the run below that of the study.
        label: What tables call it.
        arguments: Arguments of ``mmcl``, without where to write.
        seed: Its seed.
        choice: Tuned values that it uses.
    """

    name: str
    label: str
    arguments: tuple[str, ...]
    seed: int
    choice: dict[str, Any]


@dataclass(frozen=True)
class Study:
    """A list of variants, each run with every seed; read it with :meth:`load`.

    Args:
        name: Folder of its runs.
        options: Options of every run.
        variants: The methods, in the order of the table.
        seeds: Seeds of the reported runs.
        tuning: Options that the tuning runs have beside the others, typically ``data.validation_subset``.
        tuning_metric: Logged metric whose last value decides; the largest wins.
        tuning_seed: Seed of the tuning runs.
    """

    name: str
    options: dict[str, Any]
    variants: tuple[Variant, ...]
    seeds: tuple[int, ...] = (0,)
    tuning: dict[str, Any] = field(default_factory=dict)
    tuning_metric: str = "knn/top1"
    tuning_seed: int = 0

    @classmethod
    def load(cls, path: Path) -> Study:
        """Read a study from YAML.

        Raises:
            ConfigError: If the file is missing, no YAML, or says something that a study does not have.
        """
        try:
            content = yaml.safe_load(path.read_text(encoding="utf-8"))
        except (OSError, yaml.YAMLError, UnicodeDecodeError) as error:
            raise ConfigError(
                f"{path} cannot be read as a study ({type(error).__name__}: {error})"
            ) from error
        if not isinstance(content, dict):
            raise ConfigError(f"{path} is no study: it must be a mapping with name, options, variants, seeds")
        try:
            given = content.pop("variants", None) or {}
            variants = tuple(Variant(str(name), **(parts or {})) for name, parts in given.items())
            seeds = tuple(int(seed) for seed in content.pop("seeds", (0,)))
            content.setdefault("name", path.stem)
            content.setdefault("options", {})
            study = cls(variants=variants, seeds=seeds, **content)
        except (TypeError, AttributeError, ValueError) as error:
            raise ConfigError(f"{path}: {error}") from error
        study.check(path)
        return study

    def check(self, path: Path) -> None:
        """Raise :class:`ConfigError` where the study could not run."""
        if not self.variants or not self.seeds:
            raise ConfigError(f"{path}: a study needs at least one variant and one seed")
        if any(variant.tune for variant in self.variants) and not self.tuning:
            raise ConfigError(
                f"{path}: variants with 'tune' need 'tuning', the options of the tuning runs: without a "
                "validation part, e.g. data.validation_subset: 1000, values would be chosen on the test images"
            )
        for variant in self.variants:
            for option, values in variant.tune.items():
                if not isinstance(values, list) or not values:
                    raise ConfigError(f"{path}: {variant.name}: tune.{option} must be a list of values")

    def tuning_runs(self, variant: Variant) -> list[Run]:
        """Runs that try the values of a variant; none where there is nothing to choose."""
        tries = variant.tries()
        if len(tries) == 1:
            return []
        return [
            self._run(f"tuning/{_file_name(variant.name)}/{_describe(choice)}", variant, choice, self.tuning_seed,
                      self.tuning)
            for choice in tries
        ]  # fmt: skip

    def runs(self, variant: Variant, choice: dict[str, Any]) -> list[Run]:
        """Return the reported runs of a variant with the values that were chosen."""
        return [
            self._run(f"{_file_name(variant.name)}/seed {seed}", variant, choice, seed) for seed in self.seeds
        ]

    def _run(
        self,
        name: str,
        variant: Variant,
        choice: dict[str, Any],
        seed: int,
        more: dict[str, Any] | None = None,
    ) -> Run:
        configs = [*_as_list(self.options.get("config")), *_as_list(variant.options.get("config"))]
        options = {**self.options, **variant.options, **(more or {}), **choice}
        options |= {"seed_everything": seed, "data.seed": seed}
        options.pop("config", None)
        arguments = [argument for config in configs for argument in ("--config", str(config))]
        for option, value in options.items():
            arguments += [f"--{option}", _text(value)]
        return Run(name, variant.name, ("fit", *arguments), seed, choice)


def _as_list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [] if value is None else [value]


def _text(value: Any) -> str:
    """Return a value as the command line takes it."""
    return value if isinstance(value, str) else yaml.safe_dump(value, default_flow_style=True).split("\n")[0]


def _describe(choice: dict[str, Any]) -> str:
    return _file_name(", ".join(f"{name.rpartition('.')[2]}={value}" for name, value in choice.items()))


def _file_name(name: str) -> str:
    """Return a name without what file systems do not take."""
    return "".join(c if c.isalnum() or c in " ,.=+-_" else "_" for c in name).strip()
