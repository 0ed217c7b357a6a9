"""The judgement of a comparison: effects from its records, guards, and the result."""
