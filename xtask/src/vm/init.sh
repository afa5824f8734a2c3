#!/bin/busybox sh
# The guest's first process: mounts what a Debian system has, runs the steps, and powers off.
# Protocol, on the second serial line: lines that begin with "@@tithe ".
B=/bin/busybox
$B mkdir -p /proc /sys /dev /run /tmp /vm/bin /cores
$B mount -t proc proc /proc
$B mount -t sysfs sysfs /sys
$B mount -t devtmpfs devtmpfs /dev
$B mkdir -p /dev/pts /dev/shm
$B mount -t devpts devpts /dev/pts
$B mount -t tmpfs tmpfs /dev/shm
$B mount -t tracefs tracefs /sys/kernel/tracing
$B mount -t securityfs securityfs /sys/kernel/security
$B mount -t bpf bpf /sys/fs/bpf
$B mount -t cgroup2 cgroup2 /sys/fs/cgroup
$B chmod 1777 /tmp /dev/shm
$B --install -s /vm/bin
export PATH=/usr/local/bin:/usr/bin:/usr/sbin:/vm/bin HOME=/root TERM=dumb TMPDIR=/tmp
exec </dev/null >/dev/ttyS1 2>&1
stty -onlcr raw 2>/dev/null </dev/ttyS1
hostname tithe-vm
ip link set lo up
echo '/cores/%e.%p' >/proc/sys/kernel/core_pattern
ulimit -c unlimited
ulimit -n 65536
echo '+cpu +memory' >/sys/fs/cgroup/cgroup.subtree_control

now() { cut -d' ' -f1 /proc/uptime; }
since() { awk -v from="$1" '{ printf "%.1f", $1 - from }' /proc/uptime; }
begin() { step=$1; echo "@@tithe begin $1"; }
end() { echo 0 >/sys/kernel/rcu_expedited; echo "@@tithe end $1"; }

# What was there from the start: the target folder may lie below it.
brought=" $(ls -A /tmp | tr '\n' ' ') "
# Ends all that a test left behind. This is the first process: the signal goes to all others, and to nothing outside the guest.
clean() {
    local left
    kill -9 -1 2>/dev/null; wait
    for left in $(ls -A /tmp); do
        case "$brought" in *" $left "*) ;; *) rm -rf "/tmp/$left" ;; esac
    done
}

# verdict NAME STATUS SECONDS: says how the command ended whose output is in /out.
verdict() {
    local word=failed reason= skip cores
    skip=$(sed -n 's/^.*SKIP [^:]*: //p' /out | head -1)
    if [ "$2" = 0 ]; then
        word=passed
        if [ -n "$skip" ]; then word=skipped; reason=$skip
        elif grep -q '^test result: .* 1 ignored' /out; then word=skipped; reason='it is ignored by default'
        elif grep -q '^test result: .* 0 passed' /out; then word=failed; reason='it ran no test'
        fi
    elif [ "$2" = 137 ]; then reason="ended after $LIMIT s"
    else reason="status $2"
    fi
    # Nothing here may die of a fault, whatever its test says.
    cores=$(ls /cores | tr '\n' ' ')
    if [ -n "$cores" ]; then word=failed; reason="cores: $cores"; rm -f /cores/*; fi
    sed 's/^/  /' /out
    echo "@@tithe $word $1 $3 $reason"
}

# run NAME COMMAND...: one test.
run() {
    local name=$1 from status; shift
    from=$(now)
    setsid timeout -s KILL "$LIMIT" "$@" </dev/null >/out 2>&1
    status=$?
    verdict "$name" $status "$(since "$from")"
    clean
}

command() { cd /tmp; run "$1" sh -c "$2"; }

# tests BINARY FILTER FILTER
tests() {
    # Without links of many sites each of 20,000 uprobes waits for grace periods when it is closed: short ones there.
    [ "$step" != forms ] || echo 1 >/sys/kernel/rcu_expedited
    cd "$CARGO_MANIFEST_DIR"
    for name in $("$1" --list 2>/dev/null | sed -n 's/: test$//p' | grep -F -- "$2" | grep -F -- "$3"); do
        run "$name" "$1" --exact "$name" --test-threads=1
    done
}

echo "@@tithe start $(uname -r)"
. /vm/steps.sh
echo "@@tithe done"
poweroff -f
