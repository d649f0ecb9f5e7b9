"""Build hook: the wheel holds the programs of `train/` as `rknn_jax.experiments`."""

from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class Programs(BuildHookInterface):
    """Copy `train/` into a wheel. An editable installation runs it where it is."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Add the folder to the files of a standard wheel."""
        if version == "standard":
            build_data["force_include"]["train"] = "rknn_jax/experiments"
