"""Entry point of `flwr run`; everything is in `rknn_jax.federation.flower`."""

from rknn_jax.federation import flower

server = flower.server_app()
client = flower.node_app()
