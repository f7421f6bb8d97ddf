# SPDX-License-Identifier: GPL-2.0-only
"""`python -m wakescope`."""

from .cli import main

main()
