"""What a study is: options that all runs share, variants, options to tune, seeds."""

from __future__ import annotations

import itertools
import math
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from mmcl_lightning._options import is_whole
from mmcl_lightning.errors import ConfigError
from mmcl_lightning.recipes import read_yaml

__all__ = ["Run", "Study", "Variant"]

_TAKEN = ("", ".", "..", "ledger", "tuning")  # names that no variant's folder can have


@dataclass(frozen=True)
class Variant:
    """One method of a study.

    Args:
        name: What tables and plots call it.
        options: Options of the command line, by name without dashes; a list under ``config`` gives several.
        tune: Values to try on the validation part: lists by option, the product of which is tried, or a list
            of tries, each with a value for every option.
    """

    name: str
    options: dict[str, Any] = field(default_factory=dict)
    tune: dict[str, list[Any]] | list[dict[str, Any]] = field(default_factory=dict)

    def tries(self) -> list[dict[str, Any]]:
        """Every combination of the values to try; one empty one where nothing is tuned."""
        if isinstance(self.tune, list):
            return self.tune
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
        tuning_metric: Logged metric whose last value decides, or several whose mean does; the largest wins.
        tuning_seed: Seed of the tuning runs.
        metrics: Logged metrics that the report shows; none for the usual ones.
        reference: Variant that the report compares the others with, seed by seed; empty for none.
    """

    name: str
    options: dict[str, Any]
    variants: tuple[Variant, ...]
    seeds: tuple[int, ...] = (0,)
    tuning: dict[str, Any] = field(default_factory=dict)
    tuning_metric: str | list[str] = "knn/top1"
    tuning_seed: int = 0
    metrics: tuple[str, ...] = ()
    reference: str = ""

    @property
    def tuning_metrics(self) -> list[str]:
        """The metrics whose mean decides."""
        return [self.tuning_metric] if isinstance(self.tuning_metric, str) else self.tuning_metric

    @classmethod
    def load(cls, path: Path) -> Study:
        """Read a study from YAML.

        A study with ``base: OTHER.yaml``, a file beside it, is laid over that one: its options, tuning and
        variants join those there, and replace what has the same name.

        Raises:
            ConfigError: If the file is missing, no YAML, or says something that a study does not have.
        """
        content = _content(path)
        given = content.pop("variants", None) or {}
        if not isinstance(given, dict) or not all(isinstance(parts or {}, dict) for parts in given.values()):
            raise ConfigError(f"{path}: variants must be a mapping from names to options and tune")
        names = [str(name) for name in given]
        if len(set(names)) < len(names):
            twice = next(name for name in names if names.count(name) > 1)
            raise ConfigError(f"{path}: two variants are called {twice!r}")
        for name, parts in given.items():
            strange = [part for part in parts or {} if part not in ("options", "tune")]
            if strange:
                raise ConfigError(f"{path}: variant {name!r} has options and tune, and no {strange[0]!r}")
        if not all(isinstance(name, str) for name in content):
            raise ConfigError(f"{path}: names of the parts of a study must be text, got {list(content)}")
        seeds = content.pop("seeds", [0])
        whole = isinstance(seeds, list) and all(is_whole(seed) and seed >= 0 for seed in seeds)
        if not whole or len(set(seeds)) < len(seeds):
            raise ConfigError(f"{path}: seeds must be a list of different integers >= 0, got {seeds!r}")
        try:
            variants = tuple(
                Variant(str(name), **{part: value or {} for part, value in (parts or {}).items()})
                for name, parts in given.items()
            )
            content = {"name": path.stem, **content, "options": content.get("options") or {}}
            metrics = content.get("metrics") or []
            if not isinstance(metrics, list) or not all(isinstance(metric, str) for metric in metrics):
                raise ConfigError(f"{path}: metrics must be a list of names, got {metrics!r}")
            content["metrics"] = tuple(metrics)
            study = cls(variants=variants, seeds=tuple(seeds), **content)
        except TypeError as error:  # of the constructor: it names an argument that it does not have
            unknown = re.search(r"argument ('.*?')", str(error))  # Python 3.13 says more after it
            raise ConfigError(
                f"{path}: a study has no {unknown[1] if unknown else error}: it has name, options, variants "
                "(each with options and tune), seeds, tuning, tuning_metric, tuning_seed, metrics and "
                "reference"
            ) from error
        study.check(path)
        return study

    def check(self, path: Path) -> None:
        """Raise :class:`ConfigError` where the study could not run."""
        if not self.variants or not self.seeds:
            raise ConfigError(f"{path}: a study needs at least one variant and one seed")
        if any(variant.tune for variant in self.variants) and not self.tuning:
            raise ConfigError(
                f"{path}: variants with 'tune' need 'tuning', the options of the tuning runs: without such a "
                "part, e.g. data.validation_subset: 1000, values would be chosen on the test images"
            )
        parts = [(f"{variant.name}: options", variant.options) for variant in self.variants]
        parts += [
            (f"{variant.name}: tune", tries)
            for variant in self.variants
            for tries in (variant.tune if isinstance(variant.tune, list) else [variant.tune])
        ]
        for where, part in [("options", self.options), ("tuning", self.tuning), *parts]:
            if not isinstance(part, dict) or not all(isinstance(option, str) for option in part):
                raise ConfigError(f"{path}: {where} must be a mapping from names of options, got {part!r}")
        names = self.tuning_metrics
        named = isinstance(names, list) and names and all(isinstance(name, str) for name in names)
        if not named or not is_whole(self.tuning_seed):
            raise ConfigError(
                f"{path}: tuning_metric must be a name or a list of names, and tuning_seed an integer; got "
                f"{self.tuning_metric!r} and {self.tuning_seed!r}"
            )
        self._check_names(path)
        known = [variant.name for variant in self.variants]
        if self.reference and self.reference not in known:
            raise ConfigError(
                f"{path}: reference {self.reference!r} is no variant; there are {', '.join(known)}"
            )
        for variant in self.variants:
            if isinstance(variant.tune, list) and len({tuple(sorted(choice)) for choice in variant.tune}) > 1:
                raise ConfigError(f"{path}: {variant.name}: every try must give a value to the same options")
            for option, values in variant.tune.items() if isinstance(variant.tune, dict) else ():
                if not isinstance(values, list) or not values:
                    raise ConfigError(f"{path}: {variant.name}: tune.{option} must be a list of values")
            tries = [run.name for run in self.tuning_runs(variant)]
            if any(len(name.replace("/", ", ").encode()) > 240 for name in tries):
                raise ConfigError(
                    f"{path}: {variant.name}: a name and values to try are too long to name a folder by: "
                    "shorten them"
                )
            if len(set(tries)) < len(tries):
                raise ConfigError(f"{path}: {variant.name}: two values to try would share a folder")

    def _check_names(self, path: Path) -> None:
        """Raise :class:`ConfigError` where runs would share a folder, or leave that of the study."""
        if not isinstance(self.name, str) or self.name != _file_name(self.name) or self.name in _TAKEN:
            raise ConfigError(f"{path}: name must be one that a folder can have, got {self.name!r}")
        folders: dict[str, str] = {}
        for variant in self.variants:
            folder = _file_name(variant.name)
            if folder in _TAKEN or len(folder.encode()) > 200:
                raise ConfigError(f"{path}: a variant cannot be called {variant.name!r}")
            other = folders.setdefault(folder.lower(), variant.name)
            if other != variant.name:
                raise ConfigError(f"{path}: {other!r} and {variant.name!r} would share a folder")

    def tuning_runs(self, variant: Variant) -> list[Run]:
        """Runs that try the values of a variant; none where there is nothing to choose."""
        tries = variant.tries()
        if len(tries) == 1:
            return []
        return [
            self._run(f"tuning/{_file_name(variant.name)}/{_describe(choice)}", variant, choice)
            for choice in tries
        ]

    def runs(self, variant: Variant, choice: dict[str, Any]) -> list[Run]:
        """Return the reported runs of a variant with the values that were chosen."""
        folder = _file_name(variant.name)
        return [self._run(f"{folder}/seed {seed}", variant, choice, seed) for seed in self.seeds]

    def _run(self, name: str, variant: Variant, choice: dict[str, Any], seed: int | None = None) -> Run:
        """Put a run together; without a seed it is a tuning run."""
        more = self.tuning if seed is None else {}
        seed = self.tuning_seed if seed is None else seed
        configs = [*_as_list(self.options.get("config")), *_as_list(variant.options.get("config"))]
        options = {**self.options, **variant.options, **more, **choice}
        options |= {"seed_everything": seed, "data.seed": seed}
        options.pop("config", None)
        arguments = [argument for config in configs for argument in ("--config", str(config))]
        for option, value in options.items():
            text = _text(value)  # argparse takes a separate value that starts with - for an option
            arguments += [f"--{option}={text}"] if text.startswith("-") else [f"--{option}", text]
        return Run(name, variant.name, ("fit", *arguments), seed, choice)


def _content(path: Path, above: tuple[Path, ...] = ()) -> dict[str, Any]:
    """Return what a file says, laid over what its base says."""
    try:
        content = read_yaml(path)
    except OSError as error:
        raise ConfigError(f"{path} cannot be read as a study ({type(error).__name__}: {error})") from error
    if not isinstance(content, dict):
        raise ConfigError(f"{path} is no study: it must be a mapping with name, options, variants, seeds")
    base = content.pop("base", None)
    if base is None:
        return content
    if not isinstance(base, str) or not base:
        raise ConfigError(f"{path}: base must be the path of another study from here, got {base!r}")
    below = path.parent / base
    if below.resolve() in (file.resolve() for file in (*above, path)):
        raise ConfigError(f"{path}: base {base!r} leads back to a study that is laid over it")
    found = _content(below, (*above, path))
    for part in ("options", "tuning", "variants"):
        given = content.get(part) or {}
        if isinstance(found.get(part), dict) and isinstance(given, dict):
            content[part] = {**found[part], **given}
    return {**found, "name": path.stem, **content}


def _as_list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [] if value is None else [value]


def _text(value: Any) -> str:
    """Return a value as the command line takes it."""
    return (
        value
        if isinstance(value, str)
        else yaml.safe_dump(value, default_flow_style=True, width=math.inf).split("\n")[0]
    )


def _describe(choice: dict[str, Any]) -> str:
    return _file_name(", ".join(f"{name.rpartition('.')[2]}={value}" for name, value in choice.items()))


def _file_name(name: str) -> str:
    """Return a name without what file systems do not take."""
    return "".join(c if c.isalnum() or c in " ,.=+-_" else "_" for c in name).strip()
