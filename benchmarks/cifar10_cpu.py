"""k-NN curves of SimCLR and of MMCL with each solver on a CIFAR-10 subset, on a CPU.

    python benchmarks/cifar10_cpu.py --root PATH

PATH holds CIFAR-10 as a tree of images, ``train/CLASS/*`` and ``test/CLASS/*``. Every run is a call of the
command line, printed as it starts; a finished run is not repeated, so the script can be stopped and started
again. Writes ``docs/results/cifar10_cpu.{json,png}`` and prints the table.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "docs" / "results"
METHODS = {
    "SimCLR": ["cifar10_simclr.yaml"],
    "MMCL, Inverse": ["cifar10_mmcl.yaml", "--model.solver", "Inverse"],
    "MMCL, ProjectedGradient": ["cifar10_mmcl.yaml", "--model.solver", "ProjectedGradient"],
    "MMCL, Exact": ["cifar10_mmcl.yaml", "--model.solver", "Exact"],
}
SEEDS = (0, 1, 2)


def shared_options(root: str, epochs: int) -> list[str]:
    """Options that all runs have in common."""
    return [
        *("--data", "ImageFolderDataModule", "--data.root", root, "--data.image_size", "32"),
        *("--data.cache", "true", "--data.train_subset", "5000", "--data.test_subset", "1000"),
        *("--data.num_workers", "0", "--model.backbone", "conv4", "--model.cifar_stem", "false"),
        *("--trainer.max_epochs", str(epochs), "--trainer.callbacks.every_n_epochs", "2"),
        *("--trainer.limit_val_batches", "0", "--trainer.enable_progress_bar", "false"),
    ]


def run(job: tuple[str, list[str]], runs: Path) -> None:
    """Run one command line, unless its log is complete."""
    name, arguments = job
    folder, done = runs / name, runs / name / "done"
    if done.exists() and done.read_text() == " ".join(arguments):
        return
    command = [sys.executable, str(ROOT / "cli.py"), *arguments]
    if "fit" in arguments:
        command += ["--trainer.logger.save_dir", str(folder)]
    print(f"{name}: python cli.py {' '.join(arguments)}", flush=True)
    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / "output.txt", "w") as output:
        environment = os.environ | {"OMP_NUM_THREADS": "1"}
        subprocess.run(command, stdout=output, stderr=subprocess.STDOUT, check=True, env=environment)
    done.write_text(" ".join(arguments))


def jobs(root: str, epochs: int) -> Iterator[tuple[str, list[str]]]:
    """Yield every run: raw pixels, then each seed of each method."""
    pixels = [
        *("--model.backbone.class_path", "torch.nn.Flatten"),
        *("--model.projection_head.class_path", "torch.nn.Identity"),
        *("--trainer.limit_val_batches", "1"),
    ]
    yield (
        "pixels",
        ["validate", "--config", "cifar10_simclr.yaml", *shared_options(root, epochs), *pixels],
    )
    for seed in SEEDS:
        for name, (recipe, *options) in METHODS.items():
            seeds = ["--seed_everything", str(seed), "--data.seed", str(seed)]
            yield (
                f"{name}, seed {seed}",
                ["fit", "--config", recipe, *shared_options(root, epochs), *options, *seeds],
            )


def curve(folder: Path) -> list[tuple[int, float]]:
    """k-NN top-1 by step."""
    (events,) = folder.glob("**/events.out.tfevents.*")
    log = EventAccumulator(str(events.parent))
    log.Reload()
    return [(event.step, event.value) for event in log.Scalars("knn/top1")]


def collect(runs: Path) -> dict[str, object]:
    """Read all curves and the k-NN of raw pixels."""
    pixels = re.search(r"knn/top1\W+([0-9.]+)", (runs / "pixels" / "output.txt").read_text())
    assert pixels is not None, "the run on raw pixels printed no knn/top1"
    curves = {name: {str(seed): curve(runs / f"{name}, seed {seed}") for seed in SEEDS} for name in METHODS}
    return {"raw_pixels": float(pixels[1]), "curves": curves}


def plot(results: dict, path: Path) -> None:
    """Draw mean and range over seeds against steps."""
    figure, axes = plt.subplots(figsize=(7, 4.2), layout="constrained")
    for color, (name, seeds) in zip(("0.35", "C0", "C1", "C3"), results["curves"].items(), strict=True):
        steps = [step for step, _ in seeds["0"]]
        values = np.array([[value for _, value in seeds[str(seed)]] for seed in SEEDS])
        axes.plot(steps, values.mean(0), color=color, label=name)
        axes.fill_between(steps, values.min(0), values.max(0), color=color, alpha=0.15, linewidth=0)
    axes.axhline(results["raw_pixels"], color="0.6", linestyle=":", label="raw pixels")
    axes.set(xlabel="optimizer steps", ylabel="k-NN top-1 (k=200, T=0.5)")
    axes.set_title(
        "CIFAR-10 (JPEG copy), 5,000 training images, conv4: mean and range of 3 seeds", fontsize=9
    )
    axes.legend(frameon=False, fontsize=8)
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=150)


def table(results: dict) -> str:
    """Format first and last readout per method, mean and standard deviation over seeds."""
    lines = ["| | random weights | end of training | best epoch |", "|---|---|---|---|"]
    lines.append(f"| raw pixels | {results['raw_pixels']:.3f} | | |")
    for name, seeds in results["curves"].items():
        values = np.array([[value for _, value in seeds[str(seed)]] for seed in SEEDS])
        cells = (values[:, 0], values[:, -1], values.max(1))
        lines.append(
            f"| {name} | " + " | ".join(f"{c.mean():.3f} ± {c.std(ddof=1):.3f}" for c in cells) + " |"
        )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--root", required=True, help="folder with train/CLASS/* and test/CLASS/*")
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--runs", type=Path, default=Path("runs/cifar10_cpu"), help="one folder per study")
    parser.add_argument("--parallel", type=int, default=2, help="runs at a time, one core each")
    options = parser.parse_args()
    with ThreadPoolExecutor(options.parallel) as pool:
        list(pool.map(lambda job: run(job, options.runs), jobs(options.root, options.epochs)))
    results = collect(options.runs)
    (RESULTS / "cifar10_cpu.json").write_text(json.dumps(results, indent=1) + "\n")
    plot(results, RESULTS / "cifar10_cpu.png")
    print(table(results))


if __name__ == "__main__":
    main()
