#!/usr/bin/env bash
# Installs what builds PostgreSQL and counts its instructions, and pgstudies.
set -euo pipefail
sudo apt-get update -qq
sudo apt-get install -qq -y --no-install-recommends \
    bison build-essential ccache flex git perl valgrind > /dev/null
make -C "$GITHUB_ACTION_PATH/../../.." install
echo "$(cd "$GITHUB_ACTION_PATH/../../.." && pwd)/.venv/bin" >> "$GITHUB_PATH"
