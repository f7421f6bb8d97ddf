# SPDX-License-Identifier: GPL-2.0-only
# What a box may be asked to set before its command runs; die is the caller's.

sysctl_set() { # key value
    echo "$2" > "/proc/sys/$(echo "$1" | tr . /)" || die "sysctl $1=$2: the kernel has no such setting or refuses the value"
}

feature_set() { # NAME or NO_NAME
    features=/sys/kernel/debug/sched/features
    [ -e $features ] || features=/sys/kernel/debug/sched_features # before v5.13
    echo "$1" > $features || die "scheduler feature $1: this kernel has no such feature; it has $(cat $features)"
}

cpu_offline() { # number
    echo 0 > "/sys/devices/system/cpu/cpu$1/online" || die "CPU $1 cannot be taken offline on this kernel"
}
