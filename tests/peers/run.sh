#!/usr/bin/env bash
# Checks against the Python packages: run.sh [folder of the build, default build/release].
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
export HF_HUB_OFFLINE=1 OMP_NUM_THREADS=1 OMP_WAIT_POLICY=passive
exec build/peers/bin/python tests/peers/check.py "${1:-build/release}"
