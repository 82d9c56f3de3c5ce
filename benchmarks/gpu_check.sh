#!/bin/sh
# Everything that needs a GPU, in under eight minutes on a machine with one: figures as JSON, a line each.
#
#     benchmarks/gpu_check.sh [--dry-run | FOLDER WITH WHEELS]
#
# The wheels are those of Ratchet's dependencies that the machine lacks; no network is needed. NEEDED
# names the modules; if one is missing, a line says so and nothing runs. Timings come first, each
# alone; the parts whose figures are no times come last, at the same time. Each part has its own
# limit, and the tests what the others left. Once a part ends, all its processes are killed, so that
# none holds the GPU's memory. A part that failed, was cut or was left out has a line that says so.
# The figures come last (benchmarks/gpu/gpu_figures.py); what a part printed besides is on stderr. Exit
# code 1 if anything failed. --dry-run prints each part's limit and command, and the figures, and
# runs nothing. PARTS names the parts to run, as in PARTS=optimize with OPTIMIZE_S=460 and
# BUDGET=440s. WORKLOAD, LEVERS_WORKLOAD, BUDGET and TESTS set smaller parts, and LIMIT_S the limit
# of each, to walk through it on a simulated GPU.
set -u
cd "$(dirname "$0")/.." || exit 2
began=$(date +%s)
dry=
if [ "${1:-}" = --dry-run ]; then
    dry=yes
elif [ $# -gt 0 ]; then
    PIP_BREAK_SYSTEM_PACKAGES=1 python3 -m pip install -q --no-index --no-deps "$1"/*.whl || exit 2
fi
out=$(mktemp -d)
# Ratchet is not installed here: its entry points are read from a folder that looks as if it were.
python3 - "$out/installed/torch_ratchet-0.dist-info" <<'END' || exit 2
import sys, tomllib
from pathlib import Path
folder, project = Path(sys.argv[1]), tomllib.loads(Path("pyproject.toml").read_text())["project"]
folder.mkdir(parents=True)
(folder / "METADATA").write_text(f"Name: {project['name']}\nVersion: {project['version']}\n")
groups = ((f"[{group}]", *(f"{name} = {value}" for name, value in entries.items()))
          for group, entries in project["entry-points"].items())
(folder / "entry_points.txt").write_text("\n".join(line for lines in groups for line in lines))
END
export PYTHONPATH="src:$out/installed${PYTHONPATH:+:$PYTHONPATH}"
NEEDED="torch triton numpy scipy msgspec sqlalchemy platformdirs psutil safetensors jinja2 pygments
    rich typer transformers tokenizers pytest pytest_timeout hypothesis"
if [ -z "$dry" ]; then
    missing=$(python3 -c 'import sys
from importlib.util import find_spec
print(*[one for one in sys.argv[1].split() if find_spec(one) is None])' "$NEEDED")
    [ -z "$missing" ] || { echo "{\"failed\": \"missing here: $missing\"}"; rm -r "$out"; exit 2; }
fi
beside=

# within SECONDS PART CMD...: run CMD for so long, and no longer than the whole may take.
within() {
    case " ${PARTS:-$2} " in *" $2 "*) ;; *) return 0 ;; esac
    limit=$1
    part=$2
    shift 2
    if [ -n "$dry" ]; then
        python3 -c 'import json, sys
part, limit, beside, *command = sys.argv[1:]
line = {"part": part, "limit_s": int(limit), "beside": beside, "command": command}
sys.stdout.write(json.dumps(line) + "\n")  # at once: parts beside each other print together' \
            "$part" "$limit" "$beside" "$@"
        return 0
    fi
    left=$((${LIMIT_S:+6 * }${LIMIT_S:-470} - $(date +%s) + began))
    [ "$part" = tests ] && limit=$left
    limit=${LIMIT_S:-$limit}
    [ "$left" -lt "$limit" ] && limit=$left
    if [ "$left" -lt 5 ]; then
        echo "{\"part\": \"$part\", \"failed\": \"left out: no time\"}"
        : > "$out/failed"
        return 1
    fi
    python3 benchmarks/gpu/gpu_part.py "$limit" "$out/$part" "$@"
    code=$?
    [ $code -eq 0 ] && return 0
    : > "$out/failed"
    why="exit code $code"
    [ $code -eq 124 ] && why="cut after $limit s"
    echo "{\"part\": \"$part\", \"failed\": \"$why\"}"
    return $code
}

within 75 clock python3 benchmarks/gpu/gpu_clock.py --verdicts 1
within 35 screening python3 benchmarks/gpu/gpu_screening.py
# The main job: its ratio over torch.compile's best, null where nothing was proven.
within "${OPTIMIZE_S:-235}" optimize python3 -m ratchet.cli optimize "${WORKLOAD:-llama-60m}" --budget "${BUDGET:-220s}" \
    --device cuda --json --ledger "$out/ledger.db" --out "$out/optimized"
beside=levers
within 120 levers python3 benchmarks/gpu/gpu_levers.py --workload "${LEVERS_WORKLOAD:-llama-8m}" &
within 120 scripts python3 benchmarks/gpu/gpu_scripts.py &
# Only files with such tests: the others import more packages, and collecting them takes 20 s.
# shellcheck disable=SC2046,SC2086
within 120 tests python3 -m pytest -m gpu -q --tb=short -p no:cacheprovider \
    ${TESTS:-$(grep -rl --include="test_*.py" "mark\.gpu" tests | sort)} &
wait
if [ -n "$dry" ]; then
    python3 benchmarks/gpu/gpu_figures.py --dry-run
else
    ran=$(for part in clock screening optimize levers scripts tests; do [ -e "$out/$part" ] && echo $part; done)
    # shellcheck disable=SC2086
    [ -z "$ran" ] || python3 benchmarks/gpu/gpu_figures.py "$out" $ran || : > "$out/failed"
fi
[ -e "$out/failed" ] && code=1 || code=0
rm -r "$out"
exit $code
