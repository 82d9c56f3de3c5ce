#!/bin/sh
# Everything that needs a GPU, in under eight minutes on a machine with one: figures as JSON, a line each.
#
#     benchmarks/gpu_check.sh [--dry-run | FOLDER WITH WHEELS]
#
# The wheels are those of Ratchet's dependencies that the machine lacks; no network is needed. NEEDED
# names the modules; if one is missing, a line says so and nothing runs. Timings come first, alone. Each part has its own limit, and the last also what the others left. Once
# a part ends, all its processes are killed, so that none holds the GPU's memory. A part that failed, was
# cut or was left out has a line that says so. The figures come last (benchmarks/gpu_figures.py);
# what a part printed besides is on stderr. Exit code 1 if anything failed. --dry-run prints each
# part's limit and command, and the figures, and runs nothing. PARTS names the parts to run, as in
# PARTS="optimize tests" with OPTIMIZE_S=320 and BUDGET=5m. WORKLOAD, LEVERS_WORKLOAD, BUDGET and
# TESTS set smaller parts, and LIMIT_S the limit of each, to walk through it on a simulated GPU.
set -u
cd "$(dirname "$0")/.." || exit 2
began=$(date +%s)
dry=
if [ "${1:-}" = --dry-run ]; then
    dry=yes
elif [ $# -gt 0 ]; then
    PIP_BREAK_SYSTEM_PACKAGES=1 python3 -m pip install -q --no-index --no-deps "$1"/*.whl || exit 2
fi
export PYTHONPATH="src${PYTHONPATH:+:$PYTHONPATH}"
NEEDED="torch triton numpy scipy msgspec sqlalchemy platformdirs psutil safetensors jinja2 pygments
    rich typer transformers tokenizers pytest pytest_timeout xdist hypothesis"
if [ -z "$dry" ]; then
    missing=$(python3 -c 'import sys
from importlib.util import find_spec
print(*[one for one in sys.argv[1].split() if find_spec(one) is None])' "$NEEDED")
    [ -z "$missing" ] || { echo "{\"failed\": \"missing here: $missing\"}"; exit 2; }
fi
failed=0
ran=
out=$(mktemp -d)

# within SECONDS PART CMD...: run CMD for so long, and no longer than the whole may take.
within() {
    case " ${PARTS:-$2} " in *" $2 "*) ;; *) return 0 ;; esac
    limit=$1
    part=$2
    shift 2
    if [ -n "$dry" ]; then
        python3 -c 'import json, sys; print(json.dumps({"part": sys.argv[1], "limit_s": int(sys.argv[2]), "command": sys.argv[3:]}))' "$part" "$limit" "$@"
        return 0
    fi
    left=$((${LIMIT_S:+6 * }${LIMIT_S:-470} - $(date +%s) + began))
    [ "$part" = tests ] && limit=$left
    limit=${LIMIT_S:-$limit}
    [ "$left" -lt "$limit" ] && limit=$left
    if [ "$left" -lt 5 ]; then
        echo "{\"part\": \"$part\", \"failed\": \"left out: no time\"}"
        failed=1
        return 1
    fi
    ran="$ran $part"
    python3 benchmarks/gpu_part.py "$limit" "$out/$part" "$@"
    code=$?
    [ $code -eq 0 ] && return 0
    failed=1
    why="exit code $code"
    [ $code -eq 124 ] && why="cut after $limit s"
    echo "{\"part\": \"$part\", \"failed\": \"$why\"}"
    return $code
}

within 75 clock python3 benchmarks/gpu_clock.py --verdicts 1
within 40 screening python3 benchmarks/gpu_screening.py
within 80 levers python3 benchmarks/gpu_levers.py --workload "${LEVERS_WORKLOAD:-llama-8m}"
within 35 scripts python3 benchmarks/gpu_scripts.py
# The main job: its ratio over torch.compile's best, null where nothing was proven.
within "${OPTIMIZE_S:-125}" optimize python3 -m ratchet.cli optimize "${WORKLOAD:-llama-60m}" --budget "${BUDGET:-110s}" \
    --device cuda --json --ledger "$out/ledger.db" --out "$out/optimized"
# Only files with such tests: the others import more packages, and collecting them takes 20 s.
# shellcheck disable=SC2046,SC2086
within 100 tests python3 -m pytest -m gpu -n 0 -q --tb=short -p no:cacheprovider \
    ${TESTS:-$(grep -rl --include="test_*.py" "mark\.gpu" tests | sort)}
if [ -n "$dry" ]; then
    python3 benchmarks/gpu_figures.py --dry-run
elif [ -n "$ran" ]; then
    # shellcheck disable=SC2086
    python3 benchmarks/gpu_figures.py "$out" $ran || failed=1
fi
rm -r "$out"
exit $failed
