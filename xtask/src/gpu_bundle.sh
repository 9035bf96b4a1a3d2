#!/bin/sh
# sh run.sh [machine|conformance|examples|tests|events|hosts|bench]...: without words, all of it. What is printed lies in out/, too.
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
    timeout 30 nvidia-smi --query-gpu=name,driver_version,memory.total --format=csv 2>&1 || echo "no nvidia-smi"
}

# What the driver answers where the manual leaves it open, beside the simulator.
conformance() {
    # The log says how far it came. One of its calls is a fault on purpose, for which the simulator ends with 1.
    limited 60 bin/conformance > out/conformance.txt
    diff conformance.txt out/conformance.txt && echo "as the simulator"
}

# Ours, and torch's beside it if this machine has it.
bench() {
    if [ -n "$MP_RUNNER" ]; then
        set -- --quick --only cpu_round_trip,warm_4k,cold,relay
    elif python3 -c "import torch" 2>/dev/null; then
        set -- --torch python3 torch_cuda.py
    else
        echo "SKIPPED: torch's side, which is not installed"
    fi
    limited 110 bin/cuda_bench --json out/bench.json "$@"
}

# One that finds no GPU says so, and succeeds: not here.
examples() {
    bad=0
    for name in cuda_pipeline cuda_event cuda_broadcast; do
        said=$(limited 60 "bin/$name" 2>&1)
        code=$?
        echo "$said"
        case $said in *SKIPPED*) code=skipped ;; esac
        [ "$code" = 0 ] || { echo "$name: $code"; bad=1; }
    done
    return $bad
}

# Not those of the simulator's own doings: injected failures, counted calls, devices that fall off the bus or don't reach each other.
scenarios() {
    set -- "$@" --skip unorderable_copy_is_refused --skip memory_of_an_unreachable_peer_is_an_error \
        --skip read_of_killed_producer_returns_no_values --skip opened_events::
    if [ -n "$MP_RUNNER" ]; then
        # What they leave behind on purpose, the simulator would report.
        set -- "$@" --skip foreign::killed_exporter_keeps_only_shareable_memory --skip foreign::memory_written_by_killed_receiver_is_retained \
            --skip copy_of_lost_tensor_is_lost --skip work_after_a_lost_tensor_is_lost --skip event_of_killed_process_releases_its_waiters
    elif [ "$(timeout 30 nvidia-smi -L 2>&1 | grep -c '^GPU ')" -lt 2 ]; then
        echo "SKIPPED: what needs two GPUs"
        set -- "$@" --skip small_tensors_of_one_slab_keep_their_values --skip event_orders_streams_of_two_devices --skip by_another_device \
            --skip reachable_peer_devices_read_foreign_memory
    fi
    # The variable is the tests' own: the simulator would start no session with it.
    limited "${LIMIT:-240}" env MP_CUDA_AS_IT_IS=1 bin/cuda_tests --test-threads 1 "$@"
}

# Of those that run for each order of streams, the one for the order that the device has.
tests() {
    scenarios --skip ::ipc_events --skip ::hosts capture:: torch:: order:: events:: ends:: modes:: cudarc:: foreign:: closing:: dlpack::
}

# The others are asked for by a variable that takes something from the device.
events() {
    scenarios ::ipc_events --skip late:: --skip kills:: --skip failures::
}

hosts() {
    scenarios ::hosts --skip kills:: --skip failures::
}

for part in ${*:-machine conformance examples tests events hosts bench}; do
    echo "==== $part ===="
    "$part" > "out/$part.log" 2>&1
    code=$?
    [ -n "$MP_RUNNER" ] || {
        echo "$part: $code; memory in use afterwards:" $(timeout 30 nvidia-smi --query-gpu=memory.used --format=csv,noheader)
    } >> "out/$part.log"
    cat "out/$part.log"
    [ $code -eq 0 ] || { echo "$part: FAILED ($code)"; failed=1; }
done
exit $failed
