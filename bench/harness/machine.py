# SPDX-License-Identifier: Apache-2.0
"""What a figure must name: processor, source, date."""

import datetime
import pathlib
import subprocess


def cpu_brand():
    for line in pathlib.Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return "unknown processor"


def commit():
    """The short commit, with a + where the tree differs from it."""
    root = pathlib.Path(__file__).parent

    def git(*arguments):
        return subprocess.run(
            ["git", *arguments], cwd=root, capture_output=True, text=True, check=True
        ).stdout.strip()

    return git("rev-parse", "--short", "HEAD") + ("+" if git("status", "--porcelain") else "")


def date():
    return datetime.date.today().isoformat()
