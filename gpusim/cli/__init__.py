"""The command `gpusim`: show, render, serve and drive a simulated node."""

try:
    from gpusim.cli.main import main
except KeyboardInterrupt:  # Ctrl-C while modules are still being imported, which `main` cannot catch
    raise SystemExit(130) from None
except ModuleNotFoundError as absent:
    from gpusim.cli.extras import remedy

    said = remedy(absent)
    if said is None:
        raise
    raise SystemExit(said) from None

__all__ = ["main"]
