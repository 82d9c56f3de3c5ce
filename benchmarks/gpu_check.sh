#!/bin/sh
# Everything that needs a GPU, in under eight minutes on a machine with one: figures as JSON, a line each.
#
#     benchmarks/gpu_check.sh [FOLDER WITH WHEELS]
#
# The wheels are those of Ratchet's dependencies that the machine lacks; no network is needed.
# Timings come first, alone. A part gets what is left of the time if that is less than its own limit,
# so the last parts are cut, not the whole. A part that failed, was cut or was left out has a line that
# says so; what it printed besides figures is on stderr. Exit code 1 if anything failed. PARTS names
# the parts to run, as in PARTS="optimize tests" with OPTIMIZE_S=320 and BUDGET=5m. WORKLOAD,
# LEVERS_WORKLOAD, BUDGET and TESTS set smaller parts, to walk through it on a simulated GPU.
set -u
cd "$(dirname "$0")/.." || exit 2
began=$(date +%s)
if [ $# -gt 0 ]; then
    python3 -m pip install -q --no-index --no-deps "$1"/*.whl || exit 2
fi
export PYTHONPATH="src${PYTHONPATH:+:$PYTHONPATH}"
failed=0
out=$(mktemp -d)

# within SECONDS PART CMD...: run CMD for so long, and no longer than the whole may take.
within() {
    case " ${PARTS:-$2} " in *" $2 "*) ;; *) return 0 ;; esac
    left=$((470 - $(date +%s) + began))
    limit=$1
    part=$2
    shift 2
    [ "$left" -lt "$limit" ] && limit=$left
    if [ "$limit" -lt 5 ]; then
        echo "{\"part\": \"$part\", \"failed\": \"left out: no time\"}"
        failed=1
        return 1
    fi
    timeout -s INT -k 10 "$limit" "$@"
    code=$?
    [ $code -eq 0 ] && return 0
    failed=1
    why="exit code $code"
    [ $code -eq 124 ] && why="cut after $limit s"
    echo "{\"part\": \"$part\", \"failed\": \"$why\"}"
    return $code
}

# told PART FILE PROGRAM: print a line of Python's from what a part left in a file, or that it left
# no figure.
told() {
    [ -e "$2" ] || return 0
    python3 -c "import json, sys; text = open(sys.argv[1]).read(); $3" "$2" 2>/dev/null && return 0
    failed=1
    echo "{\"part\": \"$1\", \"failed\": \"it left no figure\"}"
}

within 70 clock python3 benchmarks/gpu_clock.py --verdicts 1
within 50 screening python3 benchmarks/gpu_screening.py
within 95 levers python3 benchmarks/gpu_levers.py --workload "${LEVERS_WORKLOAD:-llama-8m}"
within 45 scripts python3 benchmarks/gpu_scripts.py
# The main job: its ratio over torch.compile's best, null where nothing was proven.
within "${OPTIMIZE_S:-135}" optimize sh -c 'exec python3 -m ratchet.cli optimize "$1" --budget "$2" --device cuda --json \
    --ledger "$0/ledger.db" --out "$0" >"$0/result.txt"' "$out" "${WORKLOAD:-llama-60m}" "${BUDGET:-2m}"
told optimize "$out/result.txt" 'one = json.loads(text); print(json.dumps({"optimize": one["workload"], "recipe_is": one["recipe_is"], "vs_compile": one["speedup"]["vs_compile"], "larger_batch": one["larger_batch"], "warnings": one["warnings"], "kernels": [[v["kernel"], v["status"]] for v in one["verdicts"]]}))'
within 160 tests sh -c 'python3 -m pytest -m gpu -n 0 -q --tb=short -p no:cacheprovider "$1" >"$0/tests.txt"; \
    code=$?; cat "$0/tests.txt" >&2; exit $code' "$out" "${TESTS:-tests}"
told tests "$out/tests.txt" 'print(json.dumps({"pytest -m gpu": text.strip().splitlines()[-1]}))'
rm -r "$out"
exit $failed
