"""The command ``run``: studies executed, their verdicts kept, the first page kept up to date."""
