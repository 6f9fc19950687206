"""The help pages that fit on a screen; ``--help-all`` is the parser's own, of every option."""

from __future__ import annotations

__all__ = ["command_page", "overview"]

_PURPOSES = {
    "fit": "Train by a recipe. Every option of it can be changed on the command line.",
    "validate": "Give loss and readouts of a checkpoint on held-out images.",
    "test": "Give the accuracy of an evaluation's checkpoint on the test images.",
    "predict": "Write the representations of images: h, z, label, file and split of every row.",
    "negatives": "Draw which negatives count for held-out images, and write them as tables.",
}
_EXAMPLES = {
    "fit": """\
  mmcl fit --config quickstart
  mmcl fit --config folder_mmcl_log --data.root photos --data.batch_size 128
  mmcl fit --config cifar10_mmcl --model.solver Exact --model.C 1
  mmcl fit --config cifar10_mmcl --ckpt_path last       go on where it ended""",
    "validate": """\
  mmcl validate --config quickstart --ckpt_path last
  mmcl validate --config runs/quickstart/version_0/config.yaml --ckpt_path last""",
    "test": """\
  mmcl test --config stl10_linear --ckpt_path last
  mmcl test --config few_shot --model.checkpoint PATH --data.root photos""",
    "predict": """\
  mmcl predict --config quickstart --ckpt_path last
  mmcl predict --config quickstart --ckpt_path last --data.predict_split all""",
    "negatives": """\
  mmcl negatives --config quickstart --ckpt_path last
  mmcl negatives --config quickstart --ckpt_path last --views clean --images 256""",
}
_PICTURE = """\
picture
  --out FILE.png                picture to write (negatives.png); beside it come
                                a .json and a .csv with every support vector
  --images 128                  held-out images, each a negative of the others
  --queries 8                   rows of the picture
  --support_vectors 6           columns: the strongest first
  --others 2                    columns: the nearest that do not count, and as
                                many random ones
  --views clean                 each image as it is, not two augmented views
"""
_OPTIONS = """\
recipe
  --config NAME                 a recipe (mmcl recipes) or a YAML file; several
                                are laid over each other
  --print_config                show all options with their values
  --ckpt_path PATH              checkpoint to go on from or to judge; last is
                                the newest of the recipe's runs
model
  --model.backbone NAME         resnet18, resnet50, conv4, timm:NAME, ...
  --model.form log              form of the loss: paper, log or nce
  --model.temperature 0.2       T of the forms log and nce
  --model.solver NAME           Inverse, Exact or ProjectedGradient
  --model.kernel.gamma 1        inverse width of the RBF kernel
  --model.optimizer.lr 0.001    learning rate
  --model.chunk_size 64         images at a time through the network
data
  --data.root PATH              where the files lie
  --data.download true          fetch them, where that is possible
  --data.batch_size 256         images of a step, of each process
  --data.num_workers 8          processes that load images
  --data.augment device         colours and blur on the GPU, not in the workers
readouts
  --readouts.every_n_epochs 5   how often k-NN and the rest are read
  --readouts.knn.k 20           one option of one readout
  --readouts.probe null         leave one out
trainer
  --trainer.max_epochs 200      length
  --trainer.precision bf16-mixed   for GPUs
  --trainer.devices 4           GPUs; see also --config overlays/ddp
  --trainer.logger.save_dir PATH   where runs lie
more
  --model.help CLASS, --data.help CLASS   options of a class
  --help-all                    every option there is, which fills some pages"""


def command_page(command: str) -> str:
    """Return the page of a command of the trainer.

    Args:
        command: ``fit``, ``validate``, ``test``, ``predict`` or ``negatives``.
    """
    parts = [f"usage: mmcl {command} --config RECIPE [options]", _PURPOSES[command]]
    own = _PICTURE if command == "negatives" else ""
    return "\n\n".join([*parts, _EXAMPLES[command], own + _OPTIONS])


def overview(purposes: dict[str, str]) -> str:
    """Return what there is, for somebody who sees it for the first time.

    Args:
        purposes: What each command is for, by its name.
    """
    return "\n".join(
        [
            "Max-margin contrastive pretraining: train, judge and look at it, by YAML recipes.",
            "",
            "usage: mmcl COMMAND [options]",
            "",
            *(f"  {name:<11}{purpose}" for name, purpose in purposes.items()),
            "",
            "Start with      mmcl fit --config quickstart",
            "All recipes     mmcl recipes",
            "Your own photos mmcl fit --config folder_mmcl_log --data.root PATH",
            "",
            "PATH holds train/CLASS/... and test/CLASS/..., or CLASS/..., or images alone.",
            "mmcl COMMAND --help lists the options of a command; mmcl --version.",
        ]
    )
