#!/bin/sh
# sh run.sh [machine|conformance|examples|tests]...: without words, all of it. What is printed lies in out/, too.
# Needs a driver for CUDA 11.7 or later, and nothing else. Changes no setting of the GPU.
cd "$(dirname "$0")" || exit 2
mkdir -p out
failed=0

# A program, at most so many seconds.
limited() {
    seconds=$1
    shift
    timeout -k 5 "$seconds" ${MP_RUNNER:+"$MP_RUNNER"} "$@"
}

machine() {
    date -u
    uname -srm
    ldd --version 2>&1 | head -n 1
    echo "descriptors: $(ulimit -n); ptrace_scope: $(cat /proc/sys/kernel/yama/ptrace_scope 2>&1)"
    nvidia-smi --query-gpu=name,driver_version,memory.total --format=csv 2>&1
}

# What the driver answers where the manual leaves it open, beside the simulator.
conformance() {
    limited 60 bin/conformance > out/conformance.txt || return 1
    diff conformance.txt out/conformance.txt && echo "as the simulator"
}

examples() {
    bad=0
    for name in cuda_pipeline cuda_event cuda_broadcast; do
        limited 60 "bin/$name" || { echo "$name: $?"; bad=1; }
    done
    return $bad
}

# Not those of the simulator's own doings: injected failures, counted calls, devices that fall off the bus.
tests() {
    MP_CUDA_AS_IT_IS=1 limited 220 bin/cuda_tests --test-threads 1 --skip a_device_says_how \
        torch:: order:: events:: modes:: cudarc::
}

for part in ${*:-machine conformance examples tests}; do
    echo "==== $part ===="
    "$part" > "out/$part.log" 2>&1
    code=$?
    cat "out/$part.log"
    [ $code -eq 0 ] || { echo "$part: FAILED ($code)"; failed=1; }
done
exit $failed
