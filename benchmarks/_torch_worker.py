"""PyTorch's side of `benchmarks.first_calls`, in the interpreter that has torch installed.

The first line of input names a file of weights, images and labels. One line of JSON comes out, with
the clipped sum of the gradients. Every further line has the CPU seconds of one more sum come out.
"""

import json
import sys
import time

import numpy as np
import torch
from torch import nn
from torch.func import functional_call, grad, vmap


class TanhCNN(nn.Module):
    """The network of `rknn_jax.students.models.tanh_cnn`."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, 16, 8, 2, padding=3)
        self.conv2 = nn.Conv2d(16, 32, 4, 2)
        self.pool = nn.MaxPool2d(2, 1)
        self.dense = nn.Linear(512, 32)
        self.head = nn.Linear(32, 10)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Return logits of images `[n, 1, 28, 28]`, whose values are in [-1, 1]."""
        x = self.pool(torch.tanh(self.conv1(images)))
        x = self.pool(torch.tanh(self.conv2(x)))
        return self.head(torch.tanh(self.dense(x.flatten(1))))


def weights_of(file: dict[str, np.ndarray]) -> dict[str, torch.Tensor]:
    """Return torch's weights, from those of patches, rows before columns, and of channels last."""
    conv1 = file["conv1.kernel"].reshape(4, 4, 2, 2, 1, 16)
    conv2 = file["conv2.kernel"].reshape(2, 2, 2, 2, 16, 32)
    found = {
        "conv1.weight": conv1.transpose(5, 4, 0, 2, 1, 3).reshape(16, 1, 8, 8),
        "conv2.weight": conv2.transpose(5, 4, 0, 2, 1, 3).reshape(32, 16, 4, 4),
        "dense.weight": file["Dense_0.kernel"].reshape(4, 4, 32, 32).transpose(3, 2, 0, 1),
        "head.weight": file["Dense_1.kernel"].T,
        "conv1.bias": file["conv1.bias"],
        "conv2.bias": file["conv2.bias"],
        "dense.bias": file["Dense_0.bias"],
        "head.bias": file["Dense_1.bias"],
    }
    found["dense.weight"] = found["dense.weight"].reshape(32, 512)
    return {name: torch.tensor(np.ascontiguousarray(leaf)) for name, leaf in found.items()}


def main() -> None:
    """Answer every line."""
    torch.set_num_threads(1)
    file = dict(np.load(sys.stdin.readline().strip()))
    network = TanhCNN()
    weights = weights_of(file)
    pixels = torch.tensor(2 * (file["images"].astype(np.float32) / 255 - 0.5))
    images = pixels.permute(0, 3, 1, 2).contiguous()
    labels = torch.tensor(file["labels"].astype(np.int64))

    def loss(weights: dict, image: torch.Tensor, label: torch.Tensor) -> torch.Tensor:
        logits = functional_call(network, weights, (image[None],))
        return nn.functional.cross_entropy(logits, label[None])

    each = vmap(grad(loss), (None, 0, 0))

    def clipped_sum() -> dict[str, torch.Tensor]:
        gradients = each(weights, images, labels)
        squares = sum((leaf.flatten(1) ** 2).sum(1) for leaf in gradients.values())
        scale = torch.clamp(1 / torch.sqrt(squares), max=1.0)
        return {n: torch.einsum("n...,n->...", g, scale) for n, g in gradients.items()}

    found = clipped_sum()
    told = {name: float((leaf.double() ** 2).sum()) for name, leaf in found.items()}
    print(json.dumps({"version": torch.__version__, "squares": told}), flush=True)
    for _ in sys.stdin:
        start = time.process_time()
        clipped_sum()
        print(json.dumps(time.process_time() - start), flush=True)


if __name__ == "__main__":
    main()
