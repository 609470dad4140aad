"""A page in a real browser."""

import shutil
import subprocess
from pathlib import Path

import pytest


def dom(address: str, folder: Path, *options: str) -> str:
    """Show a page in Chromium, whose profile is in `folder`; return its elements once its scripts have run.

    Fails if the page reports an error; skips the test where there is no Chromium.
    """
    browser = shutil.which("chromium") or shutil.which("chromium-browser")
    if browser is None:
        pytest.skip("there is no chromium")
    command = [browser, "--headless=new", "--no-sandbox", "--disable-gpu", "--enable-logging=stderr", "--dump-dom"]
    command += [*options, f"--user-data-dir={folder / 'profile'}", address]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    assert "CONSOLE" not in done.stderr, done.stderr
    return done.stdout
