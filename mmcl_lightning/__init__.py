"""Max-margin contrastive pretraining in PyTorch Lightning."""

__version__ = "0.1.0"
