"""PostgreSQL performance studies, reproduced: the helper library of the notebooks."""
