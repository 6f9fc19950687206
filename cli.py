"""``python cli.py fit --config quickstart.yaml``: the command line from a checkout."""

if __name__ == "__main__":  # a worker that is spawned imports this file too
    from mmcl_lightning.cli import main

    main()
