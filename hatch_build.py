"""Build hook: compile the native kernels; the wheel has `train/` as `rknn_jax.experiments`.

The native kernels are optional. Each file of `rknn_jax/kernels/native/` goes into one library for
each kind of processor, x86-64 with AVX-512 or with AVX2. Another machine, one without a C++
compiler, and `RKNN_NATIVE=0` get none of them, and XLA does the work. `CXX` names the compiler and
its options; `make dist` compiles against an old C library so, for the wheel of an index.
"""

import os
import subprocess
import sysconfig
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

NATIVE = Path("rknn_jax/kernels/native")
OPTIONS = (
    *("-std=c++17", "-O3", "-fPIC", "-shared", "-fvisibility=hidden", "-ffp-contract=fast"),
    "-Wl,-s",  # without symbols for a debugger, which clang writes into libraries of 9 MB
)
AVX2 = ("-mavx2", "-mfma", "-mbmi2", "-mpopcnt", "-mtune=haswell")
AVX512 = ("-mavx512f", "-mavx512bw", "-mavx512dq", "-mavx512vl", "-mavx512vnni")
PROCESSORS: dict[str, tuple[str, ...]] = {
    "avx512": (*AVX2, *AVX512, "-mprefer-vector-width=512"),
    "avx2": AVX2,
}


class Hook(BuildHookInterface):
    """Compile in the source tree. An editable installation runs everything where it is."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Add the programs and the libraries to the files of the wheel."""
        if version == "standard":
            build_data["force_include"]["train"] = "rknn_jax/experiments"
        libraries = self._libraries()
        if libraries:
            platform = sysconfig.get_platform().replace("-", "_").replace(".", "_")
            build_data["pure_python"] = False
            build_data["tag"] = f"py3-none-{platform}"
            build_data["artifacts"] += [str(path) for path in libraries]

    def _libraries(self) -> list[Path]:
        """Compile the libraries, and return their paths."""
        for old in Path(self.root, NATIVE).glob("*.so"):
            old.unlink()
        if os.environ.get("RKNN_NATIVE") == "0":
            return []
        paths = [NATIVE / f"{name}.so" for name in PROCESSORS]
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            compiled = pool.map(self._compiles, paths, PROCESSORS.values())
        return [path for path, done in zip(paths, compiled, strict=True) if done]

    def _compiles(self, path: Path, options: tuple[str, ...]) -> bool:
        """Compile one library. Returns False, with a warning, if the compiler fails."""
        import jaxlib  # type: ignore[import-not-found]  # the build's own, for its headers

        headers = Path(jaxlib.__file__).parent / "include"
        sources = sorted(str(source) for source in Path(self.root, NATIVE).glob("*.cc"))
        compiler = os.environ.get("CXX", "c++").split()
        command = [*compiler, *OPTIONS, *options, f"-isystem{headers}"]
        partial = Path(self.root, path).with_suffix(".partial")
        try:
            subprocess.run(
                [*command, *sources, "-o", str(partial)], check=True, capture_output=True, text=True
            )
        except (OSError, subprocess.CalledProcessError) as error:
            said = getattr(error, "stderr", None) or str(error)
            self.app.display_warning(f"{path.name} is left out: {said.splitlines()[0]}")
            return False
        partial.replace(Path(self.root, path))
        return True
