"""The form all subcommands share: examples below the flags, no abbreviations, heavy modules loaded late."""

from __future__ import annotations

import argparse
import importlib
import textwrap
from typing import Any


class Command(argparse.ArgumentParser):
    """A subcommand.

    Args:
        examples: lines shown after the flags.
        description: prose, wrapped here.
        module: where ``add_arguments(parser)`` and ``run(args) -> int`` are, imported when it is used.
        named: whatever `argparse.ArgumentParser` takes.
    """

    def __init__(self, *, description: str, examples: str = "", module: str = "", **named: Any) -> None:
        super().__init__(
            description=textwrap.fill(description, 79),
            allow_abbrev=False,
            formatter_class=argparse.RawDescriptionHelpFormatter,
            epilog=f"examples:\n{examples}" if examples else None,
            **named,
        )
        self.module = module

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """As the base class, once the module has added its flags."""
        if self.module:
            module, self.module = importlib.import_module(self.module), ""
            module.add_arguments(self)
            self.set_defaults(run=module.run)
        return super().parse_known_args(args, namespace)
