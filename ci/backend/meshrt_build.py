"""Builds meshrt: setuptools, with a C compiler for the compiled core (meshrt/mesh/wires/core.c).

The compiler is the machine's own. Where there is none that works, the package index has one, in the package ziglang
(100 MB): it is asked for then, for the time of the build. Where it has none for the machine either, and where
MESHRT_CORE=numpy, meshrt is installed without the core, and NumPy does its work. `meshrt doctor` says which it is.
"""

import os
import platform
import runpy
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import warnings
from contextlib import suppress
from pathlib import Path
from typing import Any

from setuptools import build_meta
from setuptools.build_meta import (  # noqa: F401
    build_sdist,
    get_requires_for_build_sdist,
    prepare_metadata_for_build_editable,
    prepare_metadata_for_build_wheel,
)

SHIPPED = "ziglang>=0.13"
# Python code for the machine that runs it: what a wheel is built with may be another.
ZIG = [sys.executable, "-m", "ziglang", "cc", "-mcpu=baseline"]
PROBE = b"#include <stdint.h>\n#include <stdlib.h>\nint64_t probe(void) { return 0; }\n"

Settings = dict[str, Any] | None

warnings.filterwarnings("ignore", r"`\[tool\.setuptools\.ext-modules\]`")  # that it is experimental


def get_requires_for_build_wheel(config_settings: Settings = None) -> list[str]:
    return [*build_meta.get_requires_for_build_wheel(config_settings), *_shipped()]


def get_requires_for_build_editable(config_settings: Settings = None) -> list[str]:
    return [*build_meta.get_requires_for_build_editable(config_settings), *_shipped()]


def build_wheel(wheel_directory: str, config_settings: Settings = None, metadata_directory: str | None = None) -> str:
    _choose_compiler()
    _name_sources()
    return build_meta.build_wheel(wheel_directory, config_settings, metadata_directory)


def build_editable(
    wheel_directory: str, config_settings: Settings = None, metadata_directory: str | None = None
) -> str:
    _choose_compiler()
    _name_sources()
    # A line with the checkout's path. The other way is a module that each start of Python imports, and it takes longer
    # than Python itself. setuptools warns that it may not have this for ever; where it refuses it, the other will do.
    settings = {"editable_mode": "compat", **(config_settings or {})}
    with suppress(SystemExit), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Compat editable installs")
        return build_meta.build_editable(wheel_directory, settings, metadata_directory)
    return build_meta.build_editable(wheel_directory, config_settings, metadata_directory)


def _shipped() -> list[str]:
    """What to ask the package index for."""
    wanted = os.environ.get("MESHRT_CORE") != "numpy" and _own_compiler() is None
    is_known = platform.system() in ("Linux", "Darwin") and platform.machine() in ("x86_64", "aarch64", "arm64")
    return [SHIPPED] if wanted and is_known else []


def _choose_compiler() -> None:
    """Have setuptools call it. Without any, the extension, which is optional, is left out."""
    own = _own_compiler()
    compiler = ZIG if own is None else own
    if os.environ.get("MESHRT_CORE") == "numpy":
        compiler = ["false"]
    os.environ["CC"] = shlex.join(compiler)
    if own is None:
        os.environ["LDSHARED"] = shlex.join([*compiler, "-shared"])


def _name_sources() -> None:
    """Have the core know what it was built of: one that is older than its checkout is told by that."""
    number = runpy.run_path("meshrt/sources.py")["checksum"](Path("meshrt"))
    os.environ["CPPFLAGS"] = f"{os.environ.get('CPPFLAGS', '')} -DMESHRT_SOURCES={number}".strip()


def _own_compiler() -> list[str] | None:
    """A C compiler of this machine that compiles."""
    for command in (os.environ.get("CC"), sysconfig.get_config_var("CC"), "cc", "gcc", "clang"):
        words = shlex.split(command or "")
        if words and shutil.which(words[0]) and _compiles(words):
            return words
    return None


def _compiles(compiler: list[str]) -> bool:
    with tempfile.TemporaryDirectory() as folder:
        argv = [*compiler, "-shared", "-fPIC", "-x", "c", "-", "-o", os.path.join(folder, "probe.so")]
        return subprocess.run(argv, input=PROBE, capture_output=True).returncode == 0
