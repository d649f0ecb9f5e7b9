"""`python -m rknn_jax`: the command `rknn`."""

from rknn_jax.cli.main import command

if __name__ == "__main__":
    command()
