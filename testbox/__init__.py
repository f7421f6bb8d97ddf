# SPDX-License-Identifier: GPL-2.0-only
"""Real kernels with SMT, several LLCs and NUMA, booted in QEMU over the host's own file system."""
