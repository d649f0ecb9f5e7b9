"""Names of the forms of an export, for a command line that has to load nothing else."""

from typing import Literal

Format = Literal[
    "parquet",
    "csv",
    "label-studio",
    "argilla",
    "cleanlab",
    "stablehlo",
    "onnx",
    "safetensors",
    "registry",
]
