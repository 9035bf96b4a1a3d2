"""The command ``mp``, which shows running programs and explains why a program hangs."""

import signal
import sys

from multiproc._multiproc import run_command

__all__ = ["main"]


def main() -> None:
    """Run the command with the arguments of this process."""
    # Ctrl-C ends the command, also during the call into Rust.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    sys.exit(run_command(sys.argv))


if __name__ == "__main__":
    main()
