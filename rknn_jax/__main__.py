"""`python -m rknn_jax`: the command `rknn`."""

from rknn_jax.cli.main import main

if __name__ == "__main__":
    raise SystemExit(main())
