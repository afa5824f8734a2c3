#!/bin/sh
# Plants each fault of this folder in a copy of the last commit, and says whether the simulated runs find it.
#
#   lab/faults/run.sh [PATTERN] [RUNS]
#
# Exit status: 0 where all are found. The copy and its build lie below target/faults.
set -u
root=$(git -C "$(dirname "$0")" rev-parse --show-toplevel)
pattern=${1:-}
runs=${2:-1000}
copy=$root/target/faults/copy
export CARGO_TARGET_DIR="$root/target/faults/build"
git -C "$root" worktree remove --force "$copy" 2>/dev/null
git -C "$root" worktree add --quiet --detach "$copy" HEAD || exit 2
trap 'git -C "$root" worktree remove --force "$copy"' EXIT

# Builds the copy and simulates; the output goes to target/faults/NAME.txt.
simulate() {
    (cd "$copy" && cargo build --quiet --locked -p profiler-lab --bin whole) || return 2
    out=$root/target/faults/$1.txt
    "$CARGO_TARGET_DIR/debug/whole" --named >"$out" 2>&1
    named=$?
    "$CARGO_TARGET_DIR/debug/whole" --runs "$runs" >>"$out" 2>&1 && return $named
    return 1
}

simulate none || { echo "without a fault the runs fail: see target/faults/none.txt"; exit 2; }
missed=0
for patch in "$root"/lab/faults/*$pattern*.patch; do
    name=$(basename "$patch" .patch)
    git -C "$copy" apply "$patch" || exit 2
    simulate "$name"
    case $? in
    0) echo "MISSED  $name"; missed=$((missed + 1)) ;;
    1) echo "found   $name: $(grep -c '(seed' "$root/target/faults/$name.txt") runs, e.g. $(grep -m1 '^    [0-9]' "$root/target/faults/$name.txt" | cut -c5-140)" ;;
    *) echo "does not build: $name"; exit 2 ;;
    esac
    git -C "$copy" checkout --quiet -- .
done
[ "$missed" = 0 ]
