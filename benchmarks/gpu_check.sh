#!/bin/sh
# Everything that needs a GPU, in under eight minutes on a machine with one: figures as JSON, a line each.
#
#     benchmarks/gpu_check.sh [FOLDER WITH WHEELS]
#
# The wheels are those of Ratchet's dependencies that the machine lacks; no network is needed.
# Timings come first, alone. A part gets what is left of the time if that is less than its own limit,
# so the last parts are cut, not the whole. Exit code 1 if anything failed.
set -u
cd "$(dirname "$0")/.." || exit 2
began=$(date +%s)
if [ $# -gt 0 ]; then
    python3 -m pip install -q --no-index --no-deps "$1"/*.whl || exit 2
fi
export PYTHONPATH="src${PYTHONPATH:+:$PYTHONPATH}"
failed=0
out=$(mktemp -d)

# within SECONDS CMD...: run CMD for so long, and no longer than the whole may take.
within() {
    left=$((470 - $(date +%s) + began))
    limit=$1
    shift
    [ "$left" -lt "$limit" ] && limit=$left
    if [ "$limit" -lt 5 ]; then
        echo "{\"left_out\": \"$*\"}"
        return 1
    fi
    timeout "$limit" "$@"
}

within 90 python3 benchmarks/gpu_clock.py --verdicts 1 || failed=1
within 30 python3 benchmarks/gpu_screening.py --kernels 4 --time-limit 25 || failed=1
within 75 python3 benchmarks/gpu_levers.py || failed=1
within 45 python3 benchmarks/gpu_scripts.py || failed=1
# The main job: its ratio over torch.compile's best, null where nothing was proven.
within 135 python3 -m ratchet.cli optimize llama-60m --budget 2m --device cuda --json \
    --ledger "$out/ledger.db" --out "$out" >"$out/result.txt" || failed=1
python3 -c 'import json, sys; one = json.load(open(sys.argv[1])); print(json.dumps({"optimize": one["workload"], "recipe_is": one["recipe_is"], "vs_compile": one["speedup"]["vs_compile"], "larger_batch": one["larger_batch"], "warnings": one["warnings"], "kernels": [[v["kernel"], v["status"]] for v in one["verdicts"]]}))' "$out/result.txt" || failed=1
within 160 python3 -m pytest -m gpu -n 5 -q -p no:cacheprovider tests || failed=1
exit $failed
