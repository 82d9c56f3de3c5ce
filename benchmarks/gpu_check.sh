#!/bin/sh
# Everything that needs a GPU, in under eight minutes on a machine with one: figures as JSON, a line each.
#
#     benchmarks/gpu_check.sh [FOLDER WITH WHEELS]
#
# The wheels are those of Ratchet's dependencies that the machine lacks; no network is needed.
# Timings come first, alone. Exit code 1 if anything failed.
set -u
cd "$(dirname "$0")/.." || exit 2
if [ $# -gt 0 ]; then
    python3 -m pip install -q --no-index --no-deps "$1"/*.whl || exit 2
fi
export PYTHONPATH="src${PYTHONPATH:+:$PYTHONPATH}"
failed=0
timeout 150 python3 benchmarks/gpu_clock.py --verdicts 1 || failed=1
timeout 100 python3 benchmarks/gpu_scripts.py || failed=1
timeout 220 python3 -m pytest -m gpu -n 5 -q -p no:cacheprovider tests || failed=1
exit $failed
