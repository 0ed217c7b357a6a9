#!/usr/bin/env bash
# Runs the gate, puts its table into the job's summary, and ends with its exit code.
set -euo pipefail
report=$RUNNER_TEMP/gate.md
code=0
pgstudies gate --repo "$REPOSITORY" --base "$BASE" --head "$HEAD" --limit "$LIMIT" --most "$MOST" \
    > "$report" || code=$?
cat "$report"
if [ -s "$report" ]; then
    cat "$report" >> "$GITHUB_STEP_SUMMARY"
else
    echo "The gate could not judge this change (exit code $code): see the log." >> "$GITHUB_STEP_SUMMARY"
fi
echo "report=$report" >> "$GITHUB_OUTPUT"
exit "$code"
