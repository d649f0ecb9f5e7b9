"""Networks in ONNX files: reading, digests, sessions, and runs of one record.

A network sees one record a run. onnxruntime chooses its kernels by the size of a batch, so that the
features of a batch are not local to the bit. A session has one thread, whose sums have one order,
and records run side by side on the cores.

A network that draws at random is refused by its nodes: the draws of a record would depend on how
many came before it. A run on some record tells little, because one branch alone may draw. So is one
whose weights are in other files: its digest would not be theirs, and onnxruntime would take them
from the folder in which the program runs.

onnxruntime's official builds send Microsoft the number and the time of a session's runs, which are
those of the private records, unless they are told not to before they start.
"""

import hashlib
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from rknn_jax._internal.extras import install
from rknn_jax._internal.one_record import side_by_side

T = TypeVar("T")

DRAWS = {
    "Bernoulli",
    "Multinomial",
    "RandomNormal",
    "RandomNormalLike",
    "RandomUniform",
    "RandomUniformLike",
    "Sampling",
}
"""Operators of ONNX and onnxruntime that draw at random. Dropouts do too while they train."""


def read(path: Path) -> bytes:
    """Return the content of a file.

    Raises:
      ValueError: If there is no file, or it cannot be opened.
    """
    # A device may never end.
    if not path.is_file():
        raise ValueError(f"There is no file {path}; name an ONNX file.")
    try:
        return path.read_bytes()
    except OSError as error:
        raise ValueError(
            f"The network {path} could not be opened: {error.strerror}; name an ONNX file."
        ) from error


def digest(path: Path) -> str:
    """Return the SHA-256 of a file, in hexadecimal; raises as `read`."""
    return hashlib.sha256(read(path)).hexdigest()


def session(path: Path, expected: str) -> Any:
    """Return a session of onnxruntime.

    Args:
      path: ONNX file.
      expected: SHA-256 that it must have.

    Raises:
      ValueError: If onnxruntime or onnx is not installed, or the file is absent, changed, no
        network, not all of it, or one that draws at random.
    """
    data = read(path)
    if hashlib.sha256(data).hexdigest() != expected:
        raise ValueError(
            f"Expected the network {path} as it was, of SHA-256 {expected}, got another file; "
            "restore it, or encode all records anew."
        )
    onnxruntime = _library()
    _check_network(data, path)
    try:
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        options.inter_op_num_threads = 1
        options.enable_cpu_mem_arena = False  # a large record would leave less memory for others
        providers = onnxruntime.get_available_providers()
        return onnxruntime.InferenceSession(data, options, providers=providers)
    except Exception as error:  # onnxruntime raises errors of many types
        raise ValueError(f"Cannot load the network {path}: {error}; export it anew.") from error


def _check_network(data: bytes, path: Path) -> None:
    """Raise ValueError if a network draws at random, in any branch or function, or is not whole."""
    try:
        import onnx
    except ImportError as error:
        raise ValueError(
            f"A pretrained network needs onnx, which is not installed; {install('embed')}."
        ) from error
    try:
        model = onnx.load_from_string(data)
    except Exception as error:  # protobuf raises errors of many types
        raise ValueError(f"Cannot load the network {path}: {error}; export it anew.") from error
    if onnx.TensorProto.EXTERNAL in {one.data_location for one in _parts(model, onnx.TensorProto)}:
        raise ValueError(
            f"Expected a network with its weights in one file, got {path} with weights in others; "
            "save it by onnx.save_model(onnx.load(path), path, save_as_external_data=False)."
        )
    off = {
        one.name
        for one in model.graph.initializer
        if one.data_type == one.BOOL and not onnx.numpy_helper.to_array(one).any()
    }
    inner = [part for node in model.graph.node for part in node.attribute]
    nodes = [(node, off) for node in model.graph.node]
    for part in (*inner, *model.functions):  # a name may be another value there
        nodes += [(node, set()) for node in _parts(part, onnx.NodeProto)]
    for node, known in nodes:
        training = node.input[2:3] if node.op_type.endswith("Dropout") else []
        if node.op_type in DRAWS or any(name and name not in known for name in training):
            raise ValueError(
                f"Expected a network without draws in {path}, got the operator {node.op_type}; one "
                "private record would change the features of others. Export the network for "
                "evaluation."
            )


def _parts(message: Any, kind: type[T]) -> Iterator[T]:
    """Yield the parts of a kind in a protobuf message, wherever they lie."""
    if isinstance(message, kind):
        yield message
    for field, value in message.ListFields():
        if field.message_type is not None:
            for inner in [value] if hasattr(value, "ListFields") else value:
                yield from _parts(inner, kind)


def _library() -> Any:
    """Import onnxruntime, which sends nothing then."""
    os.environ["ORT_DISABLE_TELEMETRY"] = "1"  # it is read once, when the library starts
    try:
        import onnxruntime
    except ImportError as error:
        raise ValueError(
            f"A pretrained network needs onnxruntime, which is not installed; {install('embed')}."
        ) from error
    onnxruntime.disable_telemetry_events()  # if the caller has started it before
    return onnxruntime


def each(
    run: Callable[[Any], np.ndarray],
    records: Sequence[Any],
    width: Callable[[], int],
    largest: Callable[[], Any],
) -> np.ndarray:
    """Return the rows that `run` makes of single records, `[n, f]`, several records at a time.

    A record on which the network fails, or of which it makes another number of features, is a row
    of NaN: an error would tell that it is there.

    Args:
      run: Function of one record.
      records: Records.
      width: Function that returns f. It raises an error if the network fails on every record.
      largest: Function that returns a public record which takes as much memory as any. If the
        network fails on it too, then not for the record's sake.

    Raises:
      MemoryError: If memory is short for a record alone.
    """
    nothing = np.full(width(), np.nan, np.float32)

    def own(_: Any, error: Exception) -> np.ndarray:
        try:
            run(largest())
        except Exception as short:  # onnxruntime raises errors of many types
            raise MemoryError(f"a network failed on a public record too: {short}") from error
        return nothing

    rows = side_by_side(run, records, own)
    return np.stack([nothing if row.shape != nothing.shape else row for row in rows])


def check_repeats(run: Callable[[Any], np.ndarray], record: Any, path: str) -> None:
    """Refuse a network that makes other features of a record the second time.

    Args:
      run: Function of one record.
      record: Public record.
      path: Path or name of the network, for the error.

    Raises:
      ValueError: If a bit of the features differs, or they are not finite.
    """
    once, again = np.asarray(run(record)), np.asarray(run(record))
    if not np.isfinite(once).all() or not np.array_equal(once, again):
        raise ValueError(
            f"Expected finite features from {path} that repeat bit for bit, got others for the "
            "same record a second time; one private record would move the votes of others. Export "
            "the network for evaluation."
        )
