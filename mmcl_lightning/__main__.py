"""``python -m mmcl_lightning``: the same as ``mmcl`` and ``python cli.py``."""

from mmcl_lightning.cli import main

if __name__ == "__main__":
    main()
