"""The command `gpusim`: show, render, serve and drive a simulated node."""

from gpusim.cli.main import main

__all__ = ["main"]
