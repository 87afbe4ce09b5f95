"""Compiles the C++ libraries when Tandem is installed; pyproject.toml has everything else.

An editable install is for this machine; a wheel may be carried to another one.
"""

import sys
from pathlib import Path

from setuptools import Command, Distribution, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build import build

ROOT = Path(__file__).parent
# Build backends run in the project's folder, but do not import from it.
sys.path.insert(0, str(ROOT))

from native.build import build as build_libraries  # noqa: E402
from native.build import sources  # noqa: E402


class BuildNative(Command):
    """A step of `build`. It fails for nothing: who has no compiler installs Tandem without."""

    editable_mode = False

    def initialize_options(self) -> None:
        self.build_lib: str | None = None

    def finalize_options(self) -> None:
        self.set_undefined_options("build_py", ("build_lib", "build_lib"))

    def run(self) -> None:
        place = ROOT if self.editable_mode else Path(self.build_lib or "")
        is_portable = not self.editable_mode
        self._built = build_libraries(
            sources(ROOT), place / "native" / "built", is_portable=is_portable
        )
        self.warn(self._built.line())

    def get_source_files(self) -> list[str]:
        return [str(path.relative_to(ROOT)) for path in sources(ROOT)]

    def get_outputs(self) -> list[str]:
        return [str(path) for path in self._built.libraries]

    def get_output_mapping(self) -> dict[str, str]:
        return {}


class PlatformDistribution(Distribution):
    """Of one platform, since its libraries are."""

    def has_ext_modules(self) -> bool:
        return True


class PlatformWheel(bdist_wheel):
    """Of any Python, since its libraries know none."""

    def get_tag(self) -> tuple[str, str, str]:
        return "py3", "none", super().get_tag()[2]


build.sub_commands.append(("build_native", None))
setup(
    cmdclass={"build_native": BuildNative, "bdist_wheel": PlatformWheel},
    distclass=PlatformDistribution,
)
