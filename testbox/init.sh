#!/bin/sh
# SPDX-License-Identifier: GPL-2.0-only
# First process of a box, run by busybox from the initramfs: lay the host's file system, read-only, under a throw-away
# overlay, apply the settings of this run (/box/settings), and hand over to /box/main.sh inside the overlay.
export PATH=/bin

die() { # say on the status port why the box cannot be had, and switch the machine off
    echo "<3>box: $*" > /dev/kmsg # loud enough for a console that is told to be quiet
    echo "error $*" > "$status"
    poweroff -f
}

terminal() { # rows columns: the command talks to the user's terminal
    echo "rows $1 cols $2" > /box/terminal
}

modules_at() { # folder of this kernel's modules in the host's file system, for modprobe
    folder=/new/lib/modules/$(uname -r) # there already where the host has this kernel's headers
    mkdir -p "$folder"
    [ -e "$folder/kernel" ] || ln -s "$1/kernel" "$folder/kernel"
}

share_out() { # /out is a folder of the host, written through
    mount -t 9p -o trans=virtio,version=9p2000.L,msize=262144,access=any out /new/out || die "cannot mount /out"
}

mount -t proc proc /proc
mount -t sysfs sysfs /sys
mount -t devtmpfs devtmpfs /dev
status=/dev/null
while read -r module; do
    insmod "/modules/$module" || echo "<3>box: cannot load $module" > /dev/kmsg
done < /modules/order
for port in /sys/class/virtio-ports/*; do
    [ -e "$port/name" ] || continue
    case $(cat "$port/name") in
        box.status) status=/dev/${port##*/} ;;
        box.stdout) ln -s "/dev/${port##*/}" /box/stdout ;;
        box.stderr) ln -s "/dev/${port##*/}" /box/stderr ;;
    esac
done
ln -s "$status" /box/status

mount -t 9p -o ro,trans=virtio,version=9p2000.L,msize=262144,cache=loose,access=any root /lower ||
    die "cannot mount the host's file system: the kernel needs 9p over virtio"
mount -t tmpfs -o size=75% tmpfs /upper
mkdir /upper/files /upper/work
mount -t overlay -o lowerdir=/lower,upperdir=/upper/files,workdir=/upper/work overlay /new ||
    die "cannot mount an overlay: the kernel needs overlayfs"
for folder in proc sys dev run tmp out; do [ -d /new/$folder ] || mkdir /new/$folder; done
mount -t tmpfs -o mode=755 tmpfs /new/run
mount -t debugfs debugfs /sys/kernel/debug
mount -t tracefs tracefs /sys/kernel/tracing
mount -t bpf bpf /sys/fs/bpf
mount -t cgroup2 cgroup2 /sys/fs/cgroup
mkdir -p /dev/pts /dev/shm
mount -t devpts -o ptmxmode=666 devpts /dev/pts
mount -t tmpfs -o mode=1777 tmpfs /dev/shm
[ -e /dev/fd ] || ln -s /proc/self/fd /dev/fd
ip link set lo up
hostname box

. /box/settings.sh
. /box/settings
for folder in proc sys dev; do mount -o move /$folder /new/$folder; done
cp -a /box /new/run/box
cp /bin/busybox /new/run/box/busybox
exec switch_root /new /bin/sh /run/box/main.sh
