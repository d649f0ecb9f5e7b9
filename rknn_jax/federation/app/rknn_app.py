"""Entry point of `flwr run`; everything is in `rknn_jax.federation.simulation`."""

from rknn_jax.federation import simulation

server = simulation.server_app()
client = simulation.client_app()
