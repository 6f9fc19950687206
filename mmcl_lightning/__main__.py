"""``python -m mmcl_lightning``: the same as ``mmcl`` and ``python cli.py``."""

if __name__ == "__main__":  # a worker that is spawned imports this file too
    from mmcl_lightning.cli import main

    main()
