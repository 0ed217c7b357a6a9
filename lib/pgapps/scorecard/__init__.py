"""The scorecard: every claim judged by its records, as a table, as text and as advice."""
