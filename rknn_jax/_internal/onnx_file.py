"""ONNX file of a JAX function of a batch, for programs that know neither JAX nor this package.

The function is traced for a batch of any size, and each operation of the trace becomes one or two
nodes of an ONNX graph. ONNX repeats dimensions of size 1 by itself, so that nothing is repeated
along the batch.

Operations are those of the students' networks. Another one is refused by name.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.extend
import numpy as np
from jax import export

from rknn_jax._internal.extras import install
from rknn_jax._internal.option_names import option

OPSET = 18
IR_VERSION = 10
"""Versions of ONNX that onnxruntime 1.20 reads."""

INPUT = "records"
OUTPUT = "probability"

ELEMENTWISE = {
    "add": "Add",
    "sub": "Sub",
    "mul": "Mul",
    "div": "Div",
    "max": "Max",
    "min": "Min",
    "exp": "Exp",
    "log": "Log",
    "tanh": "Tanh",
    "sqrt": "Sqrt",
    "ge": "GreaterOrEqual",
    "gt": "Greater",
    "stop_gradient": "Identity",
}
"""ONNX operation of each operation of JAX that takes and gives values one by one."""

REDUCTIONS = {"reduce_sum": "ReduceSum", "reduce_max": "ReduceMax"}

INLINED = ("jit", "custom_jvp_call", "custom_vjp_call")
"""Operations that call a function, by the names that JAX gives them."""


def onnx_bytes(
    function: Callable[[jax.Array], jax.Array],
    shape: tuple[int, ...],
    dtype: Any,
    metadata: dict[str, str],
) -> bytes:
    """Return an ONNX model of a function of a batch.

    Args:
      function: Function of one record, to a vector.
      shape: Shape of a record.
      dtype: Type of its numbers.
      metadata: Text that the file carries, by name.

    Returns:
      Model from `records` `[n, *shape]` to `probability` `[n, num_classes]`, for any n.

    Raises:
      ValueError: If onnx is not installed, or the function has an operation that is not known here.
    """
    try:
        import onnx
    except ImportError as error:
        raise ValueError(f"{option('format')} onnx needs onnx: {install('onnx')}.") from error
    (n,) = export.symbolic_shape("n")
    traced = jax.make_jaxpr(jax.vmap(function))(jax.ShapeDtypeStruct((n, *shape), dtype))
    graph = _Graph(onnx)
    graph.values[traced.jaxpr.invars[0]] = INPUT
    [found] = graph.run(traced.jaxpr, traced.consts)
    graph.node("Identity", [found], OUTPUT)
    [result] = traced.out_avals
    kind = onnx.helper.np_dtype_to_tensor_dtype
    ends = [
        onnx.helper.make_tensor_value_info(name, kind(np.dtype(one)), ["n", *sizes])
        for name, one, sizes in ((INPUT, dtype, shape), (OUTPUT, result.dtype, result.shape[1:]))
    ]
    made = onnx.helper.make_graph(
        graph.nodes, "student", ends[:1], ends[1:], initializer=graph.constants
    )
    model = onnx.helper.make_model(
        made,
        producer_name="rknn_jax",
        ir_version=IR_VERSION,
        opset_imports=[onnx.helper.make_opsetid("", OPSET)],
    )
    onnx.helper.set_model_props(model, metadata)
    onnx.checker.check_model(model)
    return bytes(model.SerializeToString())


class _Graph:
    """ONNX graph that grows by the operations of a trace.

    Attributes:
      values: Name of each variable, or its array if it is a constant.
      nodes: Nodes of the graph.
      constants: Its constants.
    """

    def __init__(self, onnx: Any) -> None:
        self._onnx = onnx
        self.values: dict[Any, str | np.ndarray] = {}
        self.nodes: list[Any] = []
        self.constants: list[Any] = []

    def run(self, jaxpr: Any, constants: Sequence[Any]) -> list[str | np.ndarray]:
        """Add the operations of a trace whose inputs have values, and return its outputs."""
        constants = [np.asarray(one) for one in constants]
        self.values |= dict(zip(jaxpr.constvars, constants, strict=True))
        for equation in jaxpr.eqns:
            given = [self._value(one) for one in equation.invars]
            for variable, value in zip(equation.outvars, self._apply(equation, given), strict=True):
                self.values[variable] = value
        return [self._value(one) for one in jaxpr.outvars]

    def node(
        self, kind: str, given: Sequence[str | np.ndarray], name: str | None = None, **fields: Any
    ) -> str:
        """Add a node, and return the name of its value."""
        name = name or f"{kind.lower()}_{len(self.nodes)}"
        names = [self._constant(one) if isinstance(one, np.ndarray) else one for one in given]
        self.nodes.append(self._onnx.helper.make_node(kind, names, [name], name, **fields))
        return name

    def _value(self, variable: Any) -> str | np.ndarray:
        if isinstance(variable, jax.extend.core.Literal):
            aval: Any = variable.aval
            return np.asarray(variable.val, aval.dtype)
        return self.values[variable]

    def _constant(self, array: np.ndarray) -> str:
        name = f"constant_{len(self.constants)}"
        self.constants.append(self._onnx.numpy_helper.from_array(np.ascontiguousarray(array), name))
        return name

    def _apply(self, equation: Any, given: list[Any]) -> list[str | np.ndarray]:
        """Return the values of an operation's outputs."""
        name = equation.primitive.name
        fields = equation.params
        if name in INLINED:
            inner = fields.get("jaxpr") or fields["call_jaxpr"]
            return self._call(inner, given)
        if name == "platform_index":  # the form of the code for any other platform
            return [np.asarray(fields["platforms"].index(None))]
        if name == "cond" and isinstance(given[0], np.ndarray):
            return self._call(fields["branches"][int(given[0])], given[1:])
        [result] = equation.outvars
        if name in ELEMENTWISE:
            return [self.node(ELEMENTWISE[name], given)]
        if name in REDUCTIONS:
            axes = np.asarray(fields["axes"], np.int64)
            return [self.node(REDUCTIONS[name], [*given, axes], keepdims=0)]
        if name in ("reshape", "squeeze"):
            return [self._reshaped(given[0], result.aval.shape)]
        form = getattr(self, f"_{name}", None)
        if form is None:
            raise ValueError(
                f"Expected a network of known operations, got {name}; export it with "
                f"{option('format')} stablehlo."
            )
        return [form(given, fields, equation)]

    def _call(self, closed: Any, given: list[Any]) -> list[str | np.ndarray]:
        self.values |= dict(zip(closed.jaxpr.invars, given, strict=True))
        return self.run(closed.jaxpr, closed.consts)

    def _reshaped(self, value: Any, shape: Sequence[Any]) -> str:
        sizes = [size if isinstance(size, int) else -1 for size in shape]
        return self.node("Reshape", [value, np.asarray(sizes, np.int64)])

    def _rsqrt(self, given: list[Any], fields: Any, equation: Any) -> str:
        return self.node("Reciprocal", [self.node("Sqrt", given)])

    def _select_n(self, given: list[Any], fields: Any, equation: Any) -> str:
        which, if_false, if_true = given
        return self.node("Where", [which, if_true, if_false])

    def _convert_element_type(self, given: list[Any], fields: Any, equation: Any) -> str:
        kind = self._onnx.helper.np_dtype_to_tensor_dtype(np.dtype(fields["new_dtype"]))
        return self.node("Cast", given, to=kind)

    def _broadcast_in_dim(self, given: list[Any], fields: Any, equation: Any) -> str:
        """Give the value dimensions of size 1, and repeat it along all but the batch."""
        before = equation.invars[0].aval.shape
        after: list[Any] = [1] * len(fields["shape"])
        for place, size in zip(fields["broadcast_dimensions"], before, strict=True):
            after[place] = size
        value = self._reshaped(given[0], after)
        sizes = [size if isinstance(size, int) else 1 for size in fields["shape"]]
        if all(size in (1, own) for size, own in zip(sizes, after, strict=True)):
            return value
        return self.node("Expand", [value, np.asarray(sizes, np.int64)])

    def _transpose(self, given: list[Any], fields: Any, equation: Any) -> str:
        return self.node("Transpose", given, perm=[int(one) for one in fields["permutation"]])

    def _concatenate(self, given: list[Any], fields: Any, equation: Any) -> str:
        return self.node("Concat", given, axis=fields["dimension"])

    def _stack(self, given: list[Any], fields: Any, equation: Any) -> str:
        axis = fields["axis"]
        [result] = equation.outvars
        alone = [1 if place == axis else size for place, size in enumerate(result.aval.shape)]
        return self.node("Concat", [self._reshaped(one, alone) for one in given], axis=axis)

    def _slice(self, given: list[Any], fields: Any, equation: Any) -> str:
        starts, stops = fields["start_indices"], fields["limit_indices"]
        last = [stop if isinstance(stop, int) else np.iinfo(np.int64).max for stop in stops]
        steps = fields["strides"] or [1] * len(starts)
        bounds = [np.asarray(each, np.int64) for each in (starts, last, range(len(starts)), steps)]
        return self.node("Slice", [given[0], *bounds])

    def _pad(self, given: list[Any], fields: Any, equation: Any) -> str:
        low, high, between = zip(*fields["padding_config"], strict=True)
        if any(between):
            raise ValueError(
                "Expected padding around arrays, got some between their values; export it with "
                f"{option('format')} stablehlo."
            )
        return self.node("Pad", [given[0], np.asarray([*low, *high], np.int64), given[1]])

    def _dot_general(self, given: list[Any], fields: Any, equation: Any) -> str:
        (left, right), (left_batch, right_batch) = fields["dimension_numbers"]
        letters = iter("abcdefghijklmnopqrstuvwxyz")
        first = [next(letters) for _ in equation.invars[0].aval.shape]
        second = [next(letters) for _ in equation.invars[1].aval.shape]
        shared = (*zip(left_batch, right_batch, strict=True), *zip(left, right, strict=True))
        for own, other in shared:
            second[other] = first[own]
        batch = [first[place] for place in left_batch]
        summed = [first[place] for place in left]
        rest = [one for one in (*first, *second) if one not in batch and one not in summed]
        terms = f"{''.join(first)},{''.join(second)}->{''.join([*batch, *rest])}"
        return self.node("Einsum", given, equation=terms)

    def _conv_general_dilated(self, given: list[Any], fields: Any, equation: Any) -> str:
        """Move channels to the place where ONNX has them, convolve, and move them back."""
        spec = fields["dimension_numbers"]
        if math.prod(fields["lhs_dilation"]) != 1 or fields["batch_group_count"] != 1:
            raise ValueError(
                "Expected plain convolutions, got a transposed one; export it with "
                f"{option('format')} stablehlo."
            )
        images = self.node("Transpose", given[:1], perm=list(spec.lhs_spec))
        if isinstance(given[1], np.ndarray):
            kernel: Any = np.transpose(given[1], spec.rhs_spec)
        else:
            kernel = self.node("Transpose", given[1:], perm=list(spec.rhs_spec))
        low, high = zip(*fields["padding"], strict=True)
        made = self.node(
            "Conv",
            [images, kernel],
            strides=list(fields["window_strides"]),
            pads=[*low, *high],
            dilations=list(fields["rhs_dilation"]),
            group=fields["feature_group_count"],
        )
        return self.node("Transpose", [made], perm=np.argsort(spec.out_spec).tolist())
