"""``python cli.py fit --config quickstart.yaml``: the command line from a checkout."""

from mmcl_lightning.cli import main

if __name__ == "__main__":
    main()
