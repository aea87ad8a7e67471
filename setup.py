"""What pyproject.toml cannot say: the fixtures of the checkout lie inside the wheel, as gpusim/_fixtures.

They stand in the repository once, where people look for them; `gpusim.fixture` finds them both ways.
"""

from __future__ import annotations

from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py

FIXTURES = Path("fixtures")
INSIDE = Path("gpusim", "_fixtures")


class BuildPy(build_py):
    """The usual build, and the fixtures with it; an editable install uses those of the checkout."""

    def _fixtures(self) -> dict[str, str]:
        """File in the wheel's tree → file in the checkout."""
        into = Path(self.build_lib) / INSIDE
        return {
            str(into / path.relative_to(FIXTURES)): str(path) for path in sorted(FIXTURES.rglob("*.yaml"))
        }

    def run(self) -> None:
        """Build."""
        super().run()
        for target, source in ({} if self.editable_mode else self._fixtures()).items():
            self.mkpath(str(Path(target).parent))
            self.copy_file(source, target)

    def get_outputs(self, include_bytecode: bool = True) -> list[str]:
        """What a build makes."""
        return [*super().get_outputs(include_bytecode), *({} if self.editable_mode else self._fixtures())]

    def get_output_mapping(self) -> dict[str, str]:
        """What it is made from."""
        return {**super().get_output_mapping(), **({} if self.editable_mode else self._fixtures())}

    def get_source_files(self) -> list[str]:
        """What a source distribution holds."""
        return [*super().get_source_files(), *self._fixtures().values()]


setup(cmdclass={"build_py": BuildPy})
