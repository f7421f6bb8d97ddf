# SPDX-License-Identifier: GPL-2.0-only
"""What touches a live kernel: the probes, their loaders, the rings, the recorder and the doctor."""
