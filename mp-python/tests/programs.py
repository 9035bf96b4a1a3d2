"""Runs programs of tests, each in an interpreter of its own."""

import subprocess
import sys


def run_command(command, timeout=40, **options):
    """Runs a command. Returns its output, error output and exit code."""
    ran = subprocess.run(command, capture_output=True, text=True, timeout=timeout, **options)
    # Shown if the test fails.
    sys.stderr.write(ran.stderr)
    return ran.stdout, ran.stderr, ran.returncode


def run_program(program, *flags, **options):
    """Runs a program by ``-c``."""
    return run_command([sys.executable, *flags, "-c", program], **options)


def run_script(folder, program, *flags, **options):
    """Runs a program as a script in a folder."""
    (folder / "program.py").write_text(program)
    return run_command([sys.executable, *flags, str(folder / "program.py")], **options)
