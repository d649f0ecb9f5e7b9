"""Image operations: bilinear warps, deskewing, and random augmentation."""
